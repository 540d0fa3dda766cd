"""Opening of a results database: creation, check and upgrade of its schema.

The revision only records changes by Treehammer; the check of tables, columns, keys and indexes also
detects changes by others.
"""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.engine import URL, Connection, Engine

from treehammer.errors import ConfigError, NothingToDoError, StoreError
from treehammer.program_output import create_private_file, replace_file
from treehammer.sql.core.schema import measurement, metadata
from treehammer.sql.engine.backend import (
    TableLayout,
    build_store_error,
    display_url,
    sqlite_path,
    translate_errors,
)
from treehammer.sql.engine.database_engine import (
    alter_transaction,
    backend_of,
    disposing,
    enable_wal,
    make_engine,
    parse_url,
    read_transaction,
    require_usable_server,
)

#: Number of missing items that a message names.
MAX_LISTED = 10
#: The revision that :mod:`treehammer.sql.core.schema` describes.
REVISION = "0.4.0"
MIGRATIONS_FOLDER = Path(__file__).parents[1] / "migrations"
UPGRADE_COMMAND = "treehammer db upgrade"
_SCHEMA_HINT = (
    " In a schema of its own on PostgreSQL, it needs ALTER ROLE USER SET search_path = NAME and "
    "GRANT USAGE ON SCHEMA NAME TO USER."
)
# Codes of SQLite by which the source of a copy fails, not its target.
_SOURCE_ERRORS = re.compile("CORRUPT|NOTADB|BUSY|_READ$|_SHM")
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


def open_engine(url: str, *, create: bool) -> Engine:
    """Create the engine of a database with the current schema; see :meth:`.Store.open`."""
    engine = _make_engine(url, create=create)
    try:
        require_usable_server(engine)
        state = load_schema_state(engine)
        if state is SchemaState.EMPTY:
            if not create:
                raise _build_no_results_error(engine.url)
            enable_wal(engine)
            create_schema(engine)
        if state is not SchemaState.CURRENT:
            require_current_schema(engine)
    except BaseException:
        engine.dispose()
        raise
    return engine


@contextmanager
def opened_engine(url: str, *, create: bool) -> Iterator[Engine]:
    """Open the engine of a database as :func:`open_engine`, and dispose of it at the end."""
    with disposing(open_engine(url, create=create)) as engine:
        yield engine


def upgrade_database(url: str, *, backed_up: bool = False) -> Path | None:
    """Upgrade a database to this version's schema; return the backup of an SQLite file.

    Args:
        url: URL of the database.
        backed_up: confirms a backup; required where changes of tables cannot be undone.

    Raises:
        ConfigError: changes cannot be undone, and ``backed_up`` is not set.
        NothingToDoError: no database exists.
        StoreError: the database is newer, not Treehammer's, or refused the upgrade. It is unchanged
            unless the message states otherwise.
    """
    with disposing(_make_engine(url, create=False)) as engine:
        require_usable_server(engine)
        return _upgrade_schema(engine, backed_up=backed_up)


def _make_engine(url: str, *, create: bool) -> Engine:
    parsed = parse_url(url)
    file = sqlite_path(parsed)
    if file and not file.exists():
        if not create:
            raise _build_no_results_error(parsed)
        _create_file(file)
    return make_engine(parsed)


def _build_no_results_error(url: URL) -> NothingToDoError:
    hint = "Run a test first (treehammer submit ttree-read --wait), or give another database with --database."
    hint += _SCHEMA_HINT if url.get_backend_name() == "postgresql" else ""
    return NothingToDoError("there are no results yet", where=display_url(url), hint=hint)


def _create_file(file: Path) -> None:
    """Create an empty database that only its owner can read; SQLite's log gets the same mode."""
    subject = "its folder"
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        subject = "it"
        with suppress(FileExistsError):  # another process made it
            os.close(create_private_file(file))
    except OSError as error:
        raise StoreError(
            f"{subject} cannot be made ({error.strerror})",
            where=str(file),
            hint="Give another place with --database or --data-dir.",
        ) from error


def load_schema_state(engine: Engine) -> SchemaState:
    """Compare a database's schema with this version."""
    with read_transaction(engine) as connection:
        return _detect_state(connection)


