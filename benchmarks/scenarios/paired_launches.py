"""Launches in paired mode: scatter, bias between the sides, and planted slowdowns of known size.

They are planned, sent, stored and read by the same code as those of ``treehammer submit``.  Without
``--blocks`` both sides of each launch do the same work (A/A).  Rows are appended to
``results/side-launches.csv``, so that a benchmark that was stopped goes on later.
"""

from __future__ import annotations

import argparse
import math
import os
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from operator import itemgetter
from statistics import fmean, variance
from typing import Any

import numpy as np

from benchmarks.harness.figures import (
    BENCHMARKS_FOLDER,
    DATA_FOLDER,
    QUIET_LOAD,
    RESULTS_FOLDER,
    RatioFigure,
    append_rows,
    bootstrap_interval,
    read_rows,
)
from treehammer import config
from treehammer.analysis.statistics.estimates import estimate_mean
from treehammer.analysis.statistics.sample import HEADLINE_METRICS, SAMPLE_COLUMNS, Sample
from treehammer.collectors.job_spec import CHECKSUM, CONTROL
from treehammer.config import Settings
from treehammer.errors import NothingToDoError
from treehammer.sql.read.query_model import Selection
from treehammer.sql.write.store import Store
from treehammer.submit.campaigns import campaign_polling, campaign_request, submission
from treehammer.submit.planning.submission_options import CampaignRequest

TEST_FOLDER = BENCHMARKS_FOLDER / "planted"
#: Launches of 67 campaigns with and without planted work, from which verdicts are drawn.
RECORDED_FILE = DATA_FOLDER / "paired-launches.csv"
LAUNCHES_FILE = RESULTS_FOLDER / "side-launches.csv"
#: Launches of a label after which the benchmark ends, and jobs of one campaign.
TARGET_LAUNCHES, CAMPAIGN_JOBS = 1000, 6
#: Compared axis, its base, and the other side.
AXIS, BASE, OTHER = "twin", "a", "b"
CPU, WALL = HEADLINE_METRICS
#: Half of the width of a 95 % interval, in standard errors.
NORMAL_95 = 1.96
#: Limits of the scatter of ln(B/A), and of the bias between the sides.
MAX_SCATTER, MAX_BIAS = 0.01, 0.0001
_COLUMNS = (*SAMPLE_COLUMNS, "started_us", "load1_start", "launch_order")


class TimeLimitError(Exception):
    """The time limit is reached; the running campaign was cancelled."""


