"""Local comparison that ends as soon as it is decided: submit, wait, decide, print."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, TypeVar

import click
import psutil

from treehammer.analysis.cli.compare_command import (
    ComparisonResult,
    compare_named,
    delta_option,
    print_conclusions,
    print_verdict_tables,
)
from treehammer.analysis.statistics.verdict import (
    DEFAULT_DELTA,
    DEFAULT_MAX_LAUNCHES,
    SequentialPlan,
    is_open,
)
from treehammer.collectors.job_spec import CHECKSUM, LOCAL_BATCH, PAIRED, ExecutionSpec
from treehammer.config import Settings
from treehammer.errors import ConfigError, NothingToDoError
from treehammer.hctests.definition.model import COMMIT_AXIS, Scalar, format_commit
from treehammer.sql.core.rows import CampaignRow
from treehammer.sql.read.campaign_counts import CampaignCount
from treehammer.sql.read.query_model import Selection
from treehammer.sql.write.store import Store
from treehammer.submit.campaigns import campaign_polling, submission
from treehammer.submit.campaigns.campaign_request import CampaignRequest
from treehammer.submit.cli.unfinished_campaigns import live_display
from treehammer.submit.planning.plan import Plan
from treehammer.terminal import TABLE, print_hint

_Command = TypeVar("_Command", bound=Callable[..., Any])

#: Jobs that run at once unless the settings state a number: the launches of one look.
SIDE_BY_SIDE = 2


_max_launches_option = click.option(
    "--max-launches",
    type=int,
    default=DEFAULT_MAX_LAUNCHES,
    show_default=True,
    help="Launches of each variant after which an undecided comparison ends, 3 to 96.",
)
#: Newest campaigns that are searched.
MAX_SEARCHED_CAMPAIGNS = 50
#: Providers whose software never changes under one name, unlike a build tree.
_FIXED_PROVIDERS = ("wheel", "cvmfs")
_CHECKSUM_COLUMNS = (
    "campaign_id",
    "dataset_hash",
    "variant",
    "site",
    "storage_site",
    "door",
    "value_checksum",
    "failure_class",
)
#: Dataset hash, requested ROOT, site, storage site and door.
_ChecksumSlot = tuple[str, str, str, str, str]


def sequential_options(command: _Command) -> _Command:
    """Add the options of :func:`parse_sequential_plan` to a command."""
    return _max_launches_option(delta_option(command))


@dataclass(frozen=True)
class ComparedAxis:
    """The bundled axis of a local comparison in paired mode, and its values; the first is the base."""

    axis: str
    values: tuple[Scalar, ...]


@dataclass(frozen=True)
class LocalVerdict:
    """A campaign that ended at a look.

    Attributes:
        campaign: the campaign.
        progress: its jobs and measurements.
        results: comparisons of each further value with the first; empty where nothing was measured.
        names: display names of the compared values that have one.
        launches: planned launches of each series.
        decided: whether more launches could not have changed the verdicts on the first metric.
    """

    campaign: CampaignRow
    progress: CampaignCount
    results: Sequence[ComparisonResult]
    names: Mapping[str, str]
    launches: int
    decided: bool


def find_compared_axis(plan: Plan) -> ComparedAxis | None:
    """Find the axis that a plan compares on this machine in turns; None for any other plan."""
    definition = plan.pinned_test.definition
    bundled = [axis for axis in definition.bundle if len(definition.axis_values(axis)) > 1]
    is_local = all(site.batch == LOCAL_BATCH for site in plan.sites)
    if not is_local or definition.mode != PAIRED or definition.load or len(bundled) != 1:
        return None
    return ComparedAxis(bundled[0], tuple(definition.axis_values(bundled[0])))


def require_compared_axis(plan: Plan) -> ComparedAxis:
    """Find the axis that a plan compares on this machine in turns.

    Raises:
        ConfigError: it compares none.
    """
    compared = find_compared_axis(plan)
    if compared is None:
        raise ConfigError(
            "only a comparison on this machine in turns ends when it is decided",
            where="--until decided",
            hint="It needs -S mode=paired, --sites local, and one bundled axis with several values, "
            "such as -P root=6.38.00,6.40.00. Use --until planned for anything else.",
        )
    return compared


def ends_when_decided(plan: Plan, request: CampaignRequest, until: str | None) -> bool:
    """Return whether a campaign ends when it is decided.

    By default a comparison on this machine in turns does, unless the user set its size, or the test
    states limits, which need other numbers of launches.

    Raises:
        ConfigError: the user wants it, but the plan compares nothing in this way.
    """
    if until == "decided":
        require_compared_axis(plan)
        return True
    is_sized = bool({"repeats", "rounds"} & request.overrides.keys())
    has_limits = bool(plan.pinned_test.definition.expect)
    if until is not None or is_sized or has_limits:
        return False
    return find_compared_axis(plan) is not None


def parse_sequential_plan(max_launches: int, delta: float) -> SequentialPlan:
    """Make the sequential plan from the options of a command.

    Raises:
        ConfigError: a value is out of range.
    """
    try:
        return SequentialPlan.up_to(max_launches, delta)
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
    plan: Plan, sequential: SequentialPlan, settings: Settings, form: str = TABLE
) -> LocalVerdict:
    """Submit a comparison look by look until it is decided or its limit is reached.

    Args:
        plan: a plan with a compared axis, see :func:`require_compared_axis`.
        sequential: the looks, and the limit of no effect.
        settings: all settings.
        form: output format, which decides where progress is shown.

    Raises:
        TreehammerError: a step failed; submitted jobs continue.
    """
    compared = require_compared_axis(plan)
    with Store.open(settings.database) as store:
        whole = plan.until_decided(sequential, find_proving_campaign(store, plan))
    settings = choose_slots(settings)
    submission.check_plan_limits(whole, settings)
    campaign = submission.submit_plan(whole.between_looks(0, sequential.looks[0]), settings)
    title = f"{campaign.name} ({campaign.id})"
    with (
        Store.open(settings.database) as store,
        live_display(title, campaign.planned_measurements, to_stderr=form != TABLE) as show,
    ):
        tracker = campaign_polling.make_tracker(store, settings)
        _load_statistics()
        for launches, following in pairwise((*sequential.looks, 0)):
            progress = campaign_polling.follow_campaign(tracker, campaign, show, _print_notice)
            results, names = _compare_sides(store, campaign, compared, sequential.delta, settings)
            decided = bool(results) and _are_decided(results, sequential.delta)
            if decided or not following or not results:
                break
            campaign = submission.extend_submission(
                whole.between_looks(launches, following), settings
            )
    return LocalVerdict(campaign, progress, results, names, launches, decided)


def _load_statistics() -> None:
    """Import the verdict's modules, which takes a third of a second, while the first launches start."""
    from treehammer.analysis.comparison import comparison, phase_changes  # noqa: F401
    from treehammer.analysis.statistics import estimates

    estimates.load_special()


