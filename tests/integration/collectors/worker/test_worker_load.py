"""A load generator in a job: it travels in the packed worker and its operations enter the record."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from treehammer import config, hctests
from treehammer.collectors.job_spec import InputFile, LoadSpec
from treehammer.collectors.software import providers

#: Ends its load of a minute like a job that is evicted.
PAYLOAD = """
import os, signal, threading, treehammer_load
threading.Timer(3, os.kill, (os.getpid(), signal.SIGTERM)).start()
treehammer_load.run(treehammer_load.{kind}_files)
"""


def read_metrics(test: str) -> dict[str, Any]:
    """Read the metrics that a shipped test declares."""
    path = Path(next(iter(hctests.__path__))) / test / "test.toml"
    found: dict[str, Any] = tomllib.loads(path.read_text())["metrics"]
    return found


METRICS = read_metrics("open-rate")


@pytest.mark.parametrize("kind", ["open", "read"])
def test_operations_enter_the_record(
    bench: Any, make_spec: Callable[..., Any], input_file: InputFile, kind: str
) -> None:
    axes = {"clients": 5, "rate_hz": 10, "period_s": 0.1, "block_kb": 100}
    ran = bench.run(
        PAYLOAD.format(kind=kind), make_spec(files=(input_file,), variant=axes), metrics=METRICS
    )
    assert ran.exit_code == 0, ran.errors
    (record,) = ran.records
    assert "failure_class" not in record.values
    assert record.values["plausible"], record.values["implausible_reasons"]
    assert "events_read" not in record.values
    rows = [row for row in record.operations if row["operation"] == kind]
    done, failed, scheduled = (
        sum(row[name] for row in rows) for name in ("done", "failed", "scheduled")
    )
    assert done > 50
    assert done + failed == scheduled
    # What is on its way at the signal may not end any more.
    assert {name for row in rows for name in json.loads(row["failures"])} <= {"unfinished"}
    assert record.values["load_started_us"] > record.values["started_us"]
    assert sum(row["bytes"] for row in rows) % 100_000 == 0
    assert record.extras["failed_share" if not rows[0]["generator_limited"] else "late_share"] >= 0


@pytest.mark.parametrize(
    "test, run, axes",
    [
        ("stream", "t.stream_files", {"files": 3, "size_mb": 1, "direction": "write"}),
        ("delete", "t.delete_files, prepare=t.create_files", {"files": 3}),
    ],
)
def test_job_writes_in_its_own_folder_and_removes_it(
    bench: Any,
    make_spec: Callable[..., Any],
    tmp_path: Path,
    test: str,
    run: str,
    axes: dict[str, Any],
) -> None:
    area = tmp_path / "area"
    payload = f"""
    import json, os, treehammer_load as t
    with open(os.environ["TREEHAMMER_JOB"]) as stream:
        print(json.load(stream)["load"]["folder"])
    t.run({run})
    """
    load = LoadSpec(0, 1, "", "", 1.0, 0.0, 0.0, 10.0, 60.0, writable=str(area))
    spec = make_spec(variant={"clients": 2, **axes})
    ran = bench.run(payload, spec, load=load, metrics=read_metrics(test))
    (record,) = ran.records
    assert "failure_class" not in record.values, ran.errors
    assert record.values["plausible"], record.values["implausible_reasons"]
    assert ran.read_log("1-1.out").strip() == "treehammer-job-1-1-1"
    assert sum(row["done"] for row in record.operations) == 6
    assert record.extras["total_s"] > 0
    assert record.extras["files_removed"] == (6 if test == "stream" else 0)
    assert record.extras["files_left"] == 0
    assert list(area.iterdir()) == []


def test_remote_storage_without_client_fails_in_setup(
    bench: Any, make_spec: Callable[..., Any], input_file: InputFile
) -> None:
    file = replace(input_file, url="gsiftp://127.0.0.1:9//data")
    values = bench.run(PAYLOAD.format(kind="open"), make_spec(files=(file,))).record_values
    assert values["failure_class"] == "open"
    assert values["failure_kind"] == "not-supported"


def test_folder_without_the_client_is_refused(
    bench: Any, make_spec: Callable[..., Any], tmp_path: Path
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to("/usr/bin/python3")
    request = providers.parse_software_request(f"xrootd:{tmp_path}")
    values = bench.run(PAYLOAD.format(kind="open"), make_spec(software=request)).record_values
    assert values["failure_class"] == "software-setup"
    assert "finds no module XRootD" in values["failure_message"]


def test_prepared_client_runs_payload_from_its_folder(
    bench: Any, make_spec: Callable[..., Any]
) -> None:
    prepared = providers.prepare_software(
        providers.parse_software_request("xrootd:6.2.1"), config.load_settings().software_dir
    )
    payload = """
    import json, os, aiohttp
    from XRootD import client
    with open(os.environ["TREEHAMMER_RESULT"], "w") as stream:
        json.dump({"format": 1, "values": {}}, stream)
    """
    for request in (prepared, providers.parse_software_request(f"xrootd:{prepared.location}")):
        values = bench.run(payload, make_spec(software=request)).record_values
        assert "failure_class" not in values, values
        assert values["root_provider"] == "xrootd"
