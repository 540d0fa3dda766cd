"""Loads without servers: clock and storage in simulated time, and a DPM daemon's log.

The log is made from study S4's description.
"""

from __future__ import annotations

import heapq
import random
import threading
import time
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any, NamedTuple

from treehammer.collectors.kit.treehammer_load.load_driver import LoadDriver, LoadTimer
from treehammer.collectors.kit.treehammer_load.operation import (
    NO_CEILING,
    CeilingShare,
    Flight,
    Operation,
    StorageClient,
)
from treehammer.collectors.kit.treehammer_load.recorder import Recorder, StepClock


class SimulatedTimer(LoadTimer):
    """Time that passes only while somebody waits; ``cores`` is the CPU used meanwhile."""

    def __init__(self, cores: float = 0.1) -> None:
        super().__init__(0.0)
        self.time_s, self.cores = 0.0, cores
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()

    def at(self, when_s: float, action: Callable[[], None]) -> None:
        """Perform an action at an instant."""
        heapq.heappush(self._events, (when_s, next(self._numbers), action))

    def now(self) -> float:
        return self.time_s

    def wait(self, seconds: float) -> bool:
        end = self.time_s + seconds
        while not self.stopped and self._events and self._events[0][0] <= end:
            when, _, action = heapq.heappop(self._events)
            self.time_s = max(self.time_s, when)
            action()
        if not self.stopped:
            self.time_s = max(self.time_s, end)
        return self.stopped

    def sleep(self, seconds: float) -> None:
        end = self.time_s + seconds
        while self._events and self._events[0][0] <= end:
            when, _, action = heapq.heappop(self._events)
            self.time_s = max(self.time_s, when)
            action()
        self.time_s = end

    def cpu_s(self) -> float:
        return self.time_s * self.cores


class SimulatedStorage(StorageClient):
    """Storage that answers after ``answer_s``; what is answered in a stall comes at its end.

    ``send_s`` is the time for which sending keeps the generator busy.
    """

    def __init__(
        self,
        timer: SimulatedTimer,
        *,
        answer_s: float = 0.002,
        stall: tuple[float, float] = (0.0, 0.0),
        send_s: float = 0.0,
        timeout_s: float = 30.0,
    ) -> None:
        super().__init__(1, timeout_s)
        self.timer, self.answer_s, self.stall, self.send_s = timer, answer_s, stall, send_s
        self.sent: list[float] = []

    def start(self, flight: Flight) -> None:
        flight.send()
        self.sent.append(self.timer.now())
        answer = self.timer.now() + self.answer_s
        if self.stall[0] <= answer < self.stall[1]:
            answer = self.stall[1]
        self.timer.at(answer, lambda: flight.succeed("server:1094"))
        if self.send_s:
            self.timer.wait(self.send_s)


def run_load(
    operations: Iterator[Operation],
    end_s: float,
    timer: SimulatedTimer,
    storage: StorageClient,
    ceiling: CeilingShare = NO_CEILING,
) -> list[dict[str, Any]]:
    """Run a load in steps of 1 s and return its rows."""
    steps = StepClock(1.0, 1_000_000)
    recorder = Recorder(steps, clients=1)
    driver = LoadDriver(storage, recorder, steps, timer, ceiling)
    return recorder.list_rows(driver.run(operations, end_s))


class LoggedRequest(NamedTuple):
    """A request in a made log; times in seconds."""

    operation: str
    begin_s: float
    wait_s: float
    work_s: float
    code: int


def make_requests(number: int, seed: int = 1) -> list[LoggedRequest]:
    """Draw requests that overlap; every tenth fails."""
    drawn = random.Random(seed)
    return [
        LoggedRequest(
            drawn.choice(("get", "put", "putdone")),
            round(0.01 * index, 3),
            round(drawn.uniform(0.001, 0.5), 3),
            round(drawn.uniform(0.01, 2.0), 3),
            2 if index % 10 == 9 else 0,
        )
        for index in range(number)
    ]


def write_dpm_log(
    requests: list[LoggedRequest], start_s: float, threads: int = 20
) -> Iterator[str]:
    """Yield the lines of a DPM daemon's log in the order of their times.

    Different threads receive and process a request; its identity is in each of its lines, among
    lines of other kinds.
    """
    events: list[tuple[float, int, int, str, str]] = []
    for number, (operation, begin_s, wait_s, work_s, code) in enumerate(requests):
        identity = f"{number:08x}-4fd1-4b1e-9c0a-000000000000"
        work, end = begin_s + wait_s, begin_s + wait_s + work_s
        by = "by /DC=ch/DC=example/CN=user from client.example"
        for at, order, text in (
            (begin_s, 0, f"request {identity} {by}"),
            (work, 1, f"processing request {identity} in pool p1"),
            (work, 2, "DP098 - file 0: srm://example/file"),
            (end, 3, f"request {identity} returns {code}, status={'x' if code else 'DPM_SUCCESS'}"),
        ):
            heapq.heappush(events, (at, number, order, operation, text))
    while events:
        at, number, order, operation, text = heapq.heappop(events)
        instant = start_s + at
        stamp = time.strftime("%m/%d %H:%M:%S", time.localtime(int(instant + 1e-6)))
        thread = 0 if order == 0 else 1 + (number + order) % threads
        yield f"{stamp}.{round(instant % 1 * 1000) % 1000:03d}  4242,{thread} dpm_srv_{operation}: {text}\n"


def perform_operations(client: StorageClient, *operations: Operation) -> list[str]:
    """Perform operations of a real client one after the other; return their failures."""
    failures: list[str] = []
    ended = threading.Semaphore(0)

    def record(_flight: Flight, _now: float, _server: str, failure: str) -> None:
        failures.append(failure)
        ended.release()

    for operation in operations:
        client.start(Flight(operation, lambda: 0.0, record))
        assert ended.acquire(timeout=60)
    return failures
