"""Engines of load tests: their command lines, and reports that they really printed."""

from __future__ import annotations

import json
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest

from treehammer.collectors.kit.treehammer_kit.payload_task import PayloadError
from treehammer.collectors.record.latency_histograms import LatencyHistogram
from treehammer.collectors.record.operation_steps import LoadProgress, find_operation_problems
from treehammer.collectors.record.xrootd_recording import parse_recording
from treehammer.load.kit.treehammer_load import workloads
from treehammer.load.kit.treehammer_load.engines import (
    engine_run,
    fio_engine,
    oha_engine,
    xrdreplay_engine,
)
from treehammer.load.kit.treehammer_load.engines.engine import EngineLoad
from treehammer.load.kit.treehammer_load.load_driver import LoadTimer
from treehammer.load.kit.treehammer_load.load_task import LoadTask
from treehammer.load.kit.treehammer_load.operation import CeilingShare, LoadFile
from treehammer.load.kit.treehammer_load.recorder import StepClock

#: Reports of fio 3.33 (two clients, 6 reads/s each, for 2 s), of which only keys that are read are kept.
FIO = """\
{"fio version": "fio-3.33", "jobs": [{"jobname": "c0", "error": 0, "total_err": 0, "first_error": 0, "read": {"io_bytes": 45056, "runtime": 844, "total_ios": 14, "clat_ns": {"N": 14, "bins": {"3120": 1, "4016": 1, "4832": 1, "5024": 1, "6688": 1, "6880": 1, "7200": 1, "9920": 1, "11328": 1, "11456": 1, "11584": 1, "189440": 1, "518144": 1, "3981312": 1}}}}]}
fio: a warning between two reports
{"fio version": "fio-3.33", "jobs": [{"jobname": "c0", "error": 0, "total_err": 0, "first_error": 0, "read": {"io_bytes": 90112, "runtime": 1849, "total_ios": 24, "clat_ns": {"N": 24, "bins": {"3120": 1, "4016": 1, "4832": 1, "5024": 1, "6688": 1, "6880": 1, "7200": 1, "9024": 1, "9280": 1, "9920": 2, "11200": 2, "11328": 1, "11456": 1, "11584": 1, "12352": 1, "12480": 2, "13888": 1, "36608": 1, "189440": 1, "518144": 1, "3981312": 1}}}}]}
{"fio version": "fio-3.33", "jobs": [{"jobname": "c0", "error": 0, "total_err": 0, "first_error": 0, "read": {"io_bytes": 98304, "runtime": 2001, "total_ios": 24, "clat_ns": {"N": 24, "bins": {"3120": 1, "4016": 1, "4832": 1, "5024": 1, "6688": 1, "6880": 1, "7200": 1, "9024": 1, "9280": 1, "9920": 2, "11200": 2, "11328": 1, "11456": 1, "11584": 1, "12352": 1, "12480": 2, "13888": 1, "36608": 1, "189440": 1, "518144": 1, "3981312": 1}}}}]}
"""

#: Summary of xrdreplay 5.8.1.
XRDREPLAY = """\
#          read::b :          8192000
#          read::n :             2000
#          read::o :            96256
# =============================================
# IO Summary
# =============================================
# Total   Runtime  : 0.281129 s
# Sampled Runtime  : 2.210000 s
# Playback Speed   : 1.00
# IO Volume (R)    : 8.19 MB [ std:8.19 MB vec:0 B page:0 B ]
# IOPS      (R)    : 2000 [ std:2000 vec:0 page:0 ]
# Response Errors  : 0
# =============================================
"""


SPAN = workloads.LoadSpan(0.0, 0.0, 10.0)


def make_task(
    url: str, size: int = 100_000, ceiling: CeilingShare | None = None, **axes: Any
) -> LoadTask:
    files = [LoadFile(url, size)]
    return LoadTask(files, axes, {}, 1, 0, 1, None, 0, 1.0, 10.0, ceiling=ceiling or CeilingShare())


def test_fio_reports_differ_by_the_steps() -> None:
    steps = fio_engine.parse_fio(FIO)
    assert [(step.start_s, step.done, step.bytes) for step in steps] == [
        (0.0, 14, 45056),
        (0.844, 10, 45056),
        (1.849, 0, 8192),
    ]
    assert sum(step.seconds for step in steps) == pytest.approx(2.001)
    assert steps[0].latency.maximum == pytest.approx(0.00398, rel=0.01)
    assert steps[1].latency.maximum == pytest.approx(0.0000366, rel=0.05)


def test_fio_failures_are_classed_by_their_error() -> None:
    failing = FIO.splitlines()[0].replace('"total_err": 0', '"total_err": 3')
    (step,) = fio_engine.parse_fio(failing.replace('"first_error": 0', '"first_error": 5'))
    assert step.failures == {"server-error": 3}
    with pytest.raises(PayloadError, match="no report"):
        fio_engine.parse_fio("fio: nothing")


