"""All releases of ROOT on PyPI over study S0's matrix on full-size and real trees.

Nothing but the verbs a user would type, into a database of its own; a campaign that is there
already is not measured again.  It takes about an hour, so it runs only when it is named.
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
from treehammer.analysis.statistics.verdict import SERIES_SCOPE
from treehammer.collectors.software.providers import WHEELS
from treehammer.errors import ExitCode

REFERENCE_RELEASE = "6.38.00"
OTHER_RELEASES = sorted(set(WHEELS) - {REFERENCE_RELEASE})
#: Of a comparison: what is kept beside the code, and what makes the figure.
KEPT_COLUMNS = (
    *("label", "metric", "a", "b", "a_value", "b_value", "effect", "low", "high"),
    *("jobs", "hosts", "loop_s", "verdict", "why", "same_data"),
)
#: Campaign -> the test and what differs from its defaults.
CAMPAIGNS: dict[str, tuple[str, ...]] = {
    "nanoaod-merged": (".@HEAD:hctests/nanoaod-read",),
    "physlite-merged": (".@HEAD:hctests/physlite-read",),
    "reference-750mb": (
        *(".@HEAD:hctests/ttree-read", "-S", "dataset=reference-750mb"),
        *("-P", "cache_mb=0,30,300"),
    ),
}
#: As grid jobs read, each file once and from the disk.  Four releases in one job need no rounds:
#: their order is balanced over four repeats.
COMMON_OPTIONS = (
    *("-P", f"root={','.join(sorted(WHEELS))}", "-P", "cache=cold"),
    *("-S", "passes=1", "-S", "rounds=1", "-S", "repeats=4"),
)


def measure() -> list[RatioFigure]:
    """Run what is missing and compare every release with 6.38.00: ratios of time per event.

    Each campaign leaves its comparisons (``releases-NAME.csv``) and study S0's figure among the
    results; reports and complete measurements stay with the database.
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
        rows += [row for row in json.loads(printed) if row["scope"] == SERIES_SCOPE]
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
    """Names of the campaigns of which every planned measurement is in the database."""
    if not _campaign_folder().exists():
        return set()
    found = json.loads(_run_treehammer("status", "--json"))
    return {one["name"] for one in found if one["collected"] == one["planned"]}


def _campaign_folder() -> Path:
    return config.load_settings().data_dir / "benchmarks" / "releases"


def _run_treehammer(*words: str) -> str:
    """What a verb prints; that something is slower or failed (exit code 1) is a finding.

    Raises:
        RuntimeError: it ended with another code.
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