@dataclass(frozen=True)
class PairedLaunch:
    """One launch.

    ``blocks`` are those that side B decompresses for each event, 0 for a control.  (Controls
    recorded up to 2026-11-23 carry those of their campaign.)  ``planted`` is ln(1 + planted /
    reading) by the payload's own clocks.  ``cpu_d`` and ``wall_d`` are the recorded ln(B/A), the
    four times are seconds per event, and ``loop_s`` is the CPU of the loops on the side with less.
    """

    label: str
    campaign: str
    job: str
    host: str
    started: str
    load1: float
    blocks: float
    kind: str
    round: int
    order: str
    loop_s: float
    planted: float
    cpu_a: float
    cpu_b: float
    cpu_d: float
    wall_a: float
    wall_b: float
    wall_d: float

    @property
    def is_equal(self) -> bool:
        """Whether both sides do the same work."""
        return not self.blocks or self.kind == CONTROL


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``python -m benchmarks sides``."""
    group = parser.add_argument_group("sides")
    group.add_argument(
        "--label",
        choices=("busy", "quiet"),
        help=f"state of the machine (quiet with a load below {QUIET_LOAD})",
    )
    group.add_argument("--slots", type=int, default=1, help="sides: concurrent jobs (%(default)s)")
    group.add_argument(
        "--blocks",
        type=float,
        default=0.0,
        help="sides: planted work in blocks an event; 0.026 are about 2 %% (%(default)s)",
    )
    group.add_argument(
        "--side-launches",
        type=int,
        default=TARGET_LAUNCHES,
        help="launches for each label (%(default)s)",
    )
    group.add_argument(
        "--side-seconds", type=float, default=math.inf, help="stop after this time (no limit)"
    )


def choose_label(options: argparse.Namespace) -> str:
    """Return the label of this run: as given, or by the load of the machine."""
    return str(options.label or ("quiet" if os.getloadavg()[0] < QUIET_LOAD else "busy"))


def measure(options: argparse.Namespace) -> list[RatioFigure]:
    """Run missing launches; return the figures of all recorded ones."""
    label = choose_label(options)
    home = config.load_settings().data_dir / "benchmarks" / "sides"
    flags = {
        "data_dir": home,
        "database": f"sqlite:///{home}/results.db",
        "local_slots": options.slots,
    }
    recording = PairedRecording(config.load_settings(flags), label)
    recording.end_open_campaigns()
    recording.store_new_launches()
    deadline = time.monotonic() + options.side_seconds
    try:
        while (
            time.monotonic() < deadline
            and _count_launches(label, options.blocks) < options.side_launches
        ):
            recording.run_campaign(options.blocks, deadline)
            recording.store_new_launches()
    except TimeLimitError:
        pass
    finally:
        recording.store_new_launches()
    by_label: dict[str, list[PairedLaunch]] = defaultdict(list)
    for launch in read_rows(LAUNCHES_FILE, PairedLaunch):
        by_label[launch.label].append(launch)
    return [figure for name in by_label for figure in build_figures(name, by_label[name])]


def _count_launches(label: str, blocks: float) -> int:
    launches = read_rows(LAUNCHES_FILE, PairedLaunch)
    return sum((launch.label, launch.blocks) == (label, blocks) for launch in launches)


@dataclass(frozen=True)
class PairedRecording:
    """Campaigns with their own queue and database; ``label`` describes the machine."""

    settings: Settings
    label: str

    def run_campaign(self, blocks: float, deadline: float) -> None:
        """Run one campaign of six jobs.

        Raises:
            TimeLimitError: the monotonic clock passed ``deadline``; complete launches are kept.
        """
        request = CampaignRequest(
            str(TEST_FOLDER),
            {"blocks": (str(blocks),), AXIS: (BASE, OTHER)},
            {"repeats": str(CAMPAIGN_JOBS)},
            name=f"{self.label} {blocks:g}",
        )
        plan = campaign_request.plan_request(request, self.settings)
        campaign = submission.submit_plan(plan, self.settings)

        def check_time(_: object) -> None:
            if time.monotonic() > deadline:
                raise TimeLimitError

        with Store.open(self.settings.database) as store:
            tracker = campaign_polling.make_tracker(store, self.settings)
            try:
                campaign_polling.follow_campaign(tracker, campaign, check_time)
            except (TimeLimitError, KeyboardInterrupt):
                tracker.cancel(campaign)
                tracker.collect_records(campaign)
                raise

    def end_open_campaigns(self) -> None:
        """End the campaigns that a killed run left behind, and collect their launches."""
        try:
            with Store.open(self.settings.database, create=False) as store:
                tracker = campaign_polling.make_tracker(store, self.settings)
                for campaign in store.campaigns():
                    tracker.cancel(campaign)
                    tracker.collect_records(campaign)
        except NothingToDoError:
            pass

    def store_new_launches(self) -> None:
        """Append the launches of campaigns that are not in the table, oldest first."""
        stored_ids = {launch.campaign for launch in read_rows(LAUNCHES_FILE, PairedLaunch)}
        try:
            with Store.open(self.settings.database, create=False) as store:
                for campaign in reversed(store.campaigns()):
                    if campaign.id not in stored_ids:
                        label = campaign.name.split(maxsplit=1)[0]
                        append_rows(LAUNCHES_FILE, list(read_launches(store, campaign.id, label)))
        except NothingToDoError:
            return


def read_launches(store: Store, campaign_id: str, label: str) -> Iterator[PairedLaunch]:
    """Read the complete launches of a campaign in order of time."""
    selection = Selection.parse([campaign_id], [])
    extras: dict[str, dict[str, float]] = defaultdict(dict)
    for extra in store.extras(selection):
        extras[extra.measurement_id][extra.name] = extra.value
    rounds: dict[tuple[Any, ...], list[Mapping[str, Any]]] = defaultdict(list)
    for row in sorted(store.measurements(selection, _COLUMNS), key=itemgetter("started_us")):
        if row["kind"] != CHECKSUM:
            rounds[row["job_id"], row["attempt"], row["round"]].append(row)
    for sides in rounds.values():
        samples = [Sample.from_row(row) for row in sides]
        by_side = {bool(sample.launch_ratios): sample for sample in samples}
        if len(by_side) == 2 and not any(sample.reason_unusable(CPU) for sample in samples):
            a, b = by_side[False], by_side[True]
            planted = _measure_planted(extras[a.measurement_id], extras[b.measurement_id])
            yield _build_launch(a, b, sides[0], label, planted)


def _build_launch(
    a: Sample, b: Sample, first: Mapping[str, Any], label: str, planted: float
) -> PairedLaunch:
    """Build a launch of two sides; the row of the ``first`` one has the state of the node."""
    started = datetime.fromtimestamp(first["started_us"] / 1e6, UTC)
    is_planted = b.axis_value(AXIS) == OTHER
    return PairedLaunch(
        label=label,
        campaign=b.campaign_id,
        job=b.job_id,
        host=b.host,
        started=started.isoformat(timespec="seconds"),
        load1=float(first["load1_start"]),
        blocks=float(b.axis_value("blocks") or 0) if is_planted else 0.0,
        kind=b.kind,
        round=b.round,
        order=str(first["launch_order"]),
        loop_s=_round(min(a.loop_cpu_s or 0, b.loop_cpu_s or 0)),
        planted=_round(planted),
        cpu_a=_round(a.metrics[CPU]),
        cpu_b=_round(b.metrics[CPU]),
        cpu_d=_round(b.launch_ratios[CPU]),
        wall_a=_round(a.metrics[WALL]),
        wall_b=_round(b.metrics[WALL]),
        wall_d=_round(b.launch_ratios[WALL]),
    )


def _measure_planted(a: Mapping[str, float], b: Mapping[str, float]) -> float:
    """Compute ln(1 + planted / reading) of side B, without the clocks' cost seen on side A."""
    costs = [math.log1p(side["planted_cpu_s"] / side["reading_cpu_s"]) for side in (a, b)]
    return costs[1] - costs[0]