def _compare_sides(
    store: Store, campaign: CampaignRow, compared: ComparedAxis, delta: float, settings: Settings
) -> tuple[Sequence[ComparisonResult], Mapping[str, str]]:
    """Compare the values of the axis; empty where no measurement of a side can be compared."""
    selection = Selection.parse([campaign.id], [])
    try:
        texts = [str(value) for value in compared.values]
        return compare_named(store, selection, compared.axis, texts, delta, settings)
    except NothingToDoError as error:
        print_hint(str(error), err=True)
        return [], {}


def _are_decided(results: Sequence[ComparisonResult], delta: float) -> bool:
    """Return whether each series is decided on its first metric: CPU time unless the test states others."""
    first = {
        (row.b, row.comparison_key): row
        for result in results
        for row in reversed(result.comparison.of_series)
    }
    return not any(is_open(row.verdict, row.low, row.high, delta) for row in first.values())


def _print_notice(line: str) -> None:
    print_hint(line, err=True)


def print_local_verdict(
    verdict: LocalVerdict, sequential: SequentialPlan, form: str = TABLE
) -> None:
    """Print the verdicts, the conclusion and the reason for the end."""
    _print_results(verdict.results, verdict.names, form)
    launches = f"after {verdict.launches} launches of each variant"
    if not verdict.results:
        text = f"Nothing can be compared {launches}."
    elif verdict.decided:
        text = f"Decided {launches}, of at most {sequential.looks[-1]}."
    else:
        text = f"Undecided {launches}; --max-launches sets a higher limit."
    click.echo(text, err=form != TABLE)
    _print_compare_hint(verdict.results, verdict.campaign, form)


