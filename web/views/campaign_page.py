"""One campaign: how far it is, what failed where, its jobs, what exactly ran, how to run it again."""

from __future__ import annotations

import hashlib
import json
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.routing import BaseRoute

from treehammer.collectors.job_state import JobState
from treehammer.collectors.record.outcome import (
    BAD_OUTCOME_LABELS,
    UNSUPPORTED_LABELS,
    Outcome,
    label_outcome,
)
from treehammer.errors import ConfigError, suggest_word
from treehammer.sql.core.rows import CampaignRow
from treehammer.sql.read import campaign_queries
from treehammer.sql.read.campaign_queries import JobSummary
from treehammer.sql.write.store import Store
from treehammer.submit.lifecycle import rerun
from treehammer.text_formatting import format_duration, pluralize
from treehammer.web.core.route_paths import require_text
from treehammer.web.display.data_tables import DataTable, Row, TableColumn
from treehammer.web.display.template_environment import format_time
from treehammer.web.display.variant_labels import VARIANT_COLUMN
from treehammer.web.views.shared.common_columns import format_counts, job_column
from treehammer.web.views.shared.page_context import (
    HTML,
    PageContext,
    PageView,
    link_to,
    requested_format,
)
from treehammer.web.views.shared.pagination import (
    count_pages,
    parse_page_number,
    past_last_page_text,
)

#: Jobs on a page.
JOBS_PER_PAGE = 100
#: Values that are named where another one is asked for.
_MAX_SUGGESTED = 20
#: Kinds of trouble that are told.
MAX_MESSAGES = 30
#: Seconds between two looks of a browser at what is under way.
REFRESH_INTERVAL_S = 5


@dataclass(frozen=True)
class CampaignProgress:
    """How far a campaign is.

    Attributes:
        recorded: measurements in the database.
        planned: measurements that were planned.
        jobs: state -> jobs.
        remaining_s: expected seconds to the end at the pace so far, None where that is unknown.
        as_of_us: the last start or end of a job that its batch system told, None before the first.
    """

    recorded: int
    planned: int
    jobs: Mapping[str, int]
    remaining_s: float | None
    as_of_us: int | None

    @property
    def is_finished(self) -> bool:
        """Whether nothing more is expected."""
        return all(JobState(state).is_final for state in self.jobs) or self.recorded >= self.planned

    @property
    def sentence(self) -> str:
        """The same in words."""
        states = ", ".join(
            f"{self.jobs[state.value]} {state.value}"
            for state in JobState
            if self.jobs.get(state.value)
        )
        text = f"{self.recorded} of {pluralize(self.planned, 'measurement')} recorded"
        if self.recorded > self.planned:
            text = f"{pluralize(self.recorded, 'measurement')} recorded where {self.planned} were planned, as jobs ran again"
        text += f"; jobs: {states or 'none'}"
        if self.remaining_s is not None and not self.is_finished:
            text += f"; about {format_duration(self.remaining_s)} to go at the pace so far"
        return f"{text}."

    @property
    def no_failures_text(self) -> str:
        """What is true where no failure is known."""
        if not self.is_finished:
            return "Nothing went wrong so far."
        missing = self.planned - self.recorded
        if missing <= 0:
            return "Nothing went wrong."
        planned = pluralize(self.planned, "planned measurement")
        text = f"No failure is known, but {missing} of {planned} did not come back"
        cancelled = self.jobs.get(JobState.CANCELLED.value, 0)
        if cancelled:
            text += (
                f": {pluralize(cancelled, 'job')} {'was' if cancelled == 1 else 'were'} cancelled"
            )
        return f"{text}."

    def as_dict(self) -> dict[str, Any]:
        """The same for programs."""
        return {**vars(self), "over": self.is_finished}


def routes(context: PageContext) -> list[BaseRoute]:
    """The route of the page; ``?part=progress`` is what of it changes while jobs run."""
    return [context.page_route(require_text("/campaigns/{campaign_id}"), campaign_view, "campaign")]


