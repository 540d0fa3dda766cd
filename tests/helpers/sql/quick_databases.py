"""Databases of tests: created quickly, without compiling statements again, or of the next version."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import URL, Dialect, Engine
from sqlalchemy.util import LRUCache

from treehammer.program_output import create_private_file
from treehammer.sql.engine import database_setup
from treehammer.sql.engine.backend import Backend, SQLiteBackend
from treehammer.sql.engine.database_engine import alter_transaction, make_engine, parse_url

_MAX_STATEMENTS = 2000


@pytest.fixture(scope="session", autouse=True)
def quick_databases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Copy new databases, share their compiled statements, and never wait for the disk."""
    template = tmp_path_factory.mktemp("template") / "empty.db"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Backend, "create_engine", _share_statements(Backend.create_engine))
        database_setup.open_engine(f"sqlite:///{template}", create=True).dispose()
        create_copy = _copy_template(database_setup._create_file, template.read_bytes())
        patch.setattr(database_setup, "_create_file", create_copy)
        yield


def _share_statements(create_engine: Any) -> Any:
    """Give all engines of a backend one dialect, part of a statement's key, and one cache."""
    dialects: dict[type[Backend], Dialect] = {}
    caches: dict[type[Backend], LRUCache[Any, Any]] = {}

    def create_sharing_engine(self: Backend, url: URL) -> Engine:
        engine: Engine = create_engine(self, url)
        shared = dialects.setdefault(type(self), engine.dialect)
        if shared.server_version_info:  # its first connection has completed it
            engine.dialect = shared
        cache = caches.setdefault(type(self), LRUCache(_MAX_STATEMENTS))
        engine.update_execution_options(compiled_cache=cache)
        if isinstance(self, SQLiteBackend):
            sa.event.listen(engine, "connect", _skip_disk)
        return engine

    return create_sharing_engine


def _skip_disk(connection: Any, _record: object) -> None:
    connection.execute("PRAGMA synchronous=OFF")  # no test cuts the power


def _copy_template(create_file: Any, template: bytes) -> Any:
    """Create each database as a copy, of which others never see a part."""

    def create_copy(file: Path) -> None:
        if file.is_absolute():  # not a URI
            draft = file.with_name(f"{file.name}.{threading.get_ident()}.draft")
            with suppress(OSError):
                with open(create_private_file(draft), "wb") as stream:
                    stream.write(template)
                os.link(draft, file)
            with suppress(OSError):
                draft.unlink()
        create_file(file)  # finds the copy, or reports why there is none

    return create_copy


NEXT_REVISION = f"""
import sqlalchemy as sa
from alembic import op

from treehammer.sql.core.column_types import StoredText

revision = "9999"
down_revision = "{database_setup.REVISION}"
branch_labels = None
depends_on = None


def upgrade():
    with op.batch_alter_table("measurement") as batch:
        batch.alter_column("kind", existing_type=StoredText(64), type_=StoredText(128))
        batch.add_column(sa.Column("later", sa.BigInteger()))
    op.create_index("ix_measurement_later", "measurement", ["later"])
    op.execute("UPDATE measurement SET later = 1")
"""


@pytest.fixture
def next_revision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make this process require one more revision; return that revision's file."""
    folder = tmp_path / "mi%grations"
    shutil.copytree(
        database_setup.MIGRATIONS_FOLDER, folder, ignore=shutil.ignore_patterns("__pycache__")
    )
    file = folder / "versions" / "9999_next.py"
    file.write_text(NEXT_REVISION)
    monkeypatch.setattr(database_setup, "MIGRATIONS_FOLDER", folder)
    monkeypatch.setattr(database_setup, "REVISION", "9999")
    return file


def run_migrations(url: str) -> None:
    """Migrate an empty database to the current revision through all migrations."""
    create_revision(url, database_setup.REVISION)


def create_revision(url: str, revision: str) -> None:
    """Migrate an empty database to a revision."""
    engine = make_engine(parse_url(url))
    with alter_transaction(engine) as connection:
        database_setup.migrate_to(connection, revision)
    engine.dispose()
