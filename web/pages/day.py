"""The evidence of one site and day: what was measured, what became of it, what was said."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import date, timedelta
from typing import Any

from starlette.requests import Request
from starlette.routing import BaseRoute

from treehammer.analysis import wording
from treehammer.analysis.days import RULE, Judged
from treehammer.errors import ConfigError
from treehammer.sql import overview
from treehammer.sql.figures import Figure, Group, Moments
from treehammer.sql.rollups import GOOD, IMPLAUSIBLE, UNSUPPORTED
from treehammer.sql.selection import Scalar, Selection, Where
from treehammer.sql.site_history import one_label
from treehammer.sql.store import Store
from treehammer.web.pages import days
from treehammer.web.pages.columns import job_column, number_columns, variant_column
from treehammer.web.pages.context import PageContext, View, link_to
from treehammer.web.pages.tables import Column, Row, Table
from treehammer.web.pages.variants import VARIANT, Variants, told_apart

_BY = ("test_name", VARIANT, "axis_root", "door", "kind")
#: Outcomes that are counted in words of their own.
_TOLD = (GOOD, IMPLAUSIBLE, *UNSUPPORTED.values())
_METRICS = ("eff_job", "cpu_per_event_s", "wall_per_event_s")


def routes(context: PageContext) -> list[BaseRoute]:
    """The route of the page; the site stands after '?', as it may be any text."""
    return [context.page("/days/{day}", view, "day")]


def view(store: Store, request: Request) -> View:
    """What the page shows.

    Raises:
        ConfigError: it is no day, or no site is named.
        NothingToDo: the site has never measured anything.
    """
    day = days.asked(request.path_params["day"], "the day")
    site = request.query_params.get("site")
    if site is None:
        raise ConfigError("site is missing", hint="A day is shown of one site: site=NAME.")
    number = days.numbered(day)
    found = overview.site_days(store, number, number)
    outcomes = next((one.outcomes for one in found if one.site == site), {})
    if not outcomes and site not in overview.sites(store):
        raise overview.no_site(store, site)
    groups = _groups(store, site, number)
    labels = _labels(store, site, number)
    variants = told_apart((str(one.by[VARIANT] or "") for one in groups), release_told=True)
    measured = _measured(groups, labels, variants, site, day, request)
    failing = _failing(store, site, number, variants, request)
    jobs = _jobs(store, site, number, request)
    judged = Judged.of(outcomes)
    values = {
        "site": site,
        "judged": judged,
        "status": judged.status.value,
        "counts": _counts(judged),
        "classes": dict(
            sorted(
                ((name, n) for name, n in outcomes.items() if name not in _TOLD),
                key=lambda item: -item[1],
            )
        ),
        "jobs": jobs,
        "further": list(_further(site, day, request)) if judged.all else [],
        "measured": measured,
        "failing": failing,
        "neighbours": list(_neighbours(day, site, request)),
        "rule": RULE,
    }
    title = f"{site or 'No site'} on {days.written(day)}"
    return View("day.html.j2", title, values, (measured, failing, jobs))


def _neighbours(day: date, site: str, request: Request) -> Iterator[tuple[str, str]]:
    for step, word in ((-1, "day before"), (1, "day after")):
        try:
            other = day + timedelta(days=step)
        except OverflowError:
            continue
        yield word, link_to(request, "day", day=other, query={"site": site})


def _further(site: str, day: date, request: Request) -> Iterator[tuple[str, str]]:
    """Where the day is looked at otherwise: what is read there, and its address."""
    only = {"site": site, "from": day, "to": day}
    for title, asked in (
        ("CPU efficiency by variant", {"metric": "eff_job", "by": VARIANT}),
        ("CPU time per event by host", {"metric": "cpu_per_event_s", "by": "host"}),
        ("Read latency by door", {"view": "latency", "by": "door"}),
    ):
        yield title, link_to(request, "explore", query={**asked, "colour": "axis_root", **only})


def _groups(
    store: Store, site: str, day: int, metrics: tuple[str, ...] = _METRICS, *further: str
) -> Sequence[Group]:
    """By test, variant, release and door: what became of the measurements, and means of the good ones."""
    where = Where("site", "=", site or None)
    mine = Selection(wheres=(where,))
    figure = Figure(metrics, (*_BY, *further), mine, first_day=day, last_day=day, kind=None)
    return store.figure(figure).groups


def _labels(store: Store, site: str, day: int) -> Mapping[tuple[Scalar, ...], str]:
    """The label of each of the same groups, as far as it has one."""
    found: dict[tuple[Scalar, ...], set[str]] = defaultdict(set)
    for group in _groups(store, site, day, (), "variant_label"):
        found[_key(group)].add(str(group.by["variant_label"] or ""))
    return {key: one_label(labels) for key, labels in found.items()}


def _key(group: Group) -> tuple[Scalar, ...]:
    return tuple(group.by[name] for name in _BY)


def _measured(
    groups: Sequence[Group],
    labels: Mapping[tuple[Scalar, ...], str],
    variants: Variants,
    site: str,
    day: date,
    request: Request,
) -> Table:
    rows = [
        {
            **_group(group.by, group.outcomes, group.metrics),
            "variant_label": labels.get(_key(group), ""),
        }
        for group in groups
    ]

    def explored(row: Row) -> str:
        """The same measurements one by one host."""
        asked = {"metric": "cpu_per_event_s", "by": "host", "colour": "job_id", "site": site}
        mine = {name: row[name] for name in _BY}
        return link_to(request, "explore", query={**asked, **mine, "from": day, "to": day})

    columns = (
        Column("test_name", "test"),
        replace(variant_column(variants), link=explored),
        Column("variant_label", hidden=True),
        Column("axis_root", "ROOT"),
        Column("door", "door"),
        Column("kind", "kind"),
        *number_columns("good", "failed", "implausible"),
        Column("not_supported", "not supported", number=True),
        *_figure("eff_job", "eff_job", 1.0),
        *_figure("cpu_per_event_s", "CPU, ms/event", 1e3),
        *_figure("wall_per_event_s", "wall, ms/event", 1e3),
    )
    return Table(
        "measured",
        "Means ± RMS of the good ones",
        columns,
        rows,
        empty="Nothing was measured.",
        note=variants.note,
    )


def _group(by: Any, outcomes: Any, metrics: Any) -> dict[str, Any]:
    row = {**by, **_counts(Judged.of(outcomes))}
    for name in _METRICS:
        moments: Moments = metrics[name]
        row |= {f"{name}_mean": moments.mean, f"{name}_rms": moments.rms}
    return row


def _counts(judged: Judged) -> dict[str, int]:
    return {
        "good": judged.good,
        "failed": judged.failed,
        "implausible": judged.implausible,
        "not_supported": judged.unsupported,
    }


def _figure(name: str, title: str, scale: float) -> tuple[Column, Column]:
    """Mean and RMS of a metric, which people see together."""
    mean, rms = f"{name}_mean", f"{name}_rms"

    def written(row: Row) -> str:
        return _spread(row[mean], row[rms], scale)

    return Column(mean, title, write=written, number=True), Column(rms, hidden=True)


def _spread(mean: float | None, rms: float | None, scale: float) -> str:
    if mean is None or rms is None:
        return "–"
    if rms <= 1e-3 * abs(mean):
        return f"{scale * mean:.4g}"
    digits = wording.decimals(scale * rms)
    return f"{scale * mean:.{digits}f} ± {scale * rms:.{digits}f}"


def _failing(store: Store, site: str, day: int, variants: Variants, request: Request) -> Table:
    found = overview.failing_on(store, site, day)
    rows = [
        {
            **asdict(one),
            "failure_class": one.failure_class or IMPLAUSIBLE,
            "message": one.failure_message or one.implausible_why,
        }
        for one in found
    ]
    columns = (
        Column("failure_class", "class"),
        Column("failure_kind", "kind"),
        Column("failure_phase", "phase"),
        Column("message", "message", long=True),
        Column("test_name", "test"),
        variant_column(variants),
        Column("variant_label", hidden=True),
        Column("axis_root", "ROOT"),
        Column("host", "host"),
        job_column(request, "job"),
        Column("campaign_id", hidden=True),
    )
    cut = len(found) == overview.MOST_FAILING
    return Table(
        "failing",
        "Measurements that are not good",
        columns,
        rows,
        empty="Every measurement is good." if not found else "",
        note=f"The first {len(found)}; the pages of campaigns have the others." if cut else "",
    )


def _jobs(store: Store, site: str, day: int, request: Request) -> Table:
    found = overview.jobs_on(store, site, day)
    columns = (
        job_column(request, "job"),
        Column(
            "campaign_id",
            "campaign",
            write=lambda row: row["campaign_name"] or row["campaign_id"],
            link=lambda row: link_to(request, "campaign", campaign_id=row["campaign_id"]),
            long=True,
        ),
        Column("campaign_name", hidden=True),
        *number_columns("measurements", "good"),
    )
    cut = len(found) == overview.MOST_JOBS
    note = f"The first {len(found)}; the pages of campaigns have the others." if cut else ""
    rows = [asdict(one) for one in found]
    return Table("jobs", "Jobs that measured", columns, rows, note=note)
