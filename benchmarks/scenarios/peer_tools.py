"""One comparison by each tool, judged by the rules that the tool itself applies."""

from __future__ import annotations

import csv
import json
import math
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.harness.program_runs import PAYLOADS_FOLDER, REPOSITORY, TREEHAMMER
from benchmarks.scenarios.paired_launches import TEST_FOLDER
from benchmarks.scenarios.peer_environment import (
    PeerEnvironment,
    PeerScenario,
    parse_readspeed,
    run_command,
)
from treehammer.analysis.statistics.verdict import HOST_SCOPE
from treehammer.errors import ExitCode, SoftwareError

NO_CHANGE, SLOWER, FASTER = "no change", "slower", "faster"
#: Runs of rootreadspeed on each side.
HAND_RUNS = 5
#: Factors of ``asv compare``: the default, and one for small changes.
ASV_FACTORS = (1.1, 1.01)
#: Tolerances of a reference: ReFrame's tutorial's, and one for small changes.
REFRAME_TOLERANCES = (0.1, 0.02)
#: Settings of a campaign of one verdict, by mode. Paired mode ends when it is decided; solo mode needs
#: three jobs on a host.
CAMPAIGN_SETTINGS: Mapping[str, tuple[str, ...]] = {
    "paired": (),
    "solo": ("repeats=3", "rounds=1", "passes=5"),
}


@dataclass(frozen=True)
class PeerJudgement:
    """Verdict by one rule; ``effect`` is ln(B/A) as the tool measured it."""

    rule: str
    effect: float
    verdict: str


@dataclass(frozen=True)
class ToolResult:
    """Judgements of one comparison.

    Attributes:
        judgements: one for each rule.
        planted: additional CPU time of side B; NaN between releases.
        read_bytes: of one pass, as reported by the tool; NaN if it reports none.
        seconds: wall time until the verdict; NaN if the call took no longer.
    """

    judgements: tuple[PeerJudgement, ...]
    planted: float
    read_bytes: float = math.nan
    seconds: float = math.nan


def compare_by_asv(environment: PeerEnvironment, scenario: PeerScenario) -> ToolResult:
    """Run ``asv run`` in the environment of each side, then ``asv compare``."""
    folder = _prepare_asv(environment)
    sides = (("HEAD~1", scenario.release_a, 0.0), ("HEAD", scenario.release_b, scenario.planted))
    current = folder / "current"
    for revision, release, planted in sides:
        # Results are compared only between environments of one name.
        current.unlink(missing_ok=True)
        current.symlink_to(environment.roots[release])
        run_command(
            [
                *(environment.tool("asv"), "run", "--machine", "peers", "--environment"),
                *(f"existing:{current}/bin/python", "--set-commit-hash", revision),
            ],
            env={
                "PYTHONPATH": str(environment.home / "asv-runner"),
                "PLANTED_BLOCKS": f"{environment.blocks(planted):.6g}",
                "PEER_FOLDER": str(PAYLOADS_FOLDER),
                "PEER_URL": environment.url,
            },
            folder=folder,
        )
    a, b = (_read_asv_seconds(folder, revision) for revision, _, _ in sides)
    judgements = []
    for factor in ASV_FACTORS:
        printed = run_command(
            [environment.tool("asv"), "compare", "--factor", str(factor), "HEAD~1", "HEAD"],
            folder=folder,
        )
        judgements.append(PeerJudgement(f"factor {factor:g}", math.log(b / a), parse_asv(printed)))
    return ToolResult(tuple(judgements), scenario.planted)


