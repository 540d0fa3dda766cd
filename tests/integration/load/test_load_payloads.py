"""Load generators in the packed worker."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from load_generator import read_metrics

from treehammer.collectors.job_spec import InputFile, LoadSpec

#: Ends its load of a minute like a job that is evicted.
LOAD_PAYLOAD = """
import os, signal, threading, treehammer_load
threading.Timer(3, os.kill, (os.getpid(), signal.SIGTERM)).start()
treehammer_load.run(treehammer_load.{kind}_files)
"""


@pytest.mark.parametrize("kind", ["open", "read"])
def test_operations_enter_the_record(
    bench: Any, make_spec: Callable[..., Any], input_file: InputFile, kind: str
) -> None:
    axes = {"clients": 5, "rate_hz": 10, "period_s": 0.1, "block_kb": 100}
    ran = bench.run(
        LOAD_PAYLOAD.format(kind=kind),
        make_spec(files=(input_file,), variant=axes),
        metrics=read_metrics("open-rate"),
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
    # Operations under way at the signal may not end.
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
