"""Figures of the benchmarks: pairs, intervals, tables of results and plots."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from matplotlib.figure import Figure as Canvas

from treehammer.collectors.process_stats import Cgroup
from treehammer.collectors.worker.probes import node_state

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")

BENCHMARKS_FOLDER = Path(__file__).parents[1]
#: Written by a run; only the plots of the documentation are in Git.
RESULTS_FOLDER = BENCHMARKS_FOLDER / "results"
#: Recorded tables that other benchmarks read.
DATA_FOLDER = BENCHMARKS_FOLDER / "data"

#: Seed of all random numbers: equal data give equal intervals.
SEED = 1
#: One-minute load below which a machine is called quiet.
QUIET_LOAD = 0.5
#: Claimed error rate of each kind of claim in one comparison.
CLAIMED_RATE = 0.05

_PARSERS: Mapping[str, Callable[[str], Any]] = {
    "str": str,
    "float": float,
    "int": int,
    "bool": "True".__eq__,
}


# Figures


@dataclass(frozen=True)
class RatioFigure:
    """One ratio, or another number that a run results in.

    Attributes:
        title: the measured quantity and its peer.
        value: the ratio (1 means equal).
        low: lower bound of the 95 % interval; NaN for a single run.
        high: upper bound.
        pairs: number of pairs behind the value.
        upper_bound: limit of ``high``, or of the value without an interval.
    """

    title: str
    value: float
    low: float = math.nan
    high: float = math.nan
    pairs: int = 1
    upper_bound: float | None = None

    @property
    def within_bound(self) -> bool:
        """Whether the figure stays within its limit, if it has one."""
        bound = self.value if math.isnan(self.high) else self.high
        return self.upper_bound is None or bound <= self.upper_bound

    def __str__(self) -> str:
        interval = "" if math.isnan(self.low) else f"  95 % in [{self.low:.4g}, {self.high:.4g}]"
        pairs = f"  ({self.pairs} pairs)" if self.pairs > 1 else ""
        limit = "" if self.upper_bound is None else f"  at most {self.upper_bound:g}: "
        verdict = "" if self.upper_bound is None else "kept" if self.within_bound else "BROKEN"
        return f"{self.title}: {self.value:.4g}{interval}{pairs}{limit}{verdict}"


def median_ratio(
    title: str, ours: Sequence[float], peer: Sequence[float], *, at_most: float | None = None
) -> RatioFigure:
    """Return the median ratio over pairs measured directly after each other.

    The interval is a percentile bootstrap of the median; it needs at least six pairs.
    """
    logs = np.log(np.asarray(ours) / np.asarray(peer))
    middle = float(np.exp(np.median(logs)))
    if len(logs) < 6:
        return RatioFigure(title, middle, pairs=len(logs), upper_bound=at_most)
    low, high = bootstrap_interval(logs, np.median)
    return RatioFigure(title, middle, math.exp(low), math.exp(high), len(logs), at_most)


def bootstrap_interval(values: Any, statistic: Callable[..., Any]) -> tuple[float, float]:
    """Return the 95 % percentile bootstrap interval of a statistic."""
    from scipy import stats

    interval = stats.bootstrap(
        (values,), statistic, method="percentile", rng=np.random.default_rng(SEED)
    ).confidence_interval
    return float(interval.low), float(interval.high)


def share_figure(
    title: str, count: int, total: int, upper_bound: float | None = None
) -> RatioFigure:
    """Return a share of cases with its exact (Clopper-Pearson) 95 % interval."""
    from scipy import stats

    interval = stats.binomtest(count, total).proportion_ci(0.95, method="exact")
    bounds = float(interval.low), float(interval.high)
    return RatioFigure(title, count / total, *bounds, total, upper_bound)


def describe_machine() -> str:
    """Describe the machine in one line."""
    facts = node_state.collect_node_facts(Cgroup())
    memory = float(facts["mem_total_bytes"] or 0) / 1e9
    return (
        f"{facts['cpu_model']}, {facts['cores_allowed']} cores, {memory:.0f} GB, "
        f"{facts['container'] or 'bare metal'}, {facts['os_name']}, Linux {facts['kernel']}, "
        f"Python {facts['worker_python']}"
    )


# Tables


def read_rows(path: Path, kind: type[T]) -> list[T]:
    """Read a table with one dataclass for each row; no rows if it does not exist."""
    if not path.exists():
        return []
    parsers = {field.name: _PARSERS[str(field.type)] for field in fields(kind)}
    with path.open(newline="", encoding="utf-8") as stream:
        return [
            kind(**{name: parsers[name](text) for name, text in row.items()})
            for row in csv.DictReader(stream)
        ]


def append_rows(path: Path, rows: Sequence[T]) -> None:
    """Append rows to a table, which is created with its header if missing."""
    _write_rows(path, [asdict(row) for row in rows], "a")


def write_results(name: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Replace ``results/NAME.csv``; without rows it stays unchanged."""
    path = RESULTS_FOLDER / f"{name}.csv"
    part = path.with_suffix(".part")
    part.unlink(missing_ok=True)
    _write_rows(part, rows, "w")
    if rows:
        part.replace(path)


def _write_rows(path: Path, rows: Sequence[Mapping[str, Any]], mode: str) -> None:
    if not rows:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    is_new = not path.exists()
    with path.open(mode, newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, list(rows[0]), lineterminator="\n")
        if is_new:
            writer.writeheader()
        writer.writerows(rows)


def print_table(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print rows of equal keys as an aligned table."""
    if not rows:
        return
    lines = [list(rows[0])]
    for row in rows:
        lines.append([f"{v:.4g}" if isinstance(v, float) else str(v) for v in row.values()])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        print("  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)))


# Plots


def plot_points(name: str, title: str, label: str, series: Mapping[str, Sequence[float]]) -> None:
    """Draw every point and the median of each series of ratios as ``results/NAME.svg``.

    Args:
        name: of the file.
        title: of the plot.
        label: of the value axis.
        series: name -> values; one row each, from top to bottom.
    """
    canvas = Canvas(figsize=(7.2, 1.2 + 0.45 * len(series)), layout="constrained")
    axes = canvas.subplots()
    axes.axvline(1.0, color="0.6", linewidth=1)
    for position, values in enumerate(series.values()):
        spread = np.linspace(-0.15, 0.15, len(values)) if len(values) > 1 else [0.0]
        axes.plot(values, position + np.asarray(spread), ".", color="tab:blue", alpha=0.5)
        axes.plot([float(np.median(values))] * 2, [position - 0.3, position + 0.3], color="tab:red")
    axes.set_yticks(range(len(series)), list(series))
    axes.invert_yaxis()
    axes.set_xlabel(label)
    axes.set_title(title, loc="left", fontsize="medium")
    RESULTS_FOLDER.mkdir(exist_ok=True)
    # Without a date, equal data give equal files.
    canvas.savefig(RESULTS_FOLDER / f"{name}.svg", metadata={"Date": None})
