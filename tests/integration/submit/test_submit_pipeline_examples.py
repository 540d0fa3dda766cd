"""The documented pipelines of GitHub and GitLab: their commands, run in a clone without ROOT."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from repository_code import REPOSITORY
from spool_harness import SpoolHarness

PAGE = REPOSITORY / "docs" / "limits.md"

TEST_TOML = """
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

PAYLOAD = """#!/bin/sh
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
    (test / "test.toml").write_text(TEST_TOML)
    (test / "read.sh").touch(mode=0o755)
    git = ["git", "-c", "user.name=Reader", "-c", "user.email=reader@example.org"]

    def run_git(*words: str) -> None:
        subprocess.run([*git, *words], cwd=runner.folder / "clone", check=True)

    run_git("init", "--quiet", "--initial-branch", "main")
    for name, count in (("main", 10), ("changed", calls)):
        run_git("checkout", "--quiet", "-B", name)
        (test / "read.sh").write_text(PAYLOAD.format(calls=count))
        run_git("add", ".")
        run_git("commit", "--quiet", "--message", f"Make {count} calls")
    run_git("checkout", "--quiet", "--detach", "main")
    run_git("merge", "--quiet", "--no-ff", "--message", "Merge the change", "changed")


def load_examples() -> list[Any]:
    """Load the documented pipelines: that of GitHub, that of GitLab."""
    texts = re.findall(r"^```yaml\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    return [yaml.safe_load(text) for text in texts]


def test_github_workflow_fails_and_summarizes_by_the_limits(runner: Runner) -> None:
    make_clone(runner, calls=20)
    github, _ = load_examples()
    (job,) = github["jobs"].values()
    codes: list[int] = []
    for step in job["steps"]:
        if "run" in step and (not any(codes) or step.get("if") == "always()"):
            codes.append(runner.run([step["run"]], job["env"]))
    assert codes == [0, 0, 1, 1, 0]
    summary = (runner.folder / "summary.md").read_text(encoding="utf-8")
    assert "Limits of muons: 1 missed" in summary
    assert "≤ 1.5 × commit=" in summary
    assert "uncommitted" not in summary
    assert (runner.folder / "clone" / "report.html").exists()


def test_gitlab_pipeline_passes_and_keeps_the_summary(runner: Runner) -> None:
    make_clone(runner, calls=12)
    job = load_examples()[1]["limits"]
    assert runner.run([*job["before_script"], *job["script"]], job["variables"]) == 0
    assert runner.run(job["after_script"], job["variables"]) == 0
    summary = (runner.folder / "clone" / "limits.md").read_text(encoding="utf-8")
    assert "Limits of muons: 1 kept" in summary
    assert "uncommitted" not in summary
    artifacts = [runner.folder / "clone" / path for path in job["artifacts"]["paths"]]
    assert all(path.exists() for path in artifacts)
