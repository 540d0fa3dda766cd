"""Record of one execution: the payload's checked ``result.json``, values, failure, and table line.

``result.json`` is accepted only when all of it is valid.  The measurement is built from the record;
the worker prints one line for each execution as soon as it has ended.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence

from ...job_spec import PAIRED, SEQUENTIAL, SOLO, TIMED, ExecutionSpec
from ...json_documents import load_json
from ...kit.treehammer_kit.pass_summary import compute_share
from ...record import plausibility
from ...record.measurement_record import Measurement, describe_value_error
from ...record.metric_catalogue import METRICS_BY_NAME, PASS_PHASES
from ...record.operation_steps import find_operation_problems
from ...record.outcome import FAILURE_CLASSES, INTERRUPTED_CLASSES, Failure
from ...record.value_checks import is_number
from ...shared_files import FileTooLargeError, read_regular_file

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

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> PayloadResult:
        """Convert the document of a ``result.json`` without problems."""
        failure = document.get("failure")
        return cls(
            values={k: v for k, v in (document.get("values") or {}).items() if v is not None},
            extras=document.get("extras") or {},
            operations=document.get("operations") or (),
            failure=Failure(**failure) if failure else None,
        )


def read_payload_result(path: str, declared: Mapping[str, Any]) -> PayloadResult:
    """Read ``result.json``; ``declared`` contains the test's own metrics by name."""
    try:
        document = load_json(read_regular_file(path, _MAX_BYTES))
    except FileNotFoundError:
        message = (
            "The payload ended without error but wrote no result: it must write JSON to the path in "
            f"$TREEHAMMER_RESULT. {_DOCUMENTATION_HINT}"
        )
        return PayloadResult(problem=Failure("payload", "no-result", "result", message))
    except OSError as error:
        return _bad_result([f"cannot be read: {error.strerror}"])
    except FileTooLargeError as error:
        return _bad_result([str(error)])
    except ValueError as error:
        return _bad_result([f"not JSON: {error}"])
    problems = find_result_problems(document, declared)
    if problems:
        return _bad_result(problems)
    return PayloadResult.from_document(document)


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
    # What happened to the job is stated by its batch system and the worker alone.
    classes = [name for name in FAILURE_CLASSES if name not in INTERRUPTED_CLASSES]
    if failure.get("failure_class") not in classes:
        problems.append(f"failure: 'failure_class' must be one of {', '.join(classes)}")
    return problems


def _bad_result(problems: List[str]) -> PayloadResult:
    message = f"The payload's result is invalid: {'; '.join(problems)}. {_DOCUMENTATION_HINT}"
    return PayloadResult(problem=Failure("payload", "bad-result", "result", message))


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
        present = {
            name: _clean_text(value, METRICS_BY_NAME[name].max_length)
            for name, value in values.items()
            # Empty text is omitted unless it is required.
            if value is not None and (value != "" or METRICS_BY_NAME[name].required)
        }
        return Measurement(present, self._extras, self._operations)


def derive_metrics(values: Mapping[str, Any], threads: int = 1) -> Dict[str, float]:
    """Derive catalogue values from a measurement's others; those that lack a term are omitted.

    Args:
        values: by catalogue name, including the payload's and the set-up's wall and CPU time.
        threads: CPUs reserved for the execution, all of them for its whole wall time.
    """
    wall, cpu = values["payload_wall_s"], values["payload_user_s"] + values["payload_sys_s"]
    copy_wall, copy_cpu = (values.get(f"stagein_{clock}_s", 0.0) for clock in ("wall", "cpu"))
    metrics = _derive_access_metrics(values, copy_wall, copy_cpu, threads)
    events = (values.get("events_read") or 0) * (values.get("passes_done") or 0)
    if values.get("energy_j") is not None and events:
        metrics["energy_per_event_j"] = values["energy_j"] / events
    if values.get("run_mode") == PAIRED:  # the payload's wall time includes the other one's turns
        return metrics
    job_wall = wall + values["setup_wall_s"] + copy_wall
    return {
        "eff_payload": compute_share(cpu, wall * threads),
        "eff_job": compute_share(cpu + values["setup_cpu_s"] + copy_cpu, job_wall * threads),
        **metrics,
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
        "eff_access": compute_share(copy_cpu + sum(cpu), access_wall * threads),
    }


def _clean_text(value: Any, max_length: int) -> Any:
    """Remove NUL and invalid UTF-8 from a text and limit its length."""
    if not isinstance(value, str):
        return value
    return value.replace("\x00", "").encode("utf-8", "replace").decode("utf-8")[:max_length]


#: Heading of a column -> value by catalogue name, and its format.
_COLUMNS = {
    "wall s": ("payload_wall_s", ".3f"),
    "CPU s": ("cpu_s", ".3f"),
    "eff loop": ("eff_loop", ".3f"),
    "eff payload": ("eff_payload", ".3f"),
    "eff job": ("eff_job", ".3f"),
    "events/s": ("event_rate_hz", ".0f"),
    "MB read": ("mb_read", ".2f"),
    "calls": ("read_calls", "d"),
}


def format_heading(labels: Iterable[str]) -> str:
    """Format the heading; ``labels`` are those of all variants to come."""
    return _join_cells("variant", _COLUMNS, "status", labels)


def format_measurement(values: Mapping[str, Any], labels: Iterable[str]) -> str:
    """Format the line of one record."""
    row, read = dict(values), values.get("bytes_read")
    if "payload_user_s" in values and "payload_sys_s" in values:
        row["cpu_s"] = values["payload_user_s"] + values["payload_sys_s"]
    row["mb_read"] = None if read is None else read / 1e6
    cells = (
        "-" if row.get(name) is None else format(row[name], form)
        for name, form in _COLUMNS.values()
    )
    return _join_cells(execution_label(values), cells, describe_status(values), labels)


def execution_label(values: Mapping[str, Any]) -> str:
    """Return the label of an execution: its variant, and its kind unless timed."""
    text = str(values["variant_label"])
    return text if values["kind"] == TIMED else f"{text} ({values['kind']})"


def describe_status(values: Mapping[str, Any]) -> str:
    """Return ``ok`` or a one-line description of the problem."""
    if "failure_class" in values:
        message = " ".join(values["failure_message"].split())
        return f"{values['failure_class']}/{values['failure_kind']}: {message}"
    return "ok" if values["plausible"] else f"implausible: {values['implausible_reasons']}"


def _join_cells(first: str, cells: Iterable[str], last: str, labels: Iterable[str]) -> str:
    width = max(map(len, ("variant", *labels)))
    columns = (
        cell.rjust(max(9, len(heading)))
        for cell, heading in zip(cells, _COLUMNS)  # noqa: B905 - Python 3.9
    )
    return " ".join([first.ljust(width), *columns, "", last])
