"""Queries on SQLite, their plans, messages for wrong conditions, and rules of the Oracle lint."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa
from oracle_lint import LINT_RULES, MAX_KEY_BYTES, MAX_NAME_CHARS, find_problems, key_widths
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


#: Rule -> statements that it must reject.
BAD = {
    "foreign_keywords": [
        "SELECT a FROM t LIMIT 1",
        "SELECT count(*) FILTER (WHERE a > 1) FROM t",
        "CREATE TABLE t (a BOOLEAN)",
        "SELECT a FROM t WHERE b = TRUE",
        "SELECT a FROM t WHERE b IS NOT false",
        "SELECT a FROM t EXCEPT SELECT a FROM u",
        "INSERT INTO t (a) VALUES (:a) ON CONFLICT DO NOTHING",
        "DROP TABLE IF EXISTS t",
        "SELECT a::text FROM t",
        "SELECT a FROM t;",
        "WITH RECURSIVE t AS (SELECT a FROM u) SELECT a FROM t",
    ],
    "exists_as_value": [
        "SELECT EXISTS (SELECT a FROM t) FROM DUAL",
        "SELECT NOT (EXISTS (SELECT a FROM t)) FROM DUAL",
    ],
    "numeric_conditions": [
        "SELECT a FROM t WHERE a IS 1",
        "SELECT a FROM t WHERE a IS NOT 0",
        "SELECT a FROM t WHERE 1",
        "SELECT a FROM t WHERE b = :b AND 0",
        "SELECT job_id FROM measurement WHERE measurement.plausible",
        "SELECT job_id FROM measurement WHERE NOT plausible",
        "SELECT CASE WHEN (measurement.plausible) THEN :a ELSE :b END FROM measurement",
    ],
    "table_alias_with_as": [
        "SELECT x.a FROM t AS x",
        "SELECT x.a FROM t JOIN u AS x ON x.a = t.a",
        "SELECT x.a FROM (SELECT a FROM t) AS x",
    ],
    "multi_row_values": ["INSERT INTO t (a, b) VALUES (:a, :b), (:c, :d)"],
    "group_by_alias": [
        "SELECT a AS x, count(*) AS n FROM t GROUP BY x",
        "SELECT a, b, count(*) FROM t GROUP BY a, 2",
    ],
    "offset_clauses": ["SELECT a FROM t OFFSET 5"],
    "identifier_lengths": [
        'SELECT "a" FROM t',
        f"SELECT {'a' * (MAX_NAME_CHARS + 1)} FROM t",
        f"SELECT a FROM t WHERE a = :{'a' * 129}",
        "SELECT a FROM t WHERE a = :level",
        "INSERT INTO t (a) VALUES (:file)",
        "SELECT t.number FROM t",
        "SELECT a AS size FROM t",
        "CREATE TABLE session (a NUMBER(1))",
    ],
    "column_counts": [
        "CREATE TABLE t (a NUMBER(1), level NUMBER(1))",
        "CREATE TABLE t (a DATE)",
        "CREATE TABLE t (a TEXT, CONSTRAINT pk_t PRIMARY KEY (a))",
        "CREATE TABLE t (a DOUBLE PRECISION)",
        "CREATE TABLE t (a TIMESTAMP)",
        "ALTER TABLE t ADD a BIGINT",
        "ALTER TABLE t MODIFY a JSON",
        f"CREATE TABLE t ({', '.join(f'c{n} NUMBER(1)' for n in range(1001))})",
    ],
    "text_lengths": [
        "CREATE TABLE t (a VARCHAR2)",
        "CREATE TABLE t (a VARCHAR2(10))",
        "CREATE TABLE t (a VARCHAR2(4001 BYTE))",
        "CREATE TABLE t (a VARCHAR2(4000 CHAR))",
    ],
    "foreign_ddl": [
        "ALTER TABLE t ADD COLUMN a NUMBER(1)",
        "ALTER TABLE t ALTER COLUMN a NUMBER(1)",
    ],
    "empty_strings": ["SELECT a FROM t WHERE a = ''"],
    "list_lengths": [
        f"SELECT a FROM t WHERE a IN ({', '.join(f':a{n}' for n in range(1001))})",
        f"SELECT a FROM t WHERE {' OR '.join(f'a = :a{n}' for n in range(65_536))}",
    ],
    "select_without_from": ["SELECT 1", "SELECT a FROM t WHERE a = (SELECT 1)"],
    "returning_clauses": [
        "INSERT INTO t (a) VALUES (:a) RETURNING t.a",
        "INSERT INTO t (a) VALUES (:many) RETURNING t.a INTO :b",
    ],
    "joined_updates": [
        "UPDATE t SET a = u.a FROM u WHERE u.b = t.b",
        "DELETE FROM t USING u WHERE u.b = t.b",
    ],
    "unknown_functions": ["SELECT strftime(a) FROM t", "SELECT group_concat(a) FROM t"],
    "lob_comparisons": [
        "SELECT job_id FROM measurement WHERE measurement.log_excerpt = :a",
        "SELECT job_id FROM measurement WHERE measurement.log_excerpt IN (:a, :b)",
        "SELECT log_excerpt, count(*) FROM measurement GROUP BY measurement.log_excerpt",
        "SELECT job_id FROM measurement ORDER BY measurement.log_excerpt",
        "SELECT DISTINCT measurement.log_excerpt FROM measurement",
        "UPDATE measurement SET implausible_reasons=CASE WHEN (implausible_reasons IS NULL) THEN :a "
        "ELSE implausible_reasons || :b END",
    ],
}


@pytest.mark.parametrize(
    ("rule", "statement"),
    [pytest.param(r, s, id=f"{r}-{n}") for r, some in BAD.items() for n, s in enumerate(some)],
)
def test_rule_finds_bad_statement(rule: str, statement: str) -> None:
    found = find_problems(statement, 2 if ":many" in statement else 1)
    assert [one for one in found if one.startswith(f"{rule}:")], found


def test_every_rule_has_bad_examples() -> None:
    assert {rule.__name__ for rule in LINT_RULES} == BAD.keys()


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT a FROM t ORDER BY t.a NULLS FIRST FETCH FIRST 1 ROWS ONLY",
        "SELECT CASE WHEN (EXISTS (SELECT b FROM u)) THEN 1 ELSE 0 END FROM DUAL",
        "SELECT job_id FROM measurement WHERE measurement.plausible = 1 AND 1 = 1",
        "SELECT a FROM t WHERE a BETWEEN :a AND 1",
        "SELECT x.a AS y, count(*) AS n FROM (SELECT a FROM t) x GROUP BY x.a",
        "SELECT t.day AS day, count(*) FROM t GROUP BY t.day",
        'INSERT INTO t (a) VALUES (:"number")',
        "CREATE TABLE t (a VARCHAR2(128 CHAR) NOT NULL, b VARCHAR2(4000 BYTE), c SMALLINT)",
        "UPDATE measurement SET log_excerpt=:a WHERE measurement.log_excerpt IS NOT NULL",
        "SELECT job_id FROM measurement WHERE measurement.log_excerpt LIKE :a ESCAPE '\\'",
        "SELECT inventory.id FROM inventory ORDER BY inventory.id",
    ],
)
def test_good_statements_pass(statement: str) -> None:
    assert find_problems(statement) == []


def schema_statements() -> list[str]:
    """Compile the statements that create the schema on Oracle."""
    dialect = oracle.dialect()  # type: ignore[no-untyped-call]  # SQLAlchemy has no types for it
    dialect.supports_native_boolean = False  # as before 23ai
    items: list[CreateTable | CreateIndex] = [
        *(CreateTable(table) for table in metadata.sorted_tables),
        *(CreateIndex(index) for table in metadata.sorted_tables for index in table.indexes),
    ]
    return [" ".join(str(item.compile(dialect=dialect)).split()) for item in items]


def test_schema_passes_lint() -> None:
    assert {
        text[:200]: find_problems(text) for text in schema_statements() if find_problems(text)
    } == {}


def test_index_keys_fit_block() -> None:
    found = key_widths(schema_statements())
    assert len(found) > 20
    assert max(found.values()) <= MAX_KEY_BYTES, found


def test_too_wide_index_is_found() -> None:
    columns = "a VARCHAR2(4000 BYTE), b VARCHAR2(1000 CHAR), c NUMBER(19), d CLOB"
    key = "CONSTRAINT pk_t PRIMARY KEY (c)"
    found = key_widths(
        [
            f"CREATE TABLE t ({columns}, {key})",
            "CREATE INDEX narrow ON t (a, c)",
            "CREATE INDEX wide ON t (a, b)",
            "CREATE INDEX long ON t (d)",
            "ALTER TABLE t MODIFY a VARCHAR2(64 CHAR)",
            "CREATE INDEX later ON t (a, b)",
        ]
    )
    assert found["PK_T"] < found["NARROW"] < MAX_KEY_BYTES < found["WIDE"] < found["LONG"]
    assert found["LATER"] < MAX_KEY_BYTES
