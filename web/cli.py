"""Commands ``serve``, ``report`` and ``token``: the results service, its keys, and one campaign as a page."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from treehammer import config
from treehammer.collectors.record.day_numbers import current_us
from treehammer.collectors.record.metric_catalogue import MAX_IDENTITY
from treehammer.config import Settings
from treehammer.errors import ConfigError, NothingToDoError
from treehammer.program_output import create_private_file, explain_write_errors
from treehammer.sql.cli import open_store
from treehammer.sql.core.access_keys import CAMPAIGN as CAMPAIGN_SCOPE
from treehammer.sql.core.access_keys import JOB as JOB_SCOPE
from treehammer.sql.core.access_keys import (
    ROLES,
    MasterKeys,
    fingerprint_master_key,
    parse_key,
)
from treehammer.tables import TableColumn, hidden_columns, titled_columns
from treehammer.terminal import (
    CAMPAIGN,
    CommandOutput,
    PathType,
    on_interrupt,
    print_hint,
    prints_rows,
)
from treehammer.text_formatting import (
    SECOND_US,
    format_minute,
    format_time,
    parse_duration,
    pluralize,
)

if TYPE_CHECKING:
    from treehammer.sql.core.rows import AccessKeyRow, ReadSession
    from treehammer.sql.write.keyring import Keyring

#: Maximum length of a holder's name.
MAX_KEY_NAME_CHARS = 200
#: Identities of campaigns and jobs as created on submission.
_IDENTITY_PATTERNS = {
    CAMPAIGN_SCOPE: re.compile("[0-9a-f]{16}"),
    JOB_SCOPE: re.compile("[0-9a-f]{24}"),
}
#: Format of the identities, and where to find them.
_IDENTITY_HINTS = {
    CAMPAIGN_SCOPE: "16 hexadecimal digits, shown by the submitter's 'treehammer status'",
    JOB_SCOPE: "24 hexadecimal digits, part of the address of its page and job_id of an export",
}


def _format_day(time_us: int) -> str:
    return format_time(time_us)[:10]


_KEY_COLUMNS = (
    *titled_columns(key_id="key id", role="role", name="for", owner="group"),
    TableColumn("created_us", "created", _format_day),
    TableColumn("expires_us", "expires", _format_day),
    TableColumn("state", "state"),
    *hidden_columns("revoked_us"),
)
#: Stored values of a key, in the order of JSON and CSV.
_KEY_NAMES = ("key_id", "role", "name", "owner", "created_us", "expires_us", "revoked_us")
_REVOCATION_COLUMNS = (
    *titled_columns(scope="tokens of", subject="identity"),
    TableColumn("revoked_us", "revoked", _format_day),
)
_SESSION_COLUMNS = (
    *titled_columns(session="session", key_id="key id", role="role", name="for", address="address"),
    TableColumn("created_us", "signed in (UTC)", format_minute),
    TableColumn("expires_us", "expires (UTC)", format_minute),
)


@click.command("serve")
@click.option("--host", help="Address to listen on; 0.0.0.0 for all [setting serve_host].")
@click.option("--port", type=int, help="Port to listen on [setting serve_port].")
@click.option(
    "--certificate",
    type=PathType(),
    help="Certificate with its chain, PEM [setting serve_certificate].",
)
@click.option(
    "--certificate-key",
    type=PathType(),
    help="Its private key, PEM [setting serve_certificate_key].",
)
@click.option(
    "--behind-proxy",
    is_flag=True,
    default=None,
    help="Serve plain HTTP behind a proxy that terminates TLS [setting serve_behind_proxy].",
)
@click.option(
    "--without-proxy",
    is_flag=True,
    default=None,
    help="Let other machines reach --host without a proxy [setting serve_without_proxy].",
)
@click.option(
    "--read-access",
    type=click.Choice([config.PUBLIC, config.KEYS]),
    help="Readers of results: the public, or holders of keys [setting serve_read_access].",
)
@click.option("--quiet", is_flag=True, help="Log only warnings and errors, not every request.")
@click.option(
    "--print-proxy",
    "proxy",
    type=click.Choice(["nginx", "caddy"]),
    help="Print the configuration of the proxy for these settings, with its secret, and end.",
)
@click.pass_obj
@on_interrupt("all acknowledged measurements are in the database")
def serve_command(settings: Settings, /, quiet: bool, proxy: str | None, **flags: Any) -> None:
    """Run the results service: receive measurements and show results.

    Other machines reach it by a proxy, nginx or Caddy, which terminates TLS and limits clients. Submitters
    need a key: create it with 'treehammer token create'.

    \b
    Example: treehammer serve --behind-proxy
             treehammer serve --print-proxy nginx > /etc/nginx/nginx.conf
    """
    settings = config.apply_flags(
        settings, {f"serve_{name}": value for name, value in flags.items()}
    )
    if proxy:
        from treehammer.web.service.proxy_setup import render_proxy

        click.echo(render_proxy(proxy, settings), nl=False)
        return
    # Imported here because uvicorn and SQLAlchemy take half a second to load.
    from treehammer.web.service.service_process import log_to_stderr, serve

    log_to_stderr(logging.WARNING if quiet else logging.INFO, settings.log_format)
    serve(settings)


@click.command("report")
@click.option(
    "--campaign",
    "campaigns",
    multiple=True,
    default=("last",),
    show_default=True,
    metavar="ID|last",
    help="Campaign to report; of each further one, the CPU efficiencies are added.",
    type=CAMPAIGN,
)
@click.option(
    "-o",
    "--output",
    type=PathType(dir_okay=False),
    default=Path("report.html"),
    show_default=True,
    help="The file to write: .html, or .pdf.",
)
@click.pass_obj
@on_interrupt("no report was written")
def report_command(settings: Settings, campaigns: tuple[str, ...], output: Path) -> None:
    """Write one campaign as one self-contained HTML page, or as PDF.

    Its title is the verdict on what the campaign compared, or what its load found. PDF needs
    the extra pdf of Treehammer.

    \b
    Example: treehammer report --campaign last -o report.html
             treehammer report -o report.pdf
             treehammer report --campaign COMPARISON --campaign UNDISTURBED
    """
    # Imported here because scipy takes a third of a second to load.
    from treehammer.web.campaign_report import write_report

    write_report(settings.database, campaigns, output)
    click.echo(f"{output}: report written ({output.stat().st_size / 1000:.0f} kB)")


@click.group("token")
def token() -> None:
    """Manage keys to the results service (treehammer serve) for reading and submitting."""


@token.command("rotate-master")
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
    from treehammer.sql.write.keyring import load_master_keys, rotate_master_key

    path = settings.master_key_file
    with _open_keyring(settings) as keyring:
        masters = load_master_keys(path, create=False) if finish else rotate_master_key(path)
        if not finish:
            old, new = map(fingerprint_master_key, (masters.previous[0], masters.current))
            keyring.record_rotation(f"master key {old} to {new}", now_us=current_us())
            click.echo(f"{path}: new master key {new}")
        if finish or at_once:
            _finish(settings, keyring, masters)
        else:
            _describe_next_steps(keyring, masters)


@contextmanager
def _open_keyring(settings: Settings, *, create: bool = False) -> Iterator[Keyring]:
    from treehammer.sql.engine.database_setup import opened_engine
    from treehammer.sql.write.keyring import Keyring

    with opened_engine(settings.database, create=create) as engine:
        yield Keyring(engine)


def _finish(settings: Settings, keyring: Keyring, masters: MasterKeys) -> None:
    if not masters.previous:
        raise NothingToDoError(
            "no rotation is in progress", hint="Begin one: treehammer token rotate-master"
        )
    from treehammer.sql.write.keyring import forget_previous_master_keys

    revoked = keyring.revoke_keys_of(masters.previous, now_us=current_us())
    forget_previous_master_keys(settings.master_key_file)
    click.echo(
        f"{pluralize(len(revoked), 'key')} revoked; "
        f"{pluralize(len(masters.previous), 'previous master key')} removed"
    )


def _describe_next_steps(keyring: Keyring, masters: MasterKeys) -> None:
    old = sum(
        row.revoked_us is None and masters.is_previous(row.master_key_fingerprint)
        for row in keyring.list_keys()
    )
    print_hint(
        f"{pluralize(old, 'key')} of previous master keys still valid: create new ones, then run "
        "treehammer token rotate-master --finish",
        err=True,
    )


@token.command("sessions")
@prints_rows(*_SESSION_COLUMNS)
@click.pass_obj
def sessions_command(settings: Settings) -> list[dict[str, Any]]:
    """List browsers that are signed in to the results service.

    Example: treehammer token sessions
    """
    from treehammer.sql.engine.database_setup import opened_engine
    from treehammer.sql.write.keyring import SessionTable, session_id

    with opened_engine(settings.database, create=False) as engine:
        sessions = SessionTable(engine).list_sessions(now_us=current_us())
    names = ("key_id", "role", "name", "address", "created_us", "expires_us")
    return [
        {"session": session_id(row), **{name: getattr(row, name) for name in names}}
        for row in sessions
    ]


def _end_sessions(
    settings: Settings, option: str, text: str, matches: Callable[[ReadSession], bool]
) -> str:
    """End the sessions of browsers that match, and describe the result; none are refused."""
    from treehammer.sql.engine.database_setup import opened_engine
    from treehammer.sql.write import audit_trail
    from treehammer.sql.write.keyring import SessionTable

    now_us = current_us()
    with opened_engine(settings.database, create=False) as engine:
        table = SessionTable(engine)
        sessions = [row for row in table.list_sessions(now_us=now_us) if matches(row)]
        if not sessions:
            raise ConfigError(
                "no such session",
                where=f"{option} {text!r}",
                hint="To list all sessions: treehammer token sessions",
            )
        subject = f"sessions of {', '.join(sorted({session.name for session in sessions}))}"
        action, actor = audit_trail.END_SESSIONS, audit_trail.local_actor()
        entry = audit_trail.make_entry(action, actor, subject, now_us=now_us)
        ended = table.end_sessions([session.token_hash for session in sessions], [entry])
    return f"{pluralize(ended, 'session')} ended"


@token.command("create")
@click.option("--role", type=click.Choice(ROLES), required=True, help="Permissions of its holder.")
@click.option("--name", required=True, help="Name of its holder, for the list.")
@click.option("--group", default="", help="Group that shares its campaigns [default: the name].")
@click.option("--expires", metavar="90d", help="Lifetime from now [default: unlimited].")
@click.option(
    "-o",
    "--output",
    type=PathType(dir_okay=False),
    help="New file for the key, readable by you alone, instead of standard output.",
)
@click.pass_obj
def create_command(
    settings: Settings, role: str, name: str, group: str, expires: str | None, output: Path | None
) -> None:
    """Create a key and show it once: neither the service nor the database stores it.

    Example: treehammer token create --role submit --name alice --expires 365d
    """
    from treehammer.sql.write.keyring import load_master_keys

    name = _check_name(name, "--name")
    owner = _check_name(group.strip() or name, "--group")
    now_us = current_us()
    end_us = now_us + parse_duration(expires, "--expires") * SECOND_US if expires else None
    if output is not None and output.exists():
        raise ConfigError("exists already", where=str(output), hint="Give another file name.")
    masters = load_master_keys(settings.master_key_file)
    with _open_keyring(settings, create=True) as keyring:
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
    lost = f"The key is lost: treehammer token revoke {key.key_id}, and create another one."
    with (
        explain_write_errors(output, lost),
        os.fdopen(create_private_file(output), "w", encoding="ascii") as stream,
    ):
        stream.write(key.text + "\n")
    click.echo(f"{output}: key written; give this file as service_token_file", err=True)


def _check_name(text: str, option: str) -> str:
    """Return a name without surrounding space; invalid and reserved ones are refused."""
    from treehammer.sql.core.rows import LOCAL_OWNER

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
    foreign = sum(
        row.revoked_us is None and masters.find(row.master_key_fingerprint) is None for row in rows
    )
    if foreign:
        click.echo(
            f"warning: {pluralize(foreign, 'key')} in this database created with another master "
            f"key than {settings.master_key_file}; a service with that one refuses the new key. "
            "Create keys as the service's user, with its configuration (service_key_file).",
            err=True,
        )


@token.command("list")
@click.option("--revoked", is_flag=True, help="List campaigns and jobs with revoked tokens.")
@prints_rows(*_KEY_COLUMNS, keys="and with --revoked scope, subject, revoked_us")
@click.pass_obj
def list_command(settings: Settings, revoked: bool) -> CommandOutput:
    """List all keys without their secrets, or other revocations.

    Example: treehammer token list
    """
    from treehammer.sql.write.keyring import describe_key_state as find_state
    from treehammer.sql.write.keyring import load_master_keys

    path = settings.master_key_file
    with _open_keyring(settings) as keyring:
        # Listing must not create a master key.
        masters = load_master_keys(path) if path.exists() else None
        rows = [
            {**{name: getattr(row, name) for name in _KEY_NAMES}, "state": find_state(row, masters)}
            for row in keyring.list_keys()
        ]
        revocations = keyring.list_revocations()
    remarks = []
    if rows and masters is None:
        remarks.append(
            f"warning: {path} is missing, so that no key is valid: restore it from a backup, or give "
            "its path (service_key_file)"
        )
    if revoked:
        return CommandOutput(revocations, _REVOCATION_COLUMNS, remarks=remarks)
    if count := len(revocations):
        remarks.append(f"other revocations: {count} (treehammer token list --revoked)")
    return CommandOutput(rows, _KEY_COLUMNS, remarks=remarks)


@token.command("revoke")
@click.argument("key_id", required=False)
@click.option(
    "--campaign",
    metavar="ID",
    type=CAMPAIGN,
    help="Revoke the tokens of this campaign's jobs: its full identity or, if the database knows it, "
    "its name, a prefix of either, or 'last'.",
)
@click.option("--job", metavar="ID", help="Revoke the token of this job: its full identity.")
@click.option("--session", metavar="ID", help="Sign a browser out: see treehammer token sessions.")
@click.option(
    "--sessions-of", metavar="HOLDER", help="Sign out all browsers of a key or its holder."
)
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
    from treehammer.sql.write.keyring import session_id

    if session is not None:
        text = _end_sessions(settings, "--session", session, lambda row: session_id(row) == session)
    elif sessions_of is not None:
        holder = sessions_of
        text = _end_sessions(
            settings, "--sessions-of", holder, lambda row: holder in (row.key_id, row.name)
        )
    else:
        text = _revoke_tokens(settings, key_id, campaign, job)
    click.echo(text)


def _revoke_tokens(
    settings: Settings, key_id: str | None, campaign: str | None, job: str | None
) -> str:
    with _open_keyring(settings, create=True) as keyring:
        if key_id is not None:
            # The full key is accepted instead of its identity.
            key_id = parse_key(key_id).key_id if key_id.startswith("th1.") else key_id
            is_new = keyring.revoke_key(key_id, now_us=current_us())
            target = f"key {key_id} with its sessions and all tokens signed by it"
        else:
            scope, text = (CAMPAIGN_SCOPE, campaign) if campaign is not None else (JOB_SCOPE, job)
            subject = _resolve_identity(settings, keyring, scope, text or "")
            is_new = keyring.revoke_tokens(scope, subject, now_us=current_us())
            target = f"tokens of {scope} {subject}"
    return f"{target} revoked" if is_new else f"{target} already revoked"


def _resolve_identity(settings: Settings, keyring: Keyring, scope: str, text: str) -> str:
    """Resolve text to an identity; an identity unknown to the database must be complete."""
    printable = 0 < len(text) <= MAX_IDENTITY and text.isprintable()
    if printable and keyring.has_subject(scope, text):
        return text
    if printable and _IDENTITY_PATTERNS[scope].fullmatch(text):
        click.echo(f"{scope} {text} is not in this database yet", err=True)
        return text
    hint = f"Give its full identity: {_IDENTITY_HINTS[scope]}."
    if scope == CAMPAIGN_SCOPE and printable:
        try:
            with open_store(settings, create=True) as store:
                return store.campaign(text).id
        except ConfigError as error:
            raise ConfigError(
                error.message, where=f"--campaign {text!r}", hint=f"{error.hint}\n{hint}"
            ) from None
        except NothingToDoError:
            pass
    raise ConfigError(f"unknown {scope}", where=f"--{scope} {text!r}", hint=hint)
