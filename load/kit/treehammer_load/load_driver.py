"""Drivers of a load: they send operations at their instants, or in closed loops.

In a closed loop each client sends its next operation when its last has ended.  A watchdog ends a
process that hangs, with a failure and the stacks of its threads.
"""

from __future__ import annotations

import faulthandler
import heapq
import os
import signal
import sys
import threading
import time
from collections import deque
from dataclasses import dataclass
from itertools import chain, count
from math import inf
from threading import Event, Timer
from typing import Callable, Dict, Iterator, List, Optional, Sequence, Tuple

from ....collectors.kit.treehammer_kit.payload_task import PayloadError, write_result
from .operation import NO_CEILING, OPENING, CeilingShare, Flight, Operation, StorageClient
from .recorder import Recorder, StepClock

#: Seconds after the last time limit of its operations after which a load hangs.
GRACE_S = 60.0
#: Seconds for the report of a process that hangs.
REPORT_S = 10.0
_STDERR = 2


def stop_on_signals() -> Event:
    """Return an event that SIGTERM and SIGINT set."""
    stop = Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    return stop


class LoadWatchdog:
    """Ends the process if a block does not end in time.

    A client library may block the thread that sends, which then obeys neither the end of the load nor a
    signal.

    Args:
        limit_s: seconds until the block must have ended.
        message: the failure of a process that hangs.
    """

    def __init__(self, limit_s: float, message: str) -> None:
        self._limit_s, self._message = limit_s, message
        self._timer = Timer(limit_s, self._end)
        self._timer.daemon = True

    def __enter__(self) -> None:
        self._timer.start()
        # Not a Python thread: it also ends a process in which a library holds the interpreter.
        faulthandler.dump_traceback_later(self._limit_s + REPORT_S, exit=True, file=_STDERR)

    def __exit__(self, *_: object) -> None:
        faulthandler.cancel_dump_traceback_later()
        self._timer.cancel()

    def _end(self) -> None:
        print("treehammer_load: the load hangs; its threads:", file=sys.stderr, flush=True)
        faulthandler.dump_traceback(file=_STDERR)
        result = os.environ.get("TREEHAMMER_RESULT")
        if result:
            text = f"{self._message}: a call of the storage's client hangs. The payload's output has the stacks of all threads."
            error = PayloadError("payload", "hang", "load", text, transient=True)
            write_result(result, {}, {}, error.document)
        os._exit(1)


#: Operations on their way at a time; more would only fill the memory.  Further ones wait and are
#: late.
MAX_IN_FLIGHT = 20_000
#: Seconds for operations on their way after a signal to stop.
STOP_GRACE_S = 1.0
#: Seconds of a ceiling on traffic that a schedule may use ahead, because readers have random phases.
BURST_S = 0.5
#: The same for opens, and for closed loops: clients may coincide.
SHORT_BURST_S = 0.02
_POLL_S = 0.005


class Throttle:
    """Keeps operations below a ceiling, by moving their instants; for one thread at a time.

    Args:
        ceiling: share of this generator.
        burst_s: seconds of the ceiling on traffic that may be used at once after a time of less load.
        opens_burst_s: the same of the ceiling on opens.
        start_s: instant from which also the first operation waits until the ceiling permits all of
            it; without it, the first one is sent when it is due.
    """

    def __init__(
        self,
        ceiling: CeilingShare,
        burst_s: float,
        opens_burst_s: float,
        start_s: float = -inf,
    ) -> None:
        self._ceiling = ceiling
        self._burst_s, self._opens_burst_s = burst_s, opens_burst_s
        # Instants at which all admitted operations are paid off.
        self._opens_s = self._bytes_s = start_s

    def admit(self, operation: Operation, due_s: float) -> float:
        """Return the first instant, not before ``due_s``, at which an operation may be sent."""
        rate, speed = self._ceiling.opens_per_s, self._ceiling.mb_per_s * 1e6
        opens = operation.name in OPENING and rate > 0
        moves = operation.bytes > 0 and speed > 0
        opens_s = self._opens_s + (1 / rate if opens else 0.0)
        bytes_s = self._bytes_s + (operation.bytes / speed if moves else 0.0)
        # A rounding error must not delay an operation.
        if opens:
            due_s = max(due_s, opens_s - self._opens_burst_s - 1e-9)
        if moves:
            due_s = max(due_s, bytes_s - self._burst_s - 1e-9)
        if opens:
            self._opens_s = max(opens_s, due_s)
        if moves:
            self._bytes_s = max(bytes_s, due_s)
        return due_s