def campaign_view(store: Store, request: Request) -> PageView:
    """What the page shows.

    Raises:
        ConfigError: jobs are to be chosen by what there is not.
    """
    campaign = campaign_queries.fetch_campaign(store, request.path_params["campaign_id"])
    states = campaign_queries.count_job_states(store, campaign.id)
    counts = store.count_measurements(campaign.id)
    progress = _campaign_progress(store, campaign, states, sum(row.measurements for row in counts))
    sites = _site_table(campaign, states, counts, request)
    lacking = campaign_queries.count_unsupported(store, campaign.id)
    failures = _failure_table(store, campaign, counts, lacking, request, progress.no_failures_text)
    unsupported = _unsupported_table(campaign, lacking, request)
    parts = {
        "progress": progress,
        "sites": sites,
        "failures": failures,
        "unsupported": unsupported,
        "every_s": REFRESH_INTERVAL_S,
    }
    seen = hashlib.sha256(repr(parts).encode()).hexdigest()[:16]
    live = {**parts, "campaign": campaign, "seen": seen}
    if request.query_params.get("part") == "progress" and requested_format(request) == HTML:
        # The same again need not be read out again by a screen reader.
        status = (
            204 if request.query_params.get("seen") == seen and not progress.is_finished else 200
        )
        return PageView("campaign_progress.html.j2", campaign.name, live, status=status)
    failed = {row["failure"] for row in (*failures.rows, *unsupported.rows)}
    known = {
        "site": {*states, *(row["site"] for row in (*failures.rows, *unsupported.rows))},
        "state": [state.value for state in JobState],
        "failure": {*BAD_OUTCOME_LABELS, *failed},
    }
    only = {name: _parse_choice(request, name, values) for name, values in known.items()}
    troubles = _message_table(store, campaign, request)
    jobs, count = _job_table(store, campaign, request)
    values = {
        **live,
        "troubles": troubles,
        "jobs": jobs,
        "job_count": count,
        "page": parse_page_number(request),
        "pages": count_pages(count, JOBS_PER_PAGE),
        "only": only,
        "site_names": sorted(states),
        "state_names": known["state"],
        "failure_names": sorted(failed | {only["failure"]} - {""}),
        "facts": _provenance_facts(store, campaign),
        "further": list(_related_links(campaign, request)),
        "command_line": rerun.rerun_command(campaign),
        "render": rerun.rerun_command(campaign, "render"),
    }
    return PageView(
        "campaign.html.j2",
        campaign.name or campaign.id,
        values,
        (jobs, sites, failures, unsupported, troubles),
    )


def _parse_choice(request: Request, name: str, known: Collection[str]) -> str:
    """The value by which jobs are chosen, '' where they are not."""
    value = request.query_params.get(name, "")
    if value and value not in known:
        hint = f"{suggest_word(value, known)}Known: {', '.join(sorted(known)[:_MAX_SUGGESTED])}."
        raise ConfigError(f"{name} cannot be {value[:40]!r} here", hint=hint)
    return value


def _campaign_progress(
    store: Store, campaign: CampaignRow, states: Mapping[str, Mapping[str, int]], recorded: int
) -> CampaignProgress:
    jobs: Counter[str] = Counter()
    for of_site in states.values():
        jobs.update(of_site)
    span = campaign_queries.fetch_time_span_us(store, campaign.id)
    planned, left = campaign.planned_measurements, None
    if span and 0 < recorded < planned:
        left = (time.time() - span[0] / 1e6) / recorded * (planned - recorded)
        # To a fifth: more is not known, and what is shown should not flicker.
        left = float(f"{left:.1g}")
    return CampaignProgress(recorded, planned, jobs, left, span and span[1])


def _site_table(
    campaign: CampaignRow,
    states: Mapping[str, Mapping[str, int]],
    counts: Sequence[Any],
    request: Request,
) -> DataTable:
    recorded: Counter[str] = Counter()
    for row in counts:
        recorded[row.site] += row.measurements
    rows = [
        {
            "site": site,
            **{state.value: of_site.get(state.value, 0) for state in JobState},
            "recorded": recorded[site],
        }
        for site, of_site in states.items()
    ]
    columns = (
        TableColumn(
            "site", "site", link=lambda row: _link_to_jobs(request, campaign, site=row["site"])
        ),
        *(
            TableColumn(
                state.value,
                state.value,
                lambda count: str(count or "–"),
                is_number=True,
                link=_link_to_state(request, campaign, state.value),
            )
            for state in JobState
        ),
        TableColumn("recorded", "measurements", is_number=True),
    )
    return DataTable("sites", "Jobs by site and state", columns, rows, empty_text="It has no jobs.")


def _link_to_state(request: Request, campaign: CampaignRow, state: str) -> Any:
    return lambda row: (
        _link_to_jobs(request, campaign, site=row["site"], state=state) if row[state] else ""
    )


def _link_to_jobs(request: Request, campaign: CampaignRow, **only: str) -> str:
    return link_to(request, "campaign", campaign_id=campaign.id, query=only) + "#jobs"


