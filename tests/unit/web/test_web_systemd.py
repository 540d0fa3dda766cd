"""Messages to systemd, and the shipped unit."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from service_thread import run_service

from treehammer.program_output import SystemdNotifier

DEPLOYMENT = Path(__file__).parents[3] / "web" / "deployment"
#: Shipped unit -> name of the unit or of an instance.
UNITS = {
    "treehammer@.service": "treehammer@8443.service",
    "treehammer-patrol.service": "treehammer-patrol.service",
}


@pytest.fixture
def listening(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(tmp_path / "notify"))
        receiver.settimeout(30)
        yield receiver


def receive(listening: socket.socket) -> list[str]:
    return listening.recv(4096).decode().split("\n")


def test_notifier_reports_to_watchdog_while_alive(listening: socket.socket) -> None:
    environ = {"NOTIFY_SOCKET": listening.getsockname(), "WATCHDOG_USEC": "30000"}
    notifier = SystemdNotifier.from_environment(environ)
    alive, failure = True, ""

    async def report() -> list[list[str]]:
        nonlocal alive, failure
        task = asyncio.create_task(notifier.report_forever(lambda: alive, lambda: failure))
        first = await asyncio.to_thread(receive, listening)
        failure = "the disk\nis full"
        while (second := await asyncio.to_thread(receive, listening)) == first:
            pass
        alive = False
        # More than one period later nothing but messages sent before has come.
        await asyncio.sleep(0.1)
        listening.setblocking(False)
        with suppress(BlockingIOError):
            while listening.recv(4096):
                pass
        await asyncio.sleep(0.1)
        with pytest.raises(BlockingIOError):
            listening.recv(4096)
        task.cancel()
        return [first, second]

    first, second = asyncio.run(report())
    assert first == ["WATCHDOG=1", "STATUS=accepting measurements"]
    assert second == ["WATCHDOG=1", "STATUS=the disk is full"]


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"NOTIFY_SOCKET": "/nonexistent/notify"},
        {"NOTIFY_SOCKET": "/nonexistent/notify", "WATCHDOG_USEC": "x"},
        {"NOTIFY_SOCKET": "@treehammer-nobody-listens"},
    ],
)
def test_notifier_without_receiver_does_nothing(environ: dict[str, str]) -> None:
    SystemdNotifier.from_environment(environ).notify("READY=1")


def test_notifier_reports_three_times_per_watchdog_period() -> None:
    mine, foreign = str(os.getpid()), "1"
    for pid, usec, expected in ((mine, "9000000", 3.0), (mine, "30000000", 5.0), (foreign, "9", 5)):
        environ = {"WATCHDOG_USEC": usec, "WATCHDOG_PID": pid}
        notifier = SystemdNotifier.from_environment(environ)
        assert notifier._interval_s == pytest.approx(expected)


def test_service_reports_its_status(
    listening: socket.socket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", listening.getsockname())
    with run_service(tmp_path):
        assert receive(listening) == ["WATCHDOG=1", "STATUS=accepting measurements"]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
@pytest.mark.parametrize("shipped, name", UNITS.items())
def test_unit_is_accepted_and_confined(shipped: str, name: str, tmp_path: Path) -> None:
    program = tmp_path / "treehammer"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    unit = tmp_path / name
    text = (DEPLOYMENT / shipped).read_text()
    unit.write_text(text.replace("/opt/treehammer/bin/treehammer", str(program)))
    verified = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", unit], capture_output=True, text=True, check=False
    )
    complaints = [line for line in verified.stderr.splitlines() if unit.stem in line]
    assert (verified.returncode, complaints) == (0, [])
    # The level is in tenths of a point from 0, fully confined, to 10.
    confined = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--threshold=15", unit],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert confined.returncode == 0, confined.stdout[-300:] + confined.stderr
