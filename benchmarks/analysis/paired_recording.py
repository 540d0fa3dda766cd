"""Campaigns in paired mode with a planted slowdown: runs them and reads their launches and verdicts.

They are planned, sent, stored and judged by the same code as those of ``treehammer submit`` and
``treehammer compare``.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean, median
from typing import Any

from treehammer.analysis.comparison.comparison import ComparisonQuery, compare_samples
from treehammer.analysis.comparison.control_evidence import stored_controls
from treehammer.analysis.comparison.counter_changes import SAME, CountedSample, compare_counters
from treehammer.analysis.samples.sample import HEADLINE_METRICS, SAMPLE_COLUMNS, Sample
from treehammer.analysis.statistics.verdict import HOST_SCOPE, Verdict
from treehammer.collectors.job_spec import CHECKSUM
from treehammer.collectors.record.exact_counters import COUNTER_NAMES
from treehammer.config import Settings
from treehammer.errors import NothingToDoError
from treehammer.sql.core.rows import CampaignRow, VerdictRow
from treehammer.sql.read.measurement_selection import Selection
from treehammer.sql.write.store import Store
from treehammer.submit.lifecycle import campaign_request, submission
from treehammer.submit.tracking import campaign_polling

TEST_FOLDER = Path(__file__).with_name("planted")
#: Jobs of one campaign.
CAMPAIGN_JOBS = 6
#: Compared axis, its base, and the other sides with their share of the planted blocks: one job
#: measures both slowdowns, and its two controls are the launches of an A/A job.
AXIS, BASE = "twin", "a"
BLOCK_SHARES = {"b": 1.0, "c": 0.5}
CPU, WALL = HEADLINE_METRICS
#: Limit up to which effects count as none where a planted slowdown is looked for, as a share of it.
FINDING_SHARE = 0.5
PLANTED_COLUMNS = (
    *SAMPLE_COLUMNS,
    *COUNTER_NAMES,
    "started_us",
    "ended_us",
    "load1_start",
    "launch_order",
)


class TimeLimitError(Exception):
    """The time limit is reached; the running campaign was cancelled."""


@dataclass(frozen=True)
class PairedLaunch:
    """One launch.

    ``blocks`` are those that side B decompresses for each event, 0 for a control.  (Controls recorded
    before jobs had a side c carry those of their campaign.)  ``planted`` is
    ln(1 + planted / reading) by the payload's own clocks.  ``cpu_d`` and ``wall_d`` are the recorded ln(B/A), the four times are seconds per event, and ``loop_s`` is the CPU of the
    loops on the side with less.
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


@dataclass(frozen=True)
class CampaignResult:
    """One side of one campaign against the base, as judged by ``compare``.

    ``load1`` is the median over its launches.  ``found`` says that B is slower or different where
    effects within :data:`FINDING_SHARE` of the planted one count as none.  (Up to 2026-11-23 it was
    1 % for the planted 1.9 %.)  The verdicts are those at the default limit of 2 %, about which a
    planted 2 % may be judged either way.
    """

    label: str
    campaign: str
    started: str
    seconds: float
    load1: float
    blocks: float
    planted: float
    jobs: int
    launches: int
    cpu_effect: float
    cpu_low: float
    cpu_high: float
    cpu_verdict: str
    cpu_found: bool
    wall_effect: float
    wall_low: float
    wall_high: float
    wall_verdict: str
    wall_found: bool
    counters: int
    counters_changed: int
    controls_off: bool


@dataclass(frozen=True)
class PairedRecording:
    """Campaigns with their own queue and database; ``label`` describes the machine."""

    settings: Settings
    label: str

    def run_campaign(self, blocks: float, sides: Sequence[str], deadline: float) -> None:
        """Run one campaign of the base and ``sides``.

        Raises:
            TimeLimitError: the monotonic clock passed ``deadline``; complete launches are kept.
        """
        request = campaign_request.CampaignRequest(
            str(TEST_FOLDER),
            {"blocks": (str(blocks),), AXIS: (BASE, *sides)},
            {"repeats": str(CAMPAIGN_JOBS)},
            name=f"{self.label} {blocks:g}",
        )
        plan = campaign_request.plan_request(request, self.settings, fetch=True)
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

    def load_campaigns(
        self, known: set[str]
    ) -> Iterator[tuple[list[PairedLaunch], list[CampaignResult]]]:
        """Load the campaigns that are not known, oldest first."""
        try:
            with Store.open(self.settings.database, create=False) as store:
                for campaign in reversed(store.campaigns()):
                    if campaign.id not in known:
                        yield read_campaign(store, campaign)
        except NothingToDoError:
            return


