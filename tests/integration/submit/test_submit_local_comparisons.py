"""Comparisons and reads on this machine: ``try``, ``--until decided`` and ``read``."""

from __future__ import annotations

import json
from pathlib import Path

import git
import numpy as np
import pytest
import uproot
from local_user import LocalUser

from treehammer import config
from treehammer.errors import ConfigError, ExitCode, NothingToDoError
from treehammer.sql.write.store import Store

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


#: A payload that takes turns without ROOT: each entry burns CPU, with release "new" half as much again.
TURNS = """\
#!/usr/bin/env python3
import json, os, time

prefix = os.environ["TREEHAMMER_TURNS"]
work = 30 if os.environ["TREEHAMMER_AXIS_RELEASE"] == "new" else 20
passes, total = 0, 0.0
with open(prefix + ".commands") as commands, open(prefix + ".answers", "w", 1) as answers:
    answers.write("ready\\n")
    for line in commands:
        word, *numbers = line.split()
        if word == "finish":
            break
        answer = 0
        if word == "open":
            answer = 400
        elif word == "discard":
            total = 0.0
        elif word == "close":
            passes += 1
        elif word == "run":
            first, last = map(int, numbers)
            cpu, wall = time.process_time_ns(), time.monotonic_ns()
            for _ in range((last - first) * work):
                sum(range(1000))
            cpu = time.process_time_ns() - cpu
            total += 1e-9 * cpu
            answer = f"{cpu} {time.monotonic_ns() - wall} 1 0 0 0"
        answers.write(f"{answer}\\n")
loop_s = total / passes
times = {"loop_cpu_s": loop_s, "loop_wall_s": loop_s, "passes_done": passes, "passes_counted": passes}
per_event = {"cpu_per_event_s": loop_s / 400, "wall_per_event_s": loop_s / 400}
values = {"events_read": 400, **times, **per_event}
with open(os.environ["TREEHAMMER_RESULT"], "w") as stream:
    json.dump({"format": 1, "values": values, "extras": {}}, stream)
"""
TEST_TOML = """
[test]
name = "turns"
payload = "run.py"
mode = "paired"
[matrix]
root = ["none"]
release = ["old", "new"]
bundle = ["release"]
"""


def test_comparison_ends_with_a_verdict_after_three_launches(local_user: LocalUser) -> None:
    payload = local_user.test / "run.py"
    payload.write_text(TURNS)
    payload.chmod(0o755)
    (local_user.test / "test.toml").write_text(TEST_TOML)
    result = local_user.invoke_command("submit", str(local_user.test), "--wait")
    assert result.exception is None, result.output
    assert result.return_value == 0
    assert "slower" in result.output
    assert "Decided after 3 launches of each variant, of at most 24." in result.output
    rows = local_user.read_measurements("round", "kind")
    launches = {(row["job_id"], row["round"]): row["kind"] for row in rows}
    assert sorted(map(str, launches.values())) == ["control", "timed", "timed", "timed"]
    assert {row["failure_class"] for row in rows} == {None}
    campaign = local_user.last_campaign_id()
    compared = local_user.invoke_command(
        *("compare", "old", "new", "--axis", "release", "--campaign", campaign, "--json")
    )
    verdicts = {row["metric"]: row["verdict"] for row in json.loads(compared.stdout)[:2]}
    assert verdicts["cpu_per_event_s"] == "slower"
    assert "each of its up to 4 looks" in compared.stderr


EVENTS = 20_000


def test_figures_of_selected_branches_are_those_of_uproot(
    local_user: LocalUser, tmp_path: Path
) -> None:
    path = tmp_path / "some numbers.root"
    values = np.random.default_rng(1).integers(0, 1000, (3, EVENTS))
    with uproot.recreate(path, compression=uproot.ZLIB(1)) as file:
        branches = dict.fromkeys(("x_a", "x_b", "y"), "int64")
        file.mktree("events", branches).extend(dict(zip(branches, values, strict=True)))
    local_user.settings.cache_dir.mkdir(exist_ok=True)
    local_user.settings.software_dir.symlink_to(config.load_settings().software_dir)

    result = local_user.invoke_command(
        "read", str(path), "-b", "x_*", "--root", "6.40.00", "--keep", "mine", "--json"
    )

    document = json.loads(result.stdout)
    assert (document["tree"], document["format"]) == ("events", "ttree")
    with uproot.open(path) as file:
        selected = [file["events"][name] for name in ("x_a", "x_b")]
        compressed = sum(branch.compressed_bytes for branch in selected)
    (read,) = document["reads"]
    assert (read["events"], read["branches"]) == (EVENTS, 2)
    assert (read["compressed_bytes"], read["uncompressed_bytes"]) == (compressed, 2 * 8 * EVENTS)
    assert read["events_per_s"] == pytest.approx(EVENTS / read["wall_s"])
    assert read["compressed_mb_per_s"] == pytest.approx(compressed / read["wall_s"] / 1e6)
    with Store.open(local_user.settings.database, create=False) as store:
        assert [campaign.name for campaign in store.campaigns()] == ["mine"]
    assert not local_user.settings.datasets_dir.exists()
