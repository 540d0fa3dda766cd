"""Comparison on this machine that ends as soon as it is decided: its looks, submissions and verdict."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain, pairwise
from typing import Any

import psutil

from treehammer.analysis.comparison.comparison_result import (
    ComparisonResult,
    judge_campaign,
    store_results,
)
from treehammer.analysis.comparison.series_changes import DETAIL_COLUMNS
from treehammer.analysis.statistics.headline_rows import load_headline_rows
from treehammer.analysis.statistics.verdict import is_open, plan_looks
from treehammer.collectors.job_spec import CHECKSUM, LOCAL_BATCH, PAIRED
from treehammer.config import Settings
from treehammer.errors import ConfigError
from treehammer.hctests.definition.model import COMMIT_AXIS, identify_commit
from treehammer.sql.core.campaign_plan import SequentialPlan
from treehammer.sql.core.rows import CampaignRow
from treehammer.sql.read.campaign_counts import CampaignCount
from treehammer.sql.read.query_model import Selection
from treehammer.sql.write.store import Store
from treehammer.submit.campaigns import campaign_polling, submission
from treehammer.submit.campaigns.campaign_outcome import (
    describe_log,
    select_failed_measurements,
    summarize_failures,
)
from treehammer.submit.campaigns.campaign_polling import CampaignDisplay, Notify, ShowProgress
from treehammer.submit.campaigns.tracker import CampaignTracker
from treehammer.submit.planning.plan import Plan
from treehammer.submit.planning.submission_options import CampaignRequest

#: Jobs that run at once unless the settings state a number: the launches of one look.
SIDE_BY_SIDE = 2
#: Failed executions, those of two launches, after which a comparison is given up.
HOPELESS_FAILURES = 4
#: Newest campaigns that are searched.
MAX_SEARCHED_CAMPAIGNS = 50
#: Providers whose software never changes under one name, unlike a build tree.
_FIXED_PROVIDERS = {"wheel", "cvmfs"}
#: Columns of a checksum execution that say which data it read through which door.
_PLACE_COLUMNS = ("dataset_hash", "site", "storage_site", "door")
_CHECKSUM_COLUMNS = ("campaign_id", "variant", "value_checksum", "failure_class", *_PLACE_COLUMNS)


@dataclass(frozen=True)
class LocalVerdict:
    """A campaign that ended at a look.

    Attributes:
        campaign: the campaign.
        progress: its jobs and measurements.
        results: comparisons of each further value with the first; empty where nothing was measured.
        launches: planned launches of each series.
        decided: whether more launches could not have changed the verdicts on the first metric.
    """

    campaign: CampaignRow
    progress: CampaignCount
    results: Sequence[ComparisonResult]
    launches: int
    decided: bool


def can_end_early(plan: Plan) -> bool:
    """Return whether a plan compares one axis on this machine in turns."""
    definition = plan.pinned_test.definition
    is_local = all(site.batch == LOCAL_BATCH for site in plan.sites)
    is_paired = definition.test.mode == PAIRED and not definition.load
    return is_local and is_paired and len(plan.request.definition.compared_axes) == 1


def require_early_end(plan: Plan) -> None:
    """Require a plan that compares one axis on this machine in turns.

    Raises:
        ConfigError: it does not.
    """
    if not can_end_early(plan):
        raise ConfigError(
            "only a comparison on this machine in turns ends when it is decided",
            where="--until decided",
            hint="It needs -S mode=paired, --sites local, and one bundled axis with several values, "
            "such as -P root=6.38.00,6.40.00. Use --until planned for anything else.",
        )


def ends_when_decided(plan: Plan, request: CampaignRequest, until: str | None) -> bool:
    """Return whether a campaign ends when it is decided.

    By default a comparison on this machine in turns does, unless the user set its size, or the test
    states limits, which need other numbers of launches.

    Raises:
        ConfigError: the user wants it, but the plan compares nothing in this way.
    """
    if until == "decided":
        require_early_end(plan)
        return True
    is_sized = bool({"repeats", "rounds"} & request.overrides.keys())
    has_limits = bool(plan.pinned_test.definition.expect)
    if until is not None or is_sized or has_limits:
        return False
    return can_end_early(plan)


def parse_sequential_plan(max_launches: int, delta: float) -> SequentialPlan:
    """Make the sequential plan from the options of a command.

    Raises:
        ConfigError: a value is out of range.
    """
    try:
        return plan_looks(max_launches, delta)
    except ValueError as error:
        raise ConfigError(str(error)) from error


def describe_looks(sequential: SequentialPlan) -> str:
    """Describe when a comparison ends, below the table of its limit."""
    looks = [str(look) for look in sequential.looks]
    text = f"{', '.join(looks[:-1])} or {looks[-1]}" if len(looks) > 1 else looks[0]
    return f"At most; ends as soon as it is decided, after {text} launches of each variant."


def choose_slots(settings: Settings) -> Settings:
    """Let launches run side by side on cores of their own, unless the settings state a number."""
    if settings.sources.get("local_slots") != "default":
        return settings
    cores = min(psutil.cpu_count(logical=False) or 1, len(psutil.Process().cpu_affinity() or [0]))
    return replace(settings, local_slots=min(SIDE_BY_SIDE, cores))


def run_until_decided(
    plan: Plan,
    sequential: SequentialPlan,
    settings: Settings,
    display: CampaignDisplay,
) -> LocalVerdict:
    """Submit a comparison look by look until it is decided or its limit is reached.

    Args:
        plan: a plan as :func:`require_early_end` demands.
        sequential: the looks, and the limit of no effect.
        settings: all settings.
        display: shows progress and notices.

    Raises:
        TreehammerError: a step failed; submitted jobs continue.
    """
    require_early_end(plan)
    with Store.open(settings.database) as store:
        whole = plan.until_decided(sequential, find_proving_campaign(store, plan))
    settings = choose_slots(settings)
    submission.check_plan_limits(whole, settings)
    campaign = submission.submit_plan(whole.between_looks(0, sequential.looks[0]), settings)
    with Store.open(settings.database) as store, display.open(campaign) as show:
        tracker = campaign_polling.make_tracker(store, settings)
        show_or_end = _end_hopeless(tracker, campaign, show)
        for launches, following in pairwise((*sequential.looks, 0)):
            display.phase(f"measuring {launches} launches of each variant")
            progress = campaign_polling.follow_campaign(
                tracker, campaign, show_or_end, display.notify
            )
            display.phase("judging")
            results = judge_and_store(store, campaign, display.notify, sequential.delta)
            decided = bool(results) and _are_decided(results, sequential.delta)
            if decided or not following or not results:
                break
            campaign = submission.extend_submission(
                whole.between_looks(launches, following), settings
            )
    return LocalVerdict(campaign, progress, results, launches, decided)


def _end_hopeless(
    tracker: CampaignTracker, campaign: CampaignRow, show: ShowProgress
) -> ShowProgress:
    """Show a comparison's progress, and cancel it once two launches failed and hardly any did not."""
    cancel = cache(lambda: tracker.cancel(campaign))

    def show_or_end(progress: CampaignCount) -> None:
        show(progress)
        failed = progress.total.failed
        good = progress.total.measured - failed
        if failed >= max(HOPELESS_FAILURES, 2 * good):
            cancel()

    return show_or_end


