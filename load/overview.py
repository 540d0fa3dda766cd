"""Storages under load on the overview: the status of each by day."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import date
from typing import Any

from treehammer.analysis.status.day_outcomes import OperationsRule
from treehammer.load.storage_days import StorageDay, judge_days
from treehammer.sql.write.store import Store
from treehammer.tables import DataTable, TableColumn
from treehammer.web import sections as ui
from treehammer.web.display_formats import day_number
from treehammer.web.pages.overview_days import SiteDays, arrange_by_site, make_day_table

#: Tables of the page's document, and what they hold.
TABLES = {"storage_days": "storages and days with load tests, with their status"}


class OverviewPart:
    """Storages that load tests used on some days, with their daily status."""

    def __init__(self, store: Store, days: Sequence[date]) -> None:
        self._rule = OperationsRule()
        self._empty = StorageDay.from_operations((), self._rule)
        judged = judge_days(store, day_number(days[0]), day_number(days[-1]), self._rule)
        self._lines = arrange_by_site(judged, self._empty, days)

    @property
    def has_data(self) -> bool:
        """Whether any storage was used."""
        return bool(self._lines)

    @property
    def table(self) -> DataTable:
        """The days with operations, for export."""
        rows = [
            {"storage_site": line.site, "day": day.isoformat(), **judged.as_dict()}
            for line in self._lines
            for day, judged in line.days.items()
            if judged.total
        ]
        names = ("storage_site", "day", *self._empty.as_dict())
        table_columns = tuple(TableColumn(key, key) for key in names)
        return DataTable("storage_days", "Storages under load by day", table_columns, rows)

    def show(
        self, address: Callable[[SiteDays[Any], date], str], site_address: Callable[[str], str]
    ) -> ui.Titled:
        """Show the days; ``address`` leads to a storage's day, ``site_address`` to a site."""
        table = make_day_table(
            "storages",
            "Status of each storage by day, from load tests",
            self._lines,
            address,
            site_address=site_address,
        )
        return ui.Titled(
            "Storages under load",
            ui.TableSection(table, "newest", self.table),
            ui.quiet(self._rule.describe()),
            anchor="storages",
        )
