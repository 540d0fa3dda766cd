"""The payload's ``result.json``, accepted only when all of it is valid."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Optional, Sequence

from ...record.failures import FAILURE_CLASSES, Failure
from ...record.measurement_record import describe_value_error
from ...record.metric_catalogue import METRICS_BY_NAME
from ...record.operation_steps import find_operation_problems
from ...record.value_checks import is_number
from ...shared_files import read_regular_file

#: Version of the layout of ``result.json``.
RESULT_FORMAT = 1

_OBJECT_KEYS = ("values", "extras", "failure")
_KEYS = ("format", *_OBJECT_KEYS, "operations")

_MAX_BYTES = 16 * 1024 * 1024
_DOCUMENTATION_HINT = "See 'Write your own test' in the documentation."


@dataclass(frozen=True)
class PayloadResult:
    """A payload's report; ``failure`` is the one that it reports itself.

    A missing or invalid report sets ``problem`` alone.
    """

    values: Mapping[str, Any] = field(default_factory=dict)
    extras: Mapping[str, float] = field(default_factory=dict)
    operations: Sequence[Mapping[str, Any]] = ()
    failure: Optional[Failure] = None
    problem: Optional[Failure] = None


def read_payload_result(path: str, declared: Mapping[str, Any]) -> PayloadResult:
    """Read ``result.json``; ``declared`` contains the test's own metrics by name."""
    try:
        text = read_regular_file(path, _MAX_BYTES)
    except FileNotFoundError:
        message = (
            "The payload ended without error but wrote no result: it must write JSON to the path in "
            f"$TREEHAMMER_RESULT. {_DOCUMENTATION_HINT}"
        )
        return PayloadResult(problem=Failure("payload", "no-result", "result", message))
    except OSError as error:
        return _bad_result([f"cannot be read: {error.strerror}"])
    except UnicodeDecodeError as error:
        return _bad_result([f"not JSON: {error}"])
    except ValueError as error:
        return _bad_result([str(error)])
    try:
        document = json.loads(text, parse_constant=_reject_json_constant)
    except (ValueError, RecursionError) as error:
        return _bad_result([f"not JSON: {error}"])
    problems = find_result_problems(document, declared)
    if problems:
        return _bad_result(problems)
    failure = document.get("failure")
    return PayloadResult(
        values={k: v for k, v in (document.get("values") or {}).items() if v is not None},
        extras=document.get("extras") or {},
        operations=document.get("operations") or (),
        failure=Failure(**failure) if failure else None,
    )


def find_result_problems(document: Any, declared: Mapping[str, Any]) -> List[str]:
    """List all problems of a result, each with the field and the remedy."""
    if not isinstance(document, dict):
        return ["an object is expected"]
    problems = _find_key_errors(document)
    if not problems:
        problems += _find_value_errors(document.get("values") or {})
        problems += _find_extra_errors(document.get("extras") or {}, declared)
        problems += find_operation_problems(document.get("operations") or [])
        problems += _find_failure_errors(document.get("failure"))
    return problems


def _find_key_errors(document: Mapping[str, Any]) -> List[str]:
    problems = [f"unknown key {key!r}" for key in document if key not in _KEYS]
    if document.get("format") != RESULT_FORMAT:
        problems.append(f"'format' must be {RESULT_FORMAT}")
    for key in _OBJECT_KEYS:
        if not isinstance(document.get(key) or {}, dict):
            problems.append(f"{key!r} must be an object")
    return problems


def _find_value_errors(values: Mapping[str, Any]) -> List[str]:
    problems = []
    for name, value in values.items():
        metric = METRICS_BY_NAME.get(name)
        if metric is None:
            problems.append(
                f"value {name!r} is not in the catalogue: declare it under [metrics.{name}] in "
                "test.toml and report it in 'extras'"
            )
        elif metric.owner != "payload":
            problems.append(f"value {name!r} is measured by the {metric.owner}: leave it out")
        elif value is not None:
            reason = describe_value_error(metric, value)
            if reason:
                problems.append(f"value {name!r} {reason}")
    return problems


def _find_extra_errors(extras: Mapping[str, Any], declared: Mapping[str, Any]) -> List[str]:
    problems = []
    for name, value in extras.items():
        if name not in declared:
            problems.append(f"extra {name!r} is not declared: add [metrics.{name}] to test.toml")
        elif not is_number(value):
            problems.append(f"extra {name!r} must be a finite number")
    return problems


def _find_failure_errors(failure: Optional[Dict[str, Any]]) -> List[str]:
    if not failure:
        return []
    texts = ("failure_class", "kind", "phase", "message")
    problems = [f"failure: unknown key {k!r}" for k in failure if k not in (*texts, "transient")]
    problems += [
        f"failure: {k!r} must be text" for k in texts if not isinstance(failure.get(k), str)
    ]
    if not isinstance(failure.get("transient", False), bool):
        problems.append("failure: 'transient' must be true or false")
    if failure.get("failure_class") not in FAILURE_CLASSES:
        problems.append(f"failure: 'failure_class' must be one of {', '.join(FAILURE_CLASSES)}")
    return problems


def _reject_json_constant(name: str) -> None:
    raise ValueError(f"{name} is not valid JSON; omit unknown values")


def _bad_result(problems: List[str]) -> PayloadResult:
    message = f"The payload's result is invalid: {'; '.join(problems)}. {_DOCUMENTATION_HINT}"
    return PayloadResult(problem=Failure("payload", "bad-result", "result", message))
