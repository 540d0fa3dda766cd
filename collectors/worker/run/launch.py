"""A launch: two executions whose live payloads read by turns on one core."""

from __future__ import annotations

import os
import random
import select
import time
from contextlib import contextmanager, suppress
from typing import Dict, Iterator, List, Optional, Set, Tuple

from ...job_spec import BASE_SIDE, CONTROL, OTHER_SIDE, PAIRED, ExecutionSpec
from ...kit.treehammer_kit.loop_libraries import COPY_VARIABLE
from ...process_stats import list_descendants, read_huge_page_bytes, read_text
from ...record.outcome import NOT_SUPPORTED, OTHER_HALF, ExecutionError, Failure
from ...shared_files import local_path, make_lock_folder, try_lock
from ..child_processes import ForkedCall
from ..probes import page_cache
from ..turns import (
    TURNS_VARIABLE,
    PayloadEndedError,
    TurnConductor,
    TurnError,
    TurnPipes,
    TurnRecord,
    estimate_ratio,
)
from .execution import Execution, supervise_payload
from .job_context import JobContext
from .payload_process import WALL_LIMITS, LaunchedPayload

#: Seconds over which the cores' idle time is compared.
OBSERVATION_S = 0.1


@contextmanager
def reserve_core(base: str = "") -> Iterator[Optional[int]]:
    """Reserve the most idle of the allowed cores; None where this node refuses to pin processes.

    Launches of a user's other jobs on this node avoid a reserved core as long as there is another
    one.  They see the reservation as a lock that the kernel releases however the process ends.
    Equally idle cores are taken at random, since locks are invisible between containers.

    Args:
        base: folder of the locks, by default /tmp.
    """
    cores = list(os.sched_getaffinity(0))
    before = _read_idle_ticks()
    time.sleep(OBSERVATION_S)
    after = _read_idle_ticks()
    random.shuffle(cores)
    cores.sort(key=lambda core: before.get(core, 0) - after.get(core, 0))
    folder = make_lock_folder("cores", base)
    lock = None
    try:
        core = cores[0]
        for candidate in cores if folder else ():
            with suppress(OSError):
                lock = try_lock(
                    os.path.join(str(folder), f"{candidate}.lock"), os.O_RDWR | os.O_CREAT
                )
            if lock is not None:
                core = candidate
                break
        yield core if _can_pin(core) else None
    finally:
        if lock is not None:
            os.close(lock)


def _can_pin(core: int) -> bool:
    former = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {core})
        os.sched_setaffinity(0, former)
    except OSError:
        return False
    return True


def _read_idle_ticks() -> Dict[int, int]:
    """Read the idle time of each core since boot, in clock ticks."""
    ticks = {}
    for line in read_text("/proc/stat").splitlines():
        name, _, values_text = line.partition(" ")
        fields = values_text.split()
        if name.startswith("cpu") and name[3:].isdigit() and len(fields) > 3:
            ticks[int(name[3:])] = int(fields[3])
    return ticks


#: Variable of a random length up to a page, which moves the stack of a process.
PADDING_VARIABLE, MAX_PADDING = "TREEHAMMER_PADDING", 4096
#: Longest random name of the folder for copies of the loop.
MAX_PATH_PADDING = 100


def vary_layout(side: str, kind: str, folder: str) -> Dict[str, str]:
    """Draw what lays out the memory of a payload and says nothing about its ROOT.

    The other side of an A/A launch also loads a second copy of its loop, by a path of another length:
    what comes from being another file is part of the control.

    Args:
        side: side of the launch.
        kind: kind of its executions.
        folder: the payload's folder.

    Returns:
        variables of the payload.
    """
    variables = {PADDING_VARIABLE: "x" * random.randrange(MAX_PADDING)}
    if side == OTHER_SIDE and kind == CONTROL:
        name = "copy" + "x" * random.randrange(MAX_PATH_PADDING)
        variables[COPY_VARIABLE] = os.path.join(folder, name)
    return variables


