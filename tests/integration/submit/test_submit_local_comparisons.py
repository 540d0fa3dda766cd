"""Comparisons and counts on this machine, and the documented pipelines."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import uproot
import yaml
from captured_runs import commit_all, make_repository, run_git
from comment_server import CommentServer
from local_servers import serve_http
from local_user import LocalUser
from machine_requirements import skip_or_fail
from repository_code import REPOSITORY
from spool_harness import SpoolHarness

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
        make_repository(top)
        for name in ("read", "write"):
            (top / name).mkdir()
            (top / name / "test.toml").write_text(TRIED_TEST.format(name=name))
            self.change(name, "010000")
        self.head = commit_all(top)

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
    head = f"HEAD ({checkout.head[:10]})"
    assert f"the working tree against {head}" in result.stdout
    assert result.stdout.startswith("On this host, the working tree needs 10.0 % ")
    assert f"more CPU time per event than {head}" in result.stdout
    rows = local_user.read_measurements("commit_id", "dirty", "test_hash")
    assert len({(row["dirty"], row["test_hash"]) for row in rows}) == 2
    repeated = local_user.invoke_command("compare", "main", "HEAD", "--axis", "commit")
    assert isinstance(repeated.exception, ConfigError), "both names are one commit"
    commit = str(rows[0]["commit_id"])
    arguments = (commit[:8], f"{commit[:8]}+dirty", "--axis", "commit", "--json", "-v")
    repeated = local_user.invoke_command("compare", *arguments)
    assert repeated.return_value == ExitCode.REGRESSION
    verdicts = {row["verdict"] for row in json.loads(repeated.stdout) if row["scope"] == "host"}
    assert verdicts == {"slower"}
    assert "at most 4 looks" in repeated.stderr


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


KIT_TEST = """
[test]
name = "read"
payload = "read.py"
dataset = "reference-small"
[matrix]
root = ["6.40.00"]
"""
KIT_PAYLOAD = '''import treehammer_kit

treehammer_kit.run("""
void read(treehammer::Pass &pass)
{
   // Read all.
   for (Long64_t entry : pass.entries)
      pass.Add(pass.tree->GetEntry(entry));
}
""")
'''


@pytest.mark.root
def test_both_sides_are_compiled_before_anything_is_measured(
    local_user: LocalUser, checkout: Checkout
) -> None:
    cache_dir = config.load_settings({}).cache_dir
    local_user.settings = replace(local_user.settings, cache_dir=cache_dir)
    folder = checkout.top / "read"
    (folder / "test.toml").write_text(KIT_TEST)
    (folder / "read.py").write_text(KIT_PAYLOAD)
    commit_all(checkout.top)

    (folder / "read.py").write_text(KIT_PAYLOAD.replace("Read all.", "Read everything."))
    result = local_user.invoke_command("try", str(folder))
    assert isinstance(result.exception, NothingToDoError), result.output
    assert "compiles to the same machine code as HEAD" in str(result.exception)

    (folder / "read.py").write_text(KIT_PAYLOAD.replace("GetEntry", "GetEntri"))
    result = local_user.invoke_command("try", str(folder))
    assert result.return_value == ExitCode.REGRESSION
    assert result.stdout.startswith("Nothing was measured, because the working tree fails: ")
    assert re.search(r"read\.py:8:\d+: error: .*GetEntri", result.stdout)
    assert result.stdout.count("GetEntri") == 1
    with Store.open(local_user.settings.database) as store:
        assert list(store.campaigns()) == []


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

    assert result.exception is None, result.output
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


A, B = "6.38.00", "6.40.00"
VARIANT = ("-P", "branches=1", "-P", "cache_mb=30")
#: Events of the real count: few, since starting ROOT under valgrind takes most of the time.
COUNTED_EVENTS = 50


@pytest.mark.root
@pytest.mark.slow
def test_two_releases_are_counted_and_stored(local_user: LocalUser) -> None:
    if shutil.which("valgrind") is None:
        skip_or_fail("there is no valgrind here (Debian: valgrind)")
    cache_dir = config.load_settings({}).cache_dir
    local_user.settings = replace(local_user.settings, cache_dir=cache_dir, local_slots=2)
    result = local_user.invoke_command(
        "count", A, B, "ttree-read", *VARIANT, "--events", str(COUNTED_EVENTS), "--json"
    )
    assert result.exception is None, result.output
    assert result.return_value == 0
    changes = json.loads(result.stdout)
    total, *parts = changes
    assert (total["library"], total["function"]) == ("", "")
    assert total["a_per_event"] > 100_000
    assert abs(total["relative"]) < 0.05, "neighboring releases do nearly the same"
    libraries = [part for part in parts if not part["function"]]
    assert {"libz.so", "libRIO.so", "libTree.so"} <= {part["library"] for part in libraries}
    for side in ("a_per_event", "b_per_event"):
        assert sum(part[side] for part in libraries) == pytest.approx(total[side], rel=1e-3)
    functions = {part["function"]: part["difference"] for part in parts if part["function"]}
    assert 700 < functions["TBufferFile::ReadFastArray(float*, int)"] < 900
    with Store.open(local_user.settings.database, create=False) as store:
        rows = store.instruction_counts()
    assert {row.root_version for row in rows} == {A, B}
    assert {row.events for row in rows} == {COUNTED_EVENTS}
    assert len({row.count_id for row in rows}) == 2


PIPELINE_TEST = """
[test]
name = "muons"
payload = "read.sh"
rounds = 1
wall_limit_s = 60
[matrix]
root = ["none"]
[metrics.calls]
unit = "1"
exact = true
[[expect]]
metric = "calls"
at_most = 1.5
base = "first"
"""

PIPELINE_PAYLOAD = """#!/bin/sh
echo '{{"format": 1, "values": {{}}, "extras": {{"calls": {calls}}}}}' > "$TREEHAMMER_RESULT"
"""


@dataclass(frozen=True)
class Runner:
    """A runner's folder with a clean clone, and the environment that its service sets."""

    folder: Path
    environment: Mapping[str, str]

    def run(self, commands: Sequence[str], variables: Mapping[str, Any]) -> int:
        """Run commands as both services do: in one shell that stops at the first failure."""
        texts = {name: os.path.expandvars(str(value)) for name, value in variables.items()}
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", "\n".join(commands)],
            cwd=self.folder / "clone",
            env={**self.environment, **texts},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        print(done.stdout)
        return done.returncode


