"""Campaigns of one pair of releases, and of two copies of one build, repeated over hours.

Before each round the files of all sides are evicted from the page cache.  Intervals must hold the mean
effect of the pair, and p-values of the copies must be uniform, even if pages, clocks or neighbors stay
the same for a while.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean, median

import numpy as np
from matplotlib.figure import Figure as Canvas

from benchmarks.harness.figures import (
    CLAIMED_RATE,
    DATA_FOLDER,
    RESULTS_FOLDER,
    RatioFigure,
    append_rows,
    read_rows,
    share_figure,
)
from benchmarks.harness.program_runs import TREEHAMMER, set_up_software
from benchmarks.scenarios.paired_launches import choose_label
from benchmarks.scenarios.peer_tools import BASE_RELEASE, OTHER_RELEASE, run_command
from treehammer import config
from treehammer.analysis.statistics.verdict import HOST_SCOPE, Verdict
from treehammer.collectors.worker.probes import page_cache
from treehammer.errors import ExitCode

TABLE_FILE = DATA_FOLDER / "campaigns.csv"
PAIR, COPIES = "pair", "copies"
METRIC = "cpu_per_event_s"
OPTIONS = ("-S", "mode=paired", "-P", "branches=1", "-P", "cache_mb=30")


@dataclass(frozen=True)
class RepeatedCampaign:
    """One campaign: effect and interval are ln(B/A), ``seconds`` the wall time until its verdict."""

    label: str
    started: str
    boot: str
    load1: float
    arm: str
    seconds: float
    effect: float
    low: float
    high: float
    p: float
    launches: int
    verdict: str

    @property
    def hours(self) -> float:
        """Time of its start, in hours since 1970 UTC."""
        return datetime.fromisoformat(self.started).timestamp() / 3600


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``python -m benchmarks campaigns``."""
    group = parser.add_argument_group("campaigns")
    group.add_argument(
        "--campaign-seconds", type=float, default=3600, help="begin no round later (%(default)g)"
    )
    group.add_argument(
        "--campaign-pause", type=float, default=0, help="seconds between two rounds (%(default)g)"
    )


def measure(options: argparse.Namespace) -> list[RatioFigure]:
    """Repeat the campaigns until the time is over; return the figures of all rows."""
    home = config.load_settings().data_dir / "benchmarks" / "campaigns"
    release = Path(set_up_software(BASE_RELEASE).python).parents[1]
    other = Path(set_up_software(OTHER_RELEASE).python).parents[1]
    copies = [_copy_build(release, home / name) for name in ("build", "second-copy-of-the-build")]
    arms = {
        PAIR: (OTHER_RELEASE, BASE_RELEASE),
        COPIES: tuple(f"path:{folder}" for folder in copies),
    }
    end = time.monotonic() + options.campaign_seconds
    while time.monotonic() < end:
        for folder in (release, other, *copies):
            files = [path for path in folder.rglob("*") if path.is_file()]
            page_cache.evict_between_turns([str(path) for path in files if not path.is_symlink()])
        for arm, (a, b) in arms.items():
            row = _run_campaign(choose_label(options), home, arm, a, b)
            append_rows(TABLE_FILE, [row])
            print(
                f"{arm}: {100 * row.effect:+.2f} % {row.verdict}, {row.seconds:.0f} s", flush=True
            )
        time.sleep(options.campaign_pause)
    rows = read_rows(TABLE_FILE, RepeatedCampaign)
    _plot_campaigns(rows)
    return list(build_figures(rows))


def _copy_build(release: Path, target: Path) -> Path:
    """Copy a release with its environment as a build that users made; return its folder."""
    if not (target / "bin" / "thisroot.sh").exists():
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(release, target, symlinks=True)
        (package,) = target.glob("lib/python3*/site-packages")
        (target / "bin" / "thisroot.sh").write_text(
            f"export ROOTSYS={package}/ROOT PYTHONPATH={package}\n"
            f"export PATH={package}/ROOT/bin:{target}/bin:$PATH\n"
        )
    return target


