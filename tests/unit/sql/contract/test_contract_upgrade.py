"""Databases of released versions: their migrations stay as released, and upgrade them without a loss.

``released/VERSION.sql.xz`` is the dump of an SQLite database that this version wrote: real campaigns and
a load test, and rows in every other table. docs/decisions/0066-released-databases.md has the rules.
"""

from __future__ import annotations

import hashlib
import lzma
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
import sqlalchemy as sa
from quick_databases import create_revision
from store_helpers import describe_schema, kill_during, opened_plainly

from treehammer.sql.core import schema
from treehammer.sql.core.column_types import DocumentText, LongText, NumberList
from treehammer.sql.engine.database_engine import alter_transaction, read_transaction
from treehammer.sql.engine.database_setup import (
    MIGRATIONS_FOLDER,
    REVISION,
    SchemaState,
    load_schema_state,
    upgrade_database,
)
from treehammer.sql.write.maintenance import check_database

RELEASED_FOLDER = Path(__file__).parents[1] / "released"
RELEASED_VERSIONS = sorted(path.name.removesuffix(".sql.xz") for path in RELEASED_FOLDER.iterdir())
#: Migrations that a released version contains, with the SHA-256 of their files.
RELEASED_MIGRATIONS = {
    "0001_first_release.py": "9523898a87e1b962760ca13730edb6f0b3a22e0a56b0147742296f7f0382158c",
    "0002_release_0_3.py": "281b51eee5b54d3c9f4625addbc2aff5d4329a36fccc54d66f842e3f8e86b55b",
}
#: Types that read the content of a column; the stored text is compared instead.
_DOCUMENTS = (DocumentText, NumberList)
#: Plans of further campaigns, whose columns the upgrade fills.
FURTHER_PLANS = {
    "exact": '{"definition": {"metrics": {"hits": {"exact": true}}}, "submitter": "alice"}',
    "headline": '{"definition": {"headline": ["cpu_s"], "axes": {"b": [1, 2], "a": [1, 2]}}}',
    "sequential": '{"until_decided": {"delta": 0.02, "looks": [5, 10]}}',
}
KILLS = 1
FLAGS = {
    "3b32b5a4de426133367686a1": [("recorded", "eff_job is 1.2; bytes_read is negative")],
    "7f1110ff4a38b84578f1ff3a": [
        ("recorded", "eff_job is 1.2; bytes_read is negative"),
        ("bad replica", "adler32 differs; size is 3"),
        ("quarantined", "wrong clock"),
    ],
    "f7158ba74ef0fcd02c448b7d": [("bad replica", "adler32 differs; size is 3")],
    "ddf0d6150a755416dd4a7e83": [("quarantined", "wrong clock")],
    "4b819d7a5e1f32dbb009d433": [("quarantined", "wrong clock")],
    "839fb6180d403e462ee50497": [("quarantined", "wrong clock")],
    "3df8e35cc173e15b4c6c073a": [("quarantined", "wrong clock")],
}


@contextmanager
def released_database(version: str) -> Iterator[sqlite3.Connection]:
    """Restore the dump of a released version in memory."""
    dump = lzma.decompress((RELEASED_FOLDER / f"{version}.sql.xz").read_bytes())
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.row_factory = sqlite3.Row
        connection.executescript(dump.decode())
        yield connection


def read_released_rows(version: str) -> dict[str, list[dict[str, Any]]]:
    """Read the rows of a released version's database by table."""
    with released_database(version) as connection:
        tables = [
            name
            for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            if name != "alembic_version"
        ]
        return {
            table: [dict(row) for row in connection.execute(f'SELECT * FROM "{table}"')]
            for table in tables
        }


def fill_released_database(url: str, version: str) -> dict[str, list[dict[str, Any]]]:
    """Create a database of a released version on any backend; return its rows."""
    rows_by_table = read_released_rows(version)
    campaigns = rows_by_table["campaign"]
    if version < "0.3.0":  # which stored them in these columns itself
        campaigns += [
            {**campaigns[0], "id": name, "plan": plan} for name, plan in FURTHER_PLANS.items()
        ]
    create_revision(url, version)
    with opened_plainly(url) as engine, alter_transaction(engine) as connection:
        for table in schema.metadata.sorted_tables:
            if rows := rows_by_table.get(table.name):
                connection.execute(sa.insert(select_columns(table, rows[0])), rows)
    return rows_by_table


def select_columns(table: sa.Table, row: dict[str, Any]) -> sa.TableClause:
    """Return the table with the columns of a row, whose evidence and packed values stay as stored."""
    return sa.table(
        table.name,
        *(
            sa.column(name, LongText() if isinstance(column.type, _DOCUMENTS) else column.type)
            for column in table.columns
            if (name := column.name) in row
        ),
    )