def _prepare_asv(environment: PeerEnvironment) -> Path:
    """Create a project of two empty commits, one per side, without results."""
    folder = environment.home / "asv"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    settings = {
        "version": 1,
        "project": "reading",
        "repo": ".",
        "branches": ["HEAD"],
        "benchmark_dir": "suite",
        "environment_type": "existing",
    }
    (folder / "asv.conf.json").write_text(json.dumps(settings), encoding="utf-8")
    (folder / "suite").mkdir()
    (folder / "suite" / "__init__.py").touch()
    shutil.copy(PAYLOADS_FOLDER / "asv_reading.py", folder / "suite" / "reading.py")
    git = ("git", "-c", "user.name=peers", "-c", "user.email=peers@localhost")
    run_command([*git, "init", "--quiet"], folder=folder)
    for side in "ab":
        run_command([*git, "commit", "--quiet", "--allow-empty", "-m", side], folder=folder)
    run_command([environment.tool("asv"), "machine", "--yes", "--machine", "peers"], folder=folder)
    return folder


def _read_asv_seconds(folder: Path, revision: str) -> float:
    commit = run_command(["git", "rev-parse", revision], folder=folder)[:8]
    (path,) = (folder / "results" / "peers").glob(f"{commit}*.json")
    (result,) = json.loads(path.read_text(encoding="utf-8"))["results"].values()
    if result[0] is None:
        raise SoftwareError(f"asv measured nothing: see {path}")
    return float(result[0][0])


def parse_asv(printed: str) -> str:
    """Read the mark of ``asv compare`` on its only benchmark."""
    (line,) = [line for line in printed.splitlines() if "time_read" in line]
    mark = line.split("|")[1].strip()
    return {"+": SLOWER, "-": FASTER}.get(mark, NO_CHANGE)


def compare_by_reframe(environment: PeerEnvironment, scenario: PeerScenario) -> ToolResult:
    """Run the performance check on side A; its value is the reference of side B."""
    reference = _run_reframe(environment, scenario.release_a, 0.0, 0.0)
    seconds = _run_reframe(environment, scenario.release_b, scenario.planted, reference)
    effect = math.log(seconds / reference)
    return ToolResult(
        tuple(
            PeerJudgement(
                f"+{tolerance:.0%}", effect, SLOWER if effect > math.log1p(tolerance) else NO_CHANGE
            )
            for tolerance in REFRAME_TOLERANCES
        ),
        scenario.planted,
    )


def _run_reframe(
    environment: PeerEnvironment, release: str, planted: float, reference: float
) -> float:
    folder = environment.home / "reframe"
    report = folder / "report.json"
    run_command(
        [
            *(environment.tool("reframe"), "--run", "-c", PAYLOADS_FOLDER / "reframe_check.py"),
            *("--prefix", folder, "--report-file", report),
        ],
        env={
            "PEER_PYTHON": str(environment.python(release)),
            "PEER_SCRIPT": str(PAYLOADS_FOLDER / "read_loop.py"),
            "PEER_URL": environment.url,
            "PEER_REFERENCE": repr(reference),
            "PLANTED_BLOCKS": f"{environment.blocks(planted):.6g}",
        },
        accepted=(0, 1),
    )
    case = json.loads(report.read_text(encoding="utf-8"))["runs"][0]["testcases"][0]
    if not case["perfvalues"]:
        raise SoftwareError(f"the check of ReFrame failed: see {report}")
    (value,) = case["perfvalues"].values()
    _check_reframe_verdict(value)
    return float(value[0])


def _check_reframe_verdict(value: list[Any]) -> None:
    """Check that ReFrame judges as this module does."""
    seconds, reference, _, upper, _, result = value
    if reference and upper and (result == "fail") != (seconds > reference * (1 + upper)):
        raise SoftwareError(f"unexpected verdict of ReFrame: {value}")


