"""Queries on SQLite, their plans, messages for wrong conditions, and rules of the Oracle lint."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from typing import Any
from unittest.mock import MagicMock

import pytest
import sqlalchemy as sa
from oracle_lint import LINT_RULES, compile_for_oracle, find_problems, make_oracle_dialect
from sqlalchemy.engine import Connection
from sqlalchemy.schema import CreateIndex, CreateTable

from treehammer.errors import ConfigError
from treehammer.sql.core.schema import metadata
from treehammer.sql.engine.database_setup import MIGRATIONS_FOLDER
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

#: Longest name of a column that every supported server takes.
MAX_NAME_CHARS = 30

EFF: Any = ("eff_job",)
WEEK: Any = {"first_day": 20260101, "last_day": 20260107}


def read_plans(store: Store, query: Callable[[Store], object]) -> list[list[str]]:
    """List the lines of SQLite's plan of each statement that a query sends."""
    plans: list[list[str]] = []

    @sa.event.listens_for(store._engine, "before_cursor_execute")
    def explain(
        connection: Connection, _cursor: object, text: str, values: Any, *_: object
    ) -> None:
        if text.startswith("SELECT"):
            driver = connection.connection.driver_connection
            assert driver is not None
            rows = driver.execute(f"EXPLAIN QUERY PLAN {text}", values).fetchall()
            plans.append([row[-1] for row in rows])

    query(store)
    sa.event.remove(store._engine, "before_cursor_execute", explain)
    return plans


@pytest.mark.parametrize(
    ("figure", "index"),
    [
        (FigureQuery(EFF, ("host",), **WEEK), "ix_measurement_day (day>? AND day<?)"),
        (FigureQuery(("bytes_read",), ("host",), Selection(("c",))), "(campaign_id=?)"),
        (FigureQuery(EFF, ("site",), latencies=True, **WEEK), "(day>? AND day<?)"),
        (
            FigureQuery(EFF, ("day",), Selection.parse(wheres=["site=A"])),
            "ix_rollup_day_subject (subject_id=?)",
        ),
    ],
)
def test_figures_search_by_day_subject_or_campaign(
    store: Store, figure: FigureQuery, index: str
) -> None:
    for plan in read_plans(store, lambda store: store.load_figure(figure)):
        assert any(line.startswith("SEARCH ") and index in line for line in plan), plan


@pytest.mark.parametrize(
    ("text", "reason"),
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
def test_wrong_conditions(text: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
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
    conditions, listing = parse_alternatives(ASKED), Condition("site", "=", ("B", "C"))
    intersection = intersect_conditions((*conditions, listing, Condition.parse("host~n*")))
    assert [*map(str, intersection)] == [
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
            lambda store: overview_queries.load_campaign_states(store, ["c"]),
            "COVERING INDEX ix_measurement_counts",
        ),
        (overview_queries.list_first_measurements, "ix_rollup_day_subject (subject_id=?)"),
        (overview_queries.list_active_campaigns, "ix_job_state"),
        (overview_queries.count_open_jobs, "ix_job_state"),
        (lambda store: overview_queries.list_campaigns_since(store, 5), "ix_campaign_created"),
        # Two indexes begin with day and subject; either is fine.
        (lambda store: overview_queries.list_bad_measurements(store, "A", 20260301), "day=?"),
        (
            lambda store: campaign_queries.count_failures(
                store, "c", campaign_counts.CampaignCount({})
            ),
            "campaign_id=?",
        ),
        (lambda store: campaign_counts.count_campaign(store, "c", 0), "campaign_id=?"),
        (lambda store: campaign_queries.list_datasets(store, "c"), "campaign_id=?"),
        (lambda store: list(store.measurements(Selection(("c",)))), "campaign_id=?"),
    ],
)
def test_page_queries_use_index(store: Store, ask: Callable[[Store], object], index: str) -> None:
    lines = [line for plan in read_plans(store, ask) for line in plan]
    assert any(index in line for line in lines), lines
    assert not any("TEMP B-TREE FOR ORDER" in line for line in lines), lines


#: A statement for each rule of the lint.
BAD_STATEMENTS = (
    "SELECT count(*) FILTER (WHERE a = 1) FROM t",
    "SELECT NOT (EXISTS (SELECT a FROM t)) FROM DUAL",
    "SELECT job_id FROM measurement WHERE plausible IS 1",
    "SELECT a AS x, count(*) AS n FROM t GROUP BY x",
    'SELECT "level" FROM t',
    "SELECT a FROM t WHERE a = ''",
    "SELECT strftime(a) FROM t",
    "SELECT log_excerpt, count(*) FROM measurement GROUP BY measurement.log_excerpt",
)


def test_each_rule_of_the_lint_finds_its_problem() -> None:
    for problem, statement in zip(LINT_RULES, BAD_STATEMENTS, strict=True):
        assert problem in find_problems(statement)


def test_executed_statements_are_linted(store: Store) -> None:
    with store._engine.connect() as connection, pytest.raises(AssertionError, match="function"):
        connection.execute(sa.select(sa.func.strftime("%d", 1)))


def test_schema_passes_lint() -> None:
    for table in metadata.sorted_tables:
        assert max(len(column.name) for column in table.columns) <= MAX_NAME_CHARS
        items: list[CreateTable | CreateIndex] = [CreateTable(table)]
        for item in (*items, *map(CreateIndex, table.indexes)):
            statement = compile_for_oracle(item)
            assert find_problems(statement) == [], statement
            assert not re.search(r"\b(?:DATE|TIMESTAMP|DOUBLE PRECISION|BOOLEAN|TEXT)\b", statement)


def test_migrations_pass_lint(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compile the migrations for Oracle, where no database has rows to move."""
    import alembic  # collecting needs none of these
    from alembic.migration import MigrationContext
    from alembic.operations import Operations
    from alembic.script import ScriptDirectory

    output = io.StringIO()
    options = {"as_sql": True, "output_buffer": output}
    context = MigrationContext.configure(dialect=make_oracle_dialect(), opts=options)
    scripts = ScriptDirectory(str(MIGRATIONS_FOLDER))
    connection = MagicMock()  # whose results are empty
    connection.execute.return_value.all.return_value = []
    monkeypatch.setattr(alembic.op, "get_bind", lambda: connection)
    with Operations.context(context):
        for script in reversed([*scripts.walk_revisions()]):
            script.module.upgrade()
    statements = [text for text in output.getvalue().split("\n/\n") if text.strip()]
    assert len(statements) > 50
    assert {text: problems for text in statements if (problems := find_problems(text))} == {}


#: Longest key in a block of 8 kB, and the overhead of each row and each column (ORA-01450).
MAX_KEY_BYTES, ROW_BYTES, COLUMN_BYTES = 6398, 10, 2


def test_index_keys_fit_block() -> None:
    def count_bytes(column: sa.Column[Any]) -> int:
        kind = column.type.compile(make_oracle_dialect())
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
