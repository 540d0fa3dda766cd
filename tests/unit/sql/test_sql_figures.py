"""Figures on SQLite, and the query plans behind them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa

from treehammer.sql.read.figure_sql import fetch_figure_and_work
from treehammer.sql.read.query_model import FigureQuery, Selection
from treehammer.sql.write.store import Store

EFF: Any = ("eff_job",)
WEEK: Any = {"first_day": 20260101, "last_day": 20260107}
SORTED = "USE TEMP B-TREE FOR GROUP BY"


def ways(store: Store, figure: FigureQuery) -> list[list[str]]:
    """List the lines of the inner step of SQLite's query plan for each statement."""
    asked: list[tuple[str, Any]] = []

    def see(_connection: Any, _cursor: Any, statement: str, values: Any, *_more: Any) -> None:
        asked.append((statement, values))

    engine = store._engine
    sa.event.listen(engine, "before_cursor_execute", see)
    store.fetch_figure(figure)
    sa.event.remove(engine, "before_cursor_execute", see)
    found = []
    with engine.connect() as connection:
        for statement, values in asked:
            if statement.startswith("SELECT"):
                plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", values)
                lines = [str(row[3]) for row in plan]
                ends = lines.index("SCAN found") if "SCAN found" in lines else len(lines)
                found.append(lines[:ends])
    return found


@pytest.mark.parametrize(
    ("figure", "way"),
    [
        (
            FigureQuery(EFF, ("site", "variant_label"), **WEEK),
            "ix_measurement_day (day>? AND day<?)",
        ),
        (FigureQuery(EFF, ("site", "day")), "SCAN measurement USING COVERING INDEX"),
        (FigureQuery(("wall_per_event_s",)), "SCAN measurement USING COVERING INDEX"),
        (
            FigureQuery(EFF, ("variant_label",), Selection.parse(wheres=["site=A"]), **WEEK),
            "ix_measurement_subject (subject_id=? AND day>? AND day<?)",
        ),
        (
            FigureQuery(EFF, ("day",), Selection.parse(wheres=["series=s"])),
            "ix_measurement_subject (subject_id=?)",
        ),
        (
            FigureQuery((), ("site", "failure_class"), kind=None, **WEEK),
            "ix_measurement_day (day>? AND day<?)",
        ),
    ],
)
def test_measurement_queries_use_covering_index_without_sorting(
    store: Store, figure: FigureQuery, way: str
) -> None:
    """Plans are made without statistics, which SQLite does not gather by itself."""
    inner, _superseded = ways(store, replace(figure, from_measurements=True))
    assert any("COVERING INDEX" in line and way in line for line in inner)
    assert SORTED not in inner


@pytest.mark.parametrize(
    ("figure", "way"),
    [
        (FigureQuery(EFF, ("host",), **WEEK), "ix_measurement_day (day>? AND day<?)"),
        (FigureQuery(("bytes_read",), ("host",), Selection(("c",))), "(campaign_id=?)"),
    ],
)
def test_measurement_queries_search_an_index(store: Store, figure: FigureQuery, way: str) -> None:
    inner, _superseded = ways(store, figure)
    assert any(line.startswith("SEARCH measurement") and way in line for line in inner)


def test_unindexed_columns_are_read_in_table_order(store: Store) -> None:
    for by in ((), ("site",), ("day",), ("kind", "site", "day", "failure_class"), ("host",)):
        inner, _superseded = ways(store, FigureQuery(("open_wall_s",), by, kind=None))
        assert "SCAN measurement" in inner


def test_rollup_queries_search_by_day_or_subject(store: Store) -> None:
    week = FigureQuery(EFF, ("site",), latencies=True, **WEEK)
    for inner in ways(store, week):
        assert any("(day>? AND day<?)" in line for line in inner)
    site = Selection.parse(wheres=["site=A"])
    (inner,) = ways(store, FigureQuery(EFF, ("day",), site))
    assert any("ix_rollup_day_subject (subject_id=?)" in line for line in inner)


@pytest.mark.parametrize(("by", "scans"), [(("site",), 1), (("site", "day"), 2)])
def test_figure_by_subject_scans_rollups_once(
    store: Store, by: tuple[str, ...], scans: int
) -> None:
    statements: list[str] = []

    def record(_connection: Any, _cursor: Any, statement: str, *_more: Any) -> None:
        statements.append(statement)

    with store.connection() as connection:
        sa.event.listen(store._engine, "before_cursor_execute", record)
        fetch_figure_and_work(connection, FigureQuery(EFF, by, **WEEK), ("site", "door"))
        sa.event.remove(store._engine, "before_cursor_execute", record)
    assert sum("FROM rollup_day" in statement for statement in statements) == scans