def _run_campaign(label: str, home: Path, arm: str, a: str, b: str) -> RepeatedCampaign:
    base = (TREEHAMMER, "--data-dir", home / "treehammer")
    started, load, start = datetime.now(UTC), os.getloadavg()[0], time.monotonic()
    run_command(
        [*base, "submit", "ttree-read", *OPTIONS, "-P", f"root={a},{b}", "--wait"],
        accepted=(ExitCode.DONE, ExitCode.REGRESSION),
    )
    seconds = time.monotonic() - start
    printed = run_command(
        [*base, "compare", a, b, "--campaign", "last", "--json"],
        accepted=(ExitCode.DONE, ExitCode.REGRESSION),
    )
    (row,) = (
        row for row in json.loads(printed) if row["scope"] == HOST_SCOPE and row["metric"] == METRIC
    )
    return RepeatedCampaign(
        label=label,
        started=started.isoformat(timespec="seconds"),
        boot=Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")[:8],
        load1=load,
        arm=arm,
        seconds=round(seconds, 1),
        effect=row["effect"],
        low=row["low"],
        high=row["high"],
        p=row["p"],
        launches=row["launches"],
        verdict=row["verdict"],
    )


def build_figures(rows: Sequence[RepeatedCampaign]) -> Iterator[RatioFigure]:
    """Build the figures of each arm: false verdicts, p-values, coverage of the mean, seconds."""
    for arm in (PAIR, COPIES):
        of_arm = [row for row in rows if row.arm == arm]
        if not of_arm:
            continue
        mean = fmean(row.effect for row in of_arm) if arm == PAIR else 0.0
        covered = sum(row.low <= mean <= row.high for row in of_arm)
        yield share_figure(f"{arm}: intervals with the mean effect", covered, len(of_arm))
        decided = [row.seconds for row in of_arm]
        yield RatioFigure(
            f"{arm}: seconds to a verdict, median", median(decided), pairs=len(decided)
        )
        if arm == COPIES:
            yield from _build_copy_figures(of_arm)


def _build_copy_figures(copies: Sequence[RepeatedCampaign]) -> Iterator[RatioFigure]:
    """Build the figures of two copies of one build, whose p-values should be uniform."""
    from scipy import stats

    p_values = [row.p for row in copies]
    small = sum(p < CLAIMED_RATE for p in p_values)
    yield share_figure("copies: p below 0.05", small, len(copies), 0.2)
    claims = (Verdict.FASTER, Verdict.SLOWER, Verdict.DIFFERENT)
    wrong = sum(row.verdict in claims for row in copies)
    yield share_figure("copies: verdicts of a difference", wrong, len(copies))
    uniform = float(stats.kstest(p_values, "uniform").pvalue)
    yield RatioFigure("copies: p of uniform p-values (KS)", uniform, pairs=len(copies))
    fisher = float(stats.combine_pvalues(p_values, "fisher").pvalue)
    yield RatioFigure("copies: combined p (Fisher)", fisher, pairs=len(copies))


def _plot_campaigns(rows: Sequence[RepeatedCampaign]) -> None:
    """Draw effect and interval of each campaign over time as ``results/campaigns.svg``."""
    canvas = Canvas(figsize=(7.2, 4.4), layout="constrained")
    panels = canvas.subplots(2, sharex=True, sharey=True)
    start = min(row.hours for row in rows)
    for panel, arm in zip(panels, (PAIR, COPIES), strict=True):
        of_arm = [row for row in rows if row.arm == arm]
        panel.axhline(0, color="0.6", linewidth=1)
        for label, color in (("quiet", "tab:blue"), ("busy", "tab:orange")):
            labeled = [row for row in of_arm if row.label == label]
            values = [(row.hours - start, row.effect, row.low, row.high) for row in labeled]
            hours, effects, *bounds = np.array(values).reshape(-1, 4).T
            panel.errorbar(
                hours,
                100 * effects,
                yerr=100 * np.abs(bounds - effects),
                fmt=".",
                color=color,
                elinewidth=0.7,
                label=label,
            )
        panel.set_title(
            f"{OTHER_RELEASE} → {BASE_RELEASE}" if arm == PAIR else "two copies of one build",
            loc="left",
            fontsize="medium",
        )
        panel.set_ylabel("effect (%)")
    panels[0].legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=2, frameon=False)
    panels[1].set_xlabel("hours")
    RESULTS_FOLDER.mkdir(exist_ok=True)
    canvas.savefig(RESULTS_FOLDER / "campaigns.svg", metadata={"Date": None})
