"""One execution: preparation, payload, and the record of both."""

from __future__ import annotations

import os
import select
import shutil
import signal
import time
from contextlib import nullcontext, suppress
from dataclasses import replace
from typing import Callable, NamedTuple, Optional, Sequence, Union

from ...job_spec import ExecutionLimits, ExecutionSpec, InputFile
from ...record.day_numbers import current_us
from ...record.measurement_record import Measurement, make_measurement_id
from ...record.outcome import ExecutionError, Failure
from ...s3_signing import mask_signatures
from ...shared_files import DISK_FULL_ERRNOS
from ...software.wheels import expected_root_version
from ..child_processes import BoundedLog, ForkedCall, StopSignals, print_line
from ..probes import node_state
from . import crash_causes, execution_record, payload_process
from .credential_refusals import classify_refusal
from .execution_record import ExecutionRecord
from .job_context import JobContext, LoadReport
from .payload_failures import (
    attribute_to_full_disk,
    attribute_to_headers,
    check_root_version,
    classify_failure,
    name_cause,
    read_log,
)
from .payload_preparation import (
    END_FILE,
    INPUT_FOLDER,
    PAYLOAD_JOB_FILE,
    RESULT_FILE,
    PayloadPreparation,
)
from .payload_process import LaunchedPayload
from .xrootd_settings import RecorderPlugin

#: Failure class of an operating system's error in a phase, where it is not the phase's own name.
_CLASS_BY_PHASE = {"setup": "software-setup", "start": "submission", "payload": "software-setup"}

#: Seconds between two checks for a stop signal while a child supervises the payload.
_STOP_POLL_S = 0.5
#: Characters of the payload's output that a record of a failed execution keeps.
LOG_EXCERPT_CHARACTERS = 2000


class PayloadRun(NamedTuple):
    """End of a payload: its outcome, the end of its output, its log, an OOM kill, and its start."""

    outcome: payload_process.ProcessOutcome
    excerpt: str
    log_path: str
    out_of_memory: bool
    started_us: int


