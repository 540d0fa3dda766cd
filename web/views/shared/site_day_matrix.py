"""Status of every site on each of several days."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from urllib.parse import urlencode

from treehammer.analysis.descriptive.day_status import DayOutcomes
from treehammer.sql.read import overview_queries
from treehammer.sql.write.store import Store
from treehammer.web.display import calendar_days


@dataclass(frozen=True)
class DayCell:
    """Outcomes of one site on one day."""

    day: date
    judged: DayOutcomes


@dataclass(frozen=True)
class SiteRow:
    """Outcomes of one site over several days."""

    site: str
    cells: tuple[DayCell, ...]

    @property
    def query_string(self) -> str:
        """The query string that names the site."""
        return urlencode({"site": self.site})


def load_site_days(store: Store, shown: Sequence[date]) -> list[SiteRow]:
    """Load the daily outcomes of all sites that measured on these days."""
    site_days = overview_queries.list_site_days(
        store, calendar_days.day_number(shown[0]), calendar_days.day_number(shown[-1])
    )
    by_site_and_day = {
        (one.site, one.day): DayOutcomes.from_outcomes(one.outcomes) for one in site_days
    }
    empty = DayOutcomes(0, 0, 0)
    return [
        SiteRow(
            site,
            tuple(
                DayCell(day, by_site_and_day.get((site, calendar_days.day_number(day)), empty))
                for day in shown
            ),
        )
        for site in dict.fromkeys(one.site for one in site_days)
    ]