def _failure_table(
    store: Store,
    campaign: CampaignRow,
    counts: Sequence[Any],
    lacking: Mapping[tuple[str, str], int],
    request: Request,
    untroubled: str,
) -> DataTable:
    """Classes of failures by site: measurements, and attempts that ended without all of theirs.

    What is not supported (``lacking``, by site and class) is no failure.  ``untroubled`` is said
    where there is none.
    """
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    failed: Counter[tuple[str, str]] = Counter()

    def of(site: str, failure: str) -> dict[str, Any]:
        empty = {"failure": failure, "site": site, "measurements": 0, "attempts": 0, "again": 0}
        return rows.setdefault((failure, site), empty)

    for row in counts:
        if row.failure_class or not row.plausible:
            failed[row.site, row.failure_class or Outcome.IMPLAUSIBLE.value] += row.measurements
    for key, count in (failed - Counter(lacking)).items():
        of(*key)["measurements"] = count
    for one in campaign_queries.count_failed_attempts(store, campaign.id):
        of(one.site, one.failure_class).update(attempts=one.attempts, again=one.retried)
    columns = (
        TableColumn(
            "failure",
            "class",
            link=lambda row: _link_to_jobs(
                request, campaign, site=row["site"], failure=row["failure"]
            ),
        ),
        TableColumn("site", "site"),
        TableColumn("measurements", "measurements", is_number=True),
        TableColumn("attempts", "attempts of jobs", is_number=True),
        TableColumn("again", "of which tried again", is_number=True),
    )
    return DataTable(
        "failures",
        "Failures by class and site",
        columns,
        [rows[key] for key in sorted(rows)],
        empty_text=untroubled,
    )


def _unsupported_table(
    campaign: CampaignRow, lacking: Mapping[tuple[str, str], int], request: Request
) -> DataTable:
    rows = [
        {"failure": UNSUPPORTED_LABELS[of_class], "site": site, "measurements": count}
        for (site, of_class), count in sorted(lacking.items())
    ]
    columns = (
        TableColumn(
            "failure",
            "what",
            link=lambda row: _link_to_jobs(
                request, campaign, site=row["site"], failure=row["failure"]
            ),
        ),
        TableColumn("site", "site"),
        TableColumn("measurements", "measurements", is_number=True),
    )
    caption = "Not supported by a release or set-up, which is no failure of the site"
    return DataTable("unsupported", caption, columns, rows)


def _message_table(store: Store, campaign: CampaignRow, request: Request) -> DataTable:
    """What failing measurements said, the most frequent first."""
    said = campaign_queries.list_failure_messages(store, campaign.id)
    number: Counter[tuple[str, ...]] = Counter()
    example: dict[tuple[str, ...], str] = {}
    for one in said:
        failure = label_outcome(vars(one))
        key = (failure, one.failure_kind, one.failure_phase, one.message, one.site)
        number[key] += 1
        example.setdefault(key, one.job_id)
    names = ("failure", "kind", "phase", "message", "site")
    rows = [
        {"count": count, **dict(zip(names, key, strict=True)), "job_id": example[key]}
        for key, count in number.most_common(MAX_MESSAGES)
    ]
    columns = (
        TableColumn("failure", "class"),
        TableColumn("count", "times", is_number=True),
        TableColumn("site", "site"),
        TableColumn("kind", "kind"),
        TableColumn("phase", "phase"),
        TableColumn("message", "message", is_long=True),
        job_column(request, "one of the jobs"),
    )
    limits = [f"Of the first {len(said)} failing measurements."] * (
        len(said) == campaign_queries.MAX_FAILURE_MESSAGES
    )
    limits += [f"The {MAX_MESSAGES} most frequent of {len(number)}."] * (len(number) > MAX_MESSAGES)
    return DataTable("messages", "What was said", columns, rows, note=" ".join(limits))


