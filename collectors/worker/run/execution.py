"""One execution: set-up, input, page cache, payload, failure and record."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import time
from dataclasses import asdict, replace
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Union

from ...job_spec import (
    CHECKSUM,
    JOB_MARK_VARIABLE,
    SEQUENTIAL,
    SOLO,
    ExecutionLimits,
    ExecutionSpec,
    InputFile,
    JobSpec,
    Scalar,
)
from ...record import plausibility
from ...record.failures import ExecutionError, Failure
from ...record.measurement_record import Measurement, make_measurement_id
from ...record.metric_catalogue import METRICS_BY_NAME
from ...shared_files import DISK_FULL_ERRNOS, local_path, write_atomically
from ...software import providers
from ..bounded_log import BoundedLog, print_line
from ..probes import credential_checks, node_facts, page_cache, storage_door
from ..probes.cgroup import Cgroup
from ..start.common_start import CommonStart, LoadStart
from ..stop_signals import StopSignals
from . import derived_metrics, input_files, payload_process, payload_result, remote_copy
from .payload_failures import (
    attribute_to_full_disk,
    check_root_version,
    classify_failure,
    name_crash,
)
from .payload_process import LaunchedPayload
from .recorder_plugin import RecorderPlugin

#: Version of the layout of the payload's own ``job.json``.
PAYLOAD_JOB_FORMAT = 1

#: Failure class of an operating system's error in a phase, where it is not the phase's own name.
_CLASS_BY_PHASE = {"setup": "software-setup", "start": "submission"}

#: An axis in the value of an environment variable.
_AXIS_IN_TEXT = re.compile(r"\{(\w+)\}")

#: Characters of the payload's output that a record of a failed execution keeps.
LOG_EXCERPT_CHARACTERS = 2000


class JobContext:
    """State shared by all executions of a job.

    Attributes:
        job: the whole job.
        job_folder: absolute folder of ``job.json``; the payload's folder is relative to it.
        output: absolute folder for ``work/``, ``logs/`` and ``records/``.
        kit: absolute folder of the payload kit.
        attempt: number of the attempt, from 1.
        signals: the worker's signals.
        common_start: lets executions of a load test start together; None for other tests.
    """

    def __init__(
        self,
        job: JobSpec,
        job_folder: str,
        output: str,
        kit: str,
        attempt: int,
        signals: StopSignals,
        common_start: Optional[CommonStart] = None,
    ) -> None:
        self.common_start = common_start
        self.job = job
        self.job_folder = job_folder
        self.output = output
        self.kit = kit
        self.attempt = attempt
        self.signals = signals
        self.cgroup = Cgroup()
        self.facts = node_facts.collect_node_facts(self.cgroup)
        self.payload_folder = os.path.join(job_folder, job.payload.folder)
        # Payloads must not see the worker's own settings, such as a database's password.
        self.base_env = {
            name: value
            for name, value in os.environ.items()
            if name == JOB_MARK_VARIABLE or not name.startswith("TREEHAMMER_")
        }
        credential_checks.resolve_credentials(self.base_env, os.path.abspath(job_folder))
        for name in ("work", "logs", "records"):
            os.makedirs(os.path.join(output, name), exist_ok=True)


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
    """

    def __init__(self, context: JobContext, spec: ExecutionSpec) -> None:
        self._context = context
        self._spec = spec
        self._values: Dict[str, Any] = {"run_mode": SOLO if spec.mode == SOLO else SEQUENTIAL}
        self._extras: Mapping[str, float] = {}
        self._operations: Sequence[Mapping[str, Any]] = ()
        self._failure: Optional[Failure] = None
        self._phase = "setup"
        self._name = f"{spec.round}-{spec.position}"
        self._folder = os.path.join(context.output, "work", self._name)
        self._input = os.path.join(self._folder, "input")
        self._command: List[str] = []
        self._environment: Dict[str, str] = {}
        self._files: Sequence[InputFile] = ()
        self._load_start: Optional[LoadStart] = None
        self._recorder: Optional[RecorderPlugin] = None
        if context.job.payload.record and spec.kind != CHECKSUM:
            self._recorder = RecorderPlugin(self._folder, context.output, self._name)
        self._started_us, self._start = 0, 0.0

    @property
    def folder(self) -> str:
        """The payload's work folder."""
        return self._folder

    @property
    def files(self) -> Sequence[InputFile]:
        """The files that the payload reads, once the execution is prepared."""
        return self._files

    @property
    def failure(self) -> Optional[Failure]:
        """The first failure, if any."""
        return self._failure

    def fail(self, failure: Failure) -> None:
        """Fail the execution for an external reason, instead of its own failure if it has one."""
        self._failure = failure

    def add_values(self, **values: Any) -> None:
        """Add worker-owned values."""
        self._values.update(values)

    def run(self) -> None:
        """Run the execution alone; a failure becomes part of the measurement."""
        self.start()
        if not self.attempt(self.prepare):
            self._withdraw_from_start()
        self.attempt(lambda: self.evaluate(self.run_payload()))
        self.finish()

    def start(self) -> None:
        """Note the time and the state of the node before the execution."""
        self._started_us, self._start = node_facts.now_us(), time.monotonic()
        self._before = node_facts.NodeSnapshot.take(self._context.cgroup)

    def attempt(self, step: Callable[[], object]) -> bool:
        """Perform a step unless an earlier one failed; False after a failure, which is kept."""
        if self._failure:
            return False
        try:
            step()
            # A batch system may stop the payload's processes before it signals the worker.
            if self._failure:
                self._context.signals.raise_if_stopped(self._phase)
        except ExecutionError as error:
            self._failure = error.failure
        except OSError as error:
            message = f"An operation failed on the node: {error}."
            failure_class = _CLASS_BY_PHASE.get(self._phase, self._phase)
            kind = "disk-full" if error.errno in DISK_FULL_ERRNOS else "node"
            self._failure = Failure(failure_class, kind, self._phase, message, transient=True)
        return not self._failure

    def finish(self) -> None:
        """Note the time and the state of the node after the execution, and remove its files."""
        after = node_facts.NodeSnapshot.take(self._context.cgroup)
        self._values.update(node_facts.compare_snapshots(self._before, after))
        # By the monotonic clock: the system time may be changed meanwhile.
        ended_us = self._started_us + round((time.monotonic() - self._start) * 1e6)
        self._values.update(
            started_us=self._started_us,
            ended_us=ended_us,
            day=int(time.strftime("%Y%m%d", time.gmtime(self._started_us / 1e6))),
        )
        self._clean_folder()

    def prepare(self) -> None:
        """Perform all steps before the payload: set-up, input, page cache, common start.

        Raises:
            ExecutionError: a step failed.
            OSError: the node failed.
        """
        context = self._context
        shutil.rmtree(self._folder, ignore_errors=True)  # left by an interrupted attempt
        os.makedirs(self._folder)
        setup = self._setup_root()
        spec = self._prepare_inputs(setup)
        self._files = spec.files
        self._probe_door(spec)
        self._prepare_page_cache(spec)
        context.signals.raise_if_stopped(self._phase)
        self._await_common_start()
        self._phase = "payload"
        entry = os.path.join(context.payload_folder, context.job.payload.entry)
        variables = self._payload_environment(spec)
        self._command = setup.build_command(context.job.payload.kind, entry, variables)
        self._environment = {**setup.env, **variables}
        self._write_payload_job(spec)

    # -- before the payload

    def _setup_root(self) -> providers.SoftwareSetup:
        start, cpu = time.monotonic(), _own_and_children_cpu_s()
        try:
            return providers.setup_software(
                self._spec.software,
                self._context.base_env,
                self._context.kit,
                self._visible_folders(),
            )
        finally:
            self._values["setup_wall_s"] = time.monotonic() - start
            self._values["setup_cpu_s"] = _own_and_children_cpu_s() - cpu

    def _visible_folders(self) -> Dict[str, str]:
        """List the folders, besides the kit, that a payload in a container needs."""
        return {
            "work": self._folder,
            "payload": self._context.payload_folder,
            # Staged files are below the work folder.
            "input": input_files.find_common_folder(self._spec.files) or self._folder,
        }

    def _prepare_inputs(self, setup: providers.SoftwareSetup) -> ExecutionSpec:
        """Check the files or stage them; return the execution with the files' final URLs."""
        spec = self._spec
        if spec.variant.get("access") == "staged":
            self._phase = "stage-in"
            input_files.check_sizes(spec.files, "stage-in")
            # Otherwise a bundle's first execution would copy from disk and the others from memory.
            page_cache.prepare_page_cache(spec.files, str(spec.variant.get("cache", "")))
            self._check_credentials()
            signals = self._context.signals
            staged = input_files.stage_files(
                spec.files,
                self._input,
                signals,
                lambda url, target: remote_copy.fetch_remote_file(setup, url, target, signals),
            )
            # Loading the software that copies is part of the set-up.
            self._values["setup_wall_s"] += staged.software_loading.wall_s
            self._values["setup_cpu_s"] += staged.software_loading.cpu_s
            self._values.update(
                stagein_wall_s=staged.wall_s,
                stagein_cpu_s=staged.cpu_s,
                stagein_bytes=staged.bytes,
            )
            return replace(spec, files=staged.files)
        self._phase = "open"
        input_files.check_sizes(spec.files)
        self._check_credentials()
        return spec

    def _check_credentials(self) -> None:
        """Check the credentials unless all files are local."""
        if any(local_path(file.url) is None for file in self._spec.files):
            credential_checks.check_credentials(self._context.base_env)

    def _probe_door(self, spec: ExecutionSpec) -> None:
        if spec.files:
            first = spec.files[0]
            self._values.update(
                file_name=first.name,
                file_url=first.url,
                file_size_bytes=sum(file.size for file in spec.files),
            )
        # Probe the original door, also when the payload reads a staged copy.
        files, door_url = self._spec.files, self._context.job.door_url
        address = files[0].url if files else door_url
        if not address:
            return
        reach = storage_door.measure_reachability(address)
        self._values.update(address_family=reach.address_family, door_rtt_s=reach.rtt_s)
        if reach.rtt_s is not None:  # a door that does not answer is not queried
            self._values.update(storage_door.identify_door_server(address))
        if reach.address_family != "local":
            self._values.update(
                server_cache_state="unknown", server_cache_method="not controlled by the worker"
            )

    def _prepare_page_cache(self, spec: ExecutionSpec) -> None:
        self._phase = "open"
        state = page_cache.prepare_page_cache(spec.files, str(spec.variant.get("cache", "")))
        self._values.update(
            client_cache_state=state.state,
            client_cache_method=state.method,
            client_cached_fraction=state.fraction,
        )

    def _withdraw_from_start(self) -> None:
        """Let no other job wait for this one, unless it failed later."""
        common_start = self._context.common_start
        if common_start is not None and self._phase != "start":
            common_start.withdraw(self._name)

    def _await_common_start(self) -> None:
        if self._context.common_start is None:
            return
        self._phase = "start"
        self._load_start = self._context.common_start.wait(
            self._name, is_first=self._spec == self._context.job.executions[0]
        )
        self._values.update(self._load_start.values())
        self._load_start.require_rest_of_load()

    # -- the payload

    def _payload_environment(self, spec: ExecutionSpec) -> Dict[str, str]:
        urls = [file.url for file in spec.files]
        env = {
            "TREEHAMMER_JOB": os.path.join(self._folder, "job.json"),
            "TREEHAMMER_RESULT": os.path.join(self._folder, "result.json"),
            "TREEHAMMER_URL": urls[0] if urls else "",
            "TREEHAMMER_URLS": "\n".join(urls),
            "TREEHAMMER_TREE": spec.tree,
            "TREEHAMMER_KIT": self._context.kit,
            "TREEHAMMER_PASSES": str(spec.passes),
            "TREEHAMMER_KIND": spec.kind,
        }
        if JOB_MARK_VARIABLE in self._context.base_env:
            env[JOB_MARK_VARIABLE] = self._context.base_env[JOB_MARK_VARIABLE]
        if self._load_start is not None:
            load = self._load_start.describe_for_payload()
            env.update(
                TREEHAMMER_LOAD_INDEX=str(load["index"]),
                TREEHAMMER_LOAD_JOBS=str(load["jobs"]),
                TREEHAMMER_LOAD_START_US=str(load["start_us"] or ""),
            )
        for axis, value in spec.variant.items():
            env[f"TREEHAMMER_AXIS_{axis.upper()}"] = _decode_text(value)
        if self._recorder is not None:
            env.update(self._recorder.environment)
        axes = {axis: _decode_text(value) for axis, value in spec.variant.items()}
        for name, text in self._context.job.payload.environment.items():
            env[name] = _AXIS_IN_TEXT.sub(lambda found: axes.get(found[1], found[0]), text)
        return env

    def _write_payload_job(self, spec: ExecutionSpec) -> None:
        document = {
            "format": PAYLOAD_JOB_FORMAT,
            "execution": asdict(spec),
            "settings": dict(self._context.job.payload.settings),
            "kit": self._context.kit,
            "door_url": self._context.job.door_url,
        }
        if self._load_start is not None:
            document["load"] = {
                **self._load_start.describe_for_payload(),
                "folder": f"treehammer-{self._context.job.job_id}-{self._context.attempt}-{self._name}",
            }
        path = os.path.join(self._folder, "job.json")
        write_atomically(path, json.dumps(document, indent=1, sort_keys=True))

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
        context = self._context
        kills, started_us = context.cgroup.oom_kills(), node_facts.now_us()
        log = os.path.join(context.output, "logs", self._name)
        with BoundedLog(f"{log}.out") as out, BoundedLog(f"{log}.err") as err:
            outcome = payload_process.run_payload(
                self._command,
                self._environment,
                self._folder,
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
        context, outcome = self._context, run.outcome
        self._values.update(_outcome_metrics(outcome), root_provider=self._spec.software.provider)
        reported = payload_result.read_payload_result(
            os.path.join(self._folder, "result.json"), context.job.payload.metrics
        )
        self._values.update(reported.values)
        self._values.update(derived_metrics.derive_metrics(self._values))
        if self._load_start is not None:
            began_us = reported.values.get("load_started_us")
            self._values.update(self._load_start.values(began_us))
        self._keep_recording(run)
        self._extras = reported.extras
        self._operations = reported.operations
        self._failure = classify_failure(
            outcome, reported, self._limits(), run.out_of_memory
        ) or check_root_version(self._spec.software.version, reported.values.get("root_version"))
        if self._failure:
            self._failure = name_crash(self._failure, run.log_path)
            self._failure = attribute_to_full_disk(self._failure, self._folder)
            self._values["log_excerpt"] = run.excerpt

    # -- after the payload

    def _keep_recording(self, run: PayloadRun) -> None:
        if self._recorder is None:
            return
        kept = self._recorder.keep_recording(
            started_us=run.started_us,
            ended_us=run.started_us + round(run.outcome.wall_s * 1e6),
            door_url=self._context.job.door_url,
            software=self._spec.software.request,
            **{name: self._spec.identity.get(name) for name in ("test_name", "dataset", "variant")},
        )
        if not kept:
            print_line(
                f"{self._name}: nothing was recorded: the payload opened no file with the XRootD "
                "client, or its client has no recorder plug-in (libXrdClRecorder)",
                "stderr",
            )

    def _clean_folder(self) -> None:
        """Remove the payload's folder; after a failure remove only its input, for diagnosis."""
        shutil.rmtree(self._input if self._failure else self._folder, ignore_errors=True)

    def remove_files(self) -> None:
        """Remove all files except logs and records, to make room."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def build_measurement(self, **surrounding: Union[int, float, None]) -> Measurement:
        """Build the record, including its plausibility.

        Args:
            surrounding: worker-owned values measured around the execution.
        """
        context, spec = self._context, self._spec
        values: Dict[str, Any] = {
            **spec.identity,
            "measurement_id": make_measurement_id(
                context.job.job_id, context.attempt, spec.round, spec.position
            ),
            "attempt": context.attempt,
            **context.facts,
            **surrounding,
            **self._values,
        }
        if self._failure:
            values.update(
                {
                    f"failure_{k.replace('failure_', '')}": v
                    for k, v in asdict(self._failure).items()
                }
            )
        reasons = plausibility.find_implausibilities(values)
        values["plausible"] = not reasons
        values["implausible_reasons"] = "; ".join(reasons)
        present = {name: _clean_text(name, v) for name, v in values.items() if _has_value(name, v)}
        return Measurement(present, self._extras, self._operations)


def _has_value(name: str, value: Any) -> bool:
    """Whether a value enters the record: empty text is omitted unless required."""
    return value is not None and (value != "" or METRICS_BY_NAME[name].required)


def _own_and_children_cpu_s() -> float:
    total = 0.0
    for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
        usage = resource.getrusage(who)
        total += usage.ru_utime + usage.ru_stime
    return total


def _decode_text(value: Scalar) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _clean_text(name: str, value: Any) -> Any:
    """Remove NUL and invalid UTF-8 from a text and limit its length."""
    if not isinstance(value, str):
        return value
    text = value.replace("\x00", "").encode("utf-8", "replace").decode("utf-8")
    return text[: METRICS_BY_NAME[name].max_length]


def _outcome_metrics(outcome: payload_process.ProcessOutcome) -> Dict[str, Any]:
    """Return the outcome by catalogue name."""
    figures: Dict[str, Any] = {
        "payload_wall_s": outcome.wall_s,
        "payload_user_s": outcome.user_s,
        "payload_sys_s": outcome.sys_s,
        "payload_run_queue_s": outcome.run_queue_s,
        "max_rss_bytes": outcome.max_rss_bytes,
        "tree_peak_rss_bytes": outcome.tree_peak_rss_bytes,
        "ctx_voluntary": outcome.ctx_voluntary,
        "ctx_involuntary": outcome.ctx_involuntary,
        "page_faults_minor": outcome.page_faults_minor,
        "page_faults_major": outcome.page_faults_major,
        "processes": outcome.processes,
        "exit_code": outcome.exit_code,
        "exit_signal": outcome.exit_signal,
    }
    if outcome.io is not None:
        figures.update({f"io_{name}": value for name, value in asdict(outcome.io).items()})
    return figures
