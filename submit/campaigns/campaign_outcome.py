"""Outcome of a campaign: failures by group, common starts, and the command to repeat it."""

from __future__ import annotations

import json
import shlex
import textwrap
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from treehammer.analysis.status.failure_explanation import explain_results
from treehammer.collectors.job_spec import JobState
from treehammer.collectors.record.metric_catalogue import Value
from treehammer.collectors.record.operation_steps import LoadProgress
from treehammer.collectors.record.outcome import (
    INTERRUPTED_CLASSES,
    OTHER_HALF,
    OUTCOME_COLUMNS,
    Outcome,
    classify_outcome,
)
from treehammer.errors import BatchError, ConfigError
from treehammer.sql.core.campaign_plan import CampaignPlan, PlannedDefinition
from treehammer.sql.core.rows import AttemptRow, CampaignRow
from treehammer.sql.read import campaign_queries
from treehammer.sql.read.campaign_counts import load_last_attempts
from treehammer.sql.read.failure_counts import PeriodCounts
from treehammer.sql.read.query_model import Selection
from treehammer.sql.read.reader import ResultsReader
from treehammer.sql.write.store import Store
from treehammer.text_formatting import format_significant, join_names, pluralize
from treehammer.verticals import import_parts

if TYPE_CHECKING:
    from treehammer.submit.campaigns.tracker import CampaignTracker

_MeasurementRow = Mapping[str, Value]
_FailureKey = tuple[str, str, str]

_SUMMARY_COLUMNS = ("site", "failure_message", "implausible_reasons", "log_excerpt")
_PLACE_COLUMNS = ("job_id", "attempt", "round", "position", "ended_us", "failure_kind")
#: Failure groups that are described, and sites whose failures are explained.
MAX_DESCRIBED_FAILURES, MAX_EXPLAINED_SITES = 5, 20
#: Keys of [test] that ``-S`` can override.
_OVERRIDABLE_KEYS = (
    "dataset",
    "tree",
    "mode",
    "repeats",
    "rounds",
    "passes",
    "seed",
    "wall_limit_s",
    "memory_limit_mb",
)


@dataclass(frozen=True)
class FailedExecution:
    """Place of an execution's logs: its job, attempt and the name of its files."""

    job_id: str
    attempt: int
    name: str

    def find_log(self, sandboxes: Mapping[int, Path]) -> Path | None:
        """Find the log among the output folders of the job's attempts; None if it is not here."""
        folder = sandboxes.get(self.attempt)
        if folder is None:
            return None
        logs = (folder / "logs" / f"{self.name}.{stream}" for stream in ("err", "out"))
        return next((path for path in logs if path.is_file() and path.stat().st_size), None)


@dataclass(frozen=True)
class FailureGroup:
    """Failures with the same message at one site.

    Attributes:
        site: name of the site.
        failure: class, see :func:`name_failure`.
        message: the worker's message.
        count: number of measurements or attempts.
        log: the telling part of one payload's output, '' if there is none.
        execution: one execution of the group, None if none was recorded.
        last_us: end of the last failure.
    """

    site: str
    failure: str
    message: str
    count: int
    log: str
    execution: FailedExecution | None = None
    last_us: int = 0


_FailureExample = tuple[str, FailedExecution | None]


def summarize_failures(store: Store, campaign: CampaignRow) -> list[FailureGroup]:
    """Group the failures of a campaign that no later attempt made up for, most frequent first."""
    failures: dict[_FailureKey, list[tuple[_FailureExample, int]]] = defaultdict(list)
    for key, example, ended_us in _list_failures(store, campaign):
        failures[key].append((example, ended_us))
    groups = [
        FailureGroup(*key, len(ends), *ends[0][0], max(ended_us for _, ended_us in ends))
        for key, ends in failures.items()
    ]
    return sorted(groups, key=lambda group: -group.count)


def select_failed_measurements(
    store: Store, campaign: CampaignRow, columns: Sequence[str]
) -> Iterator[_MeasurementRow]:
    """Yield the campaign's failed and implausible measurements as rows of the store."""
    for conditions in (("failure_class!=",), ("failure_class=", "plausible=false")):
        yield from store.measurements(Selection.parse((campaign.id,), conditions), columns)


def name_failure(row: _MeasurementRow) -> str:
    """Name a bad measurement's failure class, or its outcome if it did not fail."""
    outcome = classify_outcome(row)
    return str(row["failure_class"] if outcome is Outcome.FAILED else outcome)