def test_report_of_fio_that_was_cut_off_counts_as_far_as_it_goes() -> None:
    assert len(fio_engine.parse_fio(FIO[:-100])) == 2


def test_reports_of_fio_are_stated_while_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, rest = FIO.split("\n", 1)
    make_program(tmp_path, monkeypatch, "fio", first[:-50])
    progress = tmp_path / "progress.json"
    program = tmp_path / "bin" / "fio"
    program.write_text(
        program.read_text()
        + f"sleep 0.2; test -e {progress} && exit 1\ncat {tmp_path}/rest\n"
        + f"for i in $(seq 100); do test -e {progress} && break; sleep 0.1; done\n"
        + f"cp {progress} {tmp_path}/seen; cat {tmp_path}/last\n"
    )
    (tmp_path / "rest").write_text(first[-50:])
    (tmp_path / "last").write_text(rest)
    axes: dict[str, Any] = {"clients": 2, "period_s": 0.1, "block_kb": 4, "engine": "fio"}
    load = workloads.read_files(make_task("/data/a", **axes), SPAN)
    assert isinstance(load, EngineLoad)
    result = engine_run.run_engine(
        load, StepClock(1.0, 1_000_000), LoadTimer(time.monotonic()), str(progress)
    )
    assert LoadProgress.read(str(tmp_path / "seen")) == (0, 0.844, 14, 0, 45056)
    assert [row["done"] for row in result.rows] == [14, 10, 0]


def test_summary_of_xrdreplay_has_counts_and_no_latencies() -> None:
    (step,) = xrdreplay_engine.parse_xrdreplay(XRDREPLAY)
    assert (step.done, step.bytes, step.failures) == (2000, 8_192_000, {})
    assert step.seconds == 0.281129
    assert step.latency.count == 0
    (step,) = xrdreplay_engine.parse_xrdreplay(XRDREPLAY.replace("Errors  : 0", "Errors  : 7"))
    assert (step.done, step.failures) == (1993, {"other": 7})
    with pytest.raises(PayloadError, match="Total Runtime"):
        xrdreplay_engine.parse_xrdreplay("terminate called")


def make_program(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str) -> None:
    """Put a program in front of all others that prints a text, and its arguments to a file."""
    path = folder / "bin" / name
    path.parent.mkdir(exist_ok=True)
    (folder / "report").write_text(text)
    path.write_text(
        f'#!/bin/sh\ncase "$1" in --version) echo {name}-9.1; exit;; esac\n'
        f'echo "$@" > {folder}/words\ncp -r {name}-files {folder}/copy\ncat {folder}/report\n'
    )
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{path.parent}:/usr/bin:/bin")
    monkeypatch.chdir(folder)


def perform(load: Any) -> engine_run.EngineResult:
    assert isinstance(load, EngineLoad)
    return engine_run.run_engine(load, StepClock(1.0, 1_000_000), LoadTimer(time.monotonic()))


def test_paced_reads_become_a_job_of_fio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_program(tmp_path, monkeypatch, "fio", FIO)
    axes: dict[str, Any] = {
        "clients": 2,
        "period_s": 0.1,
        "block_kb": 4,
        "pattern": "random",
        "engine": "fio",
    }
    result = perform(workloads.read_files(make_task("/data/a:b", **axes), SPAN))
    job = (tmp_path / "copy" / "job.fio").read_text().splitlines()
    assert {"rw=randread", "bsrange=4000-4000", "rate_iops=10", "runtime=10"} <= set(job)
    assert [line for line in job if line.startswith("filename=")] == [r"filename=/data/a\:b"] * 2
    assert "--readonly" in (tmp_path / "words").read_text().split()
    assert not (tmp_path / "fio-files").exists()
    assert not find_operation_problems(result.rows)
    assert [row["step"] - result.rows[0]["step"] for row in result.rows] == [0, 1, 2]
    # 20 reads/s were due, and 12 would have been done at the rate of the captured report.
    assert [row["scheduled"] for row in result.rows] == [17, 20, 3]
    assert result.figures["achieved_hz"] == pytest.approx(24 / 2.001)
    assert "late_share" not in result.figures
    assert json.loads(result.inventory) == {"packages": {"fio": "9.1"}}


