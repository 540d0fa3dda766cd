"""Schema revisions: detection, creation and upgrade of a database's schema."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from treehammer.errors import ConfigError, StoreError
from treehammer.private_files import create_private_file
from treehammer.sql.core.schema import metadata
from treehammer.sql.engine.backends import backend_of
from treehammer.sql.engine.database_engine import alter_transaction, read_transaction
from treehammer.sql.engine.database_errors import display_url, sqlite_path, translate_errors
from treehammer.sql.setup.schema_check import (
    create_missing_indexes,
    find_missing_indexes,
    require_complete_schema,
)

if TYPE_CHECKING:
    from alembic.config import Config

#: The revision that :mod:`treehammer.sql.core.schema` describes.
REVISION = "0.2.0"
MIGRATIONS_FOLDER = Path(__file__).parent / "migrations"
UPGRADE_COMMAND = "treehammer db upgrade"


# Alembic's own table of the revision.
_VERSION_TABLE = sa.Table(
    "alembic_version",
    sa.MetaData(),
    sa.Column("version_num", sa.String(32), nullable=False),
    sa.PrimaryKeyConstraint("version_num", name="alembic_version_pkc"),
)


class SchemaState(Enum):
    """State of a database's schema relative to this version."""

    EMPTY = "empty"
    CURRENT = "current"
    OLDER = "older"
    NEWER = "newer"
    UNVERSIONED = "unmarked"
    FOREIGN = "foreign"


def read_revision(engine: Engine) -> str:
    """Read the revision of a database; '' if it has none."""
    with read_transaction(engine) as connection:
        return _fetch_revision(connection)


def read_schema_state(engine: Engine) -> SchemaState:
    """Compare a database's schema with this version."""
    with read_transaction(engine) as connection:
        return _detect_state(connection)


def require_current_schema(engine: Engine) -> None:
    """Refuse a database that this version cannot use.

    Raises:
        StoreError: it is older, newer, or not Treehammer's; the message gives the remedy.
    """
    state = read_schema_state(engine)
    where = display_url(engine.url)
    if state is SchemaState.OLDER:
        raise StoreError(
            f"the database is at revision {read_revision(engine)}; this version needs {REVISION}",
            where=where,
            hint=f"Run: {UPGRADE_COMMAND}",
        )
    if state is SchemaState.NEWER:
        raise StoreError(
            f"the database is at revision {read_revision(engine)}, which this version does not know",
            where=where,
            hint="A newer Treehammer has written it: install that version or a later one.",
        )
    if state is SchemaState.UNVERSIONED:
        raise StoreError(
            "tables of Treehammer's are here, but not the revision that they are at",
            where=where,
            hint="A backup is being restored, or was restored without the table alembic_version: "
            "restore all of it. Nothing was changed.",
        )
    if state is SchemaState.FOREIGN:
        raise StoreError(
            "this database holds something other than Treehammer's results",
            where=where,
            hint="Give another with --database.",
        )


def create_schema(engine: Engine) -> None:
    """Create the tables in an empty database; does nothing if another process did."""
    with alter_transaction(engine) as connection:
        if _detect_state(connection) is SchemaState.EMPTY:
            _drop_tables(connection)
            _create_tables(connection)


def upgrade_schema(engine: Engine, *, backed_up: bool = False) -> Path | None:
    """Upgrade an older database to this version's revision.

    Args:
        engine: engine of the database.
        backed_up: confirms a backup; required where changes cannot be undone.

    Returns:
        the backup made before the upgrade (SQLite only), or None.

    Raises:
        ConfigError: changes cannot be undone, and ``backed_up`` is not set.
        StoreError: the database is newer, not Treehammer's, or refused the upgrade. It is
            unchanged unless the message states otherwise.
    """
    state = read_schema_state(engine)
    if state is SchemaState.EMPTY:
        create_schema(engine)
        return None
    if state is not SchemaState.OLDER:
        require_current_schema(engine)
        _create_missing_parts(engine)
        return None
    if not backend_of(engine).transactional_ddl:
        _upgrade_irreversibly(engine, backed_up=backed_up)
        return None
    backup = _back_up(engine)
    with alter_transaction(engine) as connection:
        migrate_to(connection, REVISION)
        create_missing_indexes(connection)  # an error undoes the upgrade
    return backup


def _create_missing_parts(engine: Engine) -> None:
    with read_transaction(engine) as connection:
        lacking = find_missing_indexes(backend_of(engine).read_layout(connection))
        if not lacking:
            require_complete_schema(connection)
            return
    with alter_transaction(engine) as connection:
        create_missing_indexes(connection)


