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

from benchmarks.jobs import REPOSITORY, TREEHAMMER
from benchmarks.report import RESULTS, Figure, write_rows
from treehammer import config
from treehammer.analysis.verdict import SERIES
from treehammer.collectors.software import WHEELS
from treehammer.errors import ExitCode

REFERENCE = "6.38.00"
OTHERS = sorted(set(WHEELS) - {REFERENCE})
#: Of a comparison: what is kept beside the code, and what makes the figure.
KEPT = (
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
COMMON = (
    *("-P", f"root={','.join(sorted(WHEELS))}", "-P", "cache=cold"),
    *("-S", "passes=1", "-S", "rounds=1", "-S", "repeats=4"),
)


def measure() -> list[Figure]:
    """Run what is missing and compare every release with 6.38.00: ratios of time per event.

    Each campaign leaves its comparisons (``releases-NAME.csv``) and study S0's figure among the
    results; reports and complete measurements stay with the database.
    """
    RESULTS.mkdir(exist_ok=True)
    figures: list[Figure] = []
    for name, options in CAMPAIGNS.items():
        if name not in _complete():
            _treehammer("submit", *options, *COMMON, "--name", name, "--wait")
        report = _home() / f"{name}.html"
        _treehammer("report", "--campaign", name, "-o", str(report))
        (drawing, *_) = re.findall(r"<svg.*?</svg>", report.read_text(encoding="utf-8"), re.DOTALL)
        (RESULTS / f"releases-{name}.svg").write_text(f"{drawing}\n", encoding="utf-8")
        _treehammer("export", str(_home() / f"{name}.root"), "--campaign", name)
        figures += _compared(name)
    return figures


def _compared(campaign: str) -> list[Figure]:
    rows: list[dict[str, Any]] = []
    for other in OTHERS:
        printed = _treehammer("compare", REFERENCE, other, "--campaign", campaign, "--json")
        rows += [row for row in json.loads(printed) if row["scope"] == SERIES]
    write_rows(f"releases-{campaign}", [{name: row[name] for name in KEPT} for row in rows])
    return [_figure(campaign, row) for row in rows]


def _figure(campaign: str, row: Mapping[str, Any]) -> Figure:
    time = row["metric"].split("_")[0]
    value, low, high = (
        math.nan if row[name] is None else math.exp(row[name]) for name in ("effect", "low", "high")
    )
    what = f"{campaign}, {row['label']}, {time} time, {row['b']} / {row['a']} ({row['verdict']})"
    return Figure(what, value, low, high, row["jobs"])


def _complete() -> set[str]:
    """Names of the campaigns of which every planned measurement is in the database."""
    if not _home().exists():
        return set()
    found = json.loads(_treehammer("status", "--json"))
    return {one["name"] for one in found if one["collected"] == one["planned"]}


def _home() -> Path:
    return config.load().data_dir / "benchmarks" / "releases"


def _treehammer(*words: str) -> str:
    """What a verb prints; that something is slower or failed (exit code 1) is a finding.

    Raises:
        RuntimeError: it ended with another code.
    """
    command: Sequence[str | Path] = [TREEHAMMER, "--data-dir", _home(), "--slots", "1", *words]
    done = subprocess.run(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode not in (ExitCode.DONE, ExitCode.REGRESSION):
        raise RuntimeError(f"{shlex.join(map(str, command))} ended with {done.returncode}")
    return done.stdout
