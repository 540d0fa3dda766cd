"""All ROOT releases on PyPI over study S0's matrix, on full-size and real trees.

It runs Treehammer's commands on its own database and skips complete campaigns. It takes about an
hour, so it runs only when named.
"""

from __future__ import annotations

import json
import math
import re
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness.ratio_figures import RESULTS_FOLDER, RatioFigure, write_rows
from benchmarks.harness.worker_runs import REPOSITORY, TREEHAMMER
from treehammer import config
from treehammer.analysis.statistics.verdict import SERIES_SCOPES
from treehammer.collectors.software.providers import WHEELS
from treehammer.errors import ExitCode

REFERENCE_RELEASE = "6.38.00"
OTHER_RELEASES = sorted(set(WHEELS) - {REFERENCE_RELEASE})
#: Columns of a comparison that are kept, and those of the figure.
KEPT_COLUMNS = (
    *("label", "metric", "a", "b", "a_value", "b_value", "effect", "low", "high"),
    *("jobs", "hosts", "cpu_s", "verdict", "why", "same_data"),
)
#: Campaign -> the test and its changed settings.
CAMPAIGNS: dict[str, tuple[str, ...]] = {
    "nanoaod-merged": (".@HEAD:hctests/nanoaod-read",),
    "physlite-merged": (".@HEAD:hctests/physlite-read",),
    "reference-750mb": (
        *(".@HEAD:hctests/ttree-read", "-S", "dataset=reference-750mb"),
        *("-P", "cache_mb=0,30,300"),
    ),
}
#: Each file is read once and from the disk, as in a grid job. Four releases in one job need no
#: rounds: their order is balanced over four repeats.
COMMON_OPTIONS = (
    *("-P", f"root={','.join(sorted(WHEELS))}", "-P", "cache=cold"),
    *("-S", "passes=1", "-S", "rounds=1", "-S", "repeats=4"),
)


def measure() -> list[RatioFigure]:
    """Run missing campaigns; compare each release with 6.38.00 by time per event.

    Comparisons (``releases-NAME.csv``) and study S0's figures are written to the results; reports
    and measurements stay beside the database.
    """
    RESULTS_FOLDER.mkdir(exist_ok=True)
    figures: list[RatioFigure] = []
    for name, options in CAMPAIGNS.items():
        if name not in _complete_campaigns():
            _run_treehammer("submit", *options, *COMMON_OPTIONS, "--name", name, "--wait")
        report = _campaign_folder() / f"{name}.html"
        _run_treehammer("report", "--campaign", name, "-o", str(report))
        (drawing, *_) = re.findall(r"<svg.*?</svg>", report.read_text(encoding="utf-8"), re.DOTALL)
        (RESULTS_FOLDER / f"releases-{name}.svg").write_text(f"{drawing}\n", encoding="utf-8")
        _run_treehammer("export", str(_campaign_folder() / f"{name}.root"), "--campaign", name)
        figures += _compare_campaign(name)
    return figures


def _compare_campaign(campaign: str) -> list[RatioFigure]:
    rows: list[dict[str, Any]] = []
    for other in OTHER_RELEASES:
        printed = _run_treehammer(
            "compare", REFERENCE_RELEASE, other, "--campaign", campaign, "--json"
        )
        rows += [row for row in json.loads(printed) if row["scope"] in SERIES_SCOPES]
    write_rows(f"releases-{campaign}", [{name: row[name] for name in KEPT_COLUMNS} for row in rows])
    return [_build_figure(campaign, row) for row in rows]


def _build_figure(campaign: str, row: Mapping[str, Any]) -> RatioFigure:
    time = row["metric"].split("_")[0]
    value, low, high = (
        math.nan if row[name] is None else math.exp(row[name]) for name in ("effect", "low", "high")
    )
    what = f"{campaign}, {row['label']}, {time} time, {row['b']} / {row['a']} ({row['verdict']})"
    return RatioFigure(what, value, low, high, row["jobs"])


def _complete_campaigns() -> set[str]:
    """Return the names of campaigns with all planned measurements."""
    if not _campaign_folder().exists():
        return set()
    found = json.loads(_run_treehammer("status", "--json"))
    return {one["name"] for one in found if one["collected"] == one["planned"]}


def _campaign_folder() -> Path:
    return config.load_settings().data_dir / "benchmarks" / "releases"


def _run_treehammer(*words: str) -> str:
    """Run a command and return its output; exit code 1 (slower, failed) is accepted.

    Raises:
        RuntimeError: it exited with another code.
    """
    command: Sequence[str | Path] = [
        TREEHAMMER,
        "--data-dir",
        _campaign_folder(),
        "--local-slots",
        "1",
        *words,
    ]
    done = subprocess.run(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode not in (ExitCode.DONE, ExitCode.REGRESSION):
        raise RuntimeError(f"{shlex.join(map(str, command))} ended with {done.returncode}")
    return done.stdout
