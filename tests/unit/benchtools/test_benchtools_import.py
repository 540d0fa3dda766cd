"""Results of hyperfine, pytest-benchmark, asv and Google Benchmark: import, verdicts, pages, changes."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from repository_code import call_command, invoke_command
from service_thread import ServiceThread, pages

from treehammer.benchtools.imports import make_reader
from treehammer.benchtools.tool_formats import LOGS, read_tool_results
from treehammer.errors import ExitCode, MeasurementFileError, TreehammerError
from treehammer.sql.read.query_model import Selection
from treehammer.sql.transfer.importer import import_files, list_files
from treehammer.sql.write.store import Store
from treehammer.text_formatting import no_progress

__all__ = ["pages"]

# Samples of hyperfine 1.15, pytest-benchmark 5.3, Google Benchmark 1.9 and asv 0.6, shortened.
HYPERFINE = {
    "results": [
        {
            "command": "python3 work.py 100000",
            "mean": 0.77,
            "median": 0.77,
            "times": [0.84, 0.76, 0.79, 0.81],
            "exit_codes": [0, 0, 0, 0],
            "parameters": {"release": "1"},
        },
        {
            "command": "python3 work.py 200000",
            "mean": 1.54,
            "median": 1.54,
            "times": [1.68, 1.52, 1.58, 1.62],
            "exit_codes": [0, 0, 0, 3],
            "parameters": {"release": "2"},
        },
    ]
}
PYTEST = {
    "machine_info": {"node": "vm", "cpu": {"brand_raw": "Xeon"}},
    "commit_info": {"id": "a073c1478f5c60a02da5d199750d6cac3da58cb0", "dirty": False},
    "benchmarks": [
        {
            "group": None,
            "name": "test_sum[1000]",
            "fullname": "test_sum.py::test_sum[1000]",
            "params": {"n": 1000},
            "param": "1000",
            "stats": {"min": 4.9e-05, "mean": 4.4e-04, "median": 7.2e-05, "rounds": 1824},
        },
        {
            "name": "test_all",
            "fullname": "test_sum.py::test_all",
            "params": None,
            "stats": {"median": 1.0},
        },
    ],
    "datetime": "2026-11-20T14:01:13.191639+00:00",
    "version": "5.3.1",
}
GOOGLE: dict[str, Any] = {
    "context": {"date": "2026-11-20T14:01:26+00:00", "host_name": "vm", "num_cpus": 2},
    "benchmarks": [
        *(
            {
                "name": "sum/1000",
                "run_name": "sum/1000",
                "run_type": "iteration",
                "repetition_index": index,
                "real_time": time,
                "cpu_time": time / 2,
                "time_unit": "us",
            }
            for index, time in enumerate((200.0, 220.0, 900.0))
        ),
        {
            "name": "sum/1000_mean",
            "run_name": "sum/1000",
            "run_type": "aggregate",
            "aggregate_name": "mean",
            "real_time": 440.0,
            "cpu_time": 220.0,
            "time_unit": "us",
        },
        {"name": "sum/1000_BigO", "run_name": "sum/1000", "run_type": "aggregate"},
        {"name": "bad", "error_occurred": True, "error_message": "no file", "real_time": 0.0},
        {"name": "left out", "skipped": True, "skip_message": "no GPU", "real_time": 0.0},
    ],
}
ASV: dict[str, Any] = {
    "version": 2,
    "commit_hash": "c614aeadf3c181df29504c15c09d9b7557c5ec78",
    "env_name": "py3.11",
    "date": 1763640000000,
    "params": {"machine": "vm", "cpu": "Xeon", "ram": "25"},
    "result_columns": ["result", "params", "version", "started_at", "duration", "stats_ci_99_a"],
    "results": {
        "b.S.time_sum": [
            [1.0, float("nan"), None, 4.0],
            [["10", "20"], ["'a'", "'b'"]],
            "3c14",
            1763640001000,
            2.0,
            [float("-inf")] * 4,
        ],
        "b.peakmem_list": [[31174656], [], "fd93"],
        "b.S.track_len": [[7], [], "75"],
    },
}


def write(folder: Path, document: Any, name: str = "numbers.json") -> Path:
    path = folder / name
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


def import_documents(
    store: Store, folder: Path, *documents: Any, axes: tuple[str, ...] = (), suffix: str = ".json"
) -> None:
    paths = [write(folder, each, f"{number}{suffix}") for number, each in enumerate(documents)]
    results = import_files(
        store,
        list_files(paths),
        ignore_unknown=False,
        dry_run=False,
        bars=no_progress,
        readers=[make_reader(None, axes, "vm")],
    )
    assert not any(result.problems for result in results)


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        (
            HYPERFINE,
            [
                ("hyperfine", {"command": "python3 work.py {release}00000", "release": name}, time)
                for name, times in (
                    ("1", (0.84, 0.76, 0.79, 0.81)),
                    ("2", (1.68, 1.52, 1.58, 1.62)),
                )
                for time in times
            ],
        ),
        (
            PYTEST,
            [("test_sum.py::test_sum", {"n": 1000}, 7.2e-05), ("test_sum.py::test_all", {}, 1.0)],
        ),
        (GOOGLE, [("sum", {"arguments": "1000"}, 220e-6), ("bad", {}, None)]),
        (
            ASV,
            [
                ("b.S.time_sum", {"environment": "py3.11", "param1": "10", "param2": "'a'"}, 1.0),
                ("b.S.time_sum", {"environment": "py3.11", "param1": "20", "param2": "'a'"}, None),
                ("b.S.time_sum", {"environment": "py3.11", "param1": "20", "param2": "'b'"}, 4.0),
                ("b.peakmem_list", {"environment": "py3.11"}, 31174656),
                ("b.S.track_len", {"environment": "py3.11"}, 7),
            ],
        ),
    ],
)
def test_each_process_is_a_result(
    document: Any, expected: list[tuple[str, Any, float | None]], tmp_path: Path
) -> None:
    results = read_tool_results(write(tmp_path, document))
    processes: list[Any] = [
        (each.test, each.axes, pytest.approx(next(iter(each.metrics.values()), None)))
        for each in results.processes
    ]
    assert processes == expected


@pytest.mark.usefixtures("zurich")
@pytest.mark.parametrize("text", ["2026-11-20T14:01:13.5", "2026-11-20T09:31:13.5-04:30"])
def test_pytest_benchmark_before_version_5_states_utc(text: str, tmp_path: Path) -> None:
    results = read_tool_results(write(tmp_path, _replace(PYTEST, "datetime", value=text)))
    assert results.started_us == 1795183273_500_000  # 14:01:13.5 UTC


def test_lone_medians_stand_for_repetitions(tmp_path: Path) -> None:
    """``--benchmark_report_aggregates_only`` leaves no repetition."""
    median = GOOGLE["benchmarks"][3] | {"name": "sum/1000_median", "aggregate_name": "median"}
    document = GOOGLE | {"benchmarks": [GOOGLE["benchmarks"][3], median]}
    (process,) = read_tool_results(write(tmp_path, document)).processes
    assert process.metrics == pytest.approx({"time_s": 440e-6, "cpu_s": 220e-6})


def _replace(document: Any, *keys: Any, value: Any) -> Any:
    copied = json.loads(json.dumps(document))
    *path, last = keys
    item = copied
    for key in path:
        item = item[key]
    item[last] = value
    return copied


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ([], "not a result of hyperfine, pytest-benchmark, google-benchmark, asv"),
        ({"a": 1}, "not a result of"),
        (_replace(HYPERFINE, "results", 1, "times", value=[]), "results.1.times: list should have"),
        (_replace(HYPERFINE, "results", 0, "times", 2, value="x"), "results.0.times.2: input"),
        (_replace(PYTEST, "datetime", value="today"), "datetime: 'today' is not a time"),
        (_replace(GOOGLE, "benchmarks", 0, "time_unit", value="h"), "benchmarks.0.time_unit: "),
        (_replace(ASV, "version", value=1), "version: input should be 2"),
        (_replace(ASV, "results", "b.S.track_len", 0, value=["x"]), "results.b.S.track_len: exp"),
        (ASV | {"results": {}}, "holds no result"),
    ],
)
def test_bad_file_is_named_with_its_key(document: Any, message: str, tmp_path: Path) -> None:
    path = write(tmp_path, document)
    with pytest.raises(MeasurementFileError) as caught:
        read_tool_results(path)
    assert str(caught.value).startswith(f"{path}: {message}")


def test_repeated_import_adds_nothing_and_compares_unpaired(tmp_path: Path) -> None:
    file = write(tmp_path, HYPERFINE)
    first = call_command("import", tmp_path, str(file))
    assert "measures without pairs and controls" in first.output
    assert "a job of a benchmark is a run" in first.output
    again = invoke_command("import", tmp_path, str(file), "--csv")
    assert again.stdout.splitlines()[-1].endswith(",0,8,0,0,0")
    done = call_command("compare", tmp_path, "1", "2", "--axis", "release", "-v")
    assert done.return_value == ExitCode.REGRESSION
    output = " ".join(done.output.split())
    assert "time_s is 99.1 % (80.1 to 120.2 %) higher (worse) with release=2" in output
    assert "Unpaired: no job holds both sides" in output
    assert "command=python3 local time_s" in output  # the column is narrow


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("commit=main", "'main' is not the hash of a commit"),
        ("release", "'release' is not NAME=VALUE"),
        ("release=3", "has the axis release itself"),
    ],
)
def test_bad_axis_is_refused(option: str, message: str, tmp_path: Path) -> None:
    file = write(tmp_path, HYPERFINE)
    with pytest.raises(TreehammerError, match=message):
        call_command("import", tmp_path, str(file), "--axis", option)


def test_pages_show_results(pages: ServiceThread, tmp_path: Path) -> None:
    """Also a failed benchmark, on the pages of its campaign, job and measurement."""
    import_documents(pages.store, tmp_path, GOOGLE, PYTEST, ASV, axes=("release=7",))
    for campaign in pages.store.campaigns():
        page = pages.load_page(f"/campaigns/{campaign.id}")
        assert campaign.test_name in page
        for job in pages.store.jobs(campaign.id):
            assert "release=7" in pages.load_page(f"/jobs/{job.id}")


def test_change_is_found_in_a_history(store: Store, tmp_path: Path) -> None:
    """A step of 20 % between the commits of two days."""
    today = datetime.now(UTC).replace(hour=1, minute=0)
    documents = []
    for day in range(40):
        document = _replace(ASV, "commit_hash", value=f"{day:040x}")
        document["date"] = round((today - timedelta(days=40 - day)).timestamp() * 1000)
        time = (1.2 if day >= 20 else 1.0) * (1 + 0.01 * (day * 7 % 5))
        document["results"] = {"b.time_sum": [[time], []]}
        documents.append(document)
    import_documents(store, tmp_path, *documents)
    done = call_command("changes", tmp_path, "--update", "--json")
    (change,) = json.loads(done.stdout)
    assert change["since"] == f"{today - timedelta(days=20):%Y-%m-%d}"
    assert "b.time_sum" in change["quantity"]


def test_log_of_a_vertical_is_a_run_with_its_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = {
        "axes": {"command": "./reader a.root"},
        "host": "node1",
        "started_us": 1763640000000000,
        "wall_s": 2.5,
        "values": {"files_read": 1, "bytes_read": 92920},
    }
    monkeypatch.setitem(LOGS, ".log", lambda path: log)
    with Store.open(f"sqlite:///{tmp_path}/results.db") as store:
        import_documents(store, tmp_path, {}, suffix=".log")
        (row,) = store.measurements(
            Selection(), ("test_name", "host", "wall_per_event_s", "bytes_read", "cpu_per_event_s")
        )
    assert [*row.values()] == ["log", "node1", 2.5, 92920, None]