def _list_failures(
    store: Store, campaign: CampaignRow
) -> Iterator[tuple[_FailureKey, _FailureExample, int]]:
    """Yield failed measurements, then failed attempts: key, an example and its end."""
    jobs = {job.id: job for job in store.jobs(campaign.id)}
    last = load_last_attempts(store, jobs.values())
    queued = JobState.QUEUED.value  # with an ended attempt: about to repeat it
    failed = [a for a in last.values() if a.failure_class and jobs[a.job_id].state != queued]
    # The end of these jobs explains interrupted measurements.
    ended = {id_ for id_, job in jobs.items() if job.state in (JobState.CANCELLED.value, queued)}
    ended |= {attempt.job_id for attempt in failed}
    yield from _list_failed_measurements(store, campaign, last, ended)
    for attempt in failed:
        key = (jobs[attempt.job_id].site, attempt.failure_class, attempt.message)
        yield key, ("", None), attempt.ended_us


def _list_failed_measurements(
    store: Store, campaign: CampaignRow, last: Mapping[str, AttemptRow], ended: Collection[str]
) -> Iterator[tuple[_FailureKey, _FailureExample, int]]:
    """Yield failed measurements, except those that the end of their job interrupted."""
    columns = (*_SUMMARY_COLUMNS, *OUTCOME_COLUMNS, *_PLACE_COLUMNS)
    for row in select_failed_measurements(store, campaign, columns):
        # The other half of a launch repeats the failure of the first.
        if not is_from_last_attempt(row, last) or row["failure_kind"] == OTHER_HALF:
            continue
        site, message, reasons, log = (str(row[name] or "") for name in _SUMMARY_COLUMNS)
        failure = name_failure(row)
        if failure in INTERRUPTED_CLASSES and row["job_id"] in ended:
            continue
        if failure == Outcome.IMPLAUSIBLE:
            message, log = reasons, ""
        name = f"{row['round']}-{row['position']}"
        execution = FailedExecution(str(row["job_id"]), int(str(row["attempt"])), name)
        yield (site, failure, message), (log, execution), int(str(row["ended_us"]))


def is_from_last_attempt(row: _MeasurementRow, last: Mapping[str, AttemptRow]) -> bool:
    """Return whether a measurement belongs to the last attempt of its job."""
    attempt = last.get(str(row["job_id"]))
    return attempt is None or attempt.number == row["attempt"]


def describe_failures(tracker: CampaignTracker, campaign: CampaignRow) -> Iterator[str]:
    """Describe the most frequent failures, each with a part of a log, and the causes at each site."""
    groups = summarize_failures(tracker.store, campaign)
    yield from describe_groups(tracker, groups)
    yield from _explain_groups(tracker, campaign, groups)


def describe_groups(tracker: CampaignTracker, groups: Sequence[FailureGroup]) -> Iterator[str]:
    """Describe the most frequent failures, each with a part of a log."""
    for group in groups[:MAX_DESCRIBED_FAILURES]:
        yield f"\n{group.count} × {group.failure} at {group.site}: {group.message}"
        yield from describe_log(tracker, group)
    if len(groups) > MAX_DESCRIBED_FAILURES:
        yield f"\nand {len(groups) - MAX_DESCRIBED_FAILURES} more failures: see failure_message,"
        yield "implausible_reasons and log_excerpt in the output of 'treehammer export'"


def _explain_groups(
    tracker: CampaignTracker, campaign: CampaignRow, groups: Sequence[FailureGroup]
) -> Iterator[str]:
    """Explain the failures of each site by those of others."""
    counts = PeriodCounts(tracker.store)
    ends_us: dict[str, int] = {}
    for group in groups:
        ends_us[group.site] = max(ends_us.get(group.site, 0), group.last_us)
    sites_of: dict[str, list[str]] = {}
    for site, end_us in [*ends_us.items()][:MAX_EXPLAINED_SITES]:
        explanation = explain_results(tracker.store, site, end_us, campaign.test_name, counts)
        if explanation:
            sites_of.setdefault(str(explanation), []).append(site)
    for text, sites in sites_of.items():
        yield f"\n{join_names(sites)}: {text}"
    if len(ends_us) > MAX_EXPLAINED_SITES:
        yield f"\nand {len(ends_us) - MAX_EXPLAINED_SITES} more sites: see their pages"


