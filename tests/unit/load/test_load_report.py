"""Reports of a running load to HTCondor over the Chirp protocol."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from local_servers import serve_tcp

from treehammer.collectors.record.operation_steps import LOAD_PROGRESS_NAME, LoadProgress
from treehammer.load.worker import load_report
from treehammer.load.worker.load_report import LoadReport

STEP = LoadProgress(3, 10.0, 1000, 20, 5_000_000)


class Starter:
    """A starter of HTCondor that accepts a cookie and attributes, as version 23.9 answers."""

    def __init__(self, config: Path) -> None:
        self.attributes: list[str] = []
        self.answer = b"0\n"
        self.config = config

    def receive(self, connection: socket.socket) -> None:
        with connection.makefile("rwb") as stream:
            assert stream.readline() == b"cookie secret\n"
            stream.write(b"0\n")
            stream.flush()
            self.attributes.append(stream.readline().decode().strip())
            stream.write(self.answer)


@pytest.fixture
def starter(tmp_path: Path) -> Iterator[Starter]:
    process = Starter(tmp_path / "chirp.config")
    with serve_tcp(process.receive) as port:
        process.config.write_text(f"127.0.0.1 {port} secret\n")
        yield process


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def make_report(folder: Path, starter: Starter, jobs: int = 1) -> LoadReport:
    return LoadReport(str(folder), 2, jobs, {load_report.CONFIG_VARIABLE: str(starter.config)})


def test_new_steps_are_reported_at_a_bounded_rate(
    tmp_path: Path, starter: Starter, clock: list[float]
) -> None:
    path = str(tmp_path / LOAD_PROGRESS_NAME)
    report = make_report(tmp_path, starter)
    assert report.is_possible
    report.send_if_due()
    assert starter.attributes == [], "there is no step yet"
    for step in range(300):
        clock[0] = step / 10
        STEP._replace(step=step).write(path)
        report.send_if_due()
    steps = [f"set_job_attr TreehammerLoad {{2,{s},10.0,1000,20,5000000}}" for s in (0, 100, 200)]
    assert starter.attributes == steps
    clock[0] += 100
    report.send_if_due()
    report.send_if_due()
    report.end()
    assert starter.attributes[3:] == [
        "set_job_attr TreehammerLoad {2,299,10.0,1000,20,5000000}",
        "set_job_attr TreehammerLoad undefined",
    ]


def test_many_jobs_share_a_limit(tmp_path: Path, starter: Starter, clock: list[float]) -> None:
    """A thousand jobs send five reports per second, not a hundred."""
    report = make_report(tmp_path, starter, jobs=1000)
    for second in range(400):
        clock[0] = second
        STEP._replace(step=second).write(str(tmp_path / LOAD_PROGRESS_NAME))
        report.send_if_due()
    assert len(starter.attributes) == 2


def test_refused_and_silent_starters_are_left_alone(
    tmp_path: Path, starter: Starter, clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    STEP.write(str(tmp_path / LOAD_PROGRESS_NAME))
    report = make_report(tmp_path, starter)
    starter.answer = b"-8\n"
    for second in range(60):
        clock[0] = second
        report.send_if_due()
    assert len(starter.attributes) == 1
    starter.answer, clock[0] = b"0\n", 60.0
    report.send_if_due()
    assert len(starter.attributes) == 2

    monkeypatch.setattr(load_report, "_TIMEOUT_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        starter.config.write_text(f"127.0.0.1 {silent.getsockname()[1]} secret\n")
        began = time.perf_counter()
        make_report(tmp_path, starter).send_if_due()
        assert time.perf_counter() - began < 5
    for text in ("", "no-port-number x y\n"):
        starter.config.write_text(text)
        make_report(tmp_path, starter).send_if_due()
    starter.config.unlink()
    make_report(tmp_path, starter).send_if_due()


def test_only_loads_in_htcondor_report(tmp_path: Path, starter: Starter) -> None:
    assert not make_report(tmp_path, starter, jobs=0).is_possible
    assert not LoadReport(str(tmp_path), 1, 4, {}).is_possible