class Launch:
    """The executions of one round of a job in paired mode, in order of their positions.

    A payload that ends without taking turns ran alone.  The other one then does too, and
    :attr:`supports_turns` is False.
    """

    def __init__(self, context: JobContext, specs: Tuple[ExecutionSpec, ...]) -> None:
        self._context = context
        self._specs = specs
        self._by_side = {spec.side: Execution(context, spec) for spec in specs}
        self.executions = list(self._by_side.values())
        self.supports_turns = True
        self._pipes: Dict[str, TurnPipes] = {}
        self._calls: Dict[str, ForkedCall] = {}
        self._start = 0.0

    def run(self) -> None:
        """Run both executions; failures become part of the measurements."""
        for execution in self.executions:
            execution.start()
        if all(execution.attempt(execution.prepare) for execution in self.executions):
            with reserve_core() as core:
                self._run_payloads(core)
        # It measured nothing to compare.
        failures = [execution.failure for execution in self.executions if execution.failure]
        if len(failures) == 1:
            for execution in self.executions:
                if not execution.failure:
                    execution.record.failure = _describe_other_half(failures[0])
        for execution in self.executions:
            execution.finish()

    def _run_payloads(self, core: Optional[int]) -> None:
        self._start = time.monotonic()
        try:
            for side, execution in self._by_side.items():
                prefix = os.path.join(execution.folder, "turns")
                self._pipes[side] = TurnPipes(prefix, self._ended_fds, self._context.signals)
        except OSError:  # a file system without named pipes
            self.supports_turns = False
        try:
            for side in self._by_side:
                self._start_payload(side, core)
            if self.supports_turns:
                self._take_turns(core)
        except PayloadEndedError:
            self._stop_payloads("The payload ended before its last turn.")
        except TurnError as error:
            self._stop_payloads(f"The payloads could not take turns: {error}.")
        finally:
            for pipes in self._pipes.values():
                pipes.close()

    def _start_payload(self, side: str, core: Optional[int]) -> None:
        """Start one payload and wait until it is ready for turns; without turns, until it ends."""
        execution = self._by_side[side]
        variables = vary_layout(side, self._specs[0].kind, execution.folder)
        if self.supports_turns:
            variables[TURNS_VARIABLE] = os.path.join(execution.folder, "turns")
        launched = LaunchedPayload(variables, core)
        call = ForkedCall(lambda: supervise_payload(execution, self._context.signals, launched))
        self._calls[side] = call
        if self.supports_turns:
            try:
                self._pipes[side].wait_until_ready()
            except PayloadEndedError:
                if side != self._specs[0].side or self._context.signals.stopped_by:
                    raise
                self.supports_turns = False
        if not self.supports_turns:
            self._collect(side)

    def _take_turns(self, core: Optional[int]) -> None:
        for execution in self.executions:
            execution.record.values.update(run_mode=PAIRED, pinned_core=core)
        cold = any(spec.variant.get("cache") == "cold" for spec in self._specs)
        paths = self._list_local_paths() if cold else []
        conductor = TurnConductor(
            sides=self._pipes,
            first=self._specs[0].side,
            file_count=max(1, len(self._specs[0].files)),  # a payload may make its own data
            evict=lambda: page_cache.evict_between_turns(paths),
            elapsed_share=self._elapsed_share,
        )
        record = conductor.conduct()
        for side, execution in self._by_side.items():
            pids = list_descendants(self._calls[side].pid)
            sizes = [size for size in map(read_huge_page_bytes, pids) if size is not None]
            execution.record.values.update(huge_page_bytes=sum(sizes) if sizes else None)
        for side in self._by_side:
            self._pipes[side].send("finish")
            self._collect(side)
        self._record_turns(record)

    def _record_turns(self, record: TurnRecord) -> None:
        times: Dict[str, Dict[str, List[int]]] = {
            side: {"cpu": [turn.cpu_ns for turn in turns], "wall": [turn.wall_ns for turn in turns]}
            for side, turns in record.turns.items()
        }
        for side, execution in self._by_side.items():
            execution.record.values.update(
                segments=len(record.turns[side]),
                segment_entries=record.segment_entries,
                own_text_bytes=record.own_text_bytes[side],
                segment_cpu_ns=times[side]["cpu"],
                segment_wall_ns=times[side]["wall"],
            )
        ratios = {}
        for clock in ("cpu", "wall"):
            try:
                estimate = estimate_ratio(
                    times[BASE_SIDE][clock], times[OTHER_SIDE][clock], record.passes
                )
            except ValueError:
                continue
            ratios[f"segment_{clock}_log_ratio"] = estimate.mean
            ratios[f"segment_{clock}_log_ratio_sd"] = estimate.sd
        self._by_side[OTHER_SIDE].record.values.update(**ratios)

    def _list_local_paths(self) -> List[str]:
        """List the paths of the input files on this node."""
        urls = {file.url for execution in self.executions for file in execution.files}
        return [path for path in map(local_path, sorted(urls)) if path is not None]

    def _elapsed_share(self) -> float:
        limit = WALL_LIMITS * self._context.job.limits.wall_s
        return (time.monotonic() - self._start) / limit if limit else 0.0

    # -- ends of the payloads

    def _ended_fds(self) -> Tuple[int, ...]:
        return tuple(call.fd for call in self._calls.values())

    def _collect(self, side: str) -> None:
        """Wait for a payload's end and take over its result."""
        execution, call = self._by_side[side], self._calls.pop(side)
        if self._context.signals.stopped_by:
            call.stop()

        def take_result() -> None:
            result = call.result()
            if isinstance(result, Failure):
                raise ExecutionError(result)
            execution.evaluate(result)

        execution.attempt(take_result)

    def _stop_payloads(self, message: str) -> None:
        """End the launch early: payloads that ended by themselves keep their failure."""
        ended, _, _ = select.select(self._ended_fds(), [], [], 0)
        stopped = {side for side, call in self._calls.items() if call.fd not in ended}
        for side in stopped:
            self._calls[side].stop()
        for side in tuple(self._calls):
            self._collect(side)
        if not self._context.signals.stopped_by:
            self._fail_halves(stopped, Failure("payload", "turns", "loop", message))

    def _fail_halves(self, stopped: Set[str], early_end: Failure) -> None:
        """Fail both halves: a payload that ended by itself explains why the other was stopped."""
        ended_alone = [half for side, half in self._by_side.items() if side not in stopped]
        for execution in ended_alone:
            if not execution.failure:
                execution.record.failure = early_end
        cause = ended_alone[0].failure if ended_alone else None
        for side in stopped:
            self._by_side[side].record.failure = _describe_other_half(cause) if cause else early_end


def _describe_other_half(failure: Failure) -> Failure:
    """Return the failure of the half that did not fail itself, with the class of the one that did."""
    kind = failure.kind if failure.kind == NOT_SUPPORTED else OTHER_HALF
    message = f"The other half of the launch failed ({failure.failure_class}/{failure.kind}): "
    return Failure(
        failure.failure_class, kind, failure.phase, message + failure.message, failure.transient
    )
