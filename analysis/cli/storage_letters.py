"""Letters of storages under load by site and day, printed by ``summary --letters``."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import click

from treehammer.analysis.status.day_states import judge_storage_days, load_rule
from treehammer.collectors.record.day_numbers import day_to_number, number_to_day
from treehammer.errors import NothingToDoError
from treehammer.sql.read.operation_figures import list_operation_days
from treehammer.sql.read.reader import ResultsReader
from treehammer.tables import TableColumn
from treehammer.terminal import TABLE, print_rows

#: Days shown, up to today (UTC).
DAYS = 14

_COLUMNS = (
    TableColumn("storage_site", "storage site"),
    TableColumn("day", "day"),
    TableColumn("letter", ""),
    *(
        TableColumn(name, title, is_number=True)
        for name, title in (
            ("opened", "opened"),
            ("open_failed", "failed"),
            ("blocks", "read"),
            ("block_failed", "failed"),
        )
    ),
    TableColumn("block_s", "block (s)", lambda value: f"{value:.3f}", is_number=True),
    TableColumn("reason", "reason"),
)


def print_letters(store: ResultsReader, form: str) -> None:
    """Print the status of each storage and day with load tests.

    Raises:
        NothingToDoError: there was none.
    """
    last_day = datetime.now(UTC).date()
    first_day = last_day - timedelta(days=DAYS - 1)
    rule = load_rule()
    days = list_operation_days(store, day_to_number(first_day), day_to_number(last_day))
    judged = judge_storage_days(days, rule)
    if not judged:
        raise NothingToDoError(
            f"no load test ran in the last {DAYS} days",
            hint="Run one: treehammer submit open-rate --wait",
        )
    lines = [
        {"storage_site": site, "day": str(number_to_day(day)), **storage_day.as_dict()}
        for (site, day), storage_day in judged.items()
    ]
    print_rows(lines, _COLUMNS, form=form, title=f"Storages under load, last {DAYS} days")
    click.echo(rule.describe(), err=form != TABLE)
