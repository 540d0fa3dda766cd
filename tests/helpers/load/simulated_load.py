"""Loads without servers: clock and storage in simulated time."""

from __future__ import annotations

import heapq
import threading
from collections.abc import Callable, Iterable, Iterator
from itertools import count
from queue import SimpleQueue
from typing import Any

from treehammer.collectors.record.operation_steps import find_operation_problems
from treehammer.load.kit.treehammer_load.load_driver import LoadDriver, LoadTimer
from treehammer.load.kit.treehammer_load.operation import (
    NO_CEILING,
    CeilingShare,
    Flight,
    Operation,
    StorageClient,
)
from treehammer.load.kit.treehammer_load.recorder import Recorder, StepClock
from treehammer.load.kit.treehammer_load.server.log_formats import LineFormat
from treehammer.load.kit.treehammer_load.server.log_parser import LogParser, ServerCall


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

    def wait(self, seconds: float, wake: threading.Event | None = None) -> bool:
        end = self.time_s + seconds
        while not self.stopped and self._events and self._events[0][0] <= end:
            when, _, action = heapq.heappop(self._events)
            self.time_s = max(self.time_s, when)
            action()
            if wake and wake.is_set():
                return self.stopped
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
        self.timer.at(answer, lambda: flight.end("server:1094", ""))
        if self.send_s:
            self.timer.wait(self.send_s)


def run_load(
    operations: Iterator[Operation],
    end_s: float,
    timer: SimulatedTimer,
    storage: StorageClient,
    ceiling: CeilingShare = NO_CEILING,
) -> list[dict[str, Any]]:
    """Run a load in steps of 1 s and return its rows, which are valid."""
    steps = StepClock(1.0, 1_000_000)
    recorder = Recorder(steps, clients=1)
    driver = LoadDriver(storage, recorder, steps, timer, ceiling)
    rows = recorder.list_rows(driver.run(operations, end_s))
    assert not find_operation_problems(rows)
    return rows


def perform_operations(
    client: StorageClient, *operations: Operation, note: Callable[[], object] = bool
) -> list[str]:
    """Perform operations one after the other, each followed by ``note``; return their failures."""
    failures: list[str] = []
    ended: SimpleQueue[str] = SimpleQueue()

    def record(_flight: Flight, _now: float, _server: str, failure: str) -> None:
        note()
        ended.put(failure)

    for operation in operations:
        client.start(Flight(operation, lambda: 0.0, record))
        failures.append(ended.get(timeout=60))
    return failures


def parse_log(lines: Iterable[str], form: LineFormat) -> Iterator[ServerCall]:
    """Yield the calls of a complete log; those without an end come last."""
    parser, last_us = LogParser(form), 0
    for call in parser.parse(lines):
        last_us = max(last_us, call.start_us + call.duration_us)
        yield call
    yield from parser.close(last_us)
