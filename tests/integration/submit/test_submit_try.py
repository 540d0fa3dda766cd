"""Command ``try``: a changed test against its commit, run by the local queue."""

from __future__ import annotations

import json
from pathlib import Path

import git
import pytest
from local_user import LocalUser

from treehammer.errors import ConfigError, ExitCode, NothingToDoError

TRIED_TEST = """
[test]
name = "{name}"
payload = "run.sh"
wall_limit_s = 60
[matrix]
root = ["none"]
"""
#: Reports a time per event near {time} ms, which no two runs share.
PAYLOAD = """#!/bin/sh
noise=$(date +%N | cut -c1-6)
cat > "$TREEHAMMER_RESULT" <<END
{{"format": 1, "values": {{"cpu_per_event_s": 0.{time}$noise, "wall_per_event_s": 0.{time}$noise,
"loop_cpu_s": 5.0, "passes_counted": 1}}}}
END
"""


class Checkout:
    """A working tree with two committed tests, ``read`` and ``write``."""

    def __init__(self, top: Path) -> None:
        self.top = top
        self.repo = git.Repo.init(top, initial_branch="main")
        for name in ("read", "write"):
            (top / name).mkdir()
            (top / name / "test.toml").write_text(TRIED_TEST.format(name=name))
            self.change(name, "010000")
        self.repo.git.add(".")
        options = ("-c", "user.name=a", "-c", "user.email=a")
        self.repo.git.execute(["git", *options, "commit", "--quiet", "--message", "First"])

    def change(self, name: str, time: str) -> None:
        path = self.top / name / "run.sh"
        path.write_text(PAYLOAD.format(time=time))
        path.chmod(0o755)


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path / "checkout")


def test_slower_working_tree_exits_with_1(local_user: LocalUser, checkout: Checkout) -> None:
    checkout.change("write", "011000")
    result = local_user.invoke_command("try", str(checkout.top))
    assert result.exception is None, result.output
    assert result.return_value == ExitCode.REGRESSION
    head = f"HEAD ({checkout.repo.git.rev_parse('HEAD')[:10]})"
    assert f"the working tree against {head}" in result.stdout
    assert "On this host, the working tree needs 10.0 % " in result.stdout
    assert f"more CPU time per event than {head}" in result.stdout
    rows = local_user.read_measurements("commit_id", "dirty", "test_hash")
    assert len({(row["dirty"], row["test_hash"]) for row in rows}) == 2
    again = local_user.invoke_command("compare", "main", "HEAD", "--axis", "commit")
    assert isinstance(again.exception, ConfigError), "both names are one commit"
    commit = str(rows[0]["commit_id"])
    arguments = (commit[:8], f"{commit[:8]}+dirty", "--axis", "commit", "--json")
    again = local_user.invoke_command("compare", *arguments)
    assert again.return_value == ExitCode.REGRESSION
    verdicts = {row["verdict"] for row in json.loads(again.stdout) if row["scope"] == "host"}
    assert verdicts == {"slower"}


def test_nothing_or_too_much_has_changed(local_user: LocalUser, checkout: Checkout) -> None:
    for path, message in ((".", "none of 2 tests differs"), ("read", "hold the same payload")):
        result = local_user.invoke_command("try", str(checkout.top / path))
        assert isinstance(result.exception, NothingToDoError), result.output
        assert message in str(result.exception)
    checkout.change("read", "012000")
    checkout.change("write", "012000")
    result = local_user.invoke_command("try", str(checkout.top))
    assert isinstance(result.exception, ConfigError)
    assert "2 tests differ from HEAD: read, write" in str(result.exception)
