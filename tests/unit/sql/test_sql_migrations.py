"""Migrations lead to the current schema, and unusable databases are refused with a remedy."""

from __future__ import annotations

import resource
import signal
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from measurement_factory import make_measurement
from quick_databases import NEXT_REVISION, next_revision, run_migrations  # noqa: F401 - a fixture
from sqlalchemy.dialects import oracle, postgresql
from sqlalchemy.schema import CreateIndex, CreateTable

from treehammer.collectors.record.metric_catalogue import CATALOGUE
from treehammer.errors import NothingToDoError, StoreError
from treehammer.sql.core.measurement_columns import ALL_COLUMNS, DIMENSIONS, PACKED_COLUMNS
from treehammer.sql.core.schema import metadata
from treehammer.sql.engine import database_setup
from treehammer.sql.engine.database_setup import upgrade_database
from treehammer.sql.read.query_model import Selection
from treehammer.sql.write.maintenance import check_database
from treehammer.sql.write.store import Store

ORACLE_NAME = 30
HEAD = database_setup.REVISION


@pytest.fixture
def engine(url: str) -> Iterator[sa.Engine]:
    Store.open(url).close()
    engine = sa.create_engine(url)
    yield engine
    engine.dispose()


@pytest.fixture
def old_engine(tmp_path: Path) -> Iterator[sa.Engine]:
    """Create a database through all migrations."""
    url = f"sqlite:///{tmp_path / 'history.db'}"
    run_migrations(url)
    engine = sa.create_engine(url)
    yield engine
    engine.dispose()


def test_migrations_match_the_schema(engine: sa.Engine, old_engine: sa.Engine) -> None:
    for one in (engine, old_engine):
        with one.connect() as connection:
            context = MigrationContext.configure(connection, opts={"compare_type": True})
            assert compare_metadata(context, metadata) == []
        assert database_setup.read_schema_state(one) is database_setup.SchemaState.CURRENT
    assert (
        ScriptDirectory.from_config(database_setup.alembic_config()).get_current_head()
        == database_setup.REVISION
    )
    new, old = (described(one) for one in (engine, old_engine))
    assert new == old


def described(engine: sa.Engine) -> dict[str, object]:
    """Reflect the schema of a database, ignoring the order of columns."""
    inspector = sa.inspect(engine)
    return {
        table: (
            {c["name"]: (str(c["type"]), c["nullable"]) for c in inspector.get_columns(table)},
            inspector.get_pk_constraint(table),
            sorted(inspector.get_foreign_keys(table), key=lambda key: str(key["name"])),
            sorted(inspector.get_indexes(table), key=lambda index: str(index["name"])),
        )
        for table in inspector.get_table_names()
    }


def test_schema_comparison_detects_changes(engine: sa.Engine) -> None:
    with engine.begin() as connection:
        connection.execute(sa.text("ALTER TABLE job ADD COLUMN more BIGINT"))
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert len(compare_metadata(context, metadata)) == 1


def test_catalogue_columns_are_stored_once(engine: sa.Engine) -> None:
    inspector = sa.inspect(engine)
    places = [
        column["name"]
        for table in ("measurement", *(dimension.name for dimension in DIMENSIONS))
        for column in inspector.get_columns(table)
    ]
    keys = [dimension.key for dimension in DIMENSIONS]
    others = ["passes", *keys, *("id" for _ in DIMENSIONS)]
    assert sorted([*places, *PACKED_COLUMNS]) == sorted([*ALL_COLUMNS, *others])
    assert {metric.name for metric in CATALOGUE if metric.type == "floats"} == set(PACKED_COLUMNS)


def test_names_fit_oracle_limit(engine: sa.Engine) -> None:
    inspector = sa.inspect(engine)
    names: list[str | None] = []
    for table in inspector.get_table_names():
        names.append(table)
        names += [column["name"] for column in inspector.get_columns(table)]
        if table == "alembic_version":
            continue
        names.append(inspector.get_pk_constraint(table)["name"])
        for found in (
            inspector.get_foreign_keys(table),
            inspector.get_indexes(table),
            inspector.get_unique_constraints(table),
            inspector.get_check_constraints(table),
        ):
            names += [item["name"] for item in found]
    assert len(names) > len(CATALOGUE)
    assert all(name and len(name) <= ORACLE_NAME for name in names)


@pytest.mark.parametrize("dialect", [postgresql.dialect(), oracle.dialect()])  # type: ignore[no-untyped-call]  # SQLAlchemy has no types for them
def test_schema_compiles_for_other_databases(dialect: sa.Dialect) -> None:
    statements = [str(CreateTable(t).compile(dialect=dialect)) for t in metadata.sorted_tables]
    statements += [
        str(CreateIndex(i).compile(dialect=dialect))
        for t in metadata.tables.values()
        for i in t.indexes
    ]
    text = "\n".join(statements)
    assert ("VARCHAR2(4000 BYTE)" in text) == (dialect.name == "oracle")
    assert ("BINARY_DOUBLE" in text) == (dialect.name == "oracle")


