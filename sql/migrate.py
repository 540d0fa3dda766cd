"""The schema's history: how a database comes to the revision that this version needs."""

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
from treehammer.sql.backends import backend_of
from treehammer.sql.database import reading, rebuilding
from treehammer.sql.layout import complete, missing_indexes, require_layout
from treehammer.sql.schema import metadata
from treehammer.sql.troubles import explained, shown, sqlite_file

if TYPE_CHECKING:
    from alembic.config import Config

#: The revision that :mod:`treehammer.sql.schema` describes.
REVISION = "0009"
FOLDER = Path(__file__).parent / "migrations"
UPGRADE = "treehammer db upgrade"


# Where Alembic keeps the revision, as Alembic makes it.
_VERSION = sa.Table(
    "alembic_version",
    sa.MetaData(),
    sa.Column("version_num", sa.String(32), nullable=False),
    sa.PrimaryKeyConstraint("version_num", name="alembic_version_pkc"),
)


class State(Enum):
    """What a database is to this version of Treehammer."""

    EMPTY = "empty"
    CURRENT = "current"
    OLDER = "older"
    NEWER = "newer"
    UNMARKED = "unmarked"
    FOREIGN = "foreign"


def revision(engine: Engine) -> str:
    """The revision a database is at; '' when it has none."""
    with reading(engine) as connection:
        return _revision(connection)


def state(engine: Engine) -> State:
    """Compare a database with this version."""
    with reading(engine) as connection:
        return _state(connection)


def require_current(engine: Engine) -> None:
    """Refuse a database that this version cannot use.

    Raises:
        StoreError: it is older, newer, or not Treehammer's; the message says what to do.
    """
    found = state(engine)
    where = shown(engine.url)
    if found is State.OLDER:
        raise StoreError(
            f"the database is at revision {revision(engine)}; this version needs {REVISION}",
            where=where,
            hint=f"Run: {UPGRADE}",
        )
    if found is State.NEWER:
        raise StoreError(
            f"the database is at revision {revision(engine)}, which this version does not know",
            where=where,
            hint="A newer Treehammer has written it: install that version or a later one.",
        )
    if found is State.UNMARKED:
        raise StoreError(
            "tables of Treehammer's are here, but not the revision that they are at",
            where=where,
            hint="A backup is being restored, or was restored without the table alembic_version: "
            "restore all of it. Nothing was changed.",
        )
    if found is State.FOREIGN:
        raise StoreError(
            "this database holds something other than Treehammer's results",
            where=where,
            hint="Give another with --database.",
        )


def create(engine: Engine) -> None:
    """Lay the tables in an empty database; harmless when another process just has."""
    with rebuilding(engine) as connection:
        if _state(connection) is State.EMPTY:
            _take_away(connection)
            _lay(connection)


def upgrade(engine: Engine, *, backed_up: bool = False) -> Path | None:
    """Bring an older database to this version's revision.

    Args:
        engine: of the database.
        backed_up: that there is a backup, which has to be said where changes cannot be undone.

    Returns:
        the backup that was made before (SQLite only), or ``None``.

    Raises:
        ConfigError: changes cannot be undone, and nobody says that there is a backup.
        StoreError: the database is newer, not Treehammer's, or refused; it is as it was before,
            or else the message says that it is not.
    """
    found = state(engine)
    if found is State.EMPTY:
        create(engine)
        return None
    if found is not State.OLDER:
        require_current(engine)
        _complete(engine)
        return None
    if not backend_of(engine).undoes_changes:
        _upgrade_for_good(engine, backed_up=backed_up)
        return None
    backup = _back_up(engine)
    with rebuilding(engine) as connection:
        run(connection, REVISION)
        complete(connection)  # an error undoes the upgrade
    return backup


def _complete(engine: Engine) -> None:
    with reading(engine) as connection:
        lacking = missing_indexes(backend_of(engine).layout(connection))
        if not lacking:
            require_layout(connection)
            return
    with rebuilding(engine) as connection:
        complete(connection)


