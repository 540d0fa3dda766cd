"""Planted steps over 64 builds, searched by ``bisect`` and by plain halving with equal certainty."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import fmean, median

import numpy as np
from scipy import stats

from benchmarks.harness.ratio_figures import SEED, RatioFigure, write_rows
from treehammer.analysis.bisection.step_search import (
    DEFAULT_CERTAINTY,
    SearchOutcome,
    StepSearch,
)

BUILD_COUNT = 64
CASE_COUNT = 100
#: Standard deviation of ln(B/A) of a paired job.
JOB_NOISE = 0.007
#: Jobs of a search at most.
JOB_LIMIT = 100
STEPS = (0.02, 0.05, 0.10)
#: Recorded launches, whose tails the noise has.
LAUNCHES_FILE = Path(__file__).with_name("data") / "paired-launches.csv"

#: Measures one job of a build: ln(build/GOOD).
Measure = Callable[[int], float]
#: Searches; returns the build found (0 for none) and the number of jobs.
Search = Callable[[Measure, float], tuple[int, int]]


@dataclass(frozen=True)
class SearchRow:
    """Result of a method for all cases of one step."""

    method: str
    step: float
    cases: int
    right: int
    undecided: int
    mean_jobs: float
    median_jobs: float
    most_jobs: int


def measure() -> list[RatioFigure]:
    """Search all cases and write ``results/bisection.csv``."""
    tails = load_noise()
    rows = []
    figures = []
    with ProcessPoolExecutor() as pool:
        for step in (*STEPS, 0.0):
            found = {
                name: list(pool.map(partial(_search_case, search, step, tails), range(CASE_COUNT)))
                for name, search in METHODS.items()
                if step or name == "bisect"  # halving presumes a step
            }
            rows += [_summarize(name, step, cases) for name, cases in found.items()]
            if step:
                figures.append(_compare_jobs(step, found))
    write_rows("bisection", [asdict(row) for row in rows])
    for row in rows:
        print(f"  {row}")
    return figures


def load_noise() -> Sequence[float]:
    """Load recorded ln(B/A) of equal halves, scaled to :data:`JOB_NOISE`."""
    with LAUNCHES_FILE.open(newline="", encoding="utf-8") as stream:
        values = [float(row["cpu_d"]) for row in csv.DictReader(stream) if row["kind"] == "control"]
    noise = np.asarray(values)
    return list((noise - noise.mean()) / noise.std() * JOB_NOISE)


def search_steps(measure_job: Measure, _step: float) -> tuple[int, int]:
    """Search as ``treehammer bisect`` does."""
    search = StepSearch(BUILD_COUNT)
    while not (conclusion := search.conclude()).is_decided and len(search.jobs) < JOB_LIMIT:
        build = search.choose_next()
        search = search.add_effects(build, [measure_job(build)])
    if conclusion.outcome is SearchOutcome.STEP:
        return conclusion.steps[0].last, len(search.jobs)
    return (0 if conclusion.outcome is SearchOutcome.UNCHANGED else -1), len(search.jobs)


def halve_with_certainty(measure_job: Measure, step: float) -> tuple[int, int]:
    """Halve plainly, with as many jobs a build as the wanted certainty needs.

    It knows the noise and the step in advance, which a user does not.
    """
    tests = math.ceil(math.log2(BUILD_COUNT - 1))
    deviations = stats.norm.isf(1 - DEFAULT_CERTAINTY ** (1 / tests))
    jobs = math.ceil((2 * deviations * JOB_NOISE / math.log1p(step)) ** 2)
    return _halve(measure_job, math.log1p(step), jobs)


def halve_once(measure_job: Measure, step: float) -> tuple[int, int]:
    """Halve plainly with one job a build, knowing the step."""
    return _halve(measure_job, math.log1p(step), 1)


def _halve(measure_job: Measure, size: float, jobs: int) -> tuple[int, int]:
    low, high, count = 0, BUILD_COUNT - 1, 0
    while high - low > 1:
        middle = (low + high) // 2
        count += jobs
        if fmean(measure_job(middle) for _ in range(jobs)) > size / 2:
            high = middle
        else:
            low = middle
    return high, count


METHODS: dict[str, Search] = {
    "bisect": search_steps,
    "halving, told step and noise": halve_with_certainty,
    "halving, one job a build": halve_once,
}


def _search_case(
    search: Search, step: float, tails: Sequence[float], number: int
) -> tuple[bool, bool, int]:
    """Search one case; return whether it was right, whether undecided, and the number of jobs."""
    noise = np.random.default_rng([SEED, number])
    # The same place for every method and step.
    place = int(np.random.default_rng([SEED, number, 1]).integers(1, BUILD_COUNT))

    def measure_job(build: int) -> float:
        return (math.log1p(step) if build >= place else 0.0) + float(noise.choice(tails))

    found, jobs = search(measure_job, step)
    return found == (place if step else 0), found < 0, jobs


def _summarize(name: str, step: float, cases: Sequence[tuple[bool, bool, int]]) -> SearchRow:
    jobs = [count for _, _, count in cases]
    return SearchRow(
        name,
        step,
        len(cases),
        sum(right for right, _, _ in cases),
        sum(undecided for _, undecided, _ in cases),
        fmean(jobs),
        median(jobs),
        max(jobs),
    )


def _compare_jobs(step: float, found: dict[str, list[tuple[bool, bool, int]]]) -> RatioFigure:
    ours, peer = (fmean(jobs for _, _, jobs in found[name]) for name in list(METHODS)[:2])
    right = sum(one for one, _, _ in found["bisect"])
    title = (
        f"step {step:.0%}: {right} of {CASE_COUNT} right, jobs / plain halving told step and noise"
    )
    return RatioFigure(title, ours / peer)
