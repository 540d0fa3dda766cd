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

from treehammer.collectors.failures import NOT_SUPPORTED
from treehammer.errors import ConfigError, did_you_mean
from treehammer.sql import campaigns
from treehammer.sql.campaigns import JobLine
from treehammer.sql.rollups import IMPLAUSIBLE, NOT_GOOD, UNSUPPORTED
from treehammer.sql.rows import CampaignRow
from treehammer.sql.store import Store
from treehammer.submit import again
from treehammer.submit.batch.base import JobState
from treehammer.terminal import counted, duration
from treehammer.web.addresses import some_text
from treehammer.web.pages.campaigns import beyond, page_number, pages
from treehammer.web.pages.columns import job_column, tally
from treehammer.web.pages.context import HTML, PageContext, View, form, link_to
from treehammer.web.pages.tables import Column, Row, Table
from treehammer.web.pages.variants import VARIANT
from treehammer.web.templating import moment

#: Jobs on a page.
EACH = 100
#: Values that are named where another one is asked for.
_NAMED = 20
#: Kinds of trouble that are told.
TROUBLES = 30
#: Seconds between two looks of a browser at what is under way.
EVERY_S = 5


@dataclass(frozen=True)
class Progress:
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
    def over(self) -> bool:
        """Whether nothing more is expected."""
        return all(JobState(state).final for state in self.jobs) or self.recorded >= self.planned

    @property
    def sentence(self) -> str:
        """The same in words."""
        states = ", ".join(
            f"{self.jobs[state.value]} {state.value}"
            for state in JobState
            if self.jobs.get(state.value)
        )
        text = f"{self.recorded} of {counted(self.planned, 'measurement')} recorded"
        if self.recorded > self.planned:
            text = f"{counted(self.recorded, 'measurement')} recorded where {self.planned} were planned, as jobs ran again"
        text += f"; jobs: {states or 'none'}"
        if self.remaining_s is not None and not self.over:
            text += f"; about {duration(self.remaining_s)} to go at the pace so far"
        return f"{text}."

    @property
    def untroubled(self) -> str:
        """What is true where no failure is known."""
        if not self.over:
            return "Nothing went wrong so far."
        missing = self.planned - self.recorded
        if missing <= 0:
            return "Nothing went wrong."
        planned = counted(self.planned, "planned measurement")
        text = f"No failure is known, but {missing} of {planned} did not come back"
        cancelled = self.jobs.get(JobState.CANCELLED.value, 0)
        if cancelled:
            text += f": {counted(cancelled, 'job')} {'was' if cancelled == 1 else 'were'} cancelled"
        return f"{text}."

    def plain(self) -> dict[str, Any]:
        """The same for programs."""
        return {**vars(self), "over": self.over}


def routes(context: PageContext) -> list[BaseRoute]:
    """The route of the page; ``?part=progress`` is what of it changes while jobs run."""
    return [context.page(some_text("/campaigns/{campaign_id}"), view, "campaign")]


def view(store: Store, request: Request) -> View:
    """What the page shows.

    Raises:
        ConfigError: jobs are to be chosen by what there is not.
    """
    campaign = campaigns.named(store, request.path_params["campaign_id"])
    states = campaigns.job_states(store, campaign.id)
    counts = store.counts(campaign.id)
    progress = _progress(store, campaign, states, sum(row.measurements for row in counts))
    sites = _sites(campaign, states, counts, request)
    lacking = campaigns.unsupported(store, campaign.id)
    failures = _failures(store, campaign, counts, lacking, request, progress.untroubled)
    unsupported = _unsupported(campaign, lacking, request)
    parts = {
        "progress": progress,
        "sites": sites,
        "failures": failures,
        "unsupported": unsupported,
        "every_s": EVERY_S,
    }
    seen = hashlib.sha256(repr(parts).encode()).hexdigest()[:16]
    live = {**parts, "campaign": campaign, "seen": seen}
    if request.query_params.get("part") == "progress" and form(request) == HTML:
        # The same again need not be read out again by a screen reader.
        status = 204 if request.query_params.get("seen") == seen and not progress.over else 200
        return View("campaign_progress.html.j2", campaign.name, live, status=status)
    failed = {row["failure"] for row in (*failures.rows, *unsupported.rows)}
    known = {
        "site": {*states, *(row["site"] for row in (*failures.rows, *unsupported.rows))},
        "state": [state.value for state in JobState],
        "failure": {*NOT_GOOD, *failed},
    }
    only = {name: _chosen(request, name, values) for name, values in known.items()}
    troubles = _troubles(store, campaign, request)
    jobs, count = _jobs(store, campaign, request)
    values = {
        **live,
        "troubles": troubles,
        "jobs": jobs,
        "job_count": count,
        "page": page_number(request),
        "pages": pages(count, EACH),
        "only": only,
        "site_names": sorted(states),
        "state_names": known["state"],
        "failure_names": sorted(failed | {only["failure"]} - {""}),
        "facts": _facts(store, campaign),
        "further": list(_further(campaign, request)),
        "command_line": again.command(campaign),
        "render": again.command(campaign, "render"),
    }
    return View(
        "campaign.html.j2",
        campaign.name or campaign.id,
        values,
        (jobs, sites, failures, unsupported, troubles),
    )


