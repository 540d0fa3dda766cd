"""Queries on SQLite, their query plans, and messages for wrong conditions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from treehammer.errors import ConfigError
from treehammer.sql.read import (
    campaign_counts,
    campaign_queries,
    overview_queries,
    stored_comparisons,
)
from treehammer.sql.read.figure_sql import fetch_figure_and_work
from treehammer.sql.read.query_model import (
    Condition,
    FigureQuery,
    Selection,
    intersect_conditions,
    parse_alternatives,
)
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


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "not a condition"),
        ("host", "not a condition"),
        ("=x", "not a condition"),
        ("hots=x", "Did you mean 'host'"),
        ("retries=many", "a whole number"),
        ("retries=1.5", "a whole number"),
        ("retries=9223372036854775808", "a whole number"),
        ("eff_job=nan", "a number"),
        ("eff_job>", "missing"),
        ("dirty=perhaps", "true or false"),
        ("dirty>0", "not a number"),
        ("axis_root>6.38", "compares numbers"),
        ("eff_job~0.*", "compares text"),
        ("read_latency_hist=1", "list"),
        ("measurement.host=x", "not a condition"),
    ],
)
def test_wrong_conditions(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Condition.parse(text)


def test_selection_is_readable() -> None:
    assert str(Selection()) == "all measurements"
    selection = Selection.parse(["a", "b"], ["eff_job>0.5", "failure_class="])
    assert str(selection) == "campaign_id=a or b and eff_job>0.5 and failure_class="


ASKED = ("site=A", "day>1", "site=B", "site!=C", "site!=D", "site=A", "host=", "host=n", "day>2")


def test_values_of_one_column_are_alternatives() -> None:
    wheres = parse_alternatives(ASKED)
    assert [*map(str, wheres)] == [
        "site=A or B",
        "day>1",
        "site!=C",
        "site!=D",
        "host= or n",
        "day>2",
    ]
    assert parse_alternatives(text for where in wheres for text in where.texts) == wheres


def test_conditions_on_one_column_are_merged() -> None:
    some, others = parse_alternatives(ASKED), Condition("site", "=", ("B", "C"))
    found = intersect_conditions((*some, others, Condition.parse("host~n*")))
    assert [*map(str, found)] == [
        "site=B",
        "day>1",
        "site!=C",
        "site!=D",
        "host= or n",
        "day>2",
        "host~n*",
    ]


@pytest.mark.parametrize(
    "ask, index",
    [
        (lambda store: stored_comparisons.list_latest_comparisons(store, 5), "ix_verdict_latest"),
        (
            lambda store: stored_comparisons.list_latest_comparisons(store, 5, since_us=1),
            "ix_verdict_latest",
        ),
        (
            lambda store: overview_queries.fetch_campaign_states(store, ["c"]),
            "COVERING INDEX ix_measurement_counts",
        ),
        (overview_queries.list_first_measurements, "ix_rollup_day_subject (subject_id=?)"),
        (
            lambda store: overview_queries.list_active_campaigns(store, ["queued", "running"]),
            "ix_job_state",
        ),
        (
            lambda store: overview_queries.count_jobs_by_state(store, ["queued", "running"]),
            "ix_job_state",
        ),
        (lambda store: overview_queries.list_campaigns_since(store, 5), "ix_campaign_created"),
        # Two indexes begin with day and subject; either is fine.
        (lambda store: overview_queries.list_bad_measurements(store, "A", 20260301), "day=?"),
        (lambda store: campaign_queries.count_transient(store, "c"), "campaign_id=?"),
        (lambda store: campaign_counts.count_campaign(store, "c", 0), "campaign_id=?"),
        (lambda store: campaign_queries.list_datasets(store, "c"), "campaign_id=?"),
    ],
)
def test_page_queries_use_index(store: Store, ask: object, index: str) -> None:
    plans: list[str] = []

    @sa.event.listens_for(store._engine, "before_cursor_execute")
    def explain(
        connection: Connection, cursor: object, text: str, parameters: object, *_: object
    ) -> None:
        if text.startswith("SELECT"):
            driver = connection.connection.driver_connection
            assert driver is not None
            found = driver.execute(f"EXPLAIN QUERY PLAN {text}", parameters).fetchall()
            plans.extend(row[-1] for row in found)

    assert callable(ask)
    ask(store)
    assert any(index in plan for plan in plans), plans
    assert not any("TEMP B-TREE FOR ORDER" in plan for plan in plans), plans