def read_campaign(
    store: Store, campaign: CampaignRow
) -> tuple[list[PairedLaunch], list[CampaignResult]]:
    """Read the launches of one campaign, and the result of each side that is complete in all jobs."""
    selection = Selection.parse([campaign.id], [])
    rows: list[Mapping[str, Any]] = list(store.measurements(selection, PLANTED_COLUMNS))
    extras: dict[str, dict[str, float]] = defaultdict(dict)
    for extra in store.extras(selection):
        extras[extra.measurement_id][extra.name] = extra.value
    label = campaign.name.split()[0]
    launches = list(build_launches(rows, extras, label))
    results = [
        _judge_side(rows, of_side, ComparisonQuery(AXIS, BASE, side, selection=selection))
        for side in BLOCK_SHARES
        if (of_side := [launch for name, launch in launches if name == side])
    ]
    return [launch for _, launch in launches], [result for result in results if result]


def _judge_side(
    rows: Sequence[Mapping[str, Any]], launches: Sequence[PairedLaunch], query: ComparisonQuery
) -> CampaignResult | None:
    """Judge one side of a campaign, with its launches, by itself; None for an incomplete one."""
    planted = fmean(launch.planted for launch in launches)
    samples = [Sample.from_row(row) for row in rows]
    found = compare_samples(samples, query, now_us=0)
    finer = compare_samples(samples, replace(query, delta=FINDING_SHARE * planted), now_us=0)
    verdicts = {row.metric: row for row in found.verdicts if row.scope == HOST_SCOPE}
    if len(verdicts) < len(HEADLINE_METRICS) or verdicts[CPU].jobs < CAMPAIGN_JOBS:
        return None
    finds = {row.metric: _finds_slowdown(row) for row in finer.of_series}
    counters = list(_compare_job_counters(rows, str(query.b)))
    return CampaignResult(
        label=launches[0].label,
        campaign=launches[0].campaign,
        **_time_columns(rows),
        load1=median(launch.load1 for launch in launches),
        blocks=launches[0].blocks,
        planted=planted,
        jobs=verdicts[CPU].jobs,
        launches=len(launches),
        **_verdict_columns("cpu", verdicts[CPU]),
        cpu_found=finds[CPU],
        **_verdict_columns("wall", verdicts[WALL]),
        wall_found=finds[WALL],
        counters=len(counters),
        counters_changed=len(counters) - counters.count(SAME),
        controls_off=any(control.is_off for control in stored_controls(found.verdicts)),
    )


def build_launches(
    rows: Sequence[Mapping[str, Any]], extras: Mapping[str, Mapping[str, float]], label: str
) -> Iterator[tuple[str, PairedLaunch]]:
    """Build the launches in order of time, each with the name of its side that is not the base."""
    rounds: dict[tuple[str, int, int], list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        if row["kind"] != CHECKSUM:
            rounds[row["job_id"], row["attempt"], row["round"]].append(row)
    for sides in sorted(rounds.values(), key=lambda pair: min(row["started_us"] for row in pair)):
        samples = [Sample.from_row(row) for row in sides]
        by_side = {bool(one.launch_ratios): one for one in samples}
        if len(by_side) == 2 and not any(one.reason_unusable(CPU) for one in samples):
            a, b = by_side[False], by_side[True]
            planted = _measure_planted(extras[a.measurement_id], extras[b.measurement_id])
            first = min(sides, key=lambda row: row["started_us"])
            yield str(b.axis_value(AXIS)), _build_launch(a, b, first, label, planted)


def _build_launch(
    a: Sample, b: Sample, first: Mapping[str, Any], label: str, planted: float
) -> PairedLaunch:
    """Build a launch of two sides, of which the row of the ``first`` has the state of the node."""
    share = BLOCK_SHARES.get(str(b.axis_value(AXIS)), 0.0)
    return PairedLaunch(
        label=label,
        campaign=b.campaign_id,
        job=b.job_id,
        host=b.host,
        started=_format_time(first["started_us"]),
        load1=float(first["load1_start"]),
        blocks=float(b.axis_value("blocks") or 0) * share,
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


def _compare_job_counters(rows: Sequence[Mapping[str, Any]], side: str) -> Iterator[str]:
    """Compare the exact counters of a side within each job; each gives a verdict of its own."""
    jobs: dict[str, list[CountedSample]] = defaultdict(list)
    for row in rows:
        jobs[row["job_id"]].append(CountedSample.from_row(row))
    for counted in jobs.values():
        yield from (change.verdict for change in compare_counters(counted, AXIS, BASE, side))


def _finds_slowdown(row: VerdictRow) -> bool:
    return row.verdict in (Verdict.SLOWER, Verdict.DIFFERENT) and (row.effect or 0) > 0


def _time_columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    first, last = min(row["started_us"] for row in rows), max(row["ended_us"] for row in rows)
    return {"started": _format_time(first), "seconds": round((last - first) / 1e6, 1)}


def _verdict_columns(short: str, row: VerdictRow) -> dict[str, Any]:
    numbers = {"effect": row.effect, "low": row.low, "high": row.high}
    known = {
        f"{short}_{name}": math.nan if number is None else _round(number)
        for name, number in numbers.items()
    }
    return {**known, f"{short}_verdict": row.verdict}


def _format_time(time_us: int) -> str:
    return datetime.fromtimestamp(time_us / 1e6, UTC).isoformat(timespec="seconds")


def _round(value: float) -> float:
    return float(f"{value:.6g}")