@pytest.mark.parametrize(
    ("query", "index"),
    [
        (
            "SELECT subject_id, kind, failure_class, plausible, count(*) FROM measurement "
            "WHERE campaign_id = 'c' GROUP BY 1, 2, 3, 4",
            "ix_measurement_counts",
        ),
        (
            "SELECT subject_id, avg(eff_job) FROM measurement WHERE day = 20260101 AND plausible "
            "AND kind = 'timed' GROUP BY 1",
            "ix_measurement_day",
        ),
        (
            "SELECT started_us, cpu_per_event_s FROM measurement WHERE subject_id IN "
            "(SELECT id FROM subject WHERE series = 's') AND plausible AND failure_class IS NULL",
            "ix_measurement_subject",
        ),
    ],
)
def test_common_queries_use_covering_index(engine: sa.Engine, query: str, index: str) -> None:
    with engine.connect() as connection:
        plan = str(connection.execute(sa.text(f"EXPLAIN QUERY PLAN {query}")).all())
    assert f"COVERING INDEX {index}" in plan


def test_listings_need_no_sorting(engine: sa.Engine) -> None:
    query = (
        "SELECT * FROM measurement WHERE campaign_id = 'c' "
        "ORDER BY campaign_id, job_id, attempt, round, position, measurement_id"
    )
    with engine.connect() as connection:
        plan = str(connection.execute(sa.text(f"EXPLAIN QUERY PLAN {query}")).all())
    assert "TEMP B-TREE" not in plan


def test_older_database_names_upgrade_command(
    url: str, engine: sa.Engine, request: pytest.FixtureRequest
) -> None:
    request.getfixturevalue("next_revision")
    with pytest.raises(StoreError, match="treehammer db upgrade"):
        Store.open(url)


def test_upgrade_keeps_rows_and_backup(url: str, request: pytest.FixtureRequest) -> None:
    with Store.open(url) as store:
        store.add([make_measurement(extras={"hits": 1})])
        before = list(store.measurements(Selection()))
    request.getfixturevalue("next_revision")
    backup = upgrade_database(url)
    assert upgrade_database(url) is None
    assert backup is not None
    for file in (Path(url.removeprefix("sqlite:///")), backup):
        connection = sqlite3.connect(file)
        assert connection.execute("SELECT count(*) FROM extra").fetchone() == (1,)
        columns = [row[1] for row in connection.execute("PRAGMA table_info(measurement)")]
        assert ("later" in columns) == (file != backup)
        connection.close()
    with Store.open(url) as store:
        assert list(store.measurements(Selection())) == before
    assert check_database(url)["measurement"] == 1


def test_backup_has_permissions_of_database(
    url: str, engine: sa.Engine, request: pytest.FixtureRequest
) -> None:
    file = Path(url.removeprefix("sqlite:///"))
    file.chmod(0o600)
    request.getfixturevalue("next_revision")
    backup = upgrade_database(url)
    assert backup is not None
    assert backup.stat().st_mode & 0o777 == 0o600


def test_incomplete_backup_is_deleted(
    url: str, engine: sa.Engine, request: pytest.FixtureRequest
) -> None:
    request.getfixturevalue("next_revision")
    file = Path(url.removeprefix("sqlite:///"))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, limits[1]))
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        with pytest.raises(StoreError):
            upgrade_database(url)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
    assert not list(file.parent.glob("*.bak*"))


def test_failed_upgrade_changes_nothing(
    url: str,
    engine: sa.Engine,
    next_revision: Path,  # noqa: F811
) -> None:
    next_revision.write_text(NEXT_REVISION + '    op.execute("SELECT * FROM no_such_table")\n')
    with pytest.raises(StoreError, match="no_such_table"):
        upgrade_database(url)
    inspector = sa.inspect(engine)
    assert "later" not in [column["name"] for column in inspector.get_columns("measurement")]
    assert not [t for t in inspector.get_table_names() if t.startswith("_alembic_tmp")]
    with engine.connect() as connection:
        version = connection.execute(sa.text("SELECT version_num FROM alembic_version")).scalar()
    assert version == HEAD


def test_newer_database_is_refused(url: str, engine: sa.Engine) -> None:
    with engine.begin() as connection:
        connection.execute(sa.text("UPDATE alembic_version SET version_num = '0099'"))
    for act in (Store.open, upgrade_database, check_database):
        with pytest.raises(StoreError, match="newer Treehammer"):
            act(url)


def test_upgrade_requires_database(url: str) -> None:
    with pytest.raises(NothingToDoError):
        upgrade_database(url)
