"""Tables of a comparison: effects over all sites and by site, and what is missing on either side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any
from urllib.parse import urlencode

from starlette.requests import Request

from treehammer.analysis import wording
from treehammer.analysis.samples import SELECTION
from treehammer.collectors.job import TIMED
from treehammer.errors import ConfigError
from treehammer.sql.rows import VerdictRow
from treehammer.sql.selection import Where, alternatives, narrowed
from treehammer.sql.store import Store
from treehammer.web.pages.context import link_to
from treehammer.web.pages.tables import Column, Row, Table

_METRIC = Column("metric", "time", lambda metric: wording.METRIC_TITLES.get(metric, metric))
_VARIANT = Column("label", "variant", long=True)


def pooled(request: Request, rows: Sequence[VerdictRow], first: VerdictRow) -> Table:
    """One row a variant and time, over all sites."""
    columns = (
        _VARIANT,
        _METRIC,
        *_effect(),
        Column("sites", "sites", lambda sites: str(len(sites)), number=True),
        *(_side(request, first, side, "by site", "by site") for side in "ab"),
    )
    return _table("pooled", "Over all sites", columns, rows, "No effect over several sites.")


def by_site(request: Request, rows: Sequence[VerdictRow], first: VerdictRow) -> Table:
    """One row a variant, site and time."""
    columns = (
        _VARIANT,
        _site(request),
        _METRIC,
        *_effect(),
        *(_side(request, first, side, "ms/event") for side in "ab"),
    )
    return _table("by_site", "By site", columns, rows, "No series was measured on both sides.")


def missing(request: Request, rows: Sequence[VerdictRow], first: VerdictRow) -> Table:
    """What is on one side only, and why."""
    columns = (
        _VARIANT,
        _site(request),
        Column("verdict", "verdict"),
        _METRIC,
        Column("why", "why", long=True),
        Column("remedy", "what to do", long=True),
        *(_side(request, first, side, "ms/event") for side in "ab"),
    )
    caption = f"On one side only (A: {first.a}, B: {first.b})"
    return _table("missing", caption, columns, rows, "Nothing.")


def pairs(store: Store, comparison: str) -> Table:
    """The pairs of jobs that the verdicts rest on, for programs."""
    rows = [asdict(row) for row in store.pairs(comparison)]
    columns = tuple(Column(key, key) for key in (rows[0] if rows else {}))
    return Table("pairs", "Pairs of jobs", columns, rows)


def _table(
    name: str, caption: str, shown: Sequence[Column], rows: Sequence[VerdictRow], empty: str
) -> Table:
    """People get the columns that are shown; programs also the rest of the evidence."""
    flat = [_flat(row) for row in rows]
    keys = [column.key for column in shown]
    beside = [Column(key, hidden=True) for key in (flat[0] if flat else {}) if key not in keys]
    return Table(name, caption, (*shown, *beside), flat, empty=empty)


def _flat(row: VerdictRow) -> dict[str, Any]:
    return {
        **wording.flat(row),
        "change": wording.per_cent(row.effect) if row.effect is not None else "",
        "interval": wording.interval(row),
        "shown_verdict": wording.verdict(row),
    }


def _effect() -> tuple[Column, ...]:
    return (
        Column("change", "change", number=True),
        Column("interval", "interval", number=True),
        Column(
            "shown_verdict",
            "verdict",
            look=lambda row: f"{str(row['verdict']).replace(' ', '-')} folded",
        ),
        Column(
            "jobs",
            "jobs on hosts",
            write=lambda row: f"{row['jobs']} on {row['hosts']}",
            number=True,
        ),
    )


def _site(request: Request) -> Column:
    def link(row: Row) -> str:
        named = row["site"] and row["axis"] != "site"
        return link_to(request, "site", site=row["site"]) if named else ""

    return Column("site", "site", link=link)


def _side(
    request: Request, first: VerdictRow, side: str, unit: str, told: str = "none usable"
) -> Column:
    """One side's time, which leads to its measurements; ``told`` where there is no time."""
    value = side.upper() if first.axis == SELECTION else getattr(first, side)

    def write(row: Row) -> str:
        if row[f"{side}_value"] is not None:
            return wording.milliseconds(row[f"{side}_value"])
        return told if row[f"of_{side}"] else "–"

    return Column(
        f"{side}_value",
        f"{value}, {unit}",
        write=write,
        number=True,
        link=lambda row: _measurements(request, row, side),
    )


def _measurements(request: Request, row: Row, side: str) -> str:
    """Explore with the measurements of one side of a row: job by job, of all sites site by site.

    '' where the side has none, or where it was not recorded which they are, or in another version of
    columns that this one does not know.
    """
    of: Mapping[str, Any] = row[f"of_{side}"]
    if not of:
        return ""
    by_job = bool(row["site"])
    try:
        asked_for = (*alternatives(row["where"]), *alternatives(row[f"where_{side}"]))
    except ConfigError:
        return ""
    wheres = narrowed((*asked_for, *(Where(name, "=", value) for name, value in of.items())))
    asked = [
        ("metric", row["metric"]),
        ("by", "job_id" if by_job else "site"),
        ("colour", "host" if by_job else ""),
        ("kind", TIMED),
        # All days: those of a series are not only the last ones.
        ("from", ""),
        ("to", ""),
        *(("campaign", one) for one in _campaigns(row, side)),
        *(("where", text) for where in wheres for text in where.texts),
    ]
    return f"{link_to(request, 'explore')}?{urlencode(asked)}"


def _campaigns(row: Row, side: str) -> Sequence[str]:
    """The side's campaigns: where campaigns are compared, the one."""
    return [row[side]] if row["axis"] == "campaign" else row["campaigns"]
