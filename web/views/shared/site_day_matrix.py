"""Sites by day: what every site was on each of some days."""

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
    """A site on a day."""

    day: date
    judged: DayOutcomes


@dataclass(frozen=True)
class SiteRow:
    """A site over the days of the matrix."""

    site: str
    cells: tuple[DayCell, ...]

    @property
    def query_string(self) -> str:
        """What names the site in an address."""
        return urlencode({"site": self.site})


def load_site_days(store: Store, shown: Sequence[date]) -> list[SiteRow]:
    """The sites that measured something on these days, and what each day was."""
    found = overview_queries.list_site_days(
        store, calendar_days.day_number(shown[0]), calendar_days.day_number(shown[-1])
    )
    by_place = {(one.site, one.day): DayOutcomes.from_outcomes(one.outcomes) for one in found}
    nothing = DayOutcomes(0, 0, 0)
    return [
        SiteRow(
            site,
            tuple(
                DayCell(day, by_place.get((site, calendar_days.day_number(day)), nothing))
                for day in shown
            ),
        )
        for site in dict.fromkeys(one.site for one in found)
    ]
