"""Paired mode: scatter of A/A launches, and planted slowdowns found by six jobs.

Each job measures one or two slowdowns against one base, with an A/A launch for each as control.  Tables in ``data/`` grow with each campaign, so that a benchmark that was stopped goes on later.
"""

from __future__ import annotations

import argparse
import math
import os
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from benchmarks.analysis.paired_recording import (
    BLOCK_SHARES,
    CampaignResult,
    PairedLaunch,
    PairedRecording,
    TimeLimitError,
)
from benchmarks.analysis.verdict_shares import VerdictShare
from benchmarks.harness.ratio_figures import SEED, RatioFigure, plot_points
from benchmarks.harness.result_tables import append_rows, read_rows
from treehammer import config
from treehammer.analysis.statistics.estimates import estimate_mean
from treehammer.collectors.job_spec import CONTROL

DATA_FOLDER = Path(__file__).with_name("data")
LAUNCHES_FILE = DATA_FOLDER / "paired-launches.csv"
CAMPAIGNS_FILE = DATA_FOLDER / "paired-campaigns.csv"
#: Blocks decompressed for each event: about 2 % of the CPU time, and 1 % on the side with half.
DEFAULT_BLOCKS = 0.026
#: Campaigns of six jobs for each slowdown.
TARGET_CAMPAIGNS = 60
#: One-minute load below which a machine is called quiet before the first job.
QUIET_LOAD = 0.5
#: Limit of the scatter of ln(B/A).
MAX_SCATTER = 0.01
METRICS = ("cpu", "wall")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``python -m benchmarks paired``."""
    group = parser.add_argument_group("paired")
    group.add_argument(
        "--blocks",
        type=float,
        default=DEFAULT_BLOCKS,
        help="planted slowdown, in blocks an event; half of it is planted as well (%(default)s)",
    )
    group.add_argument(
        "--sides",
        nargs="+",
        choices=tuple(BLOCK_SHARES),
        default=tuple(BLOCK_SHARES),
        help="sides beside the base: b has the planted slowdown, c half of it (default: both; "
        "with one, a job takes half as long)",
    )
    group.add_argument(
        "--campaigns",
        type=int,
        default=TARGET_CAMPAIGNS,
        help="campaigns of six jobs for each label (%(default)s)",
    )
    group.add_argument(
        "--seconds", type=float, default=float("inf"), help="stop after this time (no limit)"
    )
    group.add_argument(
        "--label",
        choices=("busy", "quiet"),
        help=f"state of the machine (quiet with a load below {QUIET_LOAD})",
    )


def measure(options: argparse.Namespace) -> list[RatioFigure]:
    """Run missing campaigns; return the figures of all recorded ones."""
    label = options.label or ("quiet" if os.getloadavg()[0] < QUIET_LOAD else "busy")
    home = config.load_settings().data_dir / "benchmarks" / "paired"
    flags = {
        "data_dir": home,
        "database": f"sqlite:///{home}/results.db",
        "local_slots": options.slots,
    }
    recording = PairedRecording(config.load_settings(flags), label)
    recording.end_open_campaigns()
    _store_new_campaigns(recording)
    deadline = time.monotonic() + options.seconds
    try:
        while time.monotonic() < deadline and is_incomplete(
            read_rows(CAMPAIGNS_FILE, CampaignResult), options, label
        ):
            recording.run_campaign(options.blocks, options.sides, deadline)
            _store_new_campaigns(recording)
    except TimeLimitError:
        pass
    finally:
        _store_new_campaigns(recording)
    launches = read_rows(LAUNCHES_FILE, PairedLaunch)
    results = read_rows(CAMPAIGNS_FILE, CampaignResult)
    _plot_launches(launches)
    return list(build_figures(launches, results))


def is_incomplete(
    results: Iterable[CampaignResult], options: argparse.Namespace, label: str
) -> bool:
    """Return whether a planted slowdown has fewer campaigns than wanted."""
    done = Counter(one.blocks for one in results if one.label == label)
    return any(
        done[options.blocks * BLOCK_SHARES[side]] < options.campaigns for side in options.sides
    )


def _store_new_campaigns(recording: PairedRecording) -> None:
    known = {launch.campaign for launch in read_rows(LAUNCHES_FILE, PairedLaunch)}
    for launches, results in recording.load_campaigns(known):
        append_rows(LAUNCHES_FILE, launches)
        append_rows(CAMPAIGNS_FILE, results)
        for result in results:
            print(
                f"{result.label}, load {result.load1:.1f}: planted {100 * result.planted:.2f} %, "
                f"CPU {100 * result.cpu_effect:+.2f} % {result.cpu_verdict}, "
                f"{result.seconds / result.jobs:.0f} s a job",
                flush=True,
            )


def build_figures(
    launches: Sequence[PairedLaunch], results: Sequence[CampaignResult]
) -> Iterator[RatioFigure]:
    """Summarize the recorded launches and campaigns, for each label."""
    for label in sorted({launch.label for launch in launches}):
        yield from _launch_figures(label, [one for one in launches if one.label == label])
        yield from _campaign_figures(label, [one for one in results if one.label == label])


def _launch_figures(label: str, launches: Sequence[PairedLaunch]) -> Iterator[RatioFigure]:
    equal = select_equal(launches)
    jobs: dict[str, list[PairedLaunch]] = defaultdict(list)
    for launch in equal:
        jobs[launch.job].append(launch)
    yield from _scatter_figures(f"{label}, A/A launches", [[one] for one in equal])
    yield from _scatter_figures(f"{label}, jobs with an A/A launch", [*jobs.values()])


def select_equal(launches: Sequence[PairedLaunch]) -> list[PairedLaunch]:
    """Select the A/A launches: those without planted work, and controls."""
    return [one for one in launches if not one.blocks or one.kind == CONTROL]


def _campaign_figures(label: str, results: Sequence[CampaignResult]) -> Iterator[RatioFigure]:
    campaigns: dict[float, list[CampaignResult]] = defaultdict(list)
    for one in results:
        campaigns[one.blocks].append(one)
    for _, some in sorted(campaigns.items()):
        yield from _share_figures(label, some)
    if results:
        changed = sum(one.counters_changed for one in results)
        total = sum(one.counters for one in results)
        yield VerdictShare(f"{label}: exact counters that differ", changed, total).to_figure()
        off = {one.campaign: one.controls_off for one in results}
        yield VerdictShare(
            f"{label}: controls that are off", sum(off.values()), len(off)
        ).to_figure()


def _scatter_figures(title: str, groups: Sequence[Sequence[PairedLaunch]]) -> Iterator[RatioFigure]:
    """Yield root mean square and mean of ln(B/A), each averaged over the launches of a group."""
    if len(groups) < 3:
        return
    for metric in METRICS:
        d = np.array(
            [np.mean([getattr(launch, f"{metric}_d") for launch in group]) for group in groups]
        )
        interval = stats.bootstrap(
            (d,), _root_mean_square, method="percentile", rng=np.random.default_rng(SEED)
        ).confidence_interval
        yield RatioFigure(
            f"{title}, {metric}: rms of ln(B/A)",
            float(_root_mean_square(d)),
            float(interval.low),
            float(interval.high),
            len(d),
            MAX_SCATTER,
        )
        yield _mean_figure(f"{title}, {metric}: mean ln(B/A)", d)


def _mean_figure(title: str, values: np.ndarray[Any, np.dtype[np.float64]]) -> RatioFigure:
    estimate = estimate_mean(values.tolist())
    low, high = estimate.interval() if estimate else (math.nan, math.nan)
    return RatioFigure(title, float(values.mean()), low, high, len(values))


def _root_mean_square(values: Any, axis: int = -1) -> Any:
    return np.sqrt(np.mean(np.square(values), axis=axis))


def _share_figures(label: str, results: Sequence[CampaignResult]) -> Iterator[RatioFigure]:
    """Yield planted and measured size of a slowdown, and the share of campaigns that find it."""
    planted = np.array([one.planted for one in results])
    title = f"{label}, planted {100 * planted.mean():.2f} %"
    for metric in METRICS:
        error = np.array([getattr(one, f"{metric}_effect") for one in results]) - planted
        yield _mean_figure(f"{title}: measured − planted, {metric}", error)
        found = sum(getattr(one, f"{metric}_found") for one in results)
        yield VerdictShare(
            f"{title}: campaigns that find it, {metric}", found, len(results)
        ).to_figure()


def _plot_launches(launches: Sequence[PairedLaunch]) -> None:
    series: dict[str, list[float]] = defaultdict(list)
    for one in sorted(launches, key=lambda one: (one.label, one.blocks, one.kind)):
        name = "A/A" if one.kind == CONTROL or not one.blocks else f"{one.blocks:g} blocks an event"
        series[f"{one.label}, {name}"].append(100 * one.cpu_d)
    if series:
        title = "Paired launches: A/A, and with a planted slowdown"
        plot_points("paired", title, "100 ln(B/A) of CPU time", series, reference=0.0)
