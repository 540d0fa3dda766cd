"""Queries on SQLite, their plans, messages for wrong conditions, and rules of the Oracle lint."""

from __future__ import annotations

import re
from typing import Any

import oracle_lint
import pytest
import sqlalchemy as sa
from oracle_lint import LINT_RULES, LintRule, find_problems
from sqlalchemy.dialects import oracle
from sqlalchemy.engine import Connection
from sqlalchemy.schema import CreateIndex, CreateTable

from treehammer.errors import ConfigError
from treehammer.sql.core.schema import metadata
from treehammer.sql.read import (
    campaign_counts,
    campaign_queries,
    overview_queries,
    stored_comparisons,
)
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
                ends = (
                    lines.index("SCAN inner_groups") if "SCAN inner_groups" in lines else len(lines)
                )
                found.append(lines[:ends])
    return found


@pytest.mark.parametrize(
    ("figure", "way"),
    [
        (FigureQuery(EFF, ("host",), **WEEK), "ix_measurement_day (day>? AND day<?)"),
        (FigureQuery(("bytes_read",), ("host",), Selection(("c",))), "(campaign_id=?)"),
    ],
)
def test_measurement_queries_search_an_index(store: Store, figure: FigureQuery, way: str) -> None:
    (inner,) = ways(store, figure)
    assert any(line.startswith("SEARCH measurement") and way in line for line in inner)


def test_rollup_queries_search_by_day_or_subject(store: Store) -> None:
    week = FigureQuery(EFF, ("site",), latencies=True, **WEEK)
    for inner in ways(store, week):
        assert any("(day>? AND day<?)" in line for line in inner)
    site = Selection.parse(wheres=["site=A"])
    (inner,) = ways(store, FigureQuery(EFF, ("day",), site))
    assert any("ix_rollup_day_subject (subject_id=?)" in line for line in inner)


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


@pytest.mark.parametrize("rule", LINT_RULES, ids=lambda rule: rule.problem)
def test_lint_finds_bad_statements(rule: LintRule) -> None:
    for statement in rule.examples:
        assert rule.problem in find_problems(statement), statement


@pytest.mark.parametrize(
    ("statement", "rows", "problem"),
    [
        (f"SELECT a FROM t WHERE a IN ({', '.join(f':a{n}' for n in range(1001))})", 1, "IN with"),
        ("SELECT a FROM t WHERE a = :a OR a = :b OR a = :c OR a = :d", 1, "4 parameters"),
        ("INSERT INTO t (a) VALUES (:a) RETURNING t.a INTO :b", 2, "many rows"),
        ("CREATE TABLE t (a VARCHAR2(4001 BYTE))", 1, "may need more than 4000"),
        ("CREATE TABLE t (a VARCHAR2(4000 CHAR))", 1, "may need more than 4000"),
        (
            f"CREATE TABLE t ({', '.join(f'c{n} NUMBER(1)' for n in range(1001))})",
            1,
            "1000 columns",
        ),
    ],
    ids=["list", "parameters", "returning", "bytes", "characters", "columns"],
)
def test_lint_finds_exceeded_limit(
    statement: str, rows: int, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oracle_lint, "MAX_BINDS", 3 if "parameters" in problem else 65_535)
    (found,) = find_problems(statement, rows)
    assert problem in found


GOOD_STATEMENTS = [
    "SELECT a FROM t ORDER BY t.a NULLS FIRST FETCH FIRST 1 ROWS ONLY",
    "SELECT CASE WHEN (EXISTS (SELECT b FROM u)) THEN 1 ELSE 0 END FROM DUAL",
    "SELECT job_id FROM measurement WHERE measurement.plausible = 1 AND 1 = 1",
    "SELECT a FROM t WHERE a BETWEEN :a AND 1",
    "SELECT x.a AS y, count(*) AS n FROM (SELECT a FROM t) x GROUP BY x.a",
    'INSERT INTO t (a) VALUES (:"number")',
    "CREATE TABLE t (text VARCHAR2(128 CHAR) NOT NULL, b VARCHAR2(4000 BYTE), c SMALLINT)",
    "UPDATE measurement SET log_excerpt=:a WHERE measurement.log_excerpt IS NOT NULL",
    "SELECT job_id FROM measurement WHERE measurement.log_excerpt LIKE :a ESCAPE '\\'",
    "SELECT inventory.id FROM inventory ORDER BY inventory.id",
]


def test_lint_passes_good_statements() -> None:
    for statement in GOOD_STATEMENTS:
        assert find_problems(statement) == []


ORACLE = oracle.dialect()  # type: ignore[no-untyped-call]  # SQLAlchemy has no types for it
ORACLE.supports_native_boolean = False  # as before 23ai


def test_schema_passes_lint() -> None:
    for table in metadata.sorted_tables:
        items: list[CreateTable | CreateIndex] = [CreateTable(table)]
        for item in (*items, *map(CreateIndex, table.indexes)):
            statement = str(item.compile(dialect=ORACLE))
            assert find_problems(statement) == [], statement


#: Longest key in a block of 8 kB, and the overhead of each row and each column (ORA-01450).
MAX_KEY_BYTES, ROW_BYTES, COLUMN_BYTES = 6398, 10, 2


def test_index_keys_fit_block() -> None:
    def count_bytes(column: sa.Column[Any]) -> int:
        kind = column.type.compile(ORACLE)
        if text := re.fullmatch(r"VARCHAR2\((\d+) (CHAR|BYTE)\)", kind):
            return int(text[1]) * (4 if text[2] == "CHAR" else 1)
        # Large objects cannot be indexed at all.
        return {"NUMBER(19)": 22, "INTEGER": 22, "SMALLINT": 22, "BINARY_DOUBLE": 8}.get(
            kind, 10**6
        )

    widths: dict[str, int] = {}
    for table in metadata.sorted_tables:
        for key in (table.primary_key, *table.indexes):
            columns = list(key.columns)  # type: ignore[attr-defined]  # of any kind of key
            width = ROW_BYTES + sum(COLUMN_BYTES + count_bytes(column) for column in columns)
            widths[f"{table.name} {[column.name for column in columns]}"] = width
    assert len(widths) > 20
    assert max(widths.values()) <= MAX_KEY_BYTES, widths
