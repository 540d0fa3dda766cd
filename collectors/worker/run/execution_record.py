"""Record of one execution: its values and its failure, from which the measurement is built."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Dict, List, Mapping, Optional, Sequence

from ...job_spec import PAIRED, SEQUENTIAL, SOLO, ExecutionSpec
from ...record import plausibility
from ...record.failures import Failure
from ...record.measurement_record import Measurement
from ...record.metric_catalogue import METRICS_BY_NAME, PASS_PHASES
from ..payload.payload_process import ProcessOutcome
from ..payload.payload_result import PayloadResult


class ExecutionRecord:
    """Values of an execution so far, its phase and its first failure.

    Attributes:
        values: by catalogue name.
        phase: the current phase, which a failure names.
        failure: the first failure, if any.
    """

    def __init__(self, spec: ExecutionSpec) -> None:
        self.values: Dict[str, Any] = {"run_mode": SOLO if spec.mode == SOLO else SEQUENTIAL}
        self._threads = spec.threads
        self.phase = "setup"
        self.failure: Optional[Failure] = None
        self._extras: Mapping[str, float] = {}
        self._operations: Sequence[Mapping[str, Any]] = ()

    def add_outcome(self, outcome: ProcessOutcome) -> None:
        """Add measurements of the payload's processes."""
        self.values.update(_outcome_metrics(outcome))

    def add_result(self, reported: PayloadResult) -> None:
        """Add the payload's own report, and metrics derived from it and the outcome."""
        self.values.update(reported.values)
        self.values.update(derive_metrics(self.values, self._threads))
        self._extras = reported.extras
        self._operations = reported.operations

    def build_measurement(self, surrounding: Mapping[str, Any]) -> Measurement:
        """Build the measurement, including its plausibility.

        Args:
            surrounding: identity, and values measured around the execution.
        """
        values = {**surrounding, **self.values}
        if self.failure:
            for name, value in asdict(self.failure).items():
                values[f"failure_{name.replace('failure_', '')}"] = value
        reasons = plausibility.find_implausibilities(values)
        values["plausible"] = not reasons
        values["implausible_reasons"] = plausibility.SEPARATOR.join(reasons)
        present = {name: _clean_text(name, v) for name, v in values.items() if _has_value(name, v)}
        return Measurement(present, self._extras, self._operations)


def derive_metrics(values: Mapping[str, Any], threads: int = 1) -> Dict[str, float]:
    """Derive catalogue values from a measurement's others; those that lack a term are omitted.

    Args:
        values: by catalogue name, including the payload's and the set-up's wall and CPU time.
        threads: CPUs reserved for the execution, all of them for its whole wall time.
    """
    wall, cpu = values["payload_wall_s"], values["payload_user_s"] + values["payload_sys_s"]
    copy_wall, copy_cpu = (values.get(f"stagein_{clock}_s", 0.0) for clock in ("wall", "cpu"))
    if values.get("run_mode") == PAIRED:  # the payload's wall time includes the other one's turns
        return _derive_access_metrics(values, copy_wall, copy_cpu, threads)
    job_wall = wall + values["setup_wall_s"] + copy_wall
    return {
        "eff_payload": cpu / (wall * threads),
        "eff_job": (cpu + values["setup_cpu_s"] + copy_cpu) / (job_wall * threads),
        **_derive_access_metrics(values, copy_wall, copy_cpu, threads),
    }


def _derive_access_metrics(
    values: Mapping[str, Any], copy_wall: float, copy_cpu: float, threads: int
) -> Dict[str, float]:
    """Derive rate and CPU efficiency of one pass, including the copy of a staged execution."""
    wall: List[Any] = [values.get(f"{phase}_wall_s") for phase in PASS_PHASES]
    cpu: List[Any] = [
        values.get(f"{phase}_{clock}_s") for phase in PASS_PHASES for clock in ("user", "sys")
    ]
    events = values.get("events_read")
    if not events or None in wall or None in cpu or copy_wall + sum(wall) <= 0:
        return {}
    access_wall = copy_wall + sum(wall)
    return {
        "access_rate_hz": events / access_wall,
        "eff_access": (copy_cpu + sum(cpu)) / (access_wall * threads),
    }


def _has_value(name: str, value: Any) -> bool:
    """Return whether a value enters the record: empty text is omitted unless required."""
    return value is not None and (value != "" or METRICS_BY_NAME[name].required)


def _clean_text(name: str, value: Any) -> Any:
    """Remove NUL and invalid UTF-8 from a text and limit its length."""
    if not isinstance(value, str):
        return value
    text = value.replace("\x00", "").encode("utf-8", "replace").decode("utf-8")
    return text[: METRICS_BY_NAME[name].max_length]


def _outcome_metrics(outcome: ProcessOutcome) -> Dict[str, Any]:
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
