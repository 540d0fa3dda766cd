"""Loading of ``job.json``: all its errors are found before anything runs."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Sequence

from ...job_spec import (
    EXECUTION_KINDS,
    PAIRED,
    SIDES,
    SOLO,
    ExecutionSpec,
    JobSpec,
    PayloadSpec,
)
from ...json_documents import DocumentError
from ...record.measurement_record import describe_value_error, find_extra_problems
from ...record.metric_catalogue import (
    INSTRUMENT_VERSION,
    METRICS_BY_NAME,
    RECORD_VERSION,
    metrics_owned_by,
)
from ...software.providers import RUNNABLE_PAYLOAD_KINDS

#: Plan-owned values that the worker fills in.
_WORKER_FIELDS = ("measurement_id", "attempt")
#: Plan-owned values that every execution must have.
_REQUIRED_IDENTITY = tuple(
    metric.name
    for metric in metrics_owned_by("plan")
    if metric.required and metric.name not in _WORKER_FIELDS
)


class JobFileError(Exception):
    """Invalid ``job.json``; the message names file, key and remedy."""


def load_job(path: str) -> JobSpec:
    """Read and check ``job.json``.

    Raises:
        JobFileError: the file cannot be read, or has errors.
    """
    try:
        with open(path, encoding="utf-8") as stream:
            job = JobSpec.from_json(stream.read())
        problems: Sequence[str] = _find_value_errors(job)
    except OSError as error:
        raise JobFileError(f"{path}: cannot be read ({error.strerror})") from error
    except DocumentError as error:
        problems = error.problems
    except ValueError as error:
        raise JobFileError(
            f"{path}: {error}\n  Plan the job again with this Treehammer."
        ) from error
    if problems:
        lines = "\n".join(f"  {problem}" for problem in problems)
        raise JobFileError(
            f"{path}: cannot be run; plan the job again with this Treehammer\n{lines}"
        )
    return job


def _find_value_errors(job: JobSpec) -> List[str]:
    problems = _find_payload_errors(job.payload, "payload")
    if not job.executions:
        problems.append("executions: must not be empty")
    if job.load and not (0 <= job.load.index < job.load.participants and job.load.step_s > 0):
        problems.append("load: index must be below jobs, and step_s above 0")
    positions = set()
    for index, spec in enumerate(job.executions):
        key = f"executions[{index}]"
        if (spec.round, spec.position) in positions:
            problems.append(f"{key}: round {spec.round}, position {spec.position} occurs twice")
        positions.add((spec.round, spec.position))
        if spec.payload:
            problems += _find_payload_errors(spec.payload, f"{key}.payload")
        wrong = (
            _find_spec_errors(spec)
            + _find_identity_errors(spec.identity)
            + _find_contradictions(spec)
        )
        problems += [f"{key}.{text}" for text in wrong]
    problems += _find_launch_errors(job.executions)
    return problems


def _find_payload_errors(payload: PayloadSpec, key: str) -> List[str]:
    problems = []
    if payload.kind not in RUNNABLE_PAYLOAD_KINDS:
        problems.append(
            f"{key}.kind: unknown value {payload.kind!r}; "
            f"expected one of {', '.join(RUNNABLE_PAYLOAD_KINDS)}"
        )
    names = dict.fromkeys(payload.metrics, 0.0)
    return problems + [f"{key}.metrics: {text}" for text in find_extra_problems(names)]


def _find_launch_errors(specs: Sequence[ExecutionSpec]) -> List[str]:
    sides: Dict[int, List[str]] = {}
    for spec in specs:
        if spec.mode == PAIRED:
            sides.setdefault(spec.round, []).append(spec.side)
    return [
        f"executions: round {round_} is a launch and must hold the sides A and B alone"
        for round_, launch_sides in sides.items()
        if sorted(launch_sides) != list(SIDES)
    ]


def _find_spec_errors(spec: ExecutionSpec) -> List[str]:
    problems = []
    for name in ("round", "position", "passes"):
        value = getattr(spec, name)
        if value < 1:
            problems.append(f"{name}: must be at least 1, not {value}")
    if spec.kind not in EXECUTION_KINDS:
        problems.append(
            f"kind: unknown value {spec.kind!r}; expected one of {', '.join(EXECUTION_KINDS)}"
        )
    if spec.mode not in (SOLO, PAIRED):
        problems.append(f"mode: unknown value {spec.mode!r}; expected one of {SOLO}, {PAIRED}")
    return problems


def _find_identity_errors(identity: Mapping[str, Any]) -> List[str]:
    problems = []
    for name, value in identity.items():
        metric = METRICS_BY_NAME.get(name)
        if metric is None or metric.owner != "plan" or name in _WORKER_FIELDS:
            problems.append(f"identity.{name}: must not be set by the plan")
        elif value is not None and describe_value_error(metric, value):
            problems.append(f"identity.{name}: {describe_value_error(metric, value)}")
    missing = (name for name in _REQUIRED_IDENTITY if identity.get(name) is None)
    return problems + [f"identity.{name}: is missing" for name in missing]


def _find_contradictions(spec: ExecutionSpec) -> List[str]:
    """Find identity values that contradict the execution or this worker."""
    expected = {
        "record_version": RECORD_VERSION,
        "instrument_version": INSTRUMENT_VERSION,
        "round": spec.round,
        "position": spec.position,
        "kind": spec.kind,
        "passes_planned": spec.passes,
    }
    return [
        f"identity.{name}: is {spec.identity[name]!r}; this worker requires {value!r}"
        for name, value in expected.items()
        if spec.identity.get(name, value) != value
    ]