def print_planned_verdict(
    store: Store,
    campaign: CampaignRow,
    plan: Plan,
    delta: float,
    settings: Settings,
    form: str = TABLE,
) -> None:
    """Print the verdict of a comparison on this machine in turns that ran as planned, if it is one."""
    compared = find_compared_axis(plan)
    if compared is not None:
        results, names = _compare_sides(store, campaign, compared, delta, settings)
        _print_results(results, names, form)
        _print_compare_hint(results, campaign, form)


def _print_results(
    results: Sequence[ComparisonResult], names: Mapping[str, str], form: str
) -> None:
    if form == TABLE:
        print_verdict_tables(results, names)
    print_conclusions([result.comparison for result in results], names, form=form)


def _print_compare_hint(
    results: Sequence[ComparisonResult], campaign: CampaignRow, form: str
) -> None:
    """Print the command that shows the notes, counters and instructions as well."""
    if not results:
        return
    query = results[0].comparison.query
    values = [str(value) for value in (query.a, *(result.comparison.query.b for result in results))]
    if query.axis == COMMIT_AXIS:  # a campaign has one state of a working tree at most
        values = [*map(format_commit, values)]
    words = ["treehammer", "compare", *values, "--axis", query.axis, "--campaign", campaign.id]
    if query.delta != DEFAULT_DELTA:
        words += ["--delta", f"{query.delta:g}"]
    print_hint(f"Details: {shlex.join(words)}", err=form != TABLE)


def find_proving_campaign(store: Store, plan: Plan) -> str:
    """Find the newest campaign with a good checksum of everything that a plan would check.

    Returns:
        its identity; '' without any, or if the plan checks nothing, or a ROOT that may change.
    """
    planned = [
        execution for job in plan.jobs if job.kind == CHECKSUM for execution in job.spec.executions
    ]
    if not planned or any(check.software.provider not in _FIXED_PROVIDERS for check in planned):
        return ""
    needed = {_slot_of_execution(execution) for execution in planned}
    newest = [campaign.id for campaign in store.campaigns()[:MAX_SEARCHED_CAMPAIGNS]]
    proven = _find_proven_slots(store, newest) if newest else {}
    return next((id_ for id_ in newest if needed <= proven[id_]), "")


def _find_proven_slots(
    store: Store, campaign_ids: Sequence[str]
) -> Mapping[str, set[_ChecksumSlot]]:
    """Return campaign id -> slots with a good checksum."""
    proven: dict[str, set[_ChecksumSlot]] = {campaign_id: set() for campaign_id in campaign_ids}
    selection = Selection.parse(campaign_ids, [f"kind={CHECKSUM}"])
    for row in store.measurements(selection, _CHECKSUM_COLUMNS):
        if row["value_checksum"] and not row["failure_class"]:
            root = json.loads(str(row["variant"]))["root"]
            place = (str(row["site"]), str(row["storage_site"]), str(row["door"]))
            proven[str(row["campaign_id"])].add((str(row["dataset_hash"]), str(root), *place))
    return proven


def _slot_of_execution(execution: ExecutionSpec) -> _ChecksumSlot:
    identity = execution.identity
    place = (str(identity["site"]), str(identity["storage_site"]), str(identity["door"]))
    return str(identity["dataset_hash"]), str(execution.variant["root"]), *place
