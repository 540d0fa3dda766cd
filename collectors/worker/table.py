"""The plain table that the worker prints: one line an execution, as soon as it has ended."""

from __future__ import annotations

from typing import Any, Iterable, List, Mapping

from ..job import TIMED

_HEADINGS = (
    "wall s",
    "CPU s",
    "eff loop",
    "eff payload",
    "eff job",
    "events/s",
    "MB read",
    "calls",
)


def heading(labels: Iterable[str]) -> str:
    """The first line; ``labels`` are those of all variants to come."""
    return _line("variant", list(_HEADINGS), "status", _width(labels))


def line(values: Mapping[str, Any], labels: Iterable[str]) -> str:
    """The line of one record."""
    cpu = _sum(values, "payload_user_s", "payload_sys_s")
    read = values.get("bytes_read")
    cells = [
        _show(values.get("payload_wall_s"), ".3f"),
        _show(cpu, ".3f"),
        _show(values.get("eff_loop"), ".3f"),
        _show(values.get("eff_payload"), ".3f"),
        _show(values.get("eff_job"), ".3f"),
        _show(values.get("event_rate_hz"), ".0f"),
        _show(None if read is None else read / 1e6, ".2f"),
        _show(values.get("read_calls"), "d"),
    ]
    return _line(label(values), cells, status(values), _width(labels))


def label(values: Mapping[str, Any]) -> str:
    """How the table calls an execution."""
    text = str(values["variant_label"])
    return text if values["kind"] == TIMED else f"{text} ({values['kind']})"


def status(values: Mapping[str, Any]) -> str:
    """``ok``, or what went wrong in one line."""
    if "failure_class" in values:
        message = " ".join(values["failure_message"].split())
        return f"{values['failure_class']}/{values['failure_kind']}: {message}"
    return "ok" if values["plausible"] else f"implausible: {values['implausible_why']}"


def _width(labels: Iterable[str]) -> int:
    return max(map(len, labels), default=0)


def _line(first: str, cells: List[str], last: str, width: int) -> str:
    columns = (cell.rjust(max(9, len(_HEADINGS[i]))) for i, cell in enumerate(cells))
    return " ".join([first.ljust(max(width, len("variant"))), *columns, "", last])


def _sum(values: Mapping[str, Any], *names: str) -> Any:
    found = [values.get(name) for name in names]
    return None if None in found else sum(value for value in found if value is not None)


def _show(value: Any, form: str) -> str:
    return "-" if value is None else format(value, form)
