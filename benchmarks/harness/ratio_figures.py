"""Figures of the benchmarks: ratios, intervals, raw data and plots."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from scipy import stats

from benchmarks.harness.result_tables import write_table
from treehammer.collectors.worker.probes import node_facts
from treehammer.collectors.worker.probes.cgroup import Cgroup

RESULTS_FOLDER = Path(__file__).parents[1] / "results"

#: Seed of the bootstrap: equal data give equal intervals.
SEED = 1


@dataclass(frozen=True)
class RatioFigure:
    """One ratio.

    Attributes:
        title: the measured quantity and its peer.
        value: the ratio (1 means equal).
        low: lower bound of the 95 % interval; NaN for a single run.
        high: upper bound.
        pairs: number of pairs behind the median.
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
        kept = "" if self.upper_bound is None else f"  at most {self.upper_bound:g}: "
        verdict = "" if self.upper_bound is None else "kept" if self.within_bound else "BROKEN"
        return f"{self.title}: {self.value:.4g}{interval}{pairs}{kept}{verdict}"


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
    interval = stats.bootstrap(
        (logs,), np.median, method="percentile", rng=np.random.default_rng(SEED)
    ).confidence_interval
    low, high = float(np.exp(interval.low)), float(np.exp(interval.high))
    return RatioFigure(title, middle, low, high, len(logs), at_most)


def divide_pairs(ours: Sequence[float], peer: Sequence[float]) -> list[float]:
    """Return the ratios of pairs, for plots."""
    return [one / other for one, other in zip(ours, peer, strict=True)]


def describe_machine() -> str:
    """Describe the machine in one line."""
    facts = node_facts.collect_node_facts(Cgroup())
    memory = float(facts["mem_total_bytes"] or 0) / 1e9
    return (
        f"{facts['cpu_model']}, {facts['cores_allowed']} cores, {memory:.0f} GB, "
        f"{facts['container'] or 'bare metal'}, {facts['os_name']}, Linux {facts['kernel']}, "
        f"Python {facts['worker_python']}"
    )


def update_summary(benchmark: str, figures: Sequence[RatioFigure]) -> None:
    """Replace the benchmark's rows in ``results/summary.csv`` and keep those of the others."""
    machine = describe_machine()
    try:
        with (RESULTS_FOLDER / "summary.csv").open(newline="", encoding="utf-8") as stream:
            rows = [row for row in csv.DictReader(stream) if row["benchmark"] != benchmark]
    except FileNotFoundError:
        rows = []
    new = [{"benchmark": benchmark, **asdict(figure), "machine": machine} for figure in figures]
    write_rows("summary", [*rows, *new])


def write_rows(name: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write raw data as ``results/NAME.csv``."""
    write_table(RESULTS_FOLDER / f"{name}.csv", rows)


def plot_points(
    name: str,
    title: str,
    label: str,
    series: Mapping[str, Sequence[float]],
    *,
    reference: float | None = 1.0,
) -> None:
    """Draw every point and the median of each series as ``results/NAME.svg``.

    Args:
        name: of the file.
        title: of the plot.
        label: of the value axis.
        series: name -> values; one row each, from top to bottom.
        reference: position of a reference line, if any.
    """
    canvas = Canvas(figsize=(7.2, 1.2 + 0.45 * len(series)), layout="constrained")
    axes = canvas.subplots()
    if reference is not None:
        axes.axvline(reference, color="0.6", linewidth=1)
    for position, values in enumerate(series.values()):
        spread = np.linspace(-0.15, 0.15, len(values)) if len(values) > 1 else [0.0]
        axes.plot(values, position + np.asarray(spread), ".", color="tab:blue", alpha=0.5)
        axes.plot([float(np.median(values))] * 2, [position - 0.3, position + 0.3], color="tab:red")
    axes.set_yticks(range(len(series)), list(series))
    axes.invert_yaxis()
    axes.set_xlabel(label)
    axes.set_title(title, loc="left", fontsize="medium")
    save_figure(canvas, name)


@contextmanager
def database_panels(
    name: str, kinds: Sequence[str], labels: Sequence[str], height: float
) -> Iterator[Sequence[Axes]]:
    """Provide a panel for each database to draw in, then write ``results/NAME.svg``.

    Args:
        name: of the file.
        kinds: of databases.
        labels: names along the common axis, from top to bottom; times are on the other one.
        height: of the figure in inches.
    """
    canvas = Canvas(figsize=(4.2 + 3.6 * len(kinds), height), layout="constrained")
    panels: Sequence[Axes] = canvas.subplots(1, len(kinds), sharey=True, squeeze=False)[0]
    yield panels
    for axes in panels:
        axes.set_xscale("log")
        axes.grid(axis="x", linewidth=0.3)
    panels[0].set_yticks(range(len(labels)), labels)
    panels[0].invert_yaxis()
    panels[-1].legend(fontsize="small")
    save_figure(canvas, name)


def save_figure(canvas: Canvas, name: str) -> None:
    """Write ``results/NAME.svg``."""
    RESULTS_FOLDER.mkdir(exist_ok=True)
    # Without a date, equal data give equal files.
    canvas.savefig(RESULTS_FOLDER / f"{name}.svg", metadata={"Date": None})