def _upgrade_irreversibly(engine: Engine, *, backed_up: bool) -> None:
    if not backed_up:
        raise ConfigError(
            "this database cannot undo changes of its tables, should the upgrade fail",
            where=display_url(engine.url),
            hint="Stop all writers, make a backup (on Oracle: expdp USER SCHEMAS=USER "
            f"DUMPFILE=results.dmp), and run: {UPGRADE_COMMAND} --backed-up",
        )
    try:
        with alter_transaction(engine) as connection:
            migrate_to(connection, REVISION)
            create_missing_indexes(connection)
    except StoreError as error:
        advice = f"Changes so far are kept. Then run again: {UPGRADE_COMMAND} --backed-up"
        raise StoreError(
            error.message, where=error.where, hint=f"{error.hint} {advice}".strip()
        ) from error


def _fetch_revision(connection: Connection) -> str:
    if not sa.inspect(connection).has_table("alembic_version"):
        return ""
    return connection.scalar(sa.select(_VERSION_TABLE.c.version_num)) or ""


def _detect_state(connection: Connection) -> SchemaState:
    revision = _fetch_revision(connection)
    if revision == REVISION:
        return SchemaState.CURRENT
    if not revision:
        return _classify_unversioned(connection)
    return SchemaState.OLDER if revision in _known_revisions() else SchemaState.NEWER


def _classify_unversioned(connection: Connection) -> SchemaState:
    """Classify a database without a revision.

    Only tables left by an interrupted creation are ever dropped, where DDL cannot be undone. The
    revision is written last, so these tables never contain rows.
    """
    backend = backend_of(connection.engine)
    existing_tables = set(sa.inspect(connection).get_table_names())
    result_tables = existing_tables - backend.auxiliary_tables
    if not result_tables:
        return SchemaState.EMPTY
    if not result_tables <= {*metadata.tables, _VERSION_TABLE.name}:
        return SchemaState.FOREIGN
    was_begun = not backend.transactional_ddl and backend.auxiliary_tables <= existing_tables
    if was_begun and not any(_has_rows(connection, name) for name in result_tables):
        return SchemaState.EMPTY
    return SchemaState.UNVERSIONED


def _has_rows(connection: Connection, table: str) -> bool:
    any_row = sa.select(sa.literal(1)).select_from(sa.table(table)).limit(1)
    return connection.execute(any_row).first() is not None


def alembic_config() -> Config:
    """Build Alembic's configuration without a file."""
    # Importing Alembic takes a quarter of a second.
    from alembic.config import Config

    configured = Config()
    configured.set_main_option("script_location", str(MIGRATIONS_FOLDER).replace("%", "%%"))
    return configured


def _known_revisions() -> set[str]:
    from alembic.script import ScriptDirectory

    return {
        script.revision for script in ScriptDirectory.from_config(alembic_config()).walk_revisions()
    }


def _create_tables(connection: Connection) -> None:
    # Directly, without migrations; a test proves that both give the same schema.
    metadata.create_all(connection)
    _VERSION_TABLE.create(connection)
    connection.execute(sa.insert(_VERSION_TABLE).values(version_num=REVISION))


def migrate_to(connection: Connection, target: str) -> None:
    """Run migrations up to a revision inside the transaction of ``connection``."""
    from alembic import command

    configured = alembic_config()
    configured.attributes["connection"] = connection
    command.upgrade(configured, target)


def _drop_tables(connection: Connection) -> None:
    left = sa.inspect(connection).get_table_names()
    for table in reversed(metadata.sorted_tables):
        if table.name in left:
            table.drop(connection)
    if "alembic_version" in left:
        _VERSION_TABLE.drop(connection)


def _back_up(engine: Engine) -> Path | None:
    file = sqlite_path(engine.url)
    if file is None:
        return None
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    backup = file.with_name(f"{file.name}.{read_revision(engine)}.{stamp}.bak")
    try:
        # The backup gets the permissions of the database.
        os.close(create_private_file(backup))
        backup.chmod(file.stat().st_mode & 0o777)
        with (
            translate_errors(engine.url),
            closing(sqlite3.connect(file)) as source,
            closing(sqlite3.connect(backup)) as target,
        ):
            source.backup(target)
    except OSError as error:
        raise StoreError(
            f"the backup cannot be made ({error.strerror})",
            where=str(backup),
            hint="Nothing was changed. Make the folder writable.",
        ) from error
    except BaseException:
        backup.unlink(missing_ok=True)  # it is incomplete
        raise
    return backup
