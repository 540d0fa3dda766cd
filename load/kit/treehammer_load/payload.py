"""Execution of a load test's payload: ``job.json`` in, ``result.json`` out."""

from __future__ import annotations

import gc
import os
import sys
import time
from dataclasses import replace
from threading import Event
from typing import (
    Any,
    Callable,
    Dict,
    FrozenSet,
    Iterator,
    List,
    NamedTuple,
    NoReturn,
    Optional,
    Sequence,
)

from ....collectors.kit.treehammer_kit.payload_report import PayloadReport, report_job
from ....collectors.kit.treehammer_kit.payload_task import PayloadError
from ....collectors.record.operation_steps import CONNECT, LOAD_PROGRESS_NAME, VANISH
from .clients import make_client
from .clients.copy_client import CopyClient, CopyCommand
from .load_driver import (
    GRACE_S,
    STOP_GRACE_S,
    ClosedLoop,
    ClosedLoopDriver,
    LoadDriver,
    LoadTimer,
    LoadWatchdog,
    stop_on_signals,
)
from .load_figures import (
    FAR_TAILS,
    measure_round_trip,
    summarize_calls,
    summarize_loop,
    summarize_rows,
    summarize_transfers,
)
from .load_task import GENERATOR, TIMEOUT_S, LoadTask
from .operation import Flight, Operation, StorageClient
from .recorder import Recorder, StepClock
from .replay import REPLAYED, Replay
from .workloads import LoadSpan, MakeOperations, MakePreparation, VanishPoller, find_opening_time
from .written_files import perform_reads_before

#: Seconds behind its start up to which a job sends missed operations; a later one begins with the next
#: whole step.
MAX_BACKLOG_S = 1.0
#: Receives each operation that ended, and its failure.
Observe = Callable[[Flight, str], None]
#: Makes the client of a task for a number of clients.
MakeTaskClient = Callable[[LoadTask, int], StorageClient]
#: Seconds for which one thread may hold the interpreter while the one that sends waits for it.
SWITCH_INTERVAL_S = 0.0005


def _leave_out(names: FrozenSet[str], sequence: Iterator[Operation]) -> Iterator[Operation]:
    return (operation for operation in sequence if operation.name not in names)


class LoadOutcome(NamedTuple):
    """Rows of operations, values of the catalogue, and the test's own figures."""

    rows: List[Dict[str, Any]]
    values: Dict[str, Any]
    figures: Dict[str, float]


def _make_task_client(task: LoadTask, clients: int) -> StorageClient:
    """Make the client of a task's storage, with a copy program and polls if the task requires them."""
    os.environ.update(task.list_client_settings(task.url))  # before a library reads them
    client = make_client(
        task.url,
        clients,
        task.read_number("timeout_s", TIMEOUT_S, (0, 3600)),
        direct=task.read_choice("io", ("buffered", "direct")) == "direct",
    )
    poll_s = task.read_poll_s()
    if poll_s:
        client = VanishPoller(client, poll_s)
    if task.client != GENERATOR:
        command = CopyCommand.find(task.client, task.url, puts=task.puts_copies, env=os.environ)
        size = task.read_size() if task.puts_copies else None
        client = CopyClient(client, command, task.url, size)
    return client


def run(
    make_operations: MakeOperations,
    prepare: Optional[MakePreparation] = None,
    make_client: MakeTaskClient = _make_task_client,
) -> NoReturn:
    """Run the load described by ``job.json``, write the result, and exit.

    Args:
        make_operations: :func:`.workloads.open_files`, :func:`.workloads.read_files`, or a function like them.
        prepare: makes operations that come before the load and are not recorded, such as the
            writing of files that it deletes.
        make_client: makes the client of the storage; by default that of the protocol.
    """
    run_payload(lambda task: perform_load(task, make_operations, prepare, make_client=make_client))


def run_payload(
    perform: Callable[[LoadTask], LoadOutcome], *, needs_storage: bool = True
) -> NoReturn:
    """Perform the task of ``job.json``, write the result, and exit.

    Args:
        perform: performs the task.
        needs_storage: whether it needs files, or an area for writing.
    """

    def perform_job(job: str, report: PayloadReport) -> None:
        report.phase = "load"
        outcome = perform(LoadTask.read(job, needs_storage=needs_storage))
        report.values, report.extras = outcome.values, outcome.figures
        report.operations = outcome.rows

    report_job("treehammer_load", perform_job)


def perform_load(
    task: LoadTask,
    make_operations: MakeOperations,
    prepare: Optional[MakePreparation] = None,
    *,
    make_client: MakeTaskClient = _make_task_client,
    prepare_reads: Sequence[Iterator[Operation]] = (),
    begin: Callable[[], object] = lambda: None,
) -> LoadOutcome:
    """Perform a load until its end or SIGTERM, and remove the files that it wrote.

    Args:
        task: the load.
        make_operations: makes its operations.
        prepare: makes operations in the folder for writing that come before.
        prepare_reads: reads of each client that come before.
        begin: called after these, before the load.

    Raises:
        PayloadError: the task cannot be performed.
    """
    clients = task.read_clients()
    client = make_client(task, clients)
    stop = stop_on_signals()
    written = task.written
    try:
        if written is not None:
            written.prepare(client, prepare(task) if prepare else (), stop, task.ceiling)
        if prepare_reads:
            sequences = [_leave_out(client.unsupported, sequence) for sequence in prepare_reads]
            perform_reads_before(client, sequences, stop, task.ceiling)
        begin()
        outcome = _Load(task, client, clients, stop).perform(make_operations)
        outcome.figures.update(client.summarize())
        if written is not None and task.puts_copies and not stop.is_set():
            wrong = written.count_wrong(client, stop, task.ceiling)
            outcome.figures["files_wrong"] = float(wrong)
    finally:
        client.abort()
        if written is not None:
            written.remove(client, stop)
        client.close()
    if written is not None:
        outcome.figures.update(
            files_removed=float(written.removed), files_left=float(len(written.adler32s))
        )
    return outcome