def compare_by_hand(environment: PeerEnvironment, scenario: PeerScenario) -> ToolResult:
    """Run rootreadspeed in turns; a side is slower if each of its runs is."""
    commands = [
        environment.readspeed_command(scenario.release_a, 0),
        environment.readspeed_command(
            scenario.release_b, environment.extra_count(scenario.planted)
        ),
    ]
    sides: tuple[list[dict[str, float]], list[dict[str, float]]] = ([], [])
    for number in range(2 * HAND_RUNS):
        side = number % 2
        sides[side].append(parse_readspeed(run_command(commands[side])))
    judgements = []
    for clock in ("cpu", "wall"):
        a, b = ([run[clock] for run in side] for side in sides)
        judgements.append(
            PeerJudgement(f"5 runs, {clock}", math.log(fmean(b) / fmean(a)), judge_by_eye(a, b))
        )
    return ToolResult(
        tuple(judgements),
        environment.extra_planted(scenario.planted),
        fmean(run["bytes"] for run in sides[0]),
    )


def judge_by_eye(a: list[float], b: list[float]) -> str:
    """Call a side slower if all of its runs are slower than all of the other's."""
    if min(b) > max(a):
        return SLOWER
    return FASTER if max(b) < min(a) else NO_CHANGE


def compare_paired(environment: PeerEnvironment, scenario: PeerScenario) -> ToolResult:
    """Submit a campaign in paired mode and compare it."""
    return _compare_by_treehammer("paired", environment, scenario)


def compare_solo(environment: PeerEnvironment, scenario: PeerScenario) -> ToolResult:
    """Submit a campaign in solo mode and compare it."""
    return _compare_by_treehammer("solo", environment, scenario)


def _compare_by_treehammer(
    mode: str, environment: PeerEnvironment, scenario: PeerScenario
) -> ToolResult:
    base = (TREEHAMMER, "--data-dir", environment.home / "treehammer")
    axes: tuple[str, ...] = ("branches=1.0", "cache_mb=30", "cache=warm")
    if math.isnan(scenario.planted):
        test, axis = str(REPOSITORY / "hctests" / "ttree-read"), "root"
        sides = (scenario.release_a, scenario.release_b)
        axes = (*axes, f"root={','.join(sides)}", "bundle=root")
    else:
        test, axis, sides = str(TEST_FOLDER), "twin", ("a", "b")
        axes = (*axes, f"blocks={environment.blocks(scenario.planted):.6g}")
    options = [word for axis_value in axes for word in ("-P", axis_value)]
    options += [word for setting in CAMPAIGN_SETTINGS[mode] for word in ("-S", setting)]
    start = time.monotonic()
    run_command([*base, "submit", test, *options, "-S", f"mode={mode}", "--wait"])
    # In paired mode it prints the verdict, which is only read again below.
    seconds = time.monotonic() - start if mode == "paired" else math.nan
    printed = run_command(
        [*base, "compare", *sides, "--axis", axis, "--campaign", "last", "--json"],
        accepted=(ExitCode.DONE, ExitCode.REGRESSION),
    )
    table = environment.home / "last.csv"
    run_command([*base, "export", table, "--campaign", "last", "--where", "kind=timed"])
    with table.open(newline="", encoding="utf-8") as stream:
        read_bytes = [
            float(row["bytes_read"]) for row in csv.DictReader(stream) if row["bytes_read"]
        ]
    return ToolResult(
        tuple(_read_verdicts(json.loads(printed))),
        scenario.planted,
        fmean(read_bytes) if read_bytes else math.nan,
        seconds,
    )


def _read_verdicts(rows: list[Mapping[str, Any]]) -> list[PeerJudgement]:
    return [
        PeerJudgement(
            str(row["metric"]).split("_")[0],
            math.nan if row["effect"] is None else float(row["effect"]),
            str(row["verdict"]),
        )
        for row in rows
        if row["scope"] == HOST_SCOPE
    ]


TOOLS: dict[str, Callable[[PeerEnvironment, PeerScenario], ToolResult]] = {
    "asv": compare_by_asv,
    "ReFrame": compare_by_reframe,
    "rootreadspeed by hand": compare_by_hand,
    "Treehammer, paired": compare_paired,
    "Treehammer, solo": compare_solo,
}
