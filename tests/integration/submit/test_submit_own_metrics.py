"""Own metrics and compile errors of the kit's payloads, in real jobs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import uproot
from local_user import LocalUser

from treehammer import config

METRICS_TEST = """
[test]
name = "frames"
payload = "read.py"
dataset = "numbers"
tree = "events"
repeats = 1
rounds = 1
wall_limit_s = 300
[matrix]
root = ["{root}"]
branches = ["x"]
[metrics.events_above]
unit = "1"
[metrics.sum_above]
unit = "1"
"""

FRAME = """\
from treehammer_kit import columns

columns.run_dataframe('''
void analyze(treehammer::FramePass &pass)
{
   auto above = pass.frame.Filter([](double x) { return x >= 750; }, {"x"});
   pass.Book(above.Histo1D<double>({"x", "", 10, 0, 1000}, "x"));
   pass.Report("events_above", above.Count());
   pass.Report("sum_above", above.Sum<double>("x"));
}
''')
"""

WRONG_FRAME = """\
from treehammer_kit import columns

columns.run_dataframe('''
void analyze(treehammer::FramePass &pass)
{
   auto above = pass.frame.Fliter([](double x) { return x >= 750; }, {"x"});
   pass.Book(above.Histo1D<double>({"x", "", 10, 0, 1000}, "x"));
   this is no C++;
}
''')
"""

UPROOT = """\
from treehammer_kit import columns


def analyze(events, report):
    above = events.x[events.x >= 750]
    report("events_above", len(above))
    report("sum_above", sum(above.tolist()))


columns.run_uproot(analyze)
"""


@pytest.fixture
def analyst(local_user: LocalUser, tmp_path: Path) -> LocalUser:
    """A user with a dataset of the numbers 0 to 999, and the shared releases of ROOT."""
    local_user.settings.cache_dir.mkdir(exist_ok=True)
    local_user.settings.software_dir.symlink_to(config.load_settings().software_dir)
    path = tmp_path / "numbers.root"
    with uproot.recreate(path) as file:
        file.mktree("events", {"x": "float64"}).extend({"x": np.arange(1000.0)})
    added = local_user.invoke_command("datasets", "add", "numbers", str(path), "--tree", "events")
    assert added.exception is None, added.output
    return local_user


def submit(analyst: LocalUser, payload: str, root: str) -> str:
    (analyst.test / "test.toml").write_text(METRICS_TEST.format(root=root))
    (analyst.test / "read.py").write_text(payload)
    done = analyst.invoke_command("submit", str(analyst.test), "--wait")
    return done.output


@pytest.mark.parametrize(("payload", "root"), [(FRAME, "6.40.00"), (UPROOT, "none")])
def test_own_metrics_of_analyses_are_stored(analyst: LocalUser, payload: str, root: str) -> None:
    output = submit(analyst, payload, root)
    assert "failed" not in output.splitlines()[-1], output
    summary = analyst.invoke_command(
        "summary", "--campaign", "last", "--metrics", "events_above,sum_above,events_read", "--csv"
    )
    (row,) = [line for line in summary.stdout.splitlines() if "250" in line]
    values = [float(text) for text in row.split(",") if text.replace(".", "").isdigit()]
    assert {250.0, 218625.0, 1000.0} <= set(values), summary.output


def test_first_compile_error_is_shown_with_its_line_and_the_log(analyst: LocalUser) -> None:
    output = submit(analyst, WRONG_FRAME, "6.40.00")
    assert "read.py:6:" in output
    assert "no member named 'Fliter'" in output
    (path,) = {line.removeprefix("  log: ") for line in output.splitlines() if "  log: " in line}
    assert "Fliter" in Path(path).read_text()
