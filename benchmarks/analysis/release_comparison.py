"""All ROOT releases on PyPI on full-size and real trees: verdicts, instructions, study S0's matrix.

It runs Treehammer's commands on its own database and skips complete campaigns. It takes hours, so it
runs only when named.
"""

from __future__ import annotations

import argparse
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
#: Tree -> the test and its changed settings.
TREES: dict[str, tuple[str, ...]] = {
    "nanoaod-merged": (".@HEAD:hctests/nanoaod-read",),
    "physlite-merged": (".@HEAD:hctests/physlite-read",),
    "reference-750mb": (".@HEAD:hctests/ttree-read", "-S", "dataset=reference-750mb"),
}
#: Each file is read once and from the disk, as in a grid job. Four releases in one job need no
#: rounds: their order is balanced over four repeats.
SOLO_OPTIONS = (
    *("-P", f"root={','.join(sorted(WHEELS))}", "-P", "cache_mb=0,30,300", "-P", "cache=cold"),
    *("-S", "passes=1", "-S", "rounds=1", "-S", "repeats=4"),
)
#: Three jobs, each with two launches and one A/A launch for each other release.
PAIRED_OPTIONS = (
    *("-P", f"root={','.join((REFERENCE_RELEASE, *OTHER_RELEASES))}", "-P", "cache_mb=30"),
    *("-S", "mode=paired", "-S", "rounds=2", "-S", "repeats=3"),
)
#: Events of each file whose instructions are counted.
COUNTED_EVENTS = 200
PARTS = ("paired", "counts", "solo")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``python -m benchmarks releases``."""
    group = parser.add_argument_group("releases")
    group.add_argument(
        "--parts",
        choices=PARTS,
        nargs="+",
        default=PARTS,
        help="verdicts, instructions, or CPU efficiency over study S0's matrix (all)",
    )
    group.add_argument(
        "--trees", choices=tuple(TREES), nargs="+", default=tuple(TREES), help="trees (all)"
    )


def measure(options: argparse.Namespace) -> list[RatioFigure]:
    """Run missing campaigns and counts of each tree; return the times of each release per event.

    Printed verdicts (``releases-TREE.txt``), instructions (``releases-TREE-RELEASE.txt``),
    comparisons (``.csv``) and study S0's figures (``.svg``) are written to the results; reports and
    measurements stay beside the database.
    """
    RESULTS_FOLDER.mkdir(exist_ok=True)
    figures: list[RatioFigure] = []
    for tree in options.trees:
        if "paired" in options.parts:
            figures += _measure_verdicts(tree)
        if "counts" in options.parts:
            _count_instructions(tree)
        if "solo" in options.parts:
            figures += _measure_efficiency(tree)
    return figures


def _measure_verdicts(tree: str) -> list[RatioFigure]:
    """Compare the releases in paired mode; keep the printed verdicts, controls and exact counters."""
    name = f"{tree}-paired"
    if name not in _complete_campaigns():
        _run_treehammer("submit", *TREES[tree], *PAIRED_OPTIONS, "--name", name, "--wait")
    printed = _run_treehammer("compare", REFERENCE_RELEASE, *OTHER_RELEASES, "--campaign", name)
    (RESULTS_FOLDER / f"releases-{tree}.txt").write_text(printed, encoding="utf-8")
    return _compare_campaign(name)


def _count_instructions(tree: str) -> None:
    for other in OTHER_RELEASES:
        printed = _run_treehammer(
            *("count", REFERENCE_RELEASE, other, *TREES[tree], "-P", "cache_mb=30"),
            *("--events", str(COUNTED_EVENTS)),
        )
        path = RESULTS_FOLDER / f"releases-{tree}-{other}.txt"
        path.write_text(printed, encoding="utf-8")


def _measure_efficiency(tree: str) -> list[RatioFigure]:
    if tree not in _complete_campaigns():
        _run_treehammer("submit", *TREES[tree], *SOLO_OPTIONS, "--name", tree, "--wait")
    report = _campaign_folder() / f"{tree}.html"
    _run_treehammer("report", "--campaign", tree, "-o", str(report))
    (drawing, *_) = re.findall(r"<svg.*?</svg>", report.read_text(encoding="utf-8"), re.DOTALL)
    (RESULTS_FOLDER / f"releases-{tree}.svg").write_text(f"{drawing}\n", encoding="utf-8")
    _run_treehammer("export", str(_campaign_folder() / f"{tree}.root"), "--campaign", tree)
    return _compare_campaign(tree)


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
