"""Reads ``job.json`` and finds what would spoil it before anything runs."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any, Dict, List, Mapping

from ..job import KINDS, ExecutionSpec, JobSpec
from ..metrics import BY_NAME, INSTRUMENT_VERSION, owned_by
from ..record import RECORD_VERSION, problems_of, wrong_type
from ..software import PAYLOAD_KINDS

#: Plan-owned values that only the worker knows.
_OURS = ("measurement_id", "attempt")
#: How job.py declares its fields, and what JSON gives for them.
_TYPES: Dict[str, Any] = {"str": str, "int": int, "float": (int, float), "Mapping": dict}
_NAMES = {"str": "text", "int": "a whole number", "float": "a number", "Mapping": "an object"}


class UnusableJob(Exception):
    """``job.json`` cannot be run; the message names file, key and remedy."""


def load(path: str) -> JobSpec:
    """Read and check ``job.json``.

    Raises:
        UnusableJob: it cannot be read, or something in it is wrong.
    """
    try:
        with open(path, encoding="utf-8") as stream:
            job = JobSpec.from_json(stream.read())
    except OSError as error:
        raise UnusableJob(f"{path}: cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise UnusableJob(f"{path}: {error}\n  Plan the job again with this Treehammer.") from error
    problems = _problems(job)
    if problems:
        lines = "\n".join(f"  {problem}" for problem in problems)
        raise UnusableJob(
            f"{path}: cannot be run; plan the job again with this Treehammer\n{lines}"
        )
    return job


def _problems(job: JobSpec) -> List[str]:
    # With a wrong type somewhere, nothing that follows would make sense.
    return _wrong_types(job, "") or _wrong_values(job)


def _wrong_types(item: Any, where: str) -> List[str]:
    """Keys below a dataclass of :mod:`..job` whose values have another type than declared."""
    problems: List[str] = []
    for field in fields(item):
        value, key = getattr(item, field.name), f"{where}{field.name}"
        if is_dataclass(value):
            problems += _wrong_types(value, f"{key}.")
        elif isinstance(value, tuple):
            for index, member in enumerate(value):
                problems += _wrong_types(member, f"{key}[{index}].")
        else:
            name = str(field.type).partition("[")[0]
            if not isinstance(value, _TYPES[name]) or isinstance(value, bool):
                problems.append(f"{key}: {_NAMES[name]} is expected, not {value!r}")
    return problems


def _wrong_values(job: JobSpec) -> List[str]:
    problems = []
    if job.payload.kind not in PAYLOAD_KINDS:
        problems.append(f"payload.kind: {job.payload.kind!r} is none of {', '.join(PAYLOAD_KINDS)}")
    if not job.executions:
        problems.append("executions: there is none")
    names = dict.fromkeys(job.payload.metrics, 0.0)
    problems += [f"payload.metrics: {text}" for text in problems_of({}, names) if "extra" in text]
    seen = set()
    for index, spec in enumerate(job.executions):
        where = f"executions[{index}]"
        if (spec.round, spec.position) in seen:
            problems.append(f"{where}: round {spec.round}, position {spec.position} comes twice")
        seen.add((spec.round, spec.position))
        wrong = _wrong_spec(spec) + _wrong_identity(spec.identity) + _contradictions(spec)
        problems += [f"{where}.{text}" for text in wrong]
    return problems


def _wrong_spec(spec: ExecutionSpec) -> List[str]:
    problems = []
    for name in ("round", "position", "passes"):
        value = getattr(spec, name)
        if value < 1:
            problems.append(f"{name}: must be at least 1, not {value}")
    if spec.kind not in KINDS:
        problems.append(f"kind: {spec.kind!r} is none of {', '.join(KINDS)}")
    return problems


def _wrong_identity(identity: Mapping[str, Any]) -> List[str]:
    problems = []
    for name, value in identity.items():
        metric = BY_NAME.get(name)
        if metric is None or metric.owner != "plan" or name in _OURS:
            problems.append(f"identity.{name}: is not the plan's to say")
        elif value is not None and wrong_type(metric, value):
            problems.append(f"identity.{name}: {wrong_type(metric, value)}")
    for metric in owned_by("plan"):
        if metric.required and metric.name not in _OURS and identity.get(metric.name) is None:
            problems.append(f"identity.{metric.name}: is missing")
    return problems


def _contradictions(spec: ExecutionSpec) -> List[str]:
    """Where the identity says something else than the worker does."""
    ours = {
        "record_version": RECORD_VERSION,
        "instrument_version": INSTRUMENT_VERSION,
        "round": spec.round,
        "position": spec.position,
        "kind": spec.kind,
        "passes_planned": spec.passes,
    }
    return [
        f"identity.{name}: is {spec.identity[name]!r}, but this worker does {value!r}"
        for name, value in ours.items()
        if spec.identity.get(name, value) != value
    ]
