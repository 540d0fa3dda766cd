"""Queries on SQLite, their plans, wrong conditions, plans of campaigns, and rules of the Oracle lint."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import MagicMock

import pyarrow as pa
import pytest
import sqlalchemy as sa
from measurement_factory import make_campaign_row
from oracle_lint import LINT_RULES, compile_for_oracle, find_problems, make_oracle_dialect
from repository_code import REPOSITORY
from sqlalchemy.engine import Connection
from sqlalchemy.schema import CreateIndex, CreateTable

from treehammer.errors import ConfigError, MeasurementFileError, StoreError
from treehammer.hctests.definition.judged_metrics import ExpectTable
from treehammer.hctests.definition.toml_models import LoadTable
from treehammer.sql.core import schema
from treehammer.sql.core.campaign_plan import SCHEMA_VERSION, CampaignPlan, PlannedDefinition
from treehammer.sql.core.rows import CampaignRow
from treehammer.sql.core.schema import metadata
from treehammer.sql.engine.database_setup import MIGRATIONS_FOLDER
from treehammer.sql.read import (
    campaign_counts,
    campaign_queries,
    overview_queries,
    stored_comparisons,
)
from treehammer.sql.read.campaign_queries import load_plans_with_own_metrics, load_sequential_plans
from treehammer.sql.read.query_model import (
    Condition,
    FigureQuery,
    Selection,
    intersect_conditions,
    parse_alternatives,
)
from treehammer.sql.transfer.arrow_stream import companion_schema
from treehammer.sql.transfer.measurement_files import parse_rows
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


#: Plan of each version as it stored them, shortened; tests/unit/sql/released has whole databases.
PLANS = {
    "0.1.0": {
        "breaker": "off",
        "definition": {
            "axes": {"branches": [1.0], "root": ["6.38.00", "6.40.00"]},
            "bundle": ["root"],
            "dataset": "reference-small",
            "metrics": {"hits": {"better": "", "description": "", "unit": "1"}},
            "name": "ttree-read",
            "wall_limit_s": 600,
        },
        "sites": ["local"],
        "templates": {"local": "local.job.j2 3238ca3a62fe"},
    },
    "0.2.0": {
        "definition": {
            "axes": {"cache_mb": [0, 2.5], "prefetch": [True, False], "root": ["6.38.00"]},
            "before": None,
            "headline": [],
            "include": [{"cache_mb": 30}],
            "load": {"ceiling": {"clients": 100, "opens_per_s": 200.0}, "ramp": ""},
            "metrics": {"hits": {"exact": True, "unit": "1"}},
            "seed": 2**62,
            "settings": {"timeout_s": 30, "steps": [1, 1.0, None, {"deep": []}]},
            "twins": {"rntuple": "reference-small-rntuple"},
        },
        "excluded": {"SITE_B": "power cut"},
        "from": ["SITE_A"],
        "sites": ["SITE_A", "SITE_B"],
        "watch": [{"hash": "h", "settings": {}, "sites": ["DISK1"], "test": "server-watch"}],
    },
    "0.3.0": {
        "definition": {"axes": {"root": ["6.40.00"]}, "headline": ["open_p99_s"], "later": 1},
        "estimate": {"cpu_s": None, "read_bytes": 55_000_000_000, "wall_s": 25200.5},
        "included": {"SITE_A:root": "probe only"},
        "schema_version": SCHEMA_VERSION,
        "sites": ["SITE_A"],
        "submitter": "alice",
        "until_decided": {"checksums": "c0ffee", "delta": 0.02, "looks": [5, 10]},
    },
    # What a change after the last release adds to plans.
    "Unreleased": {"schema_version": SCHEMA_VERSION, "sites": ["local"]},
}


def list_columns(plan: CampaignPlan) -> tuple[bool, bool, str, str]:
    return plan.has_own_metrics, plan.is_sequential, plan.axes, plan.submitter


def test_plan_of_every_version_is_read_and_kept() -> None:
    changelog = (REPOSITORY / "CHANGELOG.md").read_text(encoding="utf-8")
    assert {*re.findall(r"^## \[(.+?)\]", changelog, re.MULTILINE)} == {*PLANS}
    columns = {}
    for version, document in PLANS.items():
        text = json.dumps(document, sort_keys=True)
        plan = CampaignPlan.from_json(text)
        assert plan.to_json() == text
        assert plan == CampaignPlan.from_json(plan.to_json())
        columns[version] = list_columns(plan)
    assert columns == {
        "0.1.0": (False, False, "root", ""),
        "0.2.0": (True, False, "cache_mb prefetch", ""),
        "0.3.0": (True, True, "", "alice"),
        "Unreleased": (False, False, "", ""),
    }


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{}{}", "not JSON"),
        ("[]", "the document: input should be a valid dictionary"),
        ('{"sites": "A"}', "sites: input should be a valid list"),
        ('{"definition": {"axes": {"root": [null]}}}', "definition.axes.root.0."),
        ('{"schema_version": 2}', "schema_version: 2 is newer than 1"),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_unreadable_plan_is_named_by_its_key(text: str, problem: str) -> None:
    with pytest.raises(StoreError) as caught:
        CampaignPlan.from_json(text)
    assert caught.value.message.startswith(f"cannot read a campaign's plan: {problem}")
    assert "version of Treehammer" in caught.value.hint


def test_tables_of_other_versions_are_left_out() -> None:
    limits = [{"metric": "a", "at_most": 2}, {"at_most": 1}, {"metric": "b", "later": []}]
    definition = PlannedDefinition.model_validate({"expect": limits, "load": {"later": 1}})
    assert definition.limits == [ExpectTable(metric="a", at_most=2.0)]
    assert definition.load_test is None
    load = PlannedDefinition(load={"duration_s": 9.0}).load_test
    assert load == LoadTable(duration_s=9.0)


def test_queries_select_by_columns_of_the_plan(store: Store) -> None:
    plans = {version: CampaignPlan.model_validate(plan) for version, plan in PLANS.items()}
    for number, (version, plan) in enumerate(plans.items()):
        store.add_campaign(make_campaign_row(version, plan=plan, created_us=number + 1), [])
    with store.connection() as connection:
        rows = connection.execute(schema.campaign.select()).all()
    for row in rows:
        stored = row.has_own_metrics, row.is_sequential, row.axes or "", row.submitter or ""
        assert (row.plan, stored) == (plans[row.id], list_columns(plans[row.id]))
    own = load_plans_with_own_metrics(store)
    assert own == [(version, plans[version]) for version in ("0.3.0", "0.2.0")]
    sequential = load_sequential_plans(store, plans)
    assert sequential == {"0.3.0": plans["0.3.0"].until_decided}
    for site in ("SITE_A", "SITE_B"):
        store.include_sites("0.2.0", {site: "forced"})
    plan = plans["0.2.0"].replace(included={"SITE_A": "forced", "SITE_B": "forced"})
    assert store.campaign("0.2.0") == replace(make_campaign_row("0.2.0", created_us=2), plan=plan)


def test_foreign_plan_of_an_imported_file_is_named() -> None:
    row = {**vars(make_campaign_row()), "plan": '{"schema_version": 9}'}
    batch = pa.RecordBatch.from_pylist([row], schema=companion_schema("campaign"))
    with pytest.raises(MeasurementFileError) as caught:
        parse_rows(CampaignRow, batch)
    assert caught.value.message.startswith("row 1 of table campaign: cannot read a campaign's plan")
    assert "schema_version: 9 is newer" in caught.value.message
    assert "later one" in caught.value.hint
