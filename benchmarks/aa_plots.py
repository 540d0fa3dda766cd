"""Plots of the A/A jobs and of what is made of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure as Canvas
from scipy import stats

from benchmarks.report import RESULTS

#: Up to so many jobs apart, correlation is looked at.
LAGS = 20


def autocorrelation(values: npt.ArrayLike, lags: int) -> npt.NDArray[np.float64]:
    """Correlation of a series with itself, 1 … ``lags`` places later (fewer where it is short)."""
    found: npt.NDArray[np.float64] = np.asarray(values, dtype=np.float64)
    centred = found - found.mean()
    total = float(centred @ centred) or 1.0
    lags = min(lags, len(centred) - 1)
    return np.array([centred[:-lag] @ centred[lag:] / total for lag in range(1, lags + 1)])


def draw_spread(effects: Mapping[str, Sequence[float]]) -> None:
    """Distribution, course and autocorrelation of d, a row for each metric: ``results/aa.svg``."""
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
        found_at = autocorrelation(d, LAGS)
        edge = 1.96 / np.sqrt(len(d))
        row[2].axhspan(-edge, edge, color="0.9")
        row[2].vlines(range(1, len(found_at) + 1), 0, found_at, color="tab:blue")
        row[2].set_ylim(-1, 1)
        row[2].set_xlabel("jobs apart")
        row[2].set_ylabel("correlation")
    save(canvas, "aa")


def save(canvas: Canvas, name: str) -> None:
    """Write ``results/NAME.svg``."""
    RESULTS.mkdir(exist_ok=True)
    # Without a date: the same data give the same file.
    canvas.savefig(RESULTS / f"{name}.svg", metadata={"Date": None})