def _chosen(request: Request, name: str, known: Collection[str]) -> str:
    """The value by which jobs are chosen, '' where they are not."""
    value = request.query_params.get(name, "")
    if value and value not in known:
        hint = f"{did_you_mean(value, known)}Known: {', '.join(sorted(known)[:_NAMED])}."
        raise ConfigError(f"{name} cannot be {value[:40]!r} here", hint=hint)
    return value


def _progress(
    store: Store, campaign: CampaignRow, states: Mapping[str, Mapping[str, int]], recorded: int
) -> Progress:
    jobs: Counter[str] = Counter()
    for of_site in states.values():
        jobs.update(of_site)
    span = campaigns.span_us(store, campaign.id)
    planned, left = campaign.planned_measurements, None
    if span and 0 < recorded < planned:
        left = (time.time() - span[0] / 1e6) / recorded * (planned - recorded)
        # To a fifth: more is not known, and what is shown should not flicker.
        left = float(f"{left:.1g}")
    return Progress(recorded, planned, jobs, left, span and span[1])


def _sites(
    campaign: CampaignRow,
    states: Mapping[str, Mapping[str, int]],
    counts: Sequence[Any],
    request: Request,
) -> Table:
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
        Column("site", "site", link=lambda row: _jobs_of(request, campaign, site=row["site"])),
        *(
            Column(
                state.value,
                state.value,
                lambda count: str(count or "–"),
                number=True,
                link=_state_link(request, campaign, state.value),
            )
            for state in JobState
        ),
        Column("recorded", "measurements", number=True),
    )
    return Table("sites", "Jobs by site and state", columns, rows, empty="It has no jobs.")


def _state_link(request: Request, campaign: CampaignRow, state: str) -> Any:
    return lambda row: (
        _jobs_of(request, campaign, site=row["site"], state=state) if row[state] else ""
    )


def _jobs_of(request: Request, campaign: CampaignRow, **only: str) -> str:
    return link_to(request, "campaign", campaign_id=campaign.id, query=only) + "#jobs"


def _failures(
    store: Store,
    campaign: CampaignRow,
    counts: Sequence[Any],
    lacking: Mapping[tuple[str, str], int],
    request: Request,
    untroubled: str,
) -> Table:
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
            failed[row.site, row.failure_class or IMPLAUSIBLE] += row.measurements
    for key, count in (failed - Counter(lacking)).items():
        of(*key)["measurements"] = count
    for one in campaigns.failed_attempts(store, campaign.id):
        of(one.site, one.failure_class).update(attempts=one.attempts, again=one.again)
    columns = (
        Column(
            "failure",
            "class",
            link=lambda row: _jobs_of(request, campaign, site=row["site"], failure=row["failure"]),
        ),
        Column("site", "site"),
        Column("measurements", "measurements", number=True),
        Column("attempts", "attempts of jobs", number=True),
        Column("again", "of which tried again", number=True),
    )
    return Table(
        "failures",
        "Failures by class and site",
        columns,
        [rows[key] for key in sorted(rows)],
        empty=untroubled,
    )


def _unsupported(
    campaign: CampaignRow, lacking: Mapping[tuple[str, str], int], request: Request
) -> Table:
    rows = [
        {"failure": UNSUPPORTED[of_class], "site": site, "measurements": count}
        for (site, of_class), count in sorted(lacking.items())
    ]
    columns = (
        Column(
            "failure",
            "what",
            link=lambda row: _jobs_of(request, campaign, site=row["site"], failure=row["failure"]),
        ),
        Column("site", "site"),
        Column("measurements", "measurements", number=True),
    )
    caption = "Not supported by a release or set-up, which is no failure of the site"
    return Table("unsupported", caption, columns, rows)


