"""Analysis of columns that RDataFrame and uproot both do: a filter and histograms."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Sequence

from ..branch_selection import select_branches
from ..payload_task import PayloadError, PayloadTask

#: Digits of the histograms' hash in their checksum: 32 bits, short enough to compare by eye.
_CHECKSUM_DIGITS = 8
_KEYS = ("filter", "minimum", "bins", "low", "high")


@dataclass(frozen=True)
class ColumnAnalysis:
    """The analysis of ``[settings]``.

    Attributes:
        filter: column with one number for each event.
        minimum: events with at least this number are kept.
        bins: number of bins of each histogram, from ``low`` to ``high``.
    """

    filter: str
    minimum: float
    bins: int
    low: float
    high: float

    @classmethod
    def read(cls, settings: Mapping[str, Any]) -> ColumnAnalysis:
        """Read the analysis from the test's settings.

        Raises:
            PayloadError: a key is missing or wrong.
        """
        try:
            analysis = cls(
                str(settings["filter"]),
                float(settings["minimum"]),
                int(settings["bins"]),
                float(settings["low"]),
                float(settings["high"]),
            )
            if analysis.bins < 1 or not analysis.low < analysis.high:
                raise ValueError("expected at least one bin, and low below high")
        except (KeyError, TypeError, ValueError) as error:
            message = f"[settings] needs {', '.join(_KEYS)}: {type(error).__name__}: {error}"
            raise PayloadError("payload", "bad-job", "setup", message) from error
        return analysis

    def choose_columns(self, names: Sequence[str], task: PayloadTask) -> List[str]:
        """Choose the columns to histogram, by the axis ``branches``.

        Raises:
            PayloadError: a column or the filter does not exist.
        """
        columns = choose_columns(names, task)
        select_branches(names, {}, self.filter, seed=0, folder="")
        return columns

    def write_code(self, types: Mapping[str, str], columns: Sequence[str]) -> str:
        """Write the analysis as C++ for RDataFrame, with compiled instead of interpreted filters."""
        lines = [
            "void analyze(treehammer::FramePass &pass)",
            "{",
            f"   auto kept = pass.frame.Filter([](const {types[self.filter]} &value) "
            f'{{ return value >= {self.minimum!r}; }}, {{"{self.filter}"}});',
            "   pass.Keep(kept);",
        ]
        for column in columns:
            model = f'{{"{column}", "", {self.bins}, {self.low!r}, {self.high!r}}}'
            lines.append(f'   pass.Book(kept.Histo1D<{types[column]}>({model}, "{column}"));')
        return "\n".join([*lines, "}", ""])


def choose_columns(names: Sequence[str], task: PayloadTask) -> List[str]:
    """Choose columns by the axis ``branches``.

    Raises:
        PayloadError: a column does not exist.
    """
    positions = select_branches(
        names, {}, task.branches, seed=task.seed, folder=task.folder, unreadable=task.unreadable
    )
    return [names[position] for position in positions]


def check_task(task: PayloadTask) -> None:
    """Refuse axes that an analysis of columns does not obey.

    Raises:
        PayloadError: only a part of the events, or counted instructions.
    """
    if task.events != 1 or task.counting:
        raise PayloadError(
            "payload",
            "format",
            "setup",
            "an analysis of columns reads all events: events = 1, no count",
        )


@dataclass
class HistogramSums:
    """Histograms of a pass: bin contents, with underflow and overflow, by column."""

    events: int = 0
    selected: int = 0

    def __post_init__(self) -> None:
        self._bins: Dict[str, List[int]] = {}

    def add(self, column: str, bins: Sequence[float]) -> None:
        """Add the bin contents of one file, or of all."""
        before = self._bins.get(column, [0] * len(bins))
        self._bins[column] = [old + round(new) for old, new in zip(before, bins)]  # noqa: B905 - Python 3.9

    def summarize(self) -> Dict[str, float]:
        """Return the test's own metrics: equal for every reader, release and number of threads."""
        lines = [f"{name} {counts}" for name, counts in sorted(self._bins.items())]
        digest = hashlib.sha256("\n".join([f"{self.events} {self.selected}", *lines]).encode())
        return {
            "events_kept": float(self.selected),
            "histogram_entries": float(math.fsum(map(sum, self._bins.values()))),
            "histogram_checksum": float(int(digest.hexdigest()[:_CHECKSUM_DIGITS], 16)),
        }