class LoadTimer:
    """Clock of a load: seconds since step 0 began, and waiting that a signal interrupts."""

    def __init__(self, origin: float, stop: Optional[Event] = None) -> None:
        self._origin = origin
        self._stop = stop or Event()

    @classmethod
    def from_start(cls, start_us: int, stop: Event) -> LoadTimer:
        """Start step 0 at an instant in microseconds since 1970 UTC; ``stop`` ends the load."""
        return cls(time.monotonic() + start_us / 1e6 - time.time(), stop)

    def now(self) -> float:
        """Return the seconds since step 0 began."""
        return time.monotonic() - self._origin

    def wait(self, seconds: float, wake: Optional[Event] = None) -> bool:
        """Wait, at most until ``wake``; without it, return at once and True after a signal to stop."""
        (wake or self._stop).wait(seconds)
        return self.stopped

    @property
    def stopped(self) -> bool:
        """Whether the end of the load was requested."""
        return self._stop.is_set()

    def sleep(self, seconds: float) -> None:
        """Wait in any case."""
        time.sleep(seconds)

    def cpu_s(self) -> float:
        """Return the CPU seconds that this process has used."""
        return time.process_time()


class LoadDriver:
    """Sends operations when they are due, and never waits for an answer before the next one.

    Attributes:
        began_s: when the load began, after its preparation; None if it was stopped before.
    """

    def __init__(
        self,
        client: StorageClient,
        recorder: Recorder,
        steps: StepClock,
        timer: LoadTimer,
        ceiling: CeilingShare = NO_CEILING,
    ) -> None:
        self._ceiling = ceiling
        self.began_s: Optional[float] = None
        self._start_s = steps.first * steps.step_s
        self._client = client
        self._recorder = recorder
        self._timer = timer
        self._in_flight: Dict[int, Flight] = {}
        self._follow_until_s = inf
        self._account = _CpuAccount(
            steps, timer, lambda: timer.cpu_s() + client.child_cpu_s(), recorder.record_cpu
        )

    def run(self, operations: Iterator[Operation], end_s: float) -> float:
        """Send all operations and wait for their ends; return when the load ended.

        Operations that have not ended a time limit after ``end_s``, or shortly after a signal to
        stop, fail as ``unfinished``.
        """
        timer = self._timer
        limit_s = end_s + self._client.timeout_s
        self._follow_until_s = end_s
        unsent = self._send_all(operations, limit_s)
        if unsent is None:
            self._wait_until(end_s)
        end_s = min(max(timer.now(), 0.0), end_s)
        self._account.close(timer.now())
        for operation in unsent or ():
            if operation.due_s > end_s:
                break  # not due before the end
            self._make_flight(operation).fail("unfinished")
        self._end_flights(limit_s)
        return end_s

    def _end_flights(self, limit_s: float) -> None:
        """Wait for the ends of operations until an instant, then fail the rest."""
        timer = self._timer
        # A client's own time limit ends an operation first.
        limit_s = (timer.now() if timer.stopped else limit_s) + STOP_GRACE_S
        while self._in_flight and timer.now() < limit_s:
            timer.sleep(_POLL_S)
        for flight in list(self._in_flight.values()):
            flight.fail("unfinished")

    def _send_all(
        self, operations: Iterator[Operation], limit_s: float
    ) -> Optional[Iterator[Operation]]:
        """Send operations until the load must end; return those that were not sent, None if all were."""
        throttle = Throttle(self._ceiling, BURST_S, SHORT_BURST_S)
        for operation in operations:
            due_s = throttle.admit(operation, operation.due_s)
            is_held = due_s > operation.due_s
            # Operations that the ceiling delays beyond the end are not sent.
            if is_held and due_s >= limit_s - self._client.timeout_s:
                return map(_hold, chain([operation], operations))
            if not self._wait_until(due_s) or not self._wait_for_room(limit_s):
                return chain([operation], operations)
            self._client.start(self._make_flight(_hold(operation) if is_held else operation))
        return None

    def _make_flight(self, operation: Operation) -> Flight:
        flight = Flight(operation, self._timer.now, self._finish)
        self._in_flight[id(flight)] = flight
        return flight

    def _finish(self, flight: Flight, now_s: float, server: str, failure: str) -> None:
        self._recorder.record(flight, now_s, server, failure)
        operation = flight.operation
        if operation.then and not failure and not self._timer.stopped:
            now = self._timer.now()
            following = operation._replace(
                due_s=now, name=operation.then, then="", follows=True, held_since_s=None
            )
            if now < self._follow_until_s:
                self._client.start(self._make_flight(following))
        # Last: the load must not appear ended before an operation that follows.
        self._in_flight.pop(id(flight), None)

    def _wait_until(self, due_s: float) -> bool:
        """Wait until an instant, and note when the load begins; False after a signal to stop."""
        if self.began_s is None and due_s >= self._start_s:
            if not self._sleep_until(self._start_s):
                return False
            self.began_s = self._timer.now()
        return self._sleep_until(due_s)

    def _sleep_until(self, due_s: float) -> bool:
        """Wait, and close the accounts of steps that end meanwhile."""
        while not self._timer.stopped:
            now = self._timer.now()
            boundary = self._account.advance(now)
            if now >= due_s:
                return True
            self._timer.wait(min(due_s, boundary) - now)
        return False

    def _wait_for_room(self, limit_s: float) -> bool:
        """Wait while too many operations are on their way; False when the load must end."""
        timer = self._timer
        while len(self._in_flight) >= MAX_IN_FLIGHT and not timer.stopped and timer.now() < limit_s:
            timer.wait(_POLL_S)
        return not timer.stopped and timer.now() < limit_s


