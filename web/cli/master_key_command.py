"""Command ``token rotate-master``: rotation of the service's master key."""

from __future__ import annotations

import time

import click

from treehammer.config import Settings
from treehammer.errors import NothingToDoError
from treehammer.sql.auth.access_keys import MasterKeys, fingerprint_master_key
from treehammer.sql.auth.keyring import Keyring
from treehammer.sql.auth.master_key_file import (
    forget_previous_master_keys,
    load_master_keys,
    rotate_master_key,
)
from treehammer.sql.setup.database_setup import opened_engine
from treehammer.terminal import print_hint
from treehammer.text_formatting import pluralize


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