def _troubles(store: Store, campaign: CampaignRow, request: Request) -> Table:
    """What failing measurements said, the most frequent first."""
    said = campaigns.told(store, campaign.id)
    number: Counter[tuple[str, ...]] = Counter()
    example: dict[tuple[str, ...], str] = {}
    for one in said:
        failure = one.failure_class
        if one.failure_kind == NOT_SUPPORTED:
            failure = UNSUPPORTED.get(failure, failure)
        key = (failure, one.failure_kind, one.failure_phase, one.message, one.site)
        number[key] += 1
        example.setdefault(key, one.job_id)
    names = ("failure", "kind", "phase", "message", "site")
    rows = [
        {"count": count, **dict(zip(names, key, strict=True)), "job_id": example[key]}
        for key, count in number.most_common(TROUBLES)
    ]
    columns = (
        Column("failure", "class"),
        Column("count", "times", number=True),
        Column("site", "site"),
        Column("kind", "kind"),
        Column("phase", "phase"),
        Column("message", "message", long=True),
        job_column(request, "one of the jobs"),
    )
    limits = [f"Of the first {len(said)} failing measurements."] * (
        len(said) == campaigns.MOST_FAILING
    )
    limits += [f"The {TROUBLES} most frequent of {len(number)}."] * (len(number) > TROUBLES)
    return Table("messages", "What was said", columns, rows, note=" ".join(limits))


def _jobs(store: Store, campaign: CampaignRow, request: Request) -> tuple[Table, int]:
    first = (page_number(request) - 1) * EACH
    lines, count = campaigns.jobs(store, campaign.id, request.query_params, first, EACH)
    columns = (
        Column("label", "job", link=lambda row: link_to(request, "job", job_id=row["job_id"])),
        Column("job_id", hidden=True),
        Column("site", "site"),
        Column("door", "door"),
        Column("repeat", "repeat", number=True),
        Column("state", "state", look=lambda row: f"state {row['state']}"),
        Column("attempts", "attempts", number=True),
        Column("started_us", "last started", lambda us: moment(us) if us else "–"),
        Column("seconds", "took", lambda s: "–" if s is None else duration(s), number=True),
        Column("recorded", "recorded", number=True),
        Column("planned", "planned", number=True),
        Column("failure", "failure", write=lambda row: row["failure"] or tally(row["failed"])),
        Column("failed", hidden=True),
        Column("message", "message", long=True),
    )
    rows = [_job(line) for line in lines]
    return Table("jobs", "Selected jobs", columns, rows, empty=_no_jobs(request, count)), count


def _no_jobs(request: Request, count: int) -> str:
    return beyond(page_number(request), pages(count, EACH)) or "No job is selected."


def _job(line: JobLine) -> Row:
    last = line.last
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
        "recorded": line.recorded,
        "planned": line.job.planned_measurements,
        "failure": failure,
        "failed": line.failed,
        "message": message if failure else line.said or message,
    }


def _facts(store: Store, campaign: CampaignRow) -> list[tuple[str, str]]:
    """What exactly ran."""
    read = campaigns.datasets(store, campaign.id)
    return [*_origin(campaign), *_asked(json.loads(campaign.plan), read)]


def _further(campaign: CampaignRow, request: Request) -> Iterator[tuple[str, str]]:
    """Where the campaign's results are looked at: what is read there, and its address."""
    only = {"campaign": campaign.id}
    yield "CPU efficiency by site", link_to(request, "s0", query=only)
    event = {"metric": "cpu_per_event_s", "by": VARIANT, "colour": "axis_root"}
    yield "CPU time per event", link_to(request, "explore", query={**event, **only})
    latency = {"view": "latency", "by": "site", "colour": "axis_root"}
    yield "Read latency", link_to(request, "explore", query={**latency, **only})
    releases = json.loads(campaign.plan).get("definition", {}).get("axes", {}).get("root", [])
    if len(releases) > 1:
        two = {"a": releases[0], "b": releases[-1]}
        title = f"{two['b']} against {two['a']}"
        yield title, link_to(request, "compare", query={**two, **only})
    yield "ROOT file", link_to(request, "rootfile", query=only)


def _origin(campaign: CampaignRow) -> Iterator[tuple[str, str]]:
    yield "campaign", campaign.id
    at = f" at {campaign.ref}" if campaign.ref else ""
    yield "repository", f"{campaign.repository}{at}"
    dirty = ", with changes that are in no commit" if campaign.dirty else ""
    yield "commit", (campaign.commit_id or "none: the test came from no repository") + dirty
    yield "test", f"{campaign.test_name} ({campaign.test_path})"


def _asked(
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
