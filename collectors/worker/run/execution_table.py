"""The table that the worker prints: one line per execution, as soon as it has ended."""

from __future__ import annotations

from typing import Any, Iterable, List, Mapping

from ...job_spec import TIMED

_COLUMN_HEADINGS = (
    "wall s",
    "CPU s",
    "eff loop",
    "eff payload",
    "eff job",
    "events/s",
    "MB read",
    "calls",
)


def format_heading(labels: Iterable[str]) -> str:
    """Format the heading; ``labels`` are those of all variants to come."""
    return _join_cells("variant", list(_COLUMN_HEADINGS), "status", _label_width(labels))


def format_measurement(values: Mapping[str, Any], labels: Iterable[str]) -> str:
    """Format the line of one record."""
    cpu = _sum_known(values, "payload_user_s", "payload_sys_s")
    read = values.get("bytes_read")
    cells = [
        _format_value(values.get("payload_wall_s"), ".3f"),
        _format_value(cpu, ".3f"),
        _format_value(values.get("eff_loop"), ".3f"),
        _format_value(values.get("eff_payload"), ".3f"),
        _format_value(values.get("eff_job"), ".3f"),
        _format_value(values.get("event_rate_hz"), ".0f"),
        _format_value(None if read is None else read / 1e6, ".2f"),
        _format_value(values.get("read_calls"), "d"),
    ]
    return _join_cells(
        execution_label(values), cells, describe_status(values), _label_width(labels)
    )


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


def _label_width(labels: Iterable[str]) -> int:
    return max(map(len, labels), default=0)


def _join_cells(first: str, cells: List[str], last: str, width: int) -> str:
    columns = (cell.rjust(max(9, len(_COLUMN_HEADINGS[i]))) for i, cell in enumerate(cells))
    return " ".join([first.ljust(max(width, len("variant"))), *columns, "", last])


def _sum_known(values: Mapping[str, Any], *names: str) -> Any:
    numbers = [values.get(name) for name in names]
    return None if None in numbers else sum(value for value in numbers if value is not None)


def _format_value(value: Any, form: str) -> str:
    return "-" if value is None else format(value, form)
