"""A library over commits, and the test that measures it."""

from __future__ import annotations

from pathlib import Path

from captured_runs import commit_all, make_repository, run_git

TEST_TOML = """
[test]
name = "library"
payload = "measure.py"
repeats = 1
rounds = 1
wall_limit_s = 60
[matrix]
root = ["none"]
[metrics.steps_done]
unit = "1"
better = "lower"
exact = true
"""

# The time is made of steps, so that it depends on the library and not on the machine's load.
LIBRARY_PAYLOAD = """
import json, os, random, sys
sys.path.insert(0, os.environ["TREEHAMMER_SOFTWARE"])
import library
steps = library.count_steps(1000)
seconds = 1e-6 * steps * random.uniform(0.997, 1.003)
values = {"cpu_per_event_s": seconds, "wall_per_event_s": seconds, "loop_cpu_s": 3.0}
with open(os.environ["TREEHAMMER_RESULT"], "w") as stream:
    json.dump({"format": 1, "values": values, "extras": {"steps_done": steps}}, stream)
"""


def make_library(folder: Path, commits: int, changed: int, broken: int = -1) -> list[str]:
    """Make a repository; from the commit ``changed`` on (from 0) the library does 30 % more steps.

    ``broken`` is the number of a commit that cannot be built.  Returns the commits, oldest first.
    """
    make_repository(folder)
    for number in range(commits):
        factor = 1.3 if number >= changed else 1.0
        (folder / "library.py.in").write_text(
            f"# revision {number}\ndef count_steps(n):\n    return int({factor} * n)\n"
        )
        (folder / "build.sh").write_text(
            f"exit {int(number == broken)}\n"
            if number == broken
            else "cp library.py.in library.py\n"
        )
        commit_all(folder, f"Revise library, part {number}")
    return run_git(folder, "log", "--reverse", "--format=%H").splitlines()


def make_test(folder: Path) -> Path:
    """Write the test that measures a build of the library."""
    folder.mkdir()
    (folder / "test.toml").write_text(TEST_TOML)
    (folder / "measure.py").write_text(LIBRARY_PAYLOAD)
    return folder
