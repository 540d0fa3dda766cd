"""Parameters of a site's page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, timedelta

from starlette.requests import Request

from treehammer.collectors.record.value_checks import is_variant
from treehammer.errors import ConfigError, suggest_word
from treehammer.hctests.matrix.identity import drop_release_axis
from treehammer.sql.core.schema import ROLLUP_METRICS
from treehammer.sql.read.figure_query import DAY, WEEK
from treehammer.sql.read.site_history import Workload
from treehammer.web.display import calendar_days
from treehammer.web.display.variant_labels import VARIANT_COLUMN
from treehammer.web.views.shared.site_columns import (
    DEFAULT_METRIC,
    DEFAULT_WINDOW_DAYS,
    WINDOW_CHOICES,
)

#: Windows of at least this many days are shown by week.
WEEKLY_FROM_DAYS = 90
#: Newest days whose single measurements are read; roll-ups cover the other days.
RECENT_DAYS = 7
#: Parameter -> column of the workload that it filters.
FILTERS = {
    "test": "test_name",
    "variant": VARIANT_COLUMN,
    "root": "axis_root",
    "protocol": "door_protocol",
}


@dataclass(frozen=True)
class SiteQuery:
    """Parameters of the page's URL."""

    site: str
    metric: str
    first: date
    last: date
    day_count: int
    filters: dict[str, str]

    @property
    def day_numbers(self) -> tuple[int, int]:
        """First and last day as database day numbers."""
        return calendar_days.day_number(self.first), calendar_days.day_number(self.last)

    @property
    def recent_first(self) -> date:
        """First of the newest days, whose single measurements are read."""
        return self.last - timedelta(days=min(self.day_count, RECENT_DAYS) - 1)

    @property
    def recent_day_numbers(self) -> tuple[int, int]:
        """First and last of the newest days."""
        return calendar_days.day_number(self.recent_first), calendar_days.day_number(self.last)

    @property
    def work_filters(self) -> dict[str, str]:
        """Column of the workload -> its only value."""
        return {FILTERS[name]: text for name, text in self.filters.items()}

    @property
    def is_weekly(self) -> bool:
        """Whether points are weeks."""
        return self.time_column == WEEK

    @property
    def time_column(self) -> str:
        """Column of time whose values are points: day or week."""
        return WEEK if self.day_count >= WEEKLY_FROM_DAYS else DAY


def parse_site_query(request: Request, site: str, works: Sequence[Workload]) -> SiteQuery:
    """Parse the URL's parameters; filters are values that the site measured.

    Raises:
        ConfigError: a parameter is invalid.
    """
    query = request.query_params
    days = calendar_days.parse_window(query, WINDOW_CHOICES, DEFAULT_WINDOW_DAYS)
    metric = query.get("metric", DEFAULT_METRIC)
    if metric not in ROLLUP_METRICS:
        raise ConfigError(
            f"{metric[:40]!r} is not a daily metric",
            hint=suggest_word(metric, ROLLUP_METRICS).strip(),
        )
    filters = {name: query[name] for name in FILTERS if query.get(name)}
    if variant := filters.get("variant"):
        if not is_variant(variant) and variant not in {work.variant for work in works}:
            raise ConfigError(
                f"variant must be a JSON object of axes and values, not {variant[:40]!r}",
                hint="Choose one on the page of the site.",
            )
        filters["variant"] = drop_release_axis(variant)
    return SiteQuery(site, metric, days[0], days[-1], len(days), filters)
