"""Sites by day: what every site was on each of some days."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from urllib.parse import urlencode

from treehammer.analysis.days import Judged
from treehammer.sql import overview
from treehammer.sql.store import Store
from treehammer.web.pages import days


@dataclass(frozen=True)
class Cell:
    """A site on a day."""

    day: date
    judged: Judged


@dataclass(frozen=True)
class Line:
    """A site over the days of the matrix."""

    site: str
    cells: tuple[Cell, ...]

    @property
    def query(self) -> str:
        """What names the site in an address."""
        return urlencode({"site": self.site})


def matrix(store: Store, shown: Sequence[date]) -> list[Line]:
    """The sites that measured something on these days, and what each day was."""
    found = overview.site_days(store, days.numbered(shown[0]), days.numbered(shown[-1]))
    by_place = {(one.site, one.day): Judged.of(one.outcomes) for one in found}
    nothing = Judged(0, 0, 0)
    return [
        Line(
            site,
            tuple(Cell(day, by_place.get((site, days.numbered(day)), nothing)) for day in shown),
        )
        for site in dict.fromkeys(one.site for one in found)
    ]
