"""Commands of keys on the command line."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest
from cli_verbs import find_command
from click.testing import CliRunner, Result
from measurement_factory import make_campaign_row, make_measurement

from treehammer import config
from treehammer.errors import ConfigError, NothingToDoError
from treehammer.sql.auth.access_keys import parse_key
from treehammer.sql.auth.keyring import load_master_keys
from treehammer.sql.write.store import Store


def token(settings: config.Settings, *arguments: str) -> Result:
    return CliRunner().invoke(find_command("token"), arguments, obj=settings)


def listed(settings: config.Settings) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(token(settings, "list", "--json").stdout)
    return rows


def test_token_create_shows_key_once(settings: config.Settings) -> None:
    with pytest.raises(NothingToDoError):
        raise token(settings, "list").exception or AssertionError
    created = token(settings, "create", "--role", "submit", "--name", "alice", "--expires", "90d")
    key = parse_key(created.stdout)
    assert "role submit, valid until 20" in created.stderr
    assert key.secret not in created.stderr
    again = token(settings, "list")
    assert key.key_id in again.stdout
    assert key.secret not in again.stdout
    (row,) = listed(settings)
    assert row["expires_us"] - row["created_us"] == 90 * 86400 * 1_000_000
    assert row["state"] == "active"


def test_token_create_writes_private_file(settings: config.Settings, tmp_path: Path) -> None:
    file = tmp_path / "alice.key"
    created = token(settings, "create", "--role", "read", "--name", "alice", "-o", str(file))
    assert created.stdout == ""
    assert parse_key(file.read_text()).key_id in created.stderr
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    again = token(settings, "create", "--role", "read", "--name", "alice", "-o", str(file))
    assert "exists already" in str(again.exception)
    nowhere = token(settings, "create", "--role", "read", "--name", "a", "-o", "/dev/null/x")
    assert "token revoke" in str(nowhere.exception)
    assert [row["name"] for row in listed(settings)] == ["alice", "a"]


def test_token_revoke_changes_state_of_keys(settings: config.Settings) -> None:
    keys = [
        parse_key(token(settings, "create", "--role", "admin", "--name", name).stdout)
        for name in ("a", "b", "c")
    ]
    assert "revoked\n" in token(settings, "revoke", keys[0].key_id).stdout
    assert "already revoked" in token(settings, "revoke", keys[0].key_id).stdout
    result = token(settings, "revoke", keys[1].text)
    assert keys[1].key_id in result.stdout
    assert keys[1].secret not in result.output
    states = [row["state"] for row in listed(settings)]
    assert [state.split()[0] for state in states] == ["revoked", "revoked", "active"]
    settings.master_key_file.unlink()
    load_master_keys(settings.master_key_file)
    assert listed(settings)[2]["state"] == "other master key"


def test_token_revoke_accepts_campaigns_and_jobs(settings: config.Settings) -> None:
    campaign, job = "3f2a" * 4, "7" * 24
    with Store.open(settings.database) as store:
        store.add_campaign(make_campaign_row(campaign, name="nightly"), [])
        store.add([make_measurement("odd job", campaign_id="elsewhere")])
    for arguments, said in (
        (("--campaign", "3f2a"), f"tokens of campaign {campaign} revoked\n"),
        (("--campaign", "nightly"), f"tokens of campaign {campaign} already revoked\n"),
        (("--campaign", "elsewhere"), "tokens of campaign elsewhere revoked\n"),
        (("--job", "odd job"), "tokens of job odd job revoked\n"),
    ):
        done = token(settings, "revoke", *arguments)
        assert (done.stdout, done.stderr) == (said, "")
    unknown = token(settings, "revoke", "--job", job)
    assert unknown.stdout == f"tokens of job {job} revoked\n"
    assert f"job {job} is not in this database yet" in unknown.stderr
    revoked = json.loads(token(settings, "list", "--revoked", "--json").stdout)
    assert {(row["scope"], row["subject"]) for row in revoked} == {
        ("campaign", campaign),
        ("campaign", "elsewhere"),
        ("job", "odd job"),
        ("job", job),
    }
    assert (
        "other revocations: 4 (treehammer token list --revoked)" in token(settings, "list").stderr
    )
    for arguments, said in (
        (("--campaign", "3f2b"), f"{campaign}  nightly"),
        (("--campaign", "3f2b"), "16 hexadecimal digits"),
        (("--job", "7" * 23), "24 hexadecimal digits, part of the address of its page"),
    ):
        error = token(settings, "revoke", *arguments).exception
        assert isinstance(error, ConfigError)
        assert said in str(error)
    assert len(json.loads(token(settings, "list", "--revoked", "--json").stdout)) == 4


def test_token_list_creates_no_master_key(settings: config.Settings) -> None:
    token(settings, "create", "--role", "read", "--name", "a")
    settings.master_key_file.unlink()
    result = token(settings, "list")
    assert f"warning: {settings.master_key_file} is missing" in result.stderr
    assert [row["state"] for row in listed(settings)] == ["master key missing"]
    assert not settings.master_key_file.exists()


def test_token_create_warns_of_other_master_key(settings: config.Settings) -> None:
    make = ("create", "--role", "read", "--name", "a")
    assert "warning" not in token(settings, *make).stderr
    settings.master_key_file.unlink()
    created = token(settings, *make)
    assert "warning: 1 key in this database created with another master key" in created.stderr
    assert parse_key(created.stdout)
    old = next(row["key_id"] for row in listed(settings) if row["state"] == "other master key")
    token(settings, "revoke", old)
    assert "warning" not in token(settings, *make).stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("create", "--role", "read", "--name", " "), "--name"),
        (("create", "--role", "read", "--name", "a\nb"), "printable"),
        (("create", "--role", "read", "--name", "x" * 201), "200"),
        (("create", "--role", "read", "--name", "a", "--expires", "soon"), "not a duration"),
        (("revoke", "nope"), "treehammer token list"),
        (("revoke", "\udcff"), "treehammer token list"),
        (("revoke", "--campaign", "\udcff"), "unknown campaign"),
        (("revoke", "--job", "\udcff"), "unknown job"),
        (("revoke", "th1.x"), "not a key"),
        (("revoke", "--job", ""), "unknown job"),
        (("revoke", "--campaign", "a\x00"), "unknown campaign"),
        (("revoke", "--campaign", "last"), "16 hexadecimal digits"),
    ],
)
def test_token_invalid_arguments_are_named(
    settings: config.Settings, arguments: tuple[str, ...], message: str
) -> None:
    error = token(settings, *arguments).exception
    assert isinstance(error, ConfigError)
    assert message in str(error)


@pytest.mark.parametrize(
    "arguments",
    [("revoke",), ("revoke", "k", "--job", "j"), ("create", "--role", "root", "--name", "a")],
)
def test_token_wrong_usage_exits_with_2(
    settings: config.Settings, arguments: tuple[str, ...]
) -> None:
    assert token(settings, *arguments).exit_code == 2


def test_token_rotate_master_keeps_keys_until_finished(settings: config.Settings) -> None:
    token(settings, "create", "--role", "read", "--name", "a")
    file = settings.master_key_file
    assert "no rotation is in progress" in str(
        token(settings, "rotate-master", "--finish").exception
    )
    for _ in range(3):
        assert token(settings, "rotate-master").exit_code == 0
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert not list(file.parent.glob("*.tmp"))
    assert "rotate-master --finish" in str(token(settings, "rotate-master").exception)
    created = token(settings, "create", "--role", "read", "--name", "b")
    assert "warning" not in created.stderr
    assert [row["state"] for row in listed(settings)] == ["active, previous master key", "active"]
    done = token(settings, "rotate-master", "--finish")
    assert done.stdout == "1 key revoked; 3 previous master keys removed\n"
    assert [row["state"].split()[0] for row in listed(settings)] == ["revoked", "active"]
    assert len(file.read_text().split()) == 1
