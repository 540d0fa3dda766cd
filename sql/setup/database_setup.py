"""Opening and upgrading a results database."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy.engine import URL, Engine

from treehammer.errors import NothingToDoError, StoreError
from treehammer.private_files import create_private_file
from treehammer.sql.engine.database_engine import (
    enable_wal,
    make_engine,
    parse_url,
    require_usable_server,
)
from treehammer.sql.engine.database_errors import display_url, sqlite_path
from treehammer.sql.setup import schema_upgrade


def open_engine(url: str, *, create: bool) -> Engine:
    """Create the engine of a database with the current schema; see :meth:`Store.open`."""
    engine = _make_engine(url, create=create)
    try:
        require_usable_server(engine)
        state = schema_upgrade.read_schema_state(engine)
        if state is schema_upgrade.SchemaState.EMPTY:
            if not create:
                raise _build_no_results_error(engine.url)
            enable_wal(engine)
            schema_upgrade.create_schema(engine)
        if state is not schema_upgrade.SchemaState.CURRENT:
            schema_upgrade.require_current_schema(engine)
    except BaseException:
        engine.dispose()
        raise
    return engine


@contextmanager
def opened_engine(url: str, *, create: bool) -> Iterator[Engine]:
    """Open the engine of a database as :func:`open_engine`, and dispose of it at the end."""
    engine = open_engine(url, create=create)
    try:
        yield engine
    finally:
        engine.dispose()


def upgrade_database(url: str, *, backed_up: bool = False) -> Path | None:
    """Upgrade a database to this version's schema; return the backup of an SQLite file.

    Args:
        url: URL of the database.
        backed_up: confirms a backup; see :func:`treehammer.sql.setup.schema_upgrade.upgrade_schema`.

    Raises:
        ConfigError: Oracle's changes cannot be undone, and ``backed_up`` is not set.
        NothingToDoError: no database exists.
        StoreError: the database is newer, or the upgrade failed and was rolled back.
    """
    engine = _make_engine(url, create=False)
    try:
        require_usable_server(engine)
        return schema_upgrade.upgrade_schema(engine, backed_up=backed_up)
    finally:
        engine.dispose()


def _make_engine(url: str, *, create: bool) -> Engine:
    parsed = parse_url(url)
    file = sqlite_path(parsed)
    if file and not file.exists():
        if not create:
            raise _build_no_results_error(parsed)
        _create_folder(file)
        _create_file(file)
    return make_engine(parsed)


def _build_no_results_error(url: URL) -> NothingToDoError:
    return NothingToDoError(
        "there are no results yet",
        where=display_url(url),
        hint="Run a test first (treehammer submit ttree-read --wait), or give another database "
        "with --database.",
    )


def _create_folder(file: Path) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _build_creation_error("its folder", file, error) from error


def _create_file(file: Path) -> None:
    """Create an empty database that only its owner can read; SQLite's log gets the same mode."""
    if str(file).startswith("file:"):
        return  # a URI, which SQLite itself resolves
    try:
        os.close(create_private_file(file))
    except FileExistsError:
        pass  # Another process made it.
    except OSError as error:
        raise _build_creation_error("it", file, error) from error


def _build_creation_error(subject: str, file: Path, error: OSError) -> StoreError:
    return StoreError(
        f"{subject} cannot be made ({error.strerror})",
        where=str(file),
        hint="Give another place with --database or --data-dir.",
    )