@pytest.mark.parametrize("version", RELEASED_VERSIONS)
def test_released_database_upgrades(url: str, version: str) -> None:
    released = fill_released_database(url, version)
    upgrade_database(url, backed_up=True)
    assert all(released.values()), "every table of the release has rows"
    check_rows(url, released)


@pytest.mark.backends("sqlite", "postgresql")
def test_killed_upgrade_leaves_the_release_or_the_current_version(url: str) -> None:
    """What is left upgrades, with every row."""
    version = max(version for version in RELEASED_VERSIONS if version != REVISION)
    released, random = fill_released_database(url, version), Random(1)
    began = time.monotonic()
    upgrade_database(url)
    duration_s = time.monotonic() - began
    for _ in range(KILLS):
        drop_everything(url)
        fill_released_database(url, version)
        kill_during(lambda: upgrade_database(url), random.uniform(0, 1.3 * duration_s))
        with opened_plainly(url) as engine:
            state = load_schema_state(engine)
        assert state in (SchemaState.OLDER, SchemaState.CURRENT)
        upgrade_database(url)
        check_rows(url, released)


def drop_everything(url: str) -> None:
    with opened_plainly(url) as engine:
        metadata = sa.MetaData()
        metadata.reflect(engine)
        metadata.drop_all(engine)


def check_rows(url: str, released: dict[str, list[dict[str, Any]]]) -> None:
    """Compare the rows of a released database with those of the upgraded one, and read all."""
    counts = check_database(url)
    with opened_plainly(url) as engine, read_transaction(engine) as connection:
        for name, rows in released.items():
            assert counts[name] == len(rows)
            columns = select_columns(schema.metadata.tables[name], rows[0])
            stored = connection.execute(sa.select(columns)).mappings()
            names = {column.name for column in columns.columns}
            remaining = [{key: row[key] for key in names} for row in rows]
            assert sort_rows(stored) == sort_rows(remaining), name
        for table in schema.metadata.sorted_tables:
            connection.execute(sa.select(table)).all()  # reads evidence and packed values
        for row in connection.execute(sa.select(schema.campaign)):
            for name in ("has_own_metrics", "is_sequential", "axes", "submitter"):
                assert (getattr(row, name) or "") == (getattr(row.plan, name) or ""), row.id
        flags = connection.execute(
            sa.select(schema.quality_flag).order_by(schema.quality_flag.c.set_us)
        ).all()
    reasons: dict[str, list[tuple[str, str]]] = {}
    for flag in flags:
        reasons.setdefault(flag.measurement_id, []).append((flag.kind, flag.reason))
    assert reasons == FLAGS


def sort_rows(rows: Any) -> list[list[str]]:
    """Sort rows in a form in which backends do not differ: truth values are 0 and 1."""
    return sorted(
        [str(int(row[name]) if isinstance(row[name], bool) else row[name]) for name in sorted(row)]
        for row in rows
    )


@pytest.mark.parametrize("version", RELEASED_VERSIONS)
@pytest.mark.backends("sqlite")
def test_migrations_give_the_released_schema(tmp_path: Path, version: str) -> None:
    """The revision of a release creates what the release itself created."""
    released, created = tmp_path / "released.db", tmp_path / "created.db"
    with released_database(version) as source, closing(sqlite3.connect(released)) as target:
        if version == "0.2.0":  # which had sessions that no key opened
            source.execute("UPDATE read_session SET key_id = NULL")
            source.commit()
        source.backup(target)
    create_revision(f"sqlite:///{created}", version)
    schemas = []
    for file in (released, created):
        with opened_plainly(f"sqlite:///{file}") as engine:
            schemas.append(describe_schema(engine))
    assert schemas[0] == schemas[1]


def test_released_migrations_are_never_edited() -> None:
    versions = MIGRATIONS_FOLDER / "versions"
    for name, digest in RELEASED_MIGRATIONS.items():
        assert hashlib.sha256((versions / name).read_bytes()).hexdigest() == digest, name


def test_every_released_version_has_a_database() -> None:
    """The changelog names the released versions; 0.1.0 was never published."""
    changelog = (Path(__file__).parents[4] / "CHANGELOG.md").read_text()
    released = [
        line.split("]")[0][4:] for line in changelog.splitlines() if line.startswith("## [")
    ]
    assert set(released) - {"Unreleased", "0.1.0"} == set(RELEASED_VERSIONS)
    assert REVISION not in RELEASED_VERSIONS or max(RELEASED_VERSIONS) == REVISION
