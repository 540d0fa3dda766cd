"""Commands ``token``: keys to the results service, its master key and sessions of browsers."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from treehammer.collectors.record.metric_catalogue import MAX_IDENTITY
from treehammer.config import Settings
from treehammer.errors import ConfigError, NothingToDoError
from treehammer.program_output import create_private_file
from treehammer.sql.auth.access_keys import (
    CAMPAIGN,
    JOB,
    ROLES,
    AccessKey,
    MasterKeys,
    ReadSession,
    fingerprint_master_key,
    parse_key,
)
from treehammer.sql.auth.keyring import (
    Keyring,
    Revocation,
    SessionTable,
    forget_previous_master_keys,
    load_master_keys,
    rotate_master_key,
    session_id,
)
from treehammer.sql.core.rows import AccessKeyRow
from treehammer.sql.engine.database_setup import opened_engine
from treehammer.sql.write import audit_trail
from treehammer.sql.write.audit_trail import LOCAL_OWNER
from treehammer.sql.write.store import Store
from treehammer.tables import TableColumn
from treehammer.terminal import output_options, print_hint, print_rows
from treehammer.text_formatting import SECOND_US, format_time, parse_duration, pluralize

#: Maximum length of a holder's name.
MAX_KEY_NAME_CHARS = 200
#: Identities of campaigns and jobs as created on submission.
_IDENTITY_PATTERNS = {CAMPAIGN: re.compile("[0-9a-f]{16}"), JOB: re.compile("[0-9a-f]{24}")}
#: Format of the identities, and where to find them.
_IDENTITY_HINTS = {
    CAMPAIGN: "16 hexadecimal digits, shown by the submitter's 'treehammer status'",
    JOB: "24 hexadecimal digits, part of the address of its page and job_id of an export",
}


@click.command("rotate-master")
@click.option(
    "--finish",
    is_flag=True,
    help="End the rotation: revoke the keys of previous master keys, and forget these.",
)
@click.option(
    "--at-once", is_flag=True, help="Rotate and finish, after the master key was disclosed."
)
@click.pass_obj
def rotate_master_command(settings: Settings, finish: bool, at_once: bool) -> None:
    """Replace the service's master key. Its keys stay valid until --finish.

    Services notice within seconds. Copy the file (service_key_file) to the hosts of other services on
    this database, and back it up. Then give every holder a new key, and finish.

    Example: treehammer token rotate-master
    """
    if finish and at_once:
        raise click.UsageError("Give --finish or --at-once.")
    path = settings.master_key_file
    with opened_engine(settings.database, create=False) as engine:
        keyring = Keyring(engine)
        masters = load_master_keys(path, create=False) if finish else rotate_master_key(path)
        if not finish:
            _record_rotation(keyring, masters)
            click.echo(f"{path}: new master key {fingerprint_master_key(masters.current)}")
        if finish or at_once:
            _finish(settings, keyring, masters)
        else:
            _describe_next_steps(keyring, masters)


def _record_rotation(keyring: Keyring, masters: MasterKeys) -> None:
    old, new = (fingerprint_master_key(master) for master in (masters.previous[0], masters.current))
    keyring.record_rotation(f"master key {old} to {new}", now_us=time.time_ns() // 1000)


def _finish(settings: Settings, keyring: Keyring, masters: MasterKeys) -> None:
    if not masters.previous:
        raise NothingToDoError(
            "no rotation is in progress", hint="Begin one: treehammer token rotate-master"
        )
    revoked = keyring.revoke_keys_of(masters.previous, now_us=time.time_ns() // 1000)
    forget_previous_master_keys(settings.master_key_file)
    click.echo(
        f"{pluralize(len(revoked), 'key')} revoked; "
        f"{pluralize(len(masters.previous), 'previous master key')} removed"
    )


def _describe_next_steps(keyring: Keyring, masters: MasterKeys) -> None:
    old = [
        row
        for row in keyring.list_keys()
        if row.revoked_us is None and masters.is_previous(row.master_key_fingerprint)
    ]
    print_hint(
        f"{pluralize(len(old), 'key')} of previous master keys still valid: create new ones, then run "
        "treehammer token rotate-master --finish",
        err=True,
    )


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


@click.group("token")
def token() -> None:
    """Manage keys to the results service (treehammer serve) for reading and submitting."""


@token.command("create")
@click.option("--role", type=click.Choice(ROLES), required=True, help="Permissions of its holder.")
@click.option("--name", required=True, help="Name of its holder, for the list.")
@click.option("--group", default="", help="Group that shares its campaigns [default: the name].")
@click.option("--expires", metavar="90d", help="Lifetime from now [default: unlimited].")
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="New file for the key, readable by you alone, instead of standard output.",
)
@click.pass_obj
def create_command(
    settings: Settings, role: str, name: str, group: str, expires: str | None, output: Path | None
) -> None:
    """Create a key and show it once: neither the service nor the database stores it.

    Example: treehammer token create --role submit --name alice --expires 365d
    """
    name = _check_name(name, "--name")
    owner = _check_name(group.strip() or name, "--group")
    now_us = time.time_ns() // 1000
    end_us = now_us + parse_duration(expires, "--expires") * SECOND_US if expires else None
    if output is not None and output.exists():
        raise ConfigError("exists already", where=str(output), hint="Give another file name.")
    masters = load_master_keys(settings.master_key_file)
    with opened_engine(settings.database, create=True) as engine:
        keyring = Keyring(engine)
        _warn_of_foreign_keys(settings, keyring.list_keys(), masters)
        key = keyring.create_key(
            masters.current, role, name, now_us=now_us, expires_us=end_us, owner=owner
        )
    validity = f"until {format_time(end_us)} UTC" if end_us else "until it is revoked"
    click.echo(f"key {key.key_id} for {name}, role {role}, valid {validity}", err=True)
    if output is None:
        click.echo("shown only once; store it in a file that only you can read:", err=True)
        click.echo(key.text)
        return
    _write_key(output, key)
    click.echo(f"{output}: key written; give this file as service_token_file", err=True)


def _check_name(text: str, option: str) -> str:
    """Return a name without surrounding space.

    Raises:
        ConfigError: it is empty, too long, not printable or reserved.
    """
    name = text.strip()
    if name == LOCAL_OWNER:
        raise ConfigError(f"{name} is reserved", where=option, hint="Give another name.")
    if not name or len(name) > MAX_KEY_NAME_CHARS or not name.isprintable():
        raise ConfigError(
            f"must be printable text of 1 to {MAX_KEY_NAME_CHARS} characters", where=option
        )
    return name


def _warn_of_foreign_keys(
    settings: Settings, rows: Sequence[AccessKeyRow], masters: MasterKeys
) -> None:
    foreign = [
        row
        for row in rows
        if row.revoked_us is None and masters.find(row.master_key_fingerprint) is None
    ]
    if foreign:
        click.echo(
            f"warning: {pluralize(len(foreign), 'key')} in this database created with another master "
            f"key than {settings.master_key_file}; a service with that one refuses the new key. "
            "Create keys as the service's user, with its configuration (service_key_file).",
            err=True,
        )


def _write_key(path: Path, key: AccessKey) -> None:
    try:
        with os.fdopen(create_private_file(path), "w", encoding="ascii") as stream:
            stream.write(key.text + "\n")
    except OSError as error:
        raise ConfigError(
            f"cannot be written ({error.strerror})",
            where=str(path),
            hint=f"The key is lost: treehammer token revoke {key.key_id}, and create another one.",
        ) from error


@token.command("list")
@click.option("--revoked", is_flag=True, help="List campaigns and jobs with revoked tokens.")
@output_options
@click.pass_obj
def list_command(settings: Settings, revoked: bool, form: str) -> None:
    """List all keys without their secrets, or other revocations.

    Example: treehammer token list
    """
    path = settings.master_key_file
    with opened_engine(settings.database, create=False) as engine:
        keyring = Keyring(engine)
        # Listing must not create a master key.
        masters = load_master_keys(path) if path.exists() else None
        rows = [_key_row(row, masters) for row in keyring.list_keys()]
        revocations = keyring.list_revocations()
    if rows and masters is None:
        click.echo(
            f"warning: {path} is missing, so that no key is valid: restore it from a backup, or give "
            "its path (service_key_file)",
            err=True,
        )
    if revoked:
        _list_revocations(revocations, form)
        return
    columns = [
        TableColumn("key_id", "key id"),
        TableColumn("role", "role"),
        TableColumn("name", "for"),
        TableColumn("owner", "group"),
        TableColumn("created_us", "created", _format_day),
        TableColumn("expires_us", "expires", _format_day),
        TableColumn("state", "state"),
    ]
    print_rows(rows, columns, form=form)
    if revocations:
        count = len(revocations)
        print_hint(f"other revocations: {count} (treehammer token list --revoked)", err=True)


def _list_revocations(revocations: Sequence[Revocation], form: str) -> None:
    columns = [
        TableColumn("scope", "tokens of"),
        TableColumn("subject", "identity"),
        TableColumn("revoked_us", "revoked", _format_day),
    ]
    print_rows([asdict(revocation) for revocation in revocations], columns, form=form)


def _key_row(row: AccessKeyRow, masters: MasterKeys | None) -> dict[str, Any]:
    state = "active"
    if row.revoked_us is not None:
        state = f"revoked {_format_day(row.revoked_us)}"
    elif masters is None:
        state = "master key missing"
    elif masters.find(row.master_key_fingerprint) is None:
        state = "other master key"
    elif row.expires_us is not None and row.expires_us < time.time_ns() // 1000:
        state = "expired"
    elif masters.is_previous(row.master_key_fingerprint):
        state = "active, previous master key"
    return {
        "key_id": row.key_id,
        "role": row.role,
        "name": row.name,
        "owner": row.owner,
        "created_us": row.created_us,
        "expires_us": row.expires_us,
        "revoked_us": row.revoked_us,
        "state": state,
    }


@token.command("revoke")
@click.argument("key_id", required=False)
@click.option(
    "--campaign",
    metavar="ID",
    help="Revoke the tokens of this campaign's jobs: its full identity or, if the database knows it, "
    "its name, a prefix of either, or 'last'.",
)
@click.option("--job", metavar="ID", help="Revoke the token of this job: its full identity.")
@click.option("--session", metavar="ID", help="Sign a browser out: see treehammer token sessions.")
@click.option("--sessions-of", metavar="HOLDER", help="Sign out all browsers of a key or a person.")
@click.pass_obj
def revoke_command(
    settings: Settings,
    key_id: str | None,
    campaign: str | None,
    job: str | None,
    session: str | None,
    sessions_of: str | None,
) -> None:
    """Revoke a key with all tokens signed by it, tokens of a campaign or job, or browser sessions.

    This cannot be undone. It reaches every service on this database within a few seconds.

    Example: treehammer token revoke 3f9c0a61b2d4
    """
    if [key_id, campaign, job, session, sessions_of].count(None) != 4:
        raise click.UsageError(
            "Give one of KEY_ID, --campaign, --job, --session and --sessions-of."
        )
    if session is not None:
        click.echo(end_session(settings, session))
    elif sessions_of is not None:
        click.echo(end_sessions_of(settings, sessions_of))
    else:
        click.echo(_revoke_tokens(settings, key_id, campaign, job))


def _revoke_tokens(
    settings: Settings, key_id: str | None, campaign: str | None, job: str | None
) -> str:
    with opened_engine(settings.database, create=True) as engine:
        keyring = Keyring(engine)
        if key_id is not None:
            # The full key is accepted instead of its identity.
            key_id = parse_key(key_id).key_id if key_id.startswith("th1.") else key_id
            done = keyring.revoke_key(key_id, now_us=time.time_ns() // 1000)
            target = f"key {key_id} with its sessions and all tokens signed by it"
        else:
            scope, text = (CAMPAIGN, campaign) if campaign is not None else (JOB, job)
            subject = _resolve_identity(settings, keyring, scope, text or "")
            done = keyring.revoke_tokens(scope, subject, now_us=time.time_ns() // 1000)
            target = f"tokens of {scope} {subject}"
    return f"{target} revoked" if done else f"{target} already revoked"


def _resolve_identity(settings: Settings, keyring: Keyring, scope: str, text: str) -> str:
    """Resolve text to an identity; an identity unknown to the database must be complete."""
    printable = 0 < len(text) <= MAX_IDENTITY and text.isprintable()
    if printable and keyring.has_subject(scope, text):
        return text
    if printable and _IDENTITY_PATTERNS[scope].fullmatch(text):
        click.echo(f"{scope} {text} is not in this database yet", err=True)
        return text
    hint = f"Give its full identity: {_IDENTITY_HINTS[scope]}."
    if scope == CAMPAIGN and printable:
        try:
            with Store.open(settings.database) as store:
                return store.campaign(text).id
        except ConfigError as error:
            raise ConfigError(
                error.message, where=f"--campaign {text!r}", hint=f"{error.hint}\n{hint}"
            ) from None
        except NothingToDoError:
            pass
    raise ConfigError(f"unknown {scope}", where=f"--{scope} {text!r}", hint=hint)


token.add_command(sessions_command)
token.add_command(rotate_master_command)


def _format_day(time_us: int) -> str:
    return format_time(time_us)[:10]