def require_current_schema(engine: Engine) -> None:
    """Refuse a database that this version cannot use.

    Raises:
        StoreError: it is older, newer, or not Treehammer's; the message gives the remedy.
    """
    with read_transaction(engine) as connection:
        state, revision = _detect_state(connection), _load_revision(connection)
    problems = {
        SchemaState.OLDER: (
            f"the database is at revision {revision}; this version needs {REVISION}",
            f"Run: {UPGRADE_COMMAND} (it backs up SQLite alone; for others, see its --help)",
        ),
        SchemaState.NEWER: (
            f"the database is at revision {revision}, which this version does not know",
            "A newer Treehammer has written it: install that version or a later one.",
        ),
        SchemaState.UNVERSIONED: (
            "tables of Treehammer's are here, but not the revision that they are at",
            "A backup is being restored, or was restored without the table alembic_version: "
            "restore all of it. Nothing was changed.",
        ),
        SchemaState.FOREIGN: (
            "this database holds something other than Treehammer's results",
            f"Give another with --database.{_SCHEMA_HINT}",
        ),
    }
    if state in problems:
        message, hint = problems[state]
        raise StoreError(message, where=display_url(engine.url), hint=hint)


def create_schema(engine: Engine) -> None:
    """Create the tables in an empty database; does nothing if another process did."""
    with alter_transaction(engine) as connection:
        if _detect_state(connection) is SchemaState.EMPTY:
            existing = sa.inspect(connection).get_table_names()
            for table in (_VERSION_TABLE, *reversed(metadata.sorted_tables)):
                if table.name in existing:
                    table.drop(connection)
            # Directly, without migrations; a test proves that both give the same schema.
            metadata.create_all(connection)
            _VERSION_TABLE.create(connection)
            connection.execute(sa.insert(_VERSION_TABLE).values(version_num=REVISION))


def _upgrade_schema(engine: Engine, *, backed_up: bool) -> Path | None:
    state = load_schema_state(engine)
    if state is SchemaState.EMPTY:
        create_schema(engine)
        return None
    if state is not SchemaState.OLDER:
        require_current_schema(engine)
        with read_transaction(engine) as connection:
            if not find_missing_indexes(backend_of(engine).load_layout(connection)):
                require_complete_schema(connection)
                return None
        with alter_transaction(engine) as connection:
            create_missing_indexes(connection)
        return None
    if not backend_of(engine).transactional_ddl:
        _upgrade_irreversibly(engine, backed_up=backed_up)
        return None
    backup = _back_up(engine)
    with alter_transaction(engine) as connection:
        migrate_to(connection, REVISION)
        create_missing_indexes(connection)  # an error undoes the upgrade
    return backup


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


def _load_revision(connection: Connection) -> str:
    if not sa.inspect(connection).has_table("alembic_version"):
        return ""
    return connection.scalar(sa.select(_VERSION_TABLE.c.version_num)) or ""


def _detect_state(connection: Connection) -> SchemaState:
    revision = _load_revision(connection)
    if revision == REVISION:
        return SchemaState.CURRENT
    if not revision:
        return _classify_unversioned(connection)
    scripts = (MIGRATIONS_FOLDER / "versions").glob("[0-9]*.py")
    if any(f'\nrevision = "{revision}"\n' in file.read_text() for file in scripts):
        return SchemaState.OLDER
    is_results = sa.inspect(connection).has_table(measurement.name)  # others use Alembic, too
    return SchemaState.NEWER if is_results else SchemaState.FOREIGN


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
    rows = (sa.select(sa.literal(1)).select_from(sa.table(name)).limit(1) for name in result_tables)
    if was_begun and not any(connection.execute(query).first() for query in rows):
        return SchemaState.EMPTY
    return SchemaState.UNVERSIONED


def migrate_to(connection: Connection, target: str) -> None:
    """Run migrations up to a revision inside the transaction of ``connection``."""
    # Importing Alembic takes a quarter of a second.
    from alembic import command
    from alembic.config import Config

    configured = Config()
    configured.set_main_option("script_location", str(MIGRATIONS_FOLDER).replace("%", "%%"))
    configured.attributes["connection"] = connection
    command.upgrade(configured, target)