def _hold(operation: Operation) -> Operation:
    return operation._replace(held_since_s=operation.due_s)


class _CpuAccount:
    """CPU of the generator by step."""

    def __init__(
        self,
        steps: StepClock,
        timer: LoadTimer,
        cpu_s: Callable[[], float],
        record: Callable[[int, float, bool], None],
    ) -> None:
        self._steps = steps
        self._cpu_s = cpu_s
        self._record = record
        self._step = steps.first
        self._begin_s, self._begin_cpu_s = timer.now(), cpu_s()

    def advance(self, now: float) -> float:
        """Close the accounts of the steps that have ended; return the end of the present one."""
        boundary = (self._step + 1) * self._steps.step_s
        if now >= boundary:
            following = self._steps.find_step(now)
            self._close_steps(now, following)
            self._step = following
            boundary = (following + 1) * self._steps.step_s
        return boundary

    def close(self, now: float) -> None:
        """Close the account of the last step."""
        self._close_steps(now, self._step + 1)

    def _close_steps(self, now: float, following: int) -> None:
        cpu_s = self._cpu_s()
        cores = (cpu_s - self._begin_cpu_s) / max(now - self._begin_s, 1e-3)
        for step in range(self._step, following):
            self._record(step, cores, now >= (step + 1) * self._steps.step_s)
        self._begin_s, self._begin_cpu_s = now, cpu_s


_LOOP_POLL_S = 0.02