def test_patterns_become_a_recording(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_program(tmp_path, monkeypatch, "xrdreplay", XRDREPLAY)
    axes: dict[str, Any] = {"clients": 2, "reads": 3, "chunk_kb": "1-2", "engine": "xrdreplay"}
    task = make_task("root://host:1094//store/a", **axes)
    result = perform(workloads.read_pattern(task, SPAN))
    lines = (tmp_path / "copy" / "recording.csv").read_text().splitlines(keepends=True)
    recorded = parse_recording(lines)
    assert [each.name for each in recorded].count("read") == 6
    # The generator reads the same pieces.
    loop = workloads.read_pattern(
        make_task("root://host:1094//store/a", **{**axes, "engine": "generator"}), None
    )
    assert not isinstance(loop, EngineLoad)
    expected = {chunk for sequence in loop.sequences for each in sequence for chunk in each.chunks}
    assert {chunk for each in recorded if each.name == "read" for chunk in each.chunks} == expected
    (row,) = result.rows
    assert (row["done"], row["latency"], row["server"]) == (2000, "", "host:1094")
    assert not find_operation_problems(result.rows)
    assert result.figures["achieved_hz"] == pytest.approx(2000 / 0.281129)


@pytest.mark.parametrize(
    "make, url, axes, message",
    [
        ("read_files", "root://h//a", {"engine": "fio"}, "fio reads no root://"),
        ("open_files", "/data/a", {"engine": "fio"}, "fio has no operation 'open'"),
        ("open_files", "/data/a", {"engine": "oha"}, "oha reads no paths"),
        ("read_files", "root://h//a", {"engine": "xrdreplay"}, "xrdreplay keeps no times"),
        (
            "read_files",
            "/data/a",
            {"engine": "fio", "pattern": "vector"},
            "engines read no vectors",
        ),
        ("read_files", "/data/a", {"engine": "fio", "period_s": 0.3}, "1 / period_s must be one"),
        ("read_files", "/data/a", {"engine": "wrk"}, "expected one of generator, fio"),
    ],
)
def test_loads_that_an_engine_cannot_perform_are_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    make: str,
    url: str,
    axes: dict[str, Any],
    message: str,
) -> None:
    for name in ("fio", "oha", "xrdreplay"):
        make_program(tmp_path, monkeypatch, name, "")
    task = make_task(url, **{"block_kb": 4, "period_s": 0.5, **axes})
    with pytest.raises(PayloadError, match=message):
        perform(getattr(workloads, make)(task, SPAN))


def test_missing_engine_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    task = make_task("/data/a", engine="fio", block_kb=4)
    with pytest.raises(PayloadError, match="no program 'fio'") as caught:
        perform(workloads.read_files(task, SPAN))
    assert caught.value.document["failure_class"] == "software-setup"


def test_engines_keep_the_ceiling() -> None:
    axes: dict[str, Any] = {"engine": "fio", "clients": 2, "block_kb": 10, "pattern": "random"}
    ceiling = CeilingShare(mb_per_s=1.0)
    for period in (0.0, 0.001):
        load = workloads.read_files(make_task("/a", ceiling=ceiling, period_s=period, **axes), SPAN)
        assert isinstance(load, EngineLoad)
        assert load.rate_hz == 50  # 1 MB/s in 10 kB by two clients
    load = workloads.read_files(make_task("/a", ceiling=ceiling, period_s=1.0, **axes), SPAN)
    assert isinstance(load, EngineLoad)
    assert load.rate_hz == 1


def test_program_that_fails_is_named_with_its_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_program(tmp_path, monkeypatch, "fio", "")
    with (tmp_path / "bin" / "fio").open("a") as stream:
        stream.write("echo 'no such file' >&2\nexit 3\n")
    task = make_task("/data/a", engine="fio", block_kb=4, period_s=1)
    with pytest.raises(PayloadError, match="fio ended with 3: no such file"):
        perform(workloads.read_files(task, SPAN))


#: Report of oha 1.16.0 with its own names and messages, of which only keys that are read are kept.
OHA = {
    "summary": {"successRate": 0.8, "total": 2.0018, "requestsPerSec": 2.5},
    "statusCodeDistribution": {"200": 3, "404": 1},
    "errorDistribution": {
        "aborted due to deadline": 2,
        "Connection refused (os error 111)": 1,
    },
}


def test_requests_of_oha_are_counted_by_step(tmp_path: Path) -> None:
    path = tmp_path / "requests.db"
    assert oha_engine.read_oha_requests(str(path)) == []
    connection = sqlite3.connect(path)
    connection.execute(
        "CREATE TABLE oha (url TEXT, start REAL, start_latency_correction REAL, end REAL,"
        " duration REAL, status INTEGER, len_bytes INTEGER, run INTEGER)"
    )
    rows = [(0.1, None, 0.102, 200), (0.5, 0.3, 0.504, 200), (1.2, None, 1.21, 404)]
    connection.executemany("INSERT INTO oha VALUES ('', ?, ?, ?, 0, ?, 0, 1)", rows)
    connection.commit()
    connection.close()
    requests = oha_engine.read_oha_requests(str(path))
    # Latency counts from the scheduled instant.
    assert [round(latency_s, 4) for _, latency_s, _ in requests] == [0.002, 0.204, 0.01]
    steps = oha_engine.parse_oha(json.dumps(OHA), requests, 1.0)
    assert [(step.start_s, step.done) for step in steps] == [(0, 2), (1, 0)]
    assert [step.seconds for step in steps] == pytest.approx([1, 1.0018])
    assert steps[1].failures == {"not-found": 1, "unfinished": 2, "refused": 1}
    assert isinstance(steps[0].latency, LatencyHistogram)
    with pytest.raises(PayloadError, match="no report"):
        oha_engine.parse_oha("", [], 1.0)
