"""Storms without servers: retries, time lost, and the log of XRootD's client."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from simulated_load import perform_operations

from treehammer.collectors.kit.treehammer_kit.payload_task import PayloadError
from treehammer.load.kit.treehammer_load import storm
from treehammer.load.kit.treehammer_load.load_driver import ClosedLoopDriver, LoadTimer
from treehammer.load.kit.treehammer_load.load_task import LoadTask
from treehammer.load.kit.treehammer_load.operation import Flight, LoadFile, Operation, StorageClient
from treehammer.load.kit.treehammer_load.recorder import Recorder, StepClock

#: Lines of XRootD's client 6.2.1: a wait that is kept, one that is too long, and two redirects.
LOG = """\
[2026-11-28 09:57:10.785006 +0000][Dump   ][XRootD            ] [th3@127.0.0.1:1096] Got kXR_wait response of 10 seconds to message kXR_open (file: /store/f0, mode: 00, flags: kXR_async kXR_retstat ):
[2026-11-28 09:57:20.892700 +0000][Dump   ][XRootD            ] [th3@127.0.0.1:1096] Got notification that outgoing message kXR_open (file: /store/f0, mode: 00, flags: kXR_async kXR_retstat ) was sent successfully.
[2026-11-28 09:57:20.931938 +0000][Dump   ][XRootD            ] [th3@127.0.0.1:1096] Got kXR_wait response of 10 seconds to message kXR_open (file: /store/f0, mode: 00, flags: kXR_async kXR_retstat ):
[2026-11-28 09:57:20.932058 +0000][Debug  ][XRootD            ] [th3@127.0.0.1:1096] Wait time is too long, timing out kXR_open (file: /store/f0, mode: 00, flags: kXR_async kXR_retstat )
[2026-11-28 09:57:30.327444 +0000][Dump   ][XRootD            ] [th0@127.0.0.1:1095] Got kXR_redirect response to message kXR_open (file: /store/f0, mode: 00, flags: kXR_async kXR_retstat ): 127.0.0.1, port 1095
[2026-11-28 09:57:30.327594 +0000][Dump   ][XRootD            ] [th0@127.0.0.1:1095] Got kXR_redirect response to message kXR_open (file: /store/f0, mode: 00, flags: kXR_async kXR_retstat ): 127.0.0.1, port 1095
[2026-11-28 09:57:30.327897 +0000][Warning][XRootD            ] [th0@127.0.0.1:1095] Redirect limit has been reached for message kXR_open (file: /store/f0, mode: 00), the last known error is: [SUCCESS]
"""


def test_log_shows_stalls_waits_and_redirects(tmp_path: Path) -> None:
    path = tmp_path / "client.log"
    log = storm.ClientLog(str(path))
    assert not log.pop_stall(3), "no log yet"
    cut = LOG.index("Wait time")
    path.write_text(LOG[:cut])
    assert not log.pop_stall(3)
    assert log.summarize() == {"waits": 2, "waited_s": 20, "redirects": 0}
    path.write_text(LOG)
    assert not log.pop_stall(0), "another client's stall"
    assert log.pop_stall(3)
    assert not log.pop_stall(3), "counts for one operation"
    # The client did not wait for the second time.
    assert log.summarize() == {"waits": 2, "waited_s": 10, "redirects": 2}
    log.remove()
    assert not path.exists()


class _Storage(StorageClient):
    """Fails the first ``failing`` operations of each file, after 0.01 s."""

    def __init__(self, failing: dict[str, int], failure: str = "timeout") -> None:
        super().__init__(2, 30.0)
        self.failing, self.failure = dict(failing), failure
        self.opened: list[str] = []

    def start(self, flight: Flight) -> None:
        flight.send()
        url = flight.operation.file.url
        self.opened.append(url)
        if self.failing.get(url, 0):
            self.failing[url] -= 1
            time.sleep(0.01)
            flight.fail(self.failure, "server:1094")
        else:
            flight.end("server:1094", "")


def test_files_left_at_the_end_are_unread() -> None:
    files = [LoadFile(f"root://host//{name}", 10) for name in "abcd"]
    task = LoadTask(files, {"clients": 2, "files": 2}, {}, 1, 0, 1, None, 0, 1.0, 60.0)
    loop = storm.storm_files(task, None)
    assert loop.summarize()["files_unread"] == 4


def run_storm(storage: StorageClient, **axes: Any) -> tuple[dict[str, int], dict[str, float]]:
    """Perform a storm on four files; return the operations done and failed, and its figures."""
    files = [LoadFile(f"root://host//{name}", 10) for name in "abcd"]
    task = LoadTask(files, {"clients": 2, "files": 2, **axes}, {}, 1, 0, 1, None, 0, 1.0, 60.0)
    loop = storm.storm_files(task, None)
    timer = LoadTimer(time.monotonic())
    steps = StepClock(1e4, 0)

    def observe(flight: Flight, failure: str) -> None:
        assert loop.observe is not None
        loop.observe(flight, failure, timer.now())

    recorder = Recorder(steps, 2, observe=observe)
    driver = ClosedLoopDriver(storage, recorder, steps, timer)
    (row,) = recorder.list_rows(driver.run_loop(loop, 1e4))
    assert driver.is_complete
    return {name: row[name] for name in ("scheduled", "done", "failed")}, loop.summarize()


def test_files_that_fail_are_opened_again() -> None:
    a, b, c, d = (f"root://host//{name}" for name in "abcd")
    storage = _Storage({a: 1, d: 9})
    counts, figures = run_storm(storage, retries=2)
    assert sorted(storage.opened) == [a, a, b, c, d, d, d]
    assert counts == {"scheduled": 7, "done": 3, "failed": 4}
    assert figures["files_failed"] == 1
    assert figures["files_unread"] == 0
    assert figures["reopens"] == 3
    assert figures["timeouts"] == 4
    assert 0.04 <= figures["lost_s"] < 2


@pytest.mark.parametrize(
    "failure, figure",
    [
        ("stalled", "stalls"),
        ("redirect-limit", "redirect_limits"),
        ("refused", "refusals"),
        ("not-found", "other_failures"),
    ],
)
def test_failures_are_counted_by_cause(failure: str, figure: str) -> None:
    _, figures = run_storm(_Storage({"root://host//a": 9}, failure))
    assert figures[figure] == figures["files_failed"] == 1
    assert figures["reopens"] == 0
    assert sum(figures[name] for name in ("timeouts", "stalls", "refusals", "other_failures")) <= 1


def test_only_timeouts_after_a_long_wait_are_stalls(tmp_path: Path) -> None:
    path = tmp_path / "client.log"
    file = LoadFile("root://host//a", 10)
    read_3, read_0 = (Operation(0.0, "read_file", client, file) for client in (3, 0))
    client = storm.StormClient(_Storage({file.url: 9}), storm.ClientLog(str(path)))
    path.write_text(LOG)
    assert perform_operations(client, read_0, read_3, read_3) == ["timeout", "stalled", "timeout"]
    refusing = storm.StormClient(_Storage({file.url: 1}, "refused"), storm.ClientLog(str(path)))
    assert perform_operations(refusing, read_3, read_3) == ["refused", ""]
    assert client.summarize()["waited_s"] == 10


def test_storm_without_a_dataset_is_refused() -> None:
    with pytest.raises(PayloadError, match="reads the files of a dataset"):
        storm.storm_files(LoadTask([], {}, {}, 1, 0, 1, None, 0, 1.0, 60.0), None)