def _round(value: float) -> float:
    return float(f"{value:.6g}")


@cache
def load_equal_launches() -> dict[str, list[PairedLaunch]]:
    """Load the recorded A/A launches by label."""
    launches: dict[str, list[PairedLaunch]] = defaultdict(list)
    for launch in read_rows(RECORDED_FILE, PairedLaunch):
        if launch.is_equal:
            launches[launch.label].append(launch)
    return dict(sorted(launches.items()))


def build_figures(label: str, launches: Sequence[PairedLaunch]) -> Iterator[RatioFigure]:
    """Summarize the launches of a label: scatter and bias of equal sides, error of planted work."""
    equal = [launch for launch in launches if launch.is_equal]
    planted = [launch for launch in launches if not launch.is_equal]
    for metric in ("cpu", "wall"):
        title = f"{label}, {metric}"
        ratios = np.array([getattr(launch, f"{metric}_d") for launch in equal])
        if len(ratios) > 2:
            value = float(_root_mean_square(ratios))
            interval = bootstrap_interval(ratios, _root_mean_square)
            name = f"{title}: rms of ln(B/A)"
            yield RatioFigure(name, value, *interval, len(ratios), MAX_SCATTER)
        yield from _bias_figures(title, metric, equal)
        errors = [getattr(launch, f"{metric}_d") - launch.planted for launch in planted]
        if estimate := estimate_mean(errors):
            name = f"{title}: measured − planted"
            yield RatioFigure(name, fmean(errors), *estimate.interval(), len(errors))


def _bias_figures(
    title: str, metric: str, launches: Sequence[PairedLaunch]
) -> Iterator[RatioFigure]:
    """Yield the bias with either side first equally often, and half of what the order adds."""
    ratios = {
        order: [getattr(launch, f"{metric}_d") for launch in launches if launch.order == order]
        for order in ("AB", "BA")
    }
    if min(map(len, ratios.values())) < 2:
        return
    ab, ba = (fmean(values) for values in ratios.values())
    error = math.sqrt(sum(variance(values) / len(values) for values in ratios.values())) / 2
    for name, value, bound in (
        ("mean ln(B/A), orders balanced", (ab + ba) / 2, MAX_BIAS),
        ("ln of the side that begins second / first", (ab - ba) / 2, None),
    ):
        low, high = value - NORMAL_95 * error, value + NORMAL_95 * error
        yield RatioFigure(f"{title}: {name}", value, low, high, len(launches), bound)


def _root_mean_square(values: Any, axis: int = -1) -> Any:
    return np.sqrt(np.mean(np.square(values), axis=axis))
