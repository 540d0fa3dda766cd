"""Plots of the A/A jobs and of results derived from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure as Canvas
from scipy import stats

from benchmarks.harness.ratio_figures import save_figure

#: Largest distance of jobs in the autocorrelation.
MAX_LAG = 20


def autocorrelation(values: npt.ArrayLike, lags: int) -> npt.NDArray[np.float64]:
    """Return the autocorrelation at lags 1 … ``lags`` (fewer for short series)."""
    found: npt.NDArray[np.float64] = np.asarray(values, dtype=np.float64)
    centred = found - found.mean()
    total = float(centred @ centred) or 1.0
    lags = min(lags, len(centred) - 1)
    return np.array([centred[:-lag] @ centred[lag:] / total for lag in range(1, lags + 1)])


def plot_spread(effects: Mapping[str, Sequence[float]]) -> None:
    """Plot distribution, course and autocorrelation of d, one row per metric: ``results/aa.svg``."""
    if any(len(d) < 3 for d in effects.values()):
        return
    canvas = Canvas(figsize=(10, 2.6 * len(effects)), layout="constrained")
    grid = canvas.subplots(len(effects), 3, squeeze=False)
    for row, (title, found) in zip(grid, effects.items(), strict=True):
        d = 100 * np.asarray(found)
        spread = d.std(ddof=1)
        row[0].hist(d, bins="auto", density=True, color="tab:blue", alpha=0.5)
        at = np.linspace(d.min(), d.max(), 200)
        row[0].plot(at, stats.norm.pdf(at, d.mean(), spread), color="tab:red")
        row[0].set_xlabel("100 ln(B/A)")
        row[0].set_title(f"{title}: {len(d)} jobs, sd {spread:.2g} %", fontsize="medium")
        row[1].axhline(0, color="0.6", linewidth=1)
        row[1].plot(d, ".", color="tab:blue", alpha=0.5)
        row[1].set_xlabel("job, in order of time")
        row[1].set_ylabel("100 ln(B/A)")
        found_at = autocorrelation(d, MAX_LAG)
        edge = 1.96 / np.sqrt(len(d))
        row[2].axhspan(-edge, edge, color="0.9")
        row[2].vlines(range(1, len(found_at) + 1), 0, found_at, color="tab:blue")
        row[2].set_ylim(-1, 1)
        row[2].set_xlabel("jobs apart")
        row[2].set_ylabel("correlation")
    save_figure(canvas, "aa")


def plot_error_rates(shares: Mapping[str, tuple[float, float, float]], at_most: float) -> None:
    """Plot shares of false verdicts and their intervals against the limit: ``verdicts.svg``."""
    start = "comparisons with a false verdict, "
    shown = {what.removeprefix(start): v for what, v in shares.items() if what.startswith(start)}
    canvas = Canvas(figsize=(8, 1.2 + 0.28 * len(shown)), layout="constrained")
    axes = canvas.subplots()
    axes.axvline(100 * at_most, color="tab:red", linewidth=1)
    for place, (share, low, high) in enumerate(shown.values()):
        axes.plot([100 * low, 100 * high], [place, place], color="tab:blue")
        axes.plot(100 * share, place, "o", color="tab:blue", markersize=4)
    axes.set_yticks(range(len(shown)), list(shown), fontsize="small")
    axes.invert_yaxis()
    axes.set_xlim(left=0)
    axes.set_xlabel("% of comparisons, with 95 % intervals; the line is the limit")
    axes.set_title("False verdicts where nothing differs", loc="left", fontsize="medium")
    save_figure(canvas, "verdicts")