def judge_and_store(
    store: Store, campaign: CampaignRow, notify: Notify, delta: float | None
) -> Sequence[ComparisonResult]:
    """Compare what a campaign compares, and store the verdicts; empty where nothing can be compared."""
    rows = load_headline_rows(store, Selection((campaign.id,)), DETAIL_COLUMNS)
    verdict = judge_campaign(store, campaign, rows, delta=delta)
    for problem in verdict.problems:
        notify(problem)
    store_results(store, verdict.results)
    return verdict.results


def _are_decided(results: Sequence[ComparisonResult], delta: float) -> bool:
    """Return whether each series is decided on its first metric: CPU time unless the test states others."""
    first = {
        (row.b, row.comparison_key): row
        for result in results
        for row in reversed(result.comparison.of_series)
    }
    return not any(is_open(row.verdict, row.low, row.high, delta) for row in first.values())


def describe_failed_sides(
    tracker: CampaignTracker, campaign: CampaignRow, names: Mapping[str, str]
) -> Iterator[str]:
    """Describe each failure of a comparison once, by the sides that failed, with its log.

    Args:
        tracker: of the store that has the campaign.
        campaign: the campaign.
        names: display names of commits.
    """
    (axis,) = campaign.plan.definition.compared_axes
    columns = ("failure_message", "variant", "commit_id", "dirty", "test_hash")
    sides: dict[str, dict[str, None]] = {}
    for row in select_failed_measurements(tracker.store, campaign, columns):
        value = str(json.loads(str(row["variant"])).get(axis, ""))
        if axis == COMMIT_AXIS:
            value = identify_commit(
                str(row["commit_id"]), bool(row["dirty"]), str(row["test_hash"])
            )
        name = names.get(value) or f"{axis} {value}"
        sides.setdefault(str(row["failure_message"]), {})[name] = None
    for group in summarize_failures(tracker.store, campaign):
        where = " and ".join(sides.get(group.message, {})) or "a job"
        yield f"{where} failed {group.count} times ({group.failure}): {group.message}"
        yield from describe_log(tracker, group)


def find_proving_campaign(store: Store, plan: Plan) -> str:
    """Find the newest campaign with a good checksum of everything that a plan would check.

    Returns:
        its identity; '' without any, or if the plan checks nothing, or a ROOT that may change.
    """
    checks = [job.spec.executions for job in plan.jobs if job.kind == CHECKSUM]
    planned = [*chain.from_iterable(checks)]
    if not planned or not {check.software.provider for check in planned} <= _FIXED_PROVIDERS:
        return ""
    needed = {_find_slot(check.identity, check.variant) for check in planned}
    newest = [campaign.id for campaign in store.campaigns()[:MAX_SEARCHED_CAMPAIGNS]]
    proven = _find_proven_slots(store, newest)
    return next((id_ for id_ in newest if needed <= proven[id_]), "")


def _find_slot(values: Mapping[str, Any], variant: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the place of a checksum and the ROOT that was requested for it."""
    return (*(str(values[name]) for name in _PLACE_COLUMNS), str(variant["root"]))


def _find_proven_slots(
    store: Store, campaign_ids: Sequence[str]
) -> Mapping[str, set[tuple[str, ...]]]:
    """Find the place and the requested ROOT of each good checksum, by campaign."""
    proven: dict[str, set[tuple[str, ...]]] = {campaign_id: set() for campaign_id in campaign_ids}
    if not proven:
        return proven
    selection = Selection.parse(campaign_ids, [f"kind={CHECKSUM}"])
    for row in store.measurements(selection, _CHECKSUM_COLUMNS):
        if row["value_checksum"] and not row["failure_class"]:
            slot = _find_slot(row, json.loads(str(row["variant"])))
            proven[str(row["campaign_id"])].add(slot)
    return proven