def describe_log(tracker: CampaignTracker, group: FailureGroup) -> Iterator[str]:
    """Describe what the payload of a failure printed."""
    if group.log:
        yield textwrap.indent(group.log.rstrip(), "  | ")
    if group.execution is None:
        return
    with suppress(BatchError, ConfigError):  # another installation's, or a silent batch system
        job = campaign_queries.load_job(tracker.store, group.execution.job_id)
        if path := group.execution.find_log(tracker.sandboxes(job)):
            yield f"  log: {path}"


def describe_compilers(store: ResultsReader, campaign: CampaignRow) -> Iterator[str]:
    """Yield a line for each site whose nodes left loops of a campaign to ROOT's interpreter."""
    selection = Selection.parse((campaign.id,), ("loop_fallback!=", "loop_compiler!="))
    if rows := list(store.measurements(selection, ("site", "loop_fallback"))):
        # Imported here: it is slow to load, and few sites are such.
        from treehammer.analysis.descriptive.group_summary import describe_interpreted_loops

        yield from describe_interpreted_loops(rows)


def describe_parts(store: ResultsReader, campaign: CampaignRow) -> Iterator[str]:
    """Yield what verticals say about the campaign, a line each."""
    for part in import_parts("outcome"):
        yield from part.describe_campaign(store, campaign)


def refuse_resumption(campaign: CampaignRow) -> None:
    """Refuse to resume jobs that start together, since those that ended do not come again.

    Raises:
        ConfigError: they do.
    """
    load = campaign.plan.definition.load_test
    if load is not None and load.together:
        raise ConfigError(
            "its jobs start together, and those that ended would be missing",
            where=campaign.name,
            hint=f"Queued and running ones go on: treehammer status {campaign.id}. To repeat the load, submit again.",
        )


def rerun_command(campaign: CampaignRow, verb: str = "submit") -> str:
    """Build the command for the same test, commit, variants, repeats and sites.

    Every value is written out, because the plan does not record which ones came from test.toml.
    """
    spec = campaign.repository or campaign.test_name
    if campaign.commit_id:
        spec = f"{campaign.repository}@{campaign.commit_id}:{campaign.test_path}"
    return shlex.join(["treehammer", verb, spec, *_changed_options(campaign.plan, verb)])


def _changed_options(plan: CampaignPlan, verb: str) -> Iterator[str]:
    if plan.until_decided and verb == "submit":
        yield from ("--wait", "--until", "decided")
        yield from ("--max-launches", str(plan.until_decided.looks[-1]))
        yield from ("--delta", str(plan.until_decided.delta))
    if plan.sites:
        yield from ("--sites", ",".join(plan.sites))
    if plan.runners:
        yield from ("--from", ",".join(plan.runners))
    definition = plan.definition
    for axis, values in {**definition.axes, "bundle": definition.bundle}.items():
        if axis != "bundle" or "bundle" in definition.model_fields_set:
            texts = (_format_value(value).replace(",", "\\,") for value in values)
            yield from ("-P", f"{axis}={','.join(texts)}")
    for key, value in _list_overrides(definition):
        yield from ("-S", f"{key}={_format_value(value)}")


def _list_overrides(definition: PlannedDefinition) -> Iterator[tuple[str, Any]]:
    """List the values that ``-S`` can override, each with its key."""
    for key in _OVERRIDABLE_KEYS:
        value = getattr(definition, key)
        if key in definition.model_fields_set and value not in (None, ""):
            yield key, value
    yield from _list_settings("settings", definition.settings)
    for key, value in (definition.load or {}).items():
        if key != "ceiling":
            yield f"load.{key}", value


def _list_settings(path: str, table: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """List the values of a table and those below it, each with its key."""
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _list_settings(f"{path}.{name}", value)
        else:
            yield f"{path}.{name}", value


def _format_value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def describe_running_loads(steps: Iterable[LoadProgress]) -> str:
    """Describe the last time step of each running load; '' for none.

    Jobs that load together are in the same step, or one behind; their rates are added.
    """
    steps = list(steps)
    if not steps:
        return ""
    done_hz = sum(step.done / step.step_s for step in steps)
    failed_hz = sum(step.failed / step.step_s for step in steps)
    mb_per_s = sum(step.bytes / step.step_s for step in steps) / 1e6
    number = max(step.step for step in steps)
    return (
        f"step {number:g}, {pluralize(len(steps), 'job')}: {format_significant(done_hz)} operations/s, "
        f"{format_significant(failed_hz)} failed/s, {format_significant(mb_per_s)} MB/s"
    )