def _upgrade_for_good(engine: Engine, *, backed_up: bool) -> None:
    if not backed_up:
        raise ConfigError(
            "this database cannot undo changes of its tables, should the upgrade fail",
            where=shown(engine.url),
            hint="Stop what writes to it, make a backup (on Oracle: expdp USER SCHEMAS=USER "
            f"DUMPFILE=results.dmp), and run: {UPGRADE} --backed-up",
        )
    try:
        with rebuilding(engine) as connection:
            run(connection, REVISION)
            complete(connection)
    except StoreError as error:
        again = f"What was changed stays. Then run again: {UPGRADE} --backed-up"
        raise StoreError(
            error.message, where=error.where, hint=f"{error.hint} {again}".strip()
        ) from error


def _revision(connection: Connection) -> str:
    if not sa.inspect(connection).has_table("alembic_version"):
        return ""
    return connection.scalar(sa.select(_VERSION.c.version_num)) or ""


def _state(connection: Connection) -> State:
    found = _revision(connection)
    if found == REVISION:
        return State.CURRENT
    if not found:
        return _unmarked(connection)
    return State.OLDER if found in _known_revisions() else State.NEWER


def _unmarked(connection: Connection) -> State:
    """What a database without a revision is.

    Nothing in it is ever taken away but what was left where laying the tables cannot be undone: as
    the revision is written last, nobody could write into them, and no row is in any.
    """
    backend = backend_of(connection.engine)
    there = set(sa.inspect(connection).get_table_names())
    others = there - backend.helping_tables
    if not others:
        return State.EMPTY
    if not others <= {*metadata.tables, _VERSION.name}:
        return State.FOREIGN
    was_begun = not backend.undoes_changes and backend.helping_tables <= there
    if was_begun and not any(_has_rows(connection, name) for name in others):
        return State.EMPTY
    return State.UNMARKED


def _has_rows(connection: Connection, table: str) -> bool:
    one = sa.select(sa.literal(1)).select_from(sa.table(table)).limit(1)
    return connection.execute(one).first() is not None


def config() -> Config:
    """Alembic's configuration, without a file."""
    # Alembic takes a quarter of a second to import: only those who migrate pay for it.
    from alembic.config import Config

    configured = Config()
    configured.set_main_option("script_location", str(FOLDER).replace("%", "%%"))
    return configured


def _known_revisions() -> set[str]:
    from alembic.script import ScriptDirectory

    return {script.revision for script in ScriptDirectory.from_config(config()).walk_revisions()}


def _lay(connection: Connection) -> None:
    # As they are now, without going through history; a test proves that both lead to the same.
    metadata.create_all(connection)
    _VERSION.create(connection)
    connection.execute(sa.insert(_VERSION).values(version_num=REVISION))


def run(connection: Connection, target: str) -> None:
    """Go through history to a revision, inside the transaction of ``connection``."""
    from alembic import command

    configured = config()
    configured.attributes["connection"] = connection
    command.upgrade(configured, target)


def _take_away(connection: Connection) -> None:
    left = sa.inspect(connection).get_table_names()
    for table in reversed(metadata.sorted_tables):
        if table.name in left:
            table.drop(connection)
    if "alembic_version" in left:
        _VERSION.drop(connection)


def _back_up(engine: Engine) -> Path | None:
    file = sqlite_file(engine.url)
    if file is None:
        return None
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    backup = file.with_name(f"{file.name}.{revision(engine)}.{stamp}.bak")
    try:
        # For those alone who may read the database.
        os.close(os.open(backup, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        backup.chmod(file.stat().st_mode & 0o777)
        with (
            explained(engine.url),
            closing(sqlite3.connect(file)) as source,
            closing(sqlite3.connect(backup)) as target,
        ):
            source.backup(target)
    except OSError as error:
        raise StoreError(
            f"the backup cannot be made ({error.strerror})",
            where=str(backup),
            hint="Nothing was changed. Have the folder made writable.",
        ) from error
    except BaseException:
        backup.unlink(missing_ok=True)  # half of it is none
        raise
    return backup
