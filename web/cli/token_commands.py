"""The verbs of the keys to the results service: ``token``."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from treehammer.collectors.record.measurement_record import MAX_IDENTITY
from treehammer.collectors.worker.probes.credential_checks import format_time
from treehammer.config import Settings
from treehammer.durations import parse_duration
from treehammer.errors import ConfigError, NothingToDoError
from treehammer.sql.auth.keyring import Keyring, Revocation, load_master_key
from treehammer.sql.auth.tokens import (
    CAMPAIGN,
    JOB,
    ROLES,
    AccessKey,
    AccessKeyRow,
    fingerprint_master_key,
    parse_key,
)
from treehammer.sql.core.database_setup import open_engine
from treehammer.sql.write.store import Store
from treehammer.terminal import OutputColumn, output_options, print_rows
from treehammer.text_formatting import pluralize

MICROSECONDS = 1_000_000
#: The longest name of a holder, in characters.
MAX_KEY_NAME_CHARS = 200
#: Identities of campaigns and jobs as submitting makes them.
_IDENTITY_PATTERNS = {CAMPAIGN: re.compile("[0-9a-f]{16}"), JOB: re.compile("[0-9a-f]{24}")}
#: What they look like, and where they stand.
_IDENTITY_HINTS = {
    CAMPAIGN: "16 hexadecimal digits, as its submitter's status tells",
    JOB: "24 hexadecimal digits, as in the address of its page and in job_id of an export",
}


@click.group("token")
def token() -> None:
    """Keys to the results service (treehammer serve): who may read, who may submit."""


@token.command("create")
@click.option("--role", type=click.Choice(ROLES), required=True, help="What its holder may do.")
@click.option("--name", required=True, help="Who will hold it, for the list.")
@click.option("--expires", metavar="90d", help="When it ends, from now [default: never].")
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="A new file to write it to, readable for you alone, rather than printing it.",
)
@click.pass_obj
def create_command(
    settings: Settings, role: str, name: str, expires: str | None, output: Path | None
) -> None:
    """Make a key and show it, this once: neither the service nor the database keeps it.

    Example: treehammer token create --role submit --name alice --expires 365d
    """
    if not name.strip() or len(name) > MAX_KEY_NAME_CHARS or not name.isprintable():
        raise ConfigError(
            f"must be printable text of 1 to {MAX_KEY_NAME_CHARS} characters", where="--name"
        )
    now_us = _now_us()
    end_us = now_us + parse_duration(expires, "--expires") * MICROSECONDS if expires else None
    if output is not None and output.exists():
        raise ConfigError("is there already", where=str(output), hint="Give another name.")
    master = load_master_key(settings.master_key_file)
    with _open_keyring(settings) as keyring:
        _warn_of_foreign_keys(settings, keyring.list_keys(), master)
        key = keyring.create_key(master, role, name.strip(), now_us=now_us, expires_us=end_us)
    until = f"until {format_time(end_us / MICROSECONDS)}" if end_us else "until it is revoked"
    click.echo(f"key {key.key_id} for {name.strip()}, role {role}, {until}", err=True)
    if output is None:
        click.echo("it is shown this once; keep it in a file that nobody else can read:", err=True)
        click.echo(key.text)
        return
    _write_key(output, key)
    click.echo(f"{output}: key written; name it in service_token_file", err=True)


def _warn_of_foreign_keys(settings: Settings, rows: Sequence[AccessKeyRow], master: bytes) -> None:
    strange = [row for row in rows if row.revoked_us is None and not _is_made_here(row, master)]
    if strange:
        click.echo(
            f"warning: {pluralize(len(strange), 'key')} of this database made with another master key "
            f"than {settings.master_key_file}; a service that has that one refuses this key. Make "
            "keys as the service's user, with its configuration (service_key_file).",
            err=True,
        )


def _is_made_here(row: AccessKeyRow, master: bytes) -> bool:
    return row.master_key_fingerprint == fingerprint_master_key(master)


def _write_key(path: Path, key: AccessKey) -> None:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="ascii") as stream:
            stream.write(key.text + "\n")
    except OSError as error:
        raise ConfigError(
            f"cannot be written ({error.strerror})",
            where=str(path),
            hint=f"Nobody has the key: treehammer token revoke {key.key_id}, and make another.",
        ) from error


@token.command("list")
@click.option("--revoked", is_flag=True, help="The campaigns and jobs whose tokens were revoked.")
@output_options
@click.pass_obj
def list_command(settings: Settings, revoked: bool, form: str) -> None:
    """List every key ever made, without its secret; or what else was revoked.

    Example: treehammer token list
    """
    path = settings.master_key_file
    with _open_keyring(settings, create=False) as keyring:
        # Only to look, none is made.
        master = load_master_key(path) if path.exists() else None
        rows = [_key_row(row, master) for row in keyring.list_keys()]
        revocations = keyring.list_revocations()
    if rows and master is None:
        click.echo(
            f"warning: {path} is not there, and with it no key counts: put it back from a backup, or "
            "name it (service_key_file)",
            err=True,
        )
    if revoked:
        _list_revocations(revocations, form)
        return
    columns = [
        OutputColumn("key_id", "key"),
        OutputColumn("role", "role"),
        OutputColumn("name", "for"),
        OutputColumn("created_us", "created", _format_day),
        OutputColumn("expires_us", "expires", _format_day),
        OutputColumn("state", "state"),
    ]
    print_rows(rows, columns, form=form)
    if revocations:
        count = len(revocations)
        click.echo(
            f"tokens revoked beside keys: {count} (treehammer token list --revoked)", err=True
        )


def _list_revocations(revocations: Sequence[Revocation], form: str) -> None:
    columns = [
        OutputColumn("scope", "tokens of"),
        OutputColumn("subject", "identity"),
        OutputColumn("revoked_us", "revoked", _format_day),
    ]
    print_rows([asdict(one) for one in revocations], columns, form=form)


def _key_row(row: AccessKeyRow, master: bytes | None) -> dict[str, Any]:
    state = "counts"
    if row.revoked_us is not None:
        state = f"revoked {_format_day(row.revoked_us)}"
    elif master is None:
        state = "master key missing"
    elif not _is_made_here(row, master):
        state = "of another master key"
    elif row.expires_us is not None and row.expires_us < _now_us():
        state = "expired"
    return {
        "key_id": row.key_id,
        "role": row.role,
        "name": row.name,
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
    help="The tokens of all jobs of this campaign: its whole identity or, where the database knows "
    "it, its name, a prefix of either, or 'last'.",
)
@click.option("--job", metavar="ID", help="The token of this job: its whole identity.")
@click.pass_obj
def revoke_command(
    settings: Settings, key_id: str | None, campaign: str | None, job: str | None
) -> None:
    """Have a key count no more, with all tokens made with it; or those of a campaign or a job.

    It cannot be undone. Every service on this database knows within a few seconds.

    Example: treehammer token revoke 3f9c0a61b2d4
    """
    if [key_id, campaign, job].count(None) != 2:
        raise click.UsageError("Give one of KID, --campaign and --job.")
    with _open_keyring(settings) as keyring:
        if key_id is not None:
            # Somebody may have the whole key at hand, rather than its id.
            key_id = parse_key(key_id).key_id if key_id.startswith("th1.") else key_id
            done = keyring.revoke_key(key_id, now_us=_now_us())
            what = f"key {key_id}, with all tokens made with it,"
        else:
            scope, text = (CAMPAIGN, campaign) if campaign is not None else (JOB, job)
            subject = _resolve_identity(settings, keyring, scope, text or "")
            done = keyring.revoke_tokens(scope, subject, now_us=_now_us())
            what = f"tokens of {scope} {subject}"
    click.echo(f"{what} revoked" if done else f"{what} revoked already")


def _resolve_identity(settings: Settings, keyring: Keyring, scope: str, text: str) -> str:
    """The identity that is meant; of what the database does not know, only a whole one is taken."""
    printable = 0 < len(text) <= MAX_IDENTITY and text.isprintable()
    if printable and keyring.has_subject(scope, text):
        return text
    if printable and _IDENTITY_PATTERNS[scope].fullmatch(text):
        click.echo(f"this database knows nothing of {scope} {text} yet", err=True)
        return text
    hint = f"Give its whole identity, {_IDENTITY_HINTS[scope]}."
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
    raise ConfigError(f"there is no such {scope} here", where=f"--{scope} {text!r}", hint=hint)


@contextmanager
def _open_keyring(settings: Settings, *, create: bool = True) -> Iterator[Keyring]:
    engine = open_engine(settings.database, create=create)
    try:
        yield Keyring(engine)
    finally:
        engine.dispose()


def _now_us() -> int:
    return time.time_ns() // 1000


def _format_day(time_us: int) -> str:
    return format_time(time_us / MICROSECONDS)[:10]