class Execution:
    """The execution of one :class:`ExecutionSpec`: :meth:`run`, then :meth:`build_measurement`.

    A launch performs the steps of :meth:`run` for two executions at once.

    Attributes:
        record: its values, phase and failure so far.
        folder: the payload's work folder.
        door: name of the door through which it reads.
    """

    def __init__(self, context: JobContext, spec: ExecutionSpec) -> None:
        self._context = context
        self._spec = spec
        self.record = ExecutionRecord(spec)
        self._name = f"{spec.round}-{spec.position}"
        self.folder = os.path.join(context.work, self._name)
        self.door = context.job.door_of(spec)
        self._prepared: Optional[PayloadPreparation] = None
        self._started_us, self._start = 0, 0.0

    @property
    def files(self) -> Sequence[InputFile]:
        """The files that the payload reads, once the execution is prepared."""
        return self._prepared.files if self._prepared else ()

    @property
    def failure(self) -> Optional[Failure]:
        """The first failure, if any."""
        return self.record.failure

    def run(self) -> None:
        """Run the execution alone; a failure becomes part of the measurement."""
        self.start()
        load = self._context.load
        # The other jobs must not wait for this one, unless it failed later.
        if not self.attempt(self.prepare) and load is not None and self.record.phase != "start":
            load.withdraw(self._name)
        self.attempt(lambda: self.evaluate(self._run_watching_payload()))
        if load is not None:
            load.announce_end(self._name)
        self.finish()

    def start(self) -> None:
        """Note the time and the state of the node before the execution."""
        self._started_us, self._start = current_us(), time.monotonic()
        self._before = node_state.take_snapshot(self._context.cgroup)

    def attempt(self, step: Callable[[], object]) -> bool:
        """Perform a step unless an earlier one failed; False after a failure, which is kept."""
        if self.record.failure:
            return False
        try:
            step()
            # A batch system may stop the payload's processes before it signals the worker.
            if self.record.failure:
                self._context.signals.raise_if_stopped(self.record.phase)
        except ExecutionError as error:
            self.record.failure = self._name_refusal(error.failure)
        except OSError as error:
            message = f"An operation failed on the node: {error}."
            failure_class = _CLASS_BY_PHASE.get(self.record.phase, self.record.phase)
            kind = "node"
            if error.errno in DISK_FULL_ERRNOS:  # of the node, whatever was being done
                failure_class, kind = "software-setup", "disk-full"
            self.record.failure = self._name_refusal(
                Failure(failure_class, kind, self.record.phase, message, transient=True)
            )
        return not self.record.failure

    def finish(self) -> None:
        """Note the time and the state of the node after the execution, and remove its files."""
        after = node_state.take_snapshot(self._context.cgroup)
        self.record.values.update(**node_state.compare_snapshots(self._before, after))
        # By the monotonic clock: the system time may be changed meanwhile.
        ended_us = self._started_us + round((time.monotonic() - self._start) * 1e6)
        self.record.values.update(
            started_us=self._started_us,
            ended_us=ended_us,
            day=int(time.strftime("%Y%m%d", time.gmtime(self._started_us / 1e6))),
        )
        if self._prepared and self._prepared.has_signatures:
            with suppress(OSError):
                os.unlink(os.path.join(self.folder, PAYLOAD_JOB_FILE))
        input_folder = os.path.join(self.folder, INPUT_FOLDER)
        shutil.rmtree(input_folder if self.record.failure else self.folder, ignore_errors=True)

    def prepare(self) -> None:
        """Perform all steps before the payload; see :meth:`.PayloadPreparation.perform`."""
        preparation = PayloadPreparation(
            self._context, self._spec, self._name, self.folder, self.record
        )
        preparation.perform()
        self._prepared = preparation

    def _run_watching_payload(self) -> PayloadRun:
        """Run the payload; report its load, or tell one that watches a server when the load ended."""
        load, signals = self._context.load, self._context.signals
        report = load.open_report(self.folder, self._context.attempt) if load else None
        is_watch = load is not None and load.is_watch
        is_reported = report is not None and report.is_possible
        if not (is_watch or is_reported or self._context.distance.has_proxies):
            return self.run_payload()
        # In a child, so that a proxy, or the process which waits for the end, is not one of the
        # payload's, and so that a late report delays nothing.
        call = ForkedCall(lambda: supervise_payload(self, signals))
        end_path = os.path.join(self.folder, END_FILE)
        with load.watching_end(self._name, end_path) if load else nullcontext():
            result = self._await_payload(call, report)
        if isinstance(result, Failure):
            raise ExecutionError(result)
        return result

    def _await_payload(
        self, call: ForkedCall, report: Optional[LoadReport]
    ) -> Union[PayloadRun, Failure]:
        """Wait for the child that supervises the payload; report its load meanwhile."""
        signals = self._context.signals
        while not select.select([call.fd], [], [], _STOP_POLL_S)[0]:
            signals.drain()
            if signals.stopped_by:
                call.stop()
                break
            if report is not None:
                report.send_if_due()
        result: Union[PayloadRun, Failure] = call.result()
        if report is not None and not signals.stopped_by:
            report.end()
        return result

    def run_payload(
        self, signals: Optional[StopSignals] = None, launched: Optional[LaunchedPayload] = None
    ) -> PayloadRun:
        """Run the payload to its end.

        Args:
            signals: stop signals to obey instead of the job's.
            launched: how a payload that takes turns differs from one that runs alone.

        Raises:
            ExecutionError: the payload cannot be started.
            OSError: the node cannot start a process.
        """
        assert self._prepared is not None
        context = self._context
        kills, started_us = context.cgroup.oom_kills(), current_us()
        log = os.path.join(context.output, "logs", self._name)
        mask = mask_signatures if self._prepared.has_signatures else None
        with BoundedLog(f"{log}.out", mask=mask) as out, BoundedLog(f"{log}.err", mask=mask) as err:
            outcome = payload_process.run_payload(
                self._prepared.command,
                self._prepared.environment,
                self.folder,
                self._limits(),
                signals or context.signals,
                out,
                err,
                launched,
            )
            excerpt = err.read_tail(LOG_EXCERPT_CHARACTERS) or out.read_tail(LOG_EXCERPT_CHARACTERS)
            if outcome.survivors:
                err.write(f"\n[{outcome.survivors} processes outlived the payload]\n".encode())
        killed = context.cgroup.oom_kills() > kills
        return PayloadRun(outcome, excerpt, f"{log}.err", killed, started_us)

    def _limits(self) -> ExecutionLimits:
        """Return the payload's limits; a load's lead before its start is added to its wall time."""
        limits, load = self._context.job.limits, self._context.job.load
        lead_s = load.lead_s if load and limits.wall_s else 0.0
        return replace(limits, wall_s=limits.wall_s + lead_s)

    def evaluate(self, run: PayloadRun) -> None:
        """Take over the payload's outcome and report."""
        assert self._prepared is not None
        self.record.values.update(root_provider=self._spec.software.provider, **run.outcome.values)
        reported = execution_record.read_payload_result(
            os.path.join(self.folder, RESULT_FILE), self._context.job.payload_of(self._spec).metrics
        )
        self.record.add_result(reported)
        self._name_data_server(reported.values.get("data_server"))
        if self._prepared.load_start is not None:
            began_us = reported.values.get("load_started_us")
            self.record.values.update(**self._prepared.load_start.values(began_us))
        if self._prepared.client_log is not None:
            self.record.values.update(retries=self._prepared.client_log.count_lost_reads())
        if self._prepared.recorder is not None:
            self._keep_recording(self._prepared.recorder, run)
        has_limit = self._context.facts["cgroup_memory_limit_bytes"] is not None
        failure = classify_failure(
            run.outcome, reported, self._limits(), run.out_of_memory, is_group_limited=has_limit
        )
        if failure is None:
            version = reported.values.get("root_version")
            failure = check_root_version(expected_root_version(self._spec.software), version)
        if failure:
            log, note = read_log(run.log_path)
            failure = replace(failure, message=mask_signatures(failure.message))
            failure = attribute_to_full_disk(name_cause(failure, log), self.folder)
            failure = attribute_to_headers(failure, log, self._prepared.node)
            failure = replace(failure, message=f"{failure.message} {note}".rstrip())
            self.record.failure = self._name_refusal(failure, run.excerpt)
            # Later errors of a compiler often follow from the first.
            first_error = crash_causes.excerpt_compiler_error(log, LOG_EXCERPT_CHARACTERS)
            self.record.values.update(log_excerpt=first_error or run.excerpt)
        elif self._prepared.cache_counter is not None:
            self.record.values.update(**self._prepared.cache_counter.count_bytes())

    def _name_data_server(self, data_server: Optional[str]) -> None:
        """Name the server behind a proxy; fail if the payload read past its distance."""
        distance = self._context.distance
        if not data_server:
            return
        escape = distance.describe_escape(self._spec, data_server)
        if escape:
            message = f"{escape}: the door redirected its client."
            self.record.failure = Failure("read", "distance", "payload", message)
        self.record.values.update(data_server=distance.find_server_behind(data_server))

    def _name_refusal(self, failure: Failure, excerpt: str = "") -> Failure:
        """Give a failure the class of credentials if a door refused the job's."""
        return classify_refusal(
            failure,
            self._context.base_env,
            [file.url for file in self._spec.files],
            self._spec.software,
            excerpt,
        )

    def _keep_recording(self, recorder: RecorderPlugin, run: PayloadRun) -> None:
        is_recorded = recorder.keep_recording(
            started_us=run.started_us,
            ended_us=run.started_us + round(run.outcome.wall_s * 1e6),
            door_url=self._context.job.door_url_of(self._spec),
            software=self._spec.software.request,
            **{name: self._spec.identity.get(name) for name in ("test_name", "dataset", "variant")},
        )
        if not is_recorded:
            print_line(
                f"{self._name}: nothing was recorded: the payload opened no file with the XRootD "
                "client, or its client has no recorder plug-in (libXrdClRecorder)",
                "stderr",
            )

    def remove_files(self) -> None:
        """Remove all files except logs and records, to make room."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def build_measurement(self, **surrounding: Union[int, float, None]) -> Measurement:
        """Build the record, including its plausibility.

        Args:
            surrounding: worker-owned values measured around the execution.
        """
        context, spec = self._context, self._spec
        return self.record.build_measurement(
            {
                **spec.identity,
                "measurement_id": make_measurement_id(
                    context.job.job_id, context.attempt, spec.round, spec.position
                ),
                "attempt": context.attempt,
                **context.facts,
                **surrounding,
            }
        )


def supervise_payload(
    execution: Execution, worker_signals: StopSignals, launched: Optional[LaunchedPayload] = None
) -> Union[PayloadRun, Failure]:
    """Run a payload in this child of the worker; return its end or the failure of its start."""
    with StopSignals() as signals:
        if worker_signals.stopped_by:  # between the fork and here
            os.kill(os.getpid(), signal.SIGTERM)
        payload_process.become_subreaper()
        try:
            return execution.run_payload(signals, launched)
        except ExecutionError as error:
            return error.failure
