"""How many jobs find a slowdown: a table that ``python -m benchmarks verdicts`` makes.

It stands for the job-to-job spread of the A/A jobs that it was made of, which every quotation names.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path

from treehammer.analysis.statistics.estimates import TARGET_POWER
from treehammer.analysis.statistics.verdict import RULE_VERSION

POWER_TABLE_FILE = Path(__file__).with_name("power_table.csv")


@dataclass(frozen=True)
class PowerCell:
    """In how many of ``trials`` series of ``jobs`` jobs a planted slowdown was called slower.

    ``slowdown`` is a ratio less 1 (0.05 is 5 %); ``spread`` the standard deviation of ln(B/A) over
    the jobs that the trials were drawn from; ``low`` and ``high`` bound the share with 95 %.
    """

    rule_version: int
    delta: float
    metric: str
    spread: float
    slowdown: float
    jobs: int
    trials: int
    found: int
    low: float
    high: float

    @property
    def detection_rate(self) -> float:
        """Share of the trials in which it was found."""
        return self.found / self.trials


def read_power_table(path: Path = POWER_TABLE_FILE) -> tuple[PowerCell, ...]:
    """The table; empty where none was made."""
    if not path.exists():
        return ()
    kinds = {"int": int, "float": float, "str": str}
    convert = {field.name: kinds[str(field.type)] for field in fields(PowerCell)}
    with path.open(newline="", encoding="utf-8") as stream:
        return tuple(
            PowerCell(**{name: convert[name](text) for name, text in row.items()})
            for row in csv.DictReader(stream)
        )


@cache
def load_shipped_table() -> tuple[PowerCell, ...]:
    """The table that is part of the package."""
    return read_power_table()


def describe_power(metric: str, delta: float, table: Iterable[PowerCell] | None = None) -> str:
    """How many jobs find which slowdown; '' where the table does not hold for this rule or delta."""
    cells = [
        cell
        for cell in (load_shipped_table() if table is None else table)
        if (cell.metric, cell.delta, cell.rule_version) == (metric, delta, RULE_VERSION)
    ]
    slowdowns = sorted({cell.slowdown for cell in cells})
    said = [
        _describe_slowdown([c for c in cells if c.slowdown == slowdown]) for slowdown in slowdowns
    ]
    if not said:
        return ""
    return f"{'; '.join(said)} (at a job-to-job spread of {100 * cells[0].spread:.2g} %)"


def choose_cell(cells: Sequence[PowerCell]) -> PowerCell:
    """The cell with the fewest jobs that are likely to find a slowdown, or the one with the most jobs.

    Args:
        cells: of one metric and slowdown; not empty.
    """
    likely = [cell for cell in cells if cell.detection_rate >= TARGET_POWER]
    return min(likely or cells, key=lambda cell: cell.jobs if likely else -cell.jobs)


def _describe_slowdown(cells: Sequence[PowerCell]) -> str:
    cell = choose_cell(cells)
    only = "" if cell.detection_rate >= TARGET_POWER else "only "
    share = f"with {cell.jobs} jobs in {only}{100 * cell.detection_rate:.0f} % of the cases"
    return f"a {100 * cell.slowdown:g} % slowdown is found {share}"