@dataclass(frozen=True)
class ClosedLoop:
    """Sequences of operations, one for each client.

    The instants of the operations do not matter: each is due when it is sent.

    Attributes:
        sequences: operations of client 0, 1, …
        moves_files: whether whole files are moved, mostly outside the interpreter.
        calls: operations of which each is summarized by itself; none for the main one only.
        observe: called with each operation that ended, its failure and the instant.
        summarize: returns figures of the workload's own.
    """

    sequences: Sequence[Iterator[Operation]]
    moves_files: bool = False
    calls: Sequence[str] = ()
    observe: Optional[Callable[[Flight, str, float], None]] = None
    summarize: Callable[[], Dict[str, float]] = dict


class ClosedLoopDriver(LoadDriver):
    """Sends the operations of closed loops, from the threads in which the earlier ones end.

    Attributes:
        is_complete: whether all sequences have come to their ends.
    """

    is_complete = False

    def run_loop(self, load: ClosedLoop, end_s: float, patience_s: Optional[float] = None) -> float:
        """Send all sequences until their ends or that of the load; return when the last answer came.

        Args:
            load: the sequences.
            end_s: no operation is sent later.
            patience_s: time to end for operations that are then on their way; None for the client's
                time limit.
        """
        timer = self._timer
        self._end_s, self._last_end_s = end_s, self._start_s
        self._recorder.is_loop = True
        self._local = threading.local()
        self._sequences: Dict[int, Iterator[Operation]] = dict(enumerate(load.sequences))
        burst_s = SHORT_BURST_S
        self._throttle = Throttle(self._ceiling, burst_s, burst_s, self._start_s + burst_s)
        self._throttling = threading.Lock()
        # Operations that the ceiling delays, by the instants at which they may be sent.
        self._delayed: List[Tuple[float, int, Operation]] = []
        self._delays = Event()
        self._numbers = count()
        if self._wait_until(self._start_s):
            for client in list(self._sequences):
                self._continue(client)
        while self._sequences and not timer.stopped and timer.now() < end_s:
            boundary = self._account.advance(timer.now())
            self._delays.clear()
            held_s = self._send_held()
            until_s = min(end_s, boundary, held_s, timer.now() + _LOOP_POLL_S)
            timer.wait(max(0.0, until_s - timer.now()), self._delays)
        self.is_complete = not self._sequences
        patience_s = self._client.timeout_s if patience_s is None else patience_s
        self._end_flights(end_s + patience_s)
        self._account.close(timer.now())
        return self._last_end_s

    def _finish(self, flight: Flight, now_s: float, server: str, failure: str) -> None:
        super()._finish(flight, now_s, server, failure)
        self._last_end_s = max(self._last_end_s, now_s)
        if not flight.operation.follows:
            self._continue(flight.operation.client)

    def _continue(self, client: int) -> None:
        """Send a client's next operation; one after the other where operations end at once."""
        clients = getattr(self._local, "clients", None)
        if clients is not None:
            clients.append(client)
            return
        clients = self._local.clients = deque([client])
        try:
            while clients:
                self._send_next(clients.popleft())
        finally:
            self._local.clients = None

    def _send_next(self, client: int) -> None:
        sequence = self._sequences.get(client)
        if sequence is None or self._timer.stopped or self._timer.now() >= self._end_s:
            return
        operation = next(sequence, None)
        if operation is None:
            del self._sequences[client]
        else:
            now = self._timer.now()
            with self._throttling:
                due_s = self._throttle.admit(operation, now)
                if due_s > now:
                    operation = operation._replace(held_since_s=now)
                    heapq.heappush(self._delayed, (due_s, next(self._numbers), operation))
                    self._delays.set()
                    return
            self._client.start(self._make_flight(operation._replace(due_s=now)))

    def _send_held(self) -> float:
        """Send the operations that the ceiling permits by now; return the instant of the next one."""
        while True:
            now = self._timer.now()
            with self._throttling:
                if not self._delayed or self._delayed[0][0] > now:
                    return self._delayed[0][0] if self._delayed else inf
                _, _, operation = heapq.heappop(self._delayed)
            self._client.start(self._make_flight(operation._replace(due_s=now)))