def _job_table(store: Store, campaign: CampaignRow, request: Request) -> tuple[DataTable, int]:
    first = (parse_page_number(request) - 1) * JOBS_PER_PAGE
    lines, count = campaign_queries.list_job_summaries(
        store, campaign.id, request.query_params, first, JOBS_PER_PAGE
    )
    columns = (
        TableColumn("label", "job", link=lambda row: link_to(request, "job", job_id=row["job_id"])),
        TableColumn("job_id", hidden=True),
        TableColumn("site", "site"),
        TableColumn("door", "door"),
        TableColumn("repeat", "repeat", is_number=True),
        TableColumn("state", "state", css_class=lambda row: f"state {row['state']}"),
        TableColumn("attempts", "attempts", is_number=True),
        TableColumn("started_us", "last started", lambda us: format_time(us) if us else "–"),
        TableColumn(
            "seconds", "took", lambda s: "–" if s is None else format_duration(s), is_number=True
        ),
        TableColumn("recorded", "recorded", is_number=True),
        TableColumn("planned", "planned", is_number=True),
        TableColumn(
            "failure",
            "failure",
            format_row=lambda row: row["failure"] or format_counts(row["failed"]),
        ),
        TableColumn("failed", hidden=True),
        TableColumn("message", "message", is_long=True),
    )
    rows = [_job_row(line) for line in lines]
    return DataTable(
        "jobs", "Selected jobs", columns, rows, empty_text=_empty_jobs_text(request, count)
    ), count


def _empty_jobs_text(request: Request, count: int) -> str:
    return (
        past_last_page_text(parse_page_number(request), count_pages(count, JOBS_PER_PAGE))
        or "No job is selected."
    )


def _job_row(line: JobSummary) -> Row:
    last = line.last_attempt
    took = (
        (last.ended_us - last.started_us) / 1e6
        if last and last.ended_us and last.started_us
        else None
    )
    failure, message = (last.failure_class, last.message) if last else ("", "")
    return {
        "label": line.job.label or line.job.kind,
        "job_id": line.job.id,
        "site": line.job.site,
        "door": line.job.door,
        "repeat": line.job.repeat,
        "state": line.job.state,
        "attempts": line.attempts,
        "started_us": last.started_us if last else None,
        "seconds": took,
        "recorded": line.measurements,
        "planned": line.job.planned_measurements,
        "failure": failure,
        "failed": line.failures,
        "message": message if failure else line.message or message,
    }


def _provenance_facts(store: Store, campaign: CampaignRow) -> list[tuple[str, str]]:
    """What exactly ran."""
    read = campaign_queries.list_datasets(store, campaign.id)
    return [*_test_origin(campaign), *_plan_facts(json.loads(campaign.plan), read)]


def _related_links(campaign: CampaignRow, request: Request) -> Iterator[tuple[str, str]]:
    """Where the campaign's results are looked at: what is read there, and its address."""
    only = {"campaign": campaign.id}
    yield "CPU efficiency by site", link_to(request, "s0", query=only)
    event = {"metric": "cpu_per_event_s", "by": VARIANT_COLUMN, "colour": "axis_root"}
    yield "CPU time per event", link_to(request, "explore", query={**event, **only})
    latency = {"view": "latency", "by": "site", "colour": "axis_root"}
    yield "Read latency", link_to(request, "explore", query={**latency, **only})
    releases = json.loads(campaign.plan).get("definition", {}).get("axes", {}).get("root", [])
    if len(releases) > 1:
        two = {"a": releases[0], "b": releases[-1]}
        title = f"{two['b']} against {two['a']}"
        yield title, link_to(request, "compare", query={**two, **only})
    yield "ROOT file", link_to(request, "rootfile", query=only)


def _test_origin(campaign: CampaignRow) -> Iterator[tuple[str, str]]:
    yield "campaign", campaign.id
    at = f" at {campaign.ref}" if campaign.ref else ""
    yield "repository", f"{campaign.repository}{at}"
    dirty = ", with changes that are in no commit" if campaign.dirty else ""
    yield "commit", (campaign.commit_id or "none: the test came from no repository") + dirty
    yield "test", f"{campaign.test_name} ({campaign.test_path})"


def _plan_facts(
    plan: Mapping[str, Any], datasets: Sequence[tuple[str, str]]
) -> Iterator[tuple[str, str]]:
    """What was asked for; of datasets which exactly, as measurements tell once there are any."""
    definition = plan.get("definition", {})
    named = [f"{name} ({hash_})" if hash_ else name for name, hash_ in datasets]
    if named or definition.get("dataset"):
        yield "dataset", ", ".join(named) or definition["dataset"]
    for site, template in plan.get("templates", {}).items():
        yield f"template at {site}", template
    for axis, values in definition.get("axes", {}).items():
        yield axis, ", ".join(map(str, values))
    for name in ("bundle", "repeats", "rounds", "passes", "seed"):
        value = definition.get(name)
        if value not in (None, "", []):
            yield name, ", ".join(value) if isinstance(value, list) else str(value)