@pytest.fixture
def runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Runner]:
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "pip").write_text("#!/bin/sh\n")  # this environment has Treehammer
    (programs / "pip").chmod(0o755)
    monkeypatch.setenv("CI_PROJECT_DIR", str(tmp_path / "clone"))
    monkeypatch.setenv("CI_MERGE_REQUEST_DIFF_BASE_SHA", "main")
    monkeypatch.setenv("CI_COMMIT_SHA", "changed")
    data = tmp_path / "data"
    environment = {
        **os.environ,
        "PATH": f"{programs}:{REPOSITORY / '.venv' / 'bin'}:{os.environ['PATH']}",
        "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md"),
        "TREEHAMMER_DATA_DIR": str(data),
        "TREEHAMMER_CACHE_DIR": str(tmp_path / "cache"),
    }
    yield Runner(tmp_path, environment)
    queue = SpoolHarness(tmp_path / "harness", spool=data / "spool")
    queue.kill_runner()
    queue.end_processes()


def make_clone(runner: Runner, calls: int) -> None:
    """Clone a repository, and merge a branch whose payload makes so many calls instead of ten."""
    test = runner.folder / "clone" / "io-tests" / "muons"
    test.mkdir(parents=True)
    (test / "test.toml").write_text(PIPELINE_TEST)
    (test / "read.sh").touch(mode=0o755)
    clone = make_repository(runner.folder / "clone")
    for name, count in (("main", 10), ("changed", calls)):
        run_git(clone, "checkout", "--quiet", "-B", name)
        (test / "read.sh").write_text(PIPELINE_PAYLOAD.format(calls=count))
        commit_all(clone, f"Make {count} calls")
    run_git(clone, "checkout", "--quiet", "--detach", "main")
    run_git(clone, "merge", "--quiet", "--no-ff", "--message", "Merge the change", "changed")


def load_example(service: str) -> Any:
    text = (REPOSITORY / "docs" / "ci" / f"{service}.yml").read_text(encoding="utf-8")
    return yaml.safe_load(text)


def test_github_workflow_fails_and_summarizes_by_the_limits(runner: Runner) -> None:
    make_clone(runner, calls=20)
    (job,) = load_example("github")["jobs"].values()
    codes: list[int] = []
    comments = CommentServer(author="user", knows_user=False)
    with serve_http(comments.handler) as port:
        variables = {
            "GITHUB_API_URL": f"http://127.0.0.1:{port}",
            "GITHUB_REPOSITORY": "reader/muons",
            "GITHUB_REF": "refs/pull/12/merge",
            "GITHUB_TOKEN": "secret",
        }
        for step in job["steps"]:
            if "run" in step and (not any(codes) or "always()" in step.get("if", "")):
                codes.append(runner.run([step["run"]], job["env"] | variables))
    assert codes == [0, 0, 1, 1, 0, 0]
    (comment,) = comments.comments
    assert "Limits of muons: 1 missed" in comment["body"]
    summary = (runner.folder / "summary.md").read_text(encoding="utf-8")
    assert "Limits of muons: 1 missed" in summary
    assert "≤ 1.5 × commit=" in summary
    assert "uncommitted" not in summary
    assert (runner.folder / "clone" / "report.html").exists()


def test_gitlab_pipeline_passes_and_keeps_the_summary(runner: Runner) -> None:
    make_clone(runner, calls=12)
    job = load_example("gitlab")["limits"]
    assert runner.run([*job["before_script"], *job["script"]], job["variables"]) == 0
    *after, comment = job["after_script"]  # which would need a server
    assert comment == "treehammer review --campaign last --comment gitlab"
    assert runner.run(after, job["variables"]) == 0
    summary = (runner.folder / "clone" / "limits.md").read_text(encoding="utf-8")
    assert "Limits of muons: 1 kept" in summary
    assert "uncommitted" not in summary
    artifacts = [runner.folder / "clone" / path for path in job["artifacts"]["paths"]]
    assert all(path.exists() for path in artifacts)
