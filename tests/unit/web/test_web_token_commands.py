"""The verbs of keys, as their user meets them."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from verbs import cli_verb

from treehammer import config
from treehammer.errors import ConfigError, NothingToDo
from treehammer.sql.keyring import master_key
from treehammer.sql.tokens import parse_key


@pytest.fixture
def settings(tmp_path: Path) -> config.Settings:
    return config.load({"data_dir": tmp_path}, environ={}, folder=tmp_path)


def token(settings: config.Settings, *arguments: str) -> Result:
    return CliRunner().invoke(cli_verb("token"), arguments, obj=settings)


def listed(settings: config.Settings) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(token(settings, "list", "--json").stdout)
    return rows


def test_a_key_is_shown_once(settings: config.Settings) -> None:
    with pytest.raises(NothingToDo):
        raise token(settings, "list").exception or AssertionError
    made = token(settings, "create", "--role", "submit", "--name", "alice", "--expires", "90d")
    key = parse_key(made.stdout)
    assert "role submit, until 20" in made.stderr
    assert key.secret not in made.stderr
    again = token(settings, "list")
    assert key.kid in again.stdout
    assert key.secret not in again.stdout
    (row,) = listed(settings)
    assert row["expires_us"] - row["created_us"] == 90 * 86400 * 1_000_000
    assert row["state"] == "counts"


def test_a_key_is_written_for_its_owner_alone(settings: config.Settings, tmp_path: Path) -> None:
    file = tmp_path / "alice.key"
    made = token(settings, "create", "--role", "read", "--name", "alice", "-o", str(file))
    assert made.stdout == ""
    assert parse_key(file.read_text()).kid in made.stderr
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    again = token(settings, "create", "--role", "read", "--name", "alice", "-o", str(file))
    assert "is there already" in str(again.exception)
    nowhere = token(settings, "create", "--role", "read", "--name", "a", "-o", "/dev/null/x")
    assert "token revoke" in str(nowhere.exception)
    assert [row["name"] for row in listed(settings)] == ["alice", "a"]


def test_revoking(settings: config.Settings) -> None:
    keys = [
        parse_key(token(settings, "create", "--role", "admin", "--name", name).stdout)
        for name in ("a", "b", "c")
    ]
    assert "revoked\n" in token(settings, "revoke", keys[0].kid).stdout
    assert "revoked already" in token(settings, "revoke", keys[0].kid).stdout
    whole = token(settings, "revoke", keys[1].text)
    assert keys[1].kid in whole.stdout
    assert keys[1].secret not in whole.output
    assert "tokens of job j revoked\n" in token(settings, "revoke", "--job", "j").stdout
    assert "tokens of campaign c revoked\n" in token(settings, "revoke", "--campaign", "c").stdout
    states = [row["state"] for row in listed(settings)]
    assert [state.split()[0] for state in states] == ["revoked", "revoked", "counts"]
    settings.master_key_file.unlink()
    master_key(settings.master_key_file)
    assert listed(settings)[2]["state"] == "of another master key"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("create", "--role", "read", "--name", " "), "--name"),
        (("create", "--role", "read", "--name", "a\nb"), "printable"),
        (("create", "--role", "read", "--name", "x" * 201), "200"),
        (("create", "--role", "read", "--name", "a", "--expires", "soon"), "no duration"),
        (("revoke", "nope"), "treehammer token list"),
        (("revoke", "th1.x"), "no key"),
        (("revoke", "--job", ""), "no identity of a job"),
        (("revoke", "--campaign", "a\x00"), "no identity of a campaign"),
    ],
)
def test_mistakes_are_told(
    settings: config.Settings, arguments: tuple[str, ...], said: str
) -> None:
    error = token(settings, *arguments).exception
    assert isinstance(error, ConfigError)
    assert said in str(error)


@pytest.mark.parametrize(
    "arguments",
    [("revoke",), ("revoke", "k", "--job", "j"), ("create", "--role", "root", "--name", "a")],
)
def test_usage(settings: config.Settings, arguments: tuple[str, ...]) -> None:
    assert token(settings, *arguments).exit_code == 2
