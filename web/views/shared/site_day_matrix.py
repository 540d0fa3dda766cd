"""Status of every site on each of several days."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from functools import cached_property
from typing import Any, Generic, TypeVar
from urllib.parse import urlencode

from markupsafe import Markup, escape

from treehammer.analysis.status.day_outcomes import DayOutcomes
from treehammer.analysis.status.storage_status import (
    StorageDay,
    judge_storage_days,
    load_rule,
)
from treehammer.sql.read import overview_queries
from treehammer.sql.read.operation_figures import list_operation_days
from treehammer.sql.read.overview_queries import JOB_SITE, STORAGE_SITE
from treehammer.sql.write.store import Store
from treehammer.web.display import calendar_days

Judged = TypeVar("Judged", DayOutcomes, StorageDay)


@dataclass(frozen=True)
class DayCell(Generic[Judged]):
    """Outcomes of one site, or of the load tests of one storage, on one day."""

    day: date
    judged: Judged


@dataclass(frozen=True)
class SiteRow(Generic[Judged]):
    """One site over several days; ``by`` is the column that names it."""

    site: str
    cells: tuple[DayCell[Judged], ...]
    by: str = JOB_SITE

    @property
    def sparkline(self) -> str:
        """SVG path of the good measurements by day, as steps in a box of one unit a day by 1."""
        counts = [getattr(cell.judged, "good", 0) for cell in self.cells]
        most = max(counts, default=0) or 1
        steps = (f"V{round(1 - count / most, 2):g}h1" for count in counts)
        return f"M0 1{''.join(steps)}V1z"

    @cached_property
    def query_string(self) -> str:
        """The query string that names the site."""
        return urlencode({"site": self.site})


def load_site_days(
    store: Store, shown: Sequence[date], by: str = JOB_SITE
) -> list[SiteRow[DayOutcomes]]:
    """Load the daily outcomes of all sites that measured, or were read, on these days."""
    site_days = overview_queries.list_site_days(
        store, calendar_days.day_number(shown[0]), calendar_days.day_number(shown[-1]), by
    )
    judged = {(one.site, one.day): DayOutcomes.from_outcomes(one.outcomes) for one in site_days}
    return _build_rows(judged, DayOutcomes(0, 0, 0), shown, by)


def select_days(
    rows: Sequence[SiteRow[DayOutcomes]], days: Sequence[date]
) -> list[SiteRow[DayOutcomes]]:
    """Select some days, and the sites with measurements in them."""
    wanted = set(days)
    found = (
        replace(row, cells=tuple(cell for cell in row.cells if cell.day in wanted)) for row in rows
    )
    return [row for row in found if any(cell.judged.total for cell in row.cells)]


def render_day_cells(
    row: SiteRow[Any],
    day_names: Mapping[date, str],
    address: Callable[[SiteRow[Any], date], str],
) -> Markup:
    """Render the cells of a site as HTML.

    In Python, because a template takes twice the time for thousands of cells.

    Args:
        row: the site.
        day_names: days for readers.
        address: of a day's page.
    """
    cells = []
    for cell in row.cells:
        judged, status = cell.judged, cell.judged.status
        severity = getattr(judged, "severity", 0)
        css_class = f"{status.value} severity-{severity}" if severity > 1 else status.value
        letter = (
            f'<span aria-hidden="true">{judged.letter}</span><span class="unseen">{status}</span>'
        )
        if judged.total:
            title = escape(f"{row.site}, {day_names[cell.day]}: {status}, {judged}")
            link = f'<a href="{escape(address(row, cell.day))}" title="{title}">{letter}</a>'
        else:
            link = f'<span class="letter">{letter}</span>'
        cells.append(f'<td class="{css_class}">{link}</td>')
    return Markup("\n".join(cells))  # noqa: S704


def load_storage_days(store: Store, shown: Sequence[date]) -> list[SiteRow[StorageDay]]:
    """Load the daily status of all storages that load tests used on these days."""
    days = list_operation_days(
        store, calendar_days.day_number(shown[0]), calendar_days.day_number(shown[-1])
    )
    rule = load_rule()
    judged = judge_storage_days(days, rule)
    return _build_rows(judged, StorageDay.from_operations((), rule), shown, STORAGE_SITE)


def _build_rows(
    judged: Mapping[tuple[str, int], Judged], empty: Judged, shown: Sequence[date], by: str
) -> list[SiteRow[Judged]]:
    return [
        SiteRow(
            site,
            tuple(
                DayCell(day, judged.get((site, calendar_days.day_number(day)), empty))
                for day in shown
            ),
            by,
        )
        for site in dict.fromkeys(site for site, _ in judged)
    ]
