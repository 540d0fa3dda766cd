"""Fictitious schema revision after the current one, standing in for the next version's."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from treehammer.sql.engine import database_setup
from treehammer.sql.engine.database_engine import alter_transaction, make_engine, parse_url

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
    engine = make_engine(parse_url(url))
    with alter_transaction(engine) as connection:
        database_setup.migrate_to(connection, database_setup.REVISION)
    engine.dispose()
