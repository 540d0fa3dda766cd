"""Conditions of a prediction, as ``--if AXIS=VALUE`` states them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from treehammer.collectors.job_spec import BANDWIDTH_AXIS, LATENCY_AXIS
from treehammer.datasets.manifest import RNTUPLE, TTREE
from treehammer.errors import ConfigError, suggest_word
from treehammer.text_formatting import split_list

_NUMBERS = (LATENCY_AXIS, BANDWIDTH_AXIS, "cache_mb")
#: Names of conditions, and what they are.
NAMES = {
    LATENCY_AXIS: "round trip in ms beyond the door's own",
    BANDWIDTH_AXIS: "Mbit/s, 0 for no limit",
    "cache_mb": "MB of TTreeCache, 0 for none; for an RNTuple 0 turns its cluster cache off",
    "format": "ttree or rntuple",
    "compression": "of a rewritten dataset here, such as zstd:5",
    "cpu": "a site whose CPU runs the loop",
}
_WHERE = "--if"


@dataclass(frozen=True)
class Conditions:
    """Conditions that differ from those of a run; None and '' keep the run's own."""

    latency_ms: float | None = None
    bandwidth_mbit: float | None = None
    cache_mb: float | None = None
    format: str = ""
    compression: str = ""
    cpu: str = ""

    def describe(self) -> str:
        """Describe the conditions as they are written."""
        values = ((name, getattr(self, name)) for name in NAMES)
        return " ".join(f"{n}={_format(v)}" for n, v in values if v is not None and v != "")


def _format(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def parse_conditions(texts: Sequence[str]) -> list[Conditions]:
    """Parse conditions; several values of one name are combined with those of the others.

    Raises:
        ConfigError: a name or a value is wrong.
    """
    values: dict[str, list[float | str]] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if name not in NAMES or not equals:
            meanings = "; ".join(f"{key}: {meaning}" for key, meaning in NAMES.items())
            near = "" if name in NAMES else suggest_word(name, NAMES)
            hint = near or f"Write NAME=VALUE. {meanings}."
            raise ConfigError(f"{text!r} is no condition", where=_WHERE, hint=hint)
        items = [_parse_value(name, item) for item in split_list(value)]
        if not items:
            raise ConfigError(f"{name} has no value", where=_WHERE)
        values.setdefault(name, []).extend(dict.fromkeys(items))
    combinations: Iterable[tuple[Any, ...]] = itertools.product(*values.values())
    return [Conditions(**dict(zip(values, each, strict=True))) for each in combinations]


def _parse_value(name: str, text: str) -> float | str:
    if name == "format" and text not in (TTREE, RNTUPLE):
        raise ConfigError(f"format is {TTREE} or {RNTUPLE}, not {text!r}", where=_WHERE)
    if name not in _NUMBERS:
        return text
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < 1e6:
        raise ConfigError(f"{name} is a number of 0 or more, not {text!r}", where=_WHERE)
    return number
