"""Backup of a results database as one file, and its recovery, completely or not at all.

A backup of SQLite is a database file without a log beside it; one of PostgreSQL is an archive of
``pg_dump``. Recovery replaces the content within one transaction, so that a kill leaves the old content.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import IO

import sqlalchemy as sa
from sqlalchemy.engine import URL, Engine

from treehammer.collectors.shared_files import open_regular_file
from treehammer.errors import ConfigError, StoreError
from treehammer.program_output import create_private_file, replace_file
from treehammer.sql.core.schema import metadata
from treehammer.sql.engine.backend import (
    BUSY_SECONDS,
    PREPARE_OPTION,
    build_store_error,
    display_url,
    sqlite_path,
    translate_errors,
)
from treehammer.sql.engine.database_engine import (
    backend_of,
    disposing,
    make_engine,
    parse_url,
    read_transaction,
    require_usable_server,
)
from treehammer.sql.engine.database_setup import (
    SchemaState,
    copy_sqlite_file,
    load_schema_state,
    name_backup,
    opened_engine,
    require_current_schema,
)
from treehammer.sql.engine.error_hints import CLIENT_HINT
from treehammer.text_formatting import pluralize

#: First bytes of an archive of pg_dump in its custom format.
_ARCHIVE_MAGIC = b"PGDMP"
_SQLITE_MAGIC = b"SQLite format 3\0"
_STOP_USERS = (
    "Stop 'treehammer serve', 'treehammer patrol' and other commands that use it, then repeat."
)
#: Files that SQLite keeps beside a database.
_COMPANIONS = ("", "-wal", "-shm", "-journal")


def back_up_database(url: str, file: Path) -> None:
    """Write a database to a new file; services may write meanwhile.

    The backup holds everything that was committed before it began.

    Raises:
        ConfigError: the file exists, or this kind of database has its own program for backups.
        NothingToDoError: there is no database.
        StoreError: the database cannot be read, or the file not be written.
    """
    if file.exists():
        raise ConfigError("the file exists", where=str(file), hint="Give the name of a new file.")
    with opened_engine(url, create=False) as engine:
        _require_backup_support(engine.url)
        with replace_file(file) as draft:
            os.close(create_private_file(draft))
            if source := sqlite_path(engine.url):
                copy_sqlite_file(engine.url.set(database=str(file)), source, draft)
            else:
                # Extensions and tables of others cannot be read, or not be recovered by this user.
                tables = [f"--table={name}" for name in (*metadata.tables, "alembic_version")]
                _run_tool(engine.url, ["pg_dump", "--format=custom", f"--file={draft}", *tables])


def recover_database(url: str, file: Path, *, replace: bool = False) -> Path | None:
    """Replace the content of a database by that of a backup.

    Args:
        url: URL of the database; an SQLite file need not exist.
        file: the backup.
        replace: replace the content of a PostgreSQL database that is not empty.

    Returns:
        where the replaced SQLite database is kept; None if there was none.

    Raises:
        ConfigError: the file is no backup of this kind of database, or ``replace`` is needed.
        StoreError: the database is in use, or the backup is damaged or of a newer version. The
            database is unchanged.
    """
    parsed = parse_url(url)
    _require_backup_support(parsed)
    target = sqlite_path(parsed)
    _require_format(file, parsed)
    if target:
        return _recover_sqlite(parsed, target, file)
    with disposing(make_engine(parsed)) as engine:
        require_usable_server(engine)
        _require_replaceable(engine, replace=replace)
    script = _iter_script(parsed, file, ["--clean", "--if-exists"] if replace else [])
    psql = ["psql", "--no-psqlrc", "--quiet", "--output=/dev/null", "--set=ON_ERROR_STOP=1"]
    _run_tool(parsed, psql, script)
    return None


def _require_backup_support(url: URL) -> None:
    if url.get_backend_name() not in ("sqlite", "postgresql") or url.database in (None, ":memory:"):
        raise ConfigError(
            "this kind of database has its own program for backups",
            where=display_url(url),
            hint="On Oracle use expdp USER SCHEMAS=USER DUMPFILE=results.dmp, and impdp.",
        )


def _require_format(file: Path, url: URL) -> None:
    magic = _SQLITE_MAGIC if sqlite_path(url) else _ARCHIVE_MAGIC
    try:
        with open_regular_file(file, follows_links=True) as stream:
            start = stream.read(len(magic))
    except OSError as error:
        raise ConfigError(f"cannot be read ({error.strerror})", where=str(file)) from error
    is_archive = start == magic == _ARCHIVE_MAGIC
    contents = _run_tool(url, ["pg_restore", "--list", str(file)]) if is_archive else ""
    if start != magic or (contents and "rollup_day" not in contents):
        raise ConfigError(
            f"is no backup of a database like {display_url(url)}",
            where=str(file),
            hint="Give a file that 'treehammer db backup' wrote. To move results between kinds of "
            "databases: treehammer db copy FROM TO.",
        )


def _recover_sqlite(url: URL, target: Path, file: Path) -> Path | None:
    if target.exists() and target.samefile(file):
        raise ConfigError("is the database itself", where=str(file))
    _require_results(file, complete=True)
    if target.exists() and _is_sqlite(target):
        _require_results(target, complete=False)
    else:
        replaced = _set_aside(target)
        target.parent.mkdir(parents=True, exist_ok=True)
        with replace_file(target) as draft:
            os.close(create_private_file(draft))
            copy_sqlite_file(url, file, draft)
        return replaced
    with (
        translate_errors(url),
        closing(sqlite3.connect(target, timeout=BUSY_SECONDS, isolation_level=None)) as connection,
    ):
        _lock_file(connection, target)
        replaced = name_backup(target, "replaced")
        with replace_file(replaced) as draft:
            os.close(create_private_file(draft))
            with closing(sqlite3.connect(draft)) as copy:
                copy.execute("PRAGMA journal_mode=OFF").close()
                connection.backup(copy)
        # SQLite's own transaction replaces the pages: neither a kill nor the log of a service that
        # died can mix old and new ones.
        with closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True)) as source:
            source.backup(connection)
    return replaced


def _require_results(file: Path, *, complete: bool) -> None:
    """Refuse a file that holds something else; with ``complete`` also one that cannot be used."""
    with disposing(make_engine(parse_url(f"sqlite:///{file}"))) as engine:
        state = load_schema_state(engine)
        if complete and state is SchemaState.EMPTY:
            raise ConfigError("holds no results", where=str(file))
        if state is SchemaState.FOREIGN or (complete and state is not SchemaState.OLDER):
            require_current_schema(engine)
        if complete:
            with read_transaction(engine) as connection:
                backend_of(engine).require_integrity(connection)


def _is_sqlite(file: Path) -> bool:
    """Return whether SQLite can read a file as a database."""
    try:
        with closing(sqlite3.connect(file, timeout=BUSY_SECONDS)) as connection:
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.OperationalError:  # it is locked, for example
        return True
    except (sqlite3.DatabaseError, UnicodeDecodeError):
        return False
    return True


def _set_aside(file: Path) -> Path | None:
    """Rename a damaged database with the files beside it; return its new name."""
    suffixes = [s for s in _COMPANIONS if file.with_name(file.name + s).exists()]
    damaged = name_backup(file, "damaged")
    for suffix in suffixes:
        file.with_name(file.name + suffix).rename(damaged.with_name(damaged.name + suffix))
    return damaged if suffixes else None


def _lock_file(connection: sqlite3.Connection, file: Path) -> None:
    """Lock a database against every other process until the connection is closed.

    Raises:
        StoreError: another process has it open, even if it does not use it now.
    """
    connection.execute("PRAGMA busy_timeout=1000")
    connection.execute("PRAGMA locking_mode=EXCLUSIVE")
    try:
        connection.execute("BEGIN EXCLUSIVE").close()
        connection.execute("COMMIT").close()
    except sqlite3.OperationalError as error:
        raise StoreError(
            f"another process uses the database ({error})", where=str(file), hint=_STOP_USERS
        ) from error


def _require_replaceable(engine: Engine, *, replace: bool) -> None:
    state = load_schema_state(engine)
    where = display_url(engine.url)
    if state is SchemaState.FOREIGN:
        require_current_schema(engine)
    with read_transaction(engine) as connection:
        users = connection.scalars(
            sa.text(
                "SELECT coalesce(nullif(application_name, ''), 'unnamed') FROM pg_stat_activity "
                # Only names of sessions, not their types, are shown of other roles.
                "WHERE datname = current_database() AND pid <> pg_backend_pid() "
                "AND usename IS NOT NULL"
            )
        ).all()
    if users:
        names = ", ".join(sorted(set(users)))
        raise StoreError(
            f"the database is in use by {pluralize(len(users), 'other connection')} ({names})",
            where=where,
            hint=f"{_STOP_USERS} A pooler keeps its own for a while: give the server's address.",
        )
    if state is not SchemaState.EMPTY and not replace:
        raise ConfigError(
            "the database holds results",
            where=where,
            hint="Give --database an empty one; or add --replace, which deletes these results: back "
            "them up first (treehammer db backup FILE).",
        )


def _iter_script(url: URL, file: Path, options: Sequence[str]) -> Iterator[bytes]:
    """Yield the script of an archive as one transaction, which only the end of the script commits.

    Its settings are reset, because a pooler lets others use the session.
    """
    command = [find_program("pg_restore"), "--no-owner", *options, "--file=-", str(file)]
    with (
        tempfile.TemporaryFile() as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors) as archive,
    ):
        assert archive.stdout is not None
        yield b"BEGIN;\n"
        # Servers before PostgreSQL 17 do not know this setting of newer programs.
        yield from (line for line in archive.stdout if line != b"SET transaction_timeout = 0;\n")
        _require_success(url, command, archive.wait(), errors)
        yield b"RESET ALL; COMMIT;\n"


def _run_tool(url: URL, command: Sequence[str], script: Iterable[bytes] = ()) -> str:
    """Run a program of PostgreSQL on a database, whose password is no argument; return its output."""
    from psycopg.conninfo import make_conninfo  # of the extra service

    # Also several hosts, as SQLAlchemy writes them, become libpq's.
    _, parameters = url.get_dialect()().create_connect_args(url)
    parameters.pop(PREPARE_OPTION, None)
    password = parameters.pop("password", None)
    environment = os.environ | ({"PGPASSWORD": str(password)} if password else {})
    database = f"--dbname={make_conninfo(**parameters)}"
    words = [find_program(command[0]), database, *command[1:]]
    with (
        tempfile.TemporaryFile() as output,
        subprocess.Popen(
            words, env=environment, stdin=subprocess.PIPE, stdout=output, stderr=output
        ) as tool,
    ):
        assert tool.stdin is not None
        try:
            with tool.stdin as stdin:
                stdin.writelines(script)
        except BrokenPipeError as error:
            # The program has ended and reported the reason, unless Ctrl-C ended both.
            if isinstance(error.__context__, KeyboardInterrupt):
                raise error.__context__ from None
        return _require_success(url, command, tool.wait(), output)


def _require_success(url: URL, command: Sequence[str], code: int, output: IO[bytes]) -> str:
    output.seek(0)
    text = output.read().decode(errors="replace").strip()
    if code:
        program, reason = Path(command[0]).name, text[:500] or f"code {code}"
        raise build_store_error(url, f"{program} failed, nothing was written: {reason}")
    return text


def find_program(name: str) -> str:
    """Find a program of PostgreSQL on PATH or in Debian's folders.

    Raises:
        StoreError: it is not installed.
    """
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), *map(str, reversed(folders))])
    program = shutil.which(name, path=path)
    if program is None:
        raise StoreError(f"{name} is not installed", hint=CLIENT_HINT)
    return program