def make_step_clock(task: LoadTask, start_us: int, now_s: float) -> StepClock:
    """Divide the time of a load into steps; a job that comes late begins with the next one.

    Args:
        task: the load.
        start_us: start of step 0, microseconds since 1970 UTC.
        now_s: seconds since then.

    Raises:
        PayloadError: the load is over.
    """
    first = task.first_step
    if now_s > first * task.step_s + MAX_BACKLOG_S:
        first = int(now_s // task.step_s) + 1
    if first * task.step_s >= task.duration_s:
        raise PayloadError(
            "payload",
            "late",
            "setup",
            f"the load ended before this job began, at {task.duration_s:g} s",
        )
    return StepClock(task.step_s, start_us, first)


class _Load:
    """A load whose client and files are ready."""

    def __init__(self, task: LoadTask, client: StorageClient, clients: int, stop: Event) -> None:
        self._task, self._client, self._clients = task, client, clients
        start_us = task.start_us
        if start_us is None:
            start_us = round((time.time() + find_opening_time(clients)) * 1e6)
        self._timer = timer = LoadTimer.from_start(start_us, stop)
        self._steps = make_step_clock(task, start_us, timer.now())

    @property
    def _start_s(self) -> float:
        return self._steps.first * self._steps.step_s

    def perform(self, make_operations: MakeOperations) -> LoadOutcome:
        """Perform the load; the process ends if it hangs."""
        task = self._task
        load = make_operations(task, LoadSpan(self._timer.now(), self._start_s, task.duration_s))
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        gc.freeze()
        end_s = task.duration_s if not isinstance(load, Replay) else load.end_s
        patience_s = self._client.timeout_s + STOP_GRACE_S + GRACE_S
        limit_s = min(end_s, task.duration_s) - self._timer.now() + patience_s
        message = f"the load did not end within {patience_s:g} s after its last instant"
        with LoadWatchdog(limit_s, message):
            if isinstance(load, Replay):
                return self._replay(load)
            return self._loop(load) if isinstance(load, ClosedLoop) else self._send(load)

    def _make_recorder(self, cores: int = 1, observe: Optional[Observe] = None) -> Recorder:
        written = self._task.written
        if written is not None:
            observe = written.observe
        # Outside of a job nobody follows the progress.
        result = os.environ.get("TREEHAMMER_RESULT", "")
        progress = os.path.join(os.path.dirname(result), LOAD_PROGRESS_NAME) if result else ""
        return Recorder(self._steps, self._clients, cores=cores, observe=observe, progress=progress)

    def _send(self, operations: Iterator[Operation]) -> LoadOutcome:
        recorder = self._make_recorder()
        driver = LoadDriver(self._client, recorder, self._steps, self._timer, self._task.ceiling)
        rows = recorder.list_rows(driver.run(operations, self._task.duration_s))
        return self._report(driver, rows, summarize_rows(rows))

    def _replay(self, replay: Replay) -> LoadOutcome:
        recorder = self._make_recorder(
            observe=lambda flight, _failure: replay.observe(flight, self._timer.now())
        )
        driver = LoadDriver(self._client, recorder, self._steps, self._timer, self._task.ceiling)
        end_s = driver.run(replay.operations, min(replay.end_s, self._task.duration_s))
        rows = recorder.list_rows(end_s)
        figures = {**summarize_rows(rows), **summarize_calls(rows, sorted(REPLAYED), FAR_TAILS)}
        return self._report(driver, rows, {**figures, **replay.summarize()})

    def _loop(self, load: ClosedLoop) -> LoadOutcome:
        unsupported = self._client.unsupported
        load = replace(
            load, sequences=[_leave_out(unsupported, sequence) for sequence in load.sequences]
        )

        def observe(flight: Flight, failure: str) -> None:
            if load.observe:
                load.observe(flight, failure, self._timer.now())

        recorder = self._make_recorder(self._client.cores if load.moves_files else 1, observe)
        driver = ClosedLoopDriver(
            self._client, recorder, self._steps, self._timer, self._task.ceiling
        )
        cpu_s = self._timer.cpu_s() + self._client.child_cpu_s()
        end_s = driver.run_loop(load, self._task.duration_s)
        cpu_s = self._timer.cpu_s() + self._client.child_cpu_s() - cpu_s
        rows = recorder.list_rows(end_s)
        figures = summarize_loop(
            rows, recorder.spans, self._task.step_s, by_server=load.moves_files
        )
        figures["client_cpu_s"] = cpu_s
        if load.calls:
            figures = summarize_transfers(rows, load.calls)
            figures["total_s"] = end_s - self._start_s
        if not driver.is_complete:
            figures.pop("total_s", None)
        return self._report(driver, rows, {**figures, **load.summarize()})

    def _report(
        self, driver: LoadDriver, rows: List[Dict[str, Any]], figures: Dict[str, float]
    ) -> LoadOutcome:
        values: Dict[str, Any] = {}
        if driver.began_s is not None:
            values["load_started_us"] = self._steps.start_us + round(driver.began_s * 1e6)
        figures.update(summarize_calls(rows, (CONNECT, VANISH)))
        return LoadOutcome(rows, values, {**figures, **measure_round_trip(rows)})