def _back_up(engine: Engine) -> Path | None:
    file = sqlite_path(engine.url)
    if file is None:
        return None
    with read_transaction(engine) as connection:
        backup = name_backup(file, _load_revision(connection))
    with replace_file(backup) as draft:
        # The backup gets the permissions of the database.
        os.close(create_private_file(draft))
        draft.chmod(file.stat().st_mode & 0o777)
        copy_sqlite_file(engine.url, file, draft)
    return backup


def name_backup(file: Path, label: str) -> Path:
    """Name a backup beside an SQLite file, by a label and the time."""
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    return file.with_name(f"{file.name}.{label}.{stamp}.bak")


def copy_sqlite_file(url: URL, source: Path, target: Path) -> None:
    """Copy an SQLite database that others may write to one file, safe on disk, named by ``url``."""
    with (
        translate_errors(url),
        closing(sqlite3.connect(source)) as original,
        closing(sqlite3.connect(target)) as copy,
    ):
        # A full disk would leave the copy's journal behind.
        copy.execute("PRAGMA journal_mode=OFF").close()
        try:
            original.backup(copy)
        except sqlite3.Error as error:
            is_source = _SOURCE_ERRORS.search(error.sqlite_errorname)
            place = url.set(database=str(source)) if is_source else url
            raise build_store_error(place, str(error)) from error
        # Without a log of its own, the file can be moved alone.
        copy.execute("PRAGMA journal_mode=DELETE").close()


def count_rows(connection: Connection) -> dict[str, int]:
    """Count the rows of each table."""
    tables, count = metadata.sorted_tables, sa.func.count()
    with translate_errors(connection.engine.url):  # of two databases, each by its own name
        return {t.name: connection.scalar(sa.select(count).select_from(t)) or 0 for t in tables}


def require_complete_schema(connection: Connection) -> None:
    """Refuse a database of this revision with an incomplete schema; additional items are allowed.

    Raises:
        StoreError: items are missing; the message names them and the remedy.
    """
    layout = backend_of(connection.engine).load_layout(connection)
    missing_parts = list(_find_missing_parts(layout))
    missing = [*missing_parts, *(f"index {index.name}" for index in find_missing_indexes(layout))]
    if not missing:
        return
    raise StoreError(
        f"the database lacks {', '.join(missing[:MAX_LISTED])}{', …' if len(missing) > MAX_LISTED else ''}",
        where=display_url(connection.engine.url),
        hint="It is not as Treehammer made it. Put a backup back (treehammer db recover FILE); or begin with an empty "
        "one and run 'treehammer collect': the records of jobs stay in the spool."
        if missing_parts
        else "Run: treehammer db upgrade",
    )


def create_missing_indexes(connection: Connection) -> None:
    """Create missing indexes; nothing else can be recreated.

    Raises:
        StoreError: anything else is missing.
    """
    for index in find_missing_indexes(backend_of(connection.engine).load_layout(connection)):
        index.create(connection)
    require_complete_schema(connection)


def find_missing_indexes(layout: TableLayout) -> list[sa.Index]:
    """List indexes missing under any name, for tables that have their columns."""
    return [
        index
        for table in metadata.sorted_tables
        for index in sorted(table.indexes, key=lambda table_index: str(table_index.name))
        if _column_names(index) not in layout.indexes.get(table.name, ())
        and set(_column_names(index)) <= layout.columns.get(table.name, set())
    ]


def _find_missing_parts(layout: TableLayout) -> Iterator[str]:
    for table in metadata.sorted_tables:
        if table.name not in layout.columns:
            yield f"table {table.name}"
            continue
        for column in table.columns:
            if column.name not in layout.columns[table.name]:
                yield f"column {table.name}.{column.name}"
        if _column_names(table.primary_key) != layout.keys.get(table.name):
            yield f"the primary key of {table.name}"


def _column_names(of: sa.Index | sa.PrimaryKeyConstraint) -> tuple[str, ...]:
    return tuple(column.name for column in of.columns)
