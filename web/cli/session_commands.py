"""Commands on read sessions: signed-in browsers."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import click

from treehammer.config import Settings
from treehammer.errors import ConfigError
from treehammer.sql.auth.read_sessions import session_id
from treehammer.sql.auth.session_table import SessionTable
from treehammer.sql.auth.tokens import ReadSession
from treehammer.sql.setup.database_setup import opened_engine
from treehammer.sql.write import audit_trail
from treehammer.tables import TableColumn
from treehammer.terminal import output_options, print_rows
from treehammer.text_formatting import format_time, pluralize


@click.command("sessions")
@output_options
@click.pass_obj
def sessions_command(settings: Settings, form: str) -> None:
    """List browsers that are signed in to the results service.

    Example: treehammer token sessions
    """
    with opened_engine(settings.database, create=False) as engine:
        table = SessionTable(engine)
        sessions = table.list_sessions(now_us=time.time_ns() // 1000)
    columns = [
        TableColumn("session", "session"),
        TableColumn("key_id", "key id"),
        TableColumn("role", "role"),
        TableColumn("name", "for"),
        TableColumn("address", "address"),
        TableColumn("created_us", "signed in", _format_minute),
        TableColumn("expires_us", "expires", _format_minute),
    ]
    print_rows([_session_row(session) for session in sessions], columns, form=form)


def end_session(settings: Settings, session: str) -> str:
    """End the session that a list shows under this name, and describe the result.

    Raises:
        ConfigError: there is no such session.
    """
    return _end(settings, "--session", session, lambda candidate: session_id(candidate) == session)


def end_sessions_of(settings: Settings, holder: str) -> str:
    """End all sessions of a key or a person, and describe the result.

    Raises:
        ConfigError: they have none.
    """
    return _end(
        settings, "--sessions-of", holder, lambda session: holder in (session.key_id, session.name)
    )


def _end(settings: Settings, option: str, text: str, matches: Callable[[ReadSession], bool]) -> str:
    with opened_engine(settings.database, create=False) as engine:
        table = SessionTable(engine)
        chosen = [
            session
            for session in table.list_sessions(now_us=time.time_ns() // 1000)
            if matches(session)
        ]
        if not chosen:
            raise ConfigError(
                "no such session",
                where=f"{option} {text!r}",
                hint="To list all sessions: treehammer token sessions",
            )
        entry = audit_trail.make_entry(
            audit_trail.END_SESSIONS,
            audit_trail.local_actor(),
            f"sessions of {', '.join(sorted({session.name for session in chosen}))}",
            now_us=time.time_ns() // 1000,
        )
        ended = table.end_sessions([session.token_hash for session in chosen], [entry])
    return f"{pluralize(ended, 'session')} ended"


def _session_row(session: ReadSession) -> dict[str, Any]:
    return {
        "session": session_id(session),
        "key_id": session.key_id or "",
        "role": session.role,
        "name": session.name,
        "identity": session.identity or "",
        "address": session.address,
        "created_us": session.created_us,
        "expires_us": session.expires_us,
    }


def _format_minute(time_us: int) -> str:
    return format_time(time_us)[:16]
