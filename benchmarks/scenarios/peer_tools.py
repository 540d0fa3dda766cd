"""Comparisons by other tools and by Treehammer, judged by the rules that each tool itself applies."""

from __future__ import annotations

import csv
import json
import math
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.harness.program_runs import (
    PAYLOADS_FOLDER,
    REPOSITORY,
    TREEHAMMER,
    dataset_file,
    set_up_software,
)
from benchmarks.scenarios.paired_launches import TEST_FOLDER
from treehammer import config
from treehammer.analysis.statistics.verdict import HOST_SCOPE
from treehammer.errors import ExitCode, SoftwareError

# The tools and the planted work

DATASET = "reference-small"
BASE_RELEASE, OTHER_RELEASE = "6.40.00", "6.38.00"
PEER_PACKAGES = ("asv==0.6.6", "reframe-hpc==4.10.4")
#: asv imports its runner inside the measured environment.
RUNNER_PACKAGES = ("asv-runner==0.3.2",)
#: Limit for one command of a tool.
COMMAND_LIMIT_S = 1800
#: Share of the events in the file that rootreadspeed reads as planted work.
EXTRA_SHARE = 0.005
#: Readings of that file by which its cost is measured.
EXTRA_COUNT = 100


@dataclass(frozen=True)
class PeerScenario:
    """One comparison: side A reads with ``release_a``, side B with ``release_b``.

    ``planted`` is the intended additional CPU time of side B; NaN where the truth is unknown.
    """

    name: str
    release_a: str
    release_b: str
    planted: float


SCENARIOS = (
    PeerScenario("A/A", BASE_RELEASE, BASE_RELEASE, 0.0),
    PeerScenario("planted 2 %", BASE_RELEASE, BASE_RELEASE, 0.02),
    PeerScenario("planted 5 %", BASE_RELEASE, BASE_RELEASE, 0.05),
    PeerScenario("planted 20 %", BASE_RELEASE, BASE_RELEASE, 0.2),
    PeerScenario("releases", OTHER_RELEASE, BASE_RELEASE, math.nan),
)


@dataclass
class PeerEnvironment:
    """Folder with the tools; sizes of the planted work on this machine.

    Attributes:
        home: keeps tools and their results, outside the repository.
        url: the file that is read.
        roots: release -> folder of its Python environment.
        block_share: CPU time of one planted block an event, in units of reading.
        extra_file: read by rootreadspeed as planted work.
        extra_share: CPU time of reading it, in units of reading.
    """

    home: Path
    url: str
    roots: dict[str, Path] = field(default_factory=dict)
    block_share: float = 1.0
    extra_file: Path = Path()
    extra_share: float = EXTRA_SHARE

    @classmethod
    def prepare(cls) -> PeerEnvironment:
        """Install tools and releases; measure the planted work."""
        home = config.load_settings().data_dir / "benchmarks" / "peers"
        home.mkdir(parents=True, exist_ok=True)
        environment = cls(home, dataset_file(DATASET))
        for release in (BASE_RELEASE, OTHER_RELEASE):
            environment.roots[release] = Path(set_up_software(release).python).parents[1]
        environment._install_tools()
        environment._measure_planted_work()
        return environment

    def tool(self, name: str) -> Path:
        """Return the path of a tool's command."""
        return self.home / "tools" / "bin" / name

    def python(self, release: str) -> Path:
        """Return the Python of a release."""
        return self.roots[release] / "bin" / "python"

    def readspeed(self, release: str) -> Path:
        """Return the ``rootreadspeed`` of a release, which the wheel brings along."""
        (program,) = self.roots[release].glob("lib/python3*/site-packages/ROOT/bin/rootreadspeed")
        return program

    def blocks(self, planted: float) -> float:
        """Return the planted blocks per event for an additional share of CPU time."""
        return 0.0 if math.isnan(planted) else planted / self.block_share

    def extra_count(self, planted: float) -> int:
        """Return how often the extra file is read for an additional share of CPU time."""
        return 0 if math.isnan(planted) else round(planted / self.extra_share)

    def extra_planted(self, planted: float) -> float:
        """Return the share that is really planted, since extra files are read as a whole."""
        return math.nan if math.isnan(planted) else self.extra_count(planted) * self.extra_share

    def read(self, release: str, blocks: float) -> dict[str, float]:
        """Run the bare loop once in its own process."""
        printed = run_command(
            [self.python(release), PAYLOADS_FOLDER / "read_loop.py", self.url],
            env={"PLANTED_BLOCKS": f"{blocks:.6g}"},
        )
        costs: dict[str, float] = json.loads(printed.splitlines()[-1])
        return costs

    def _install_tools(self) -> None:
        if not self.tool("reframe").exists():
            run_command([sys.executable, "-m", "venv", self.home / "tools"])
            run_command([self.tool("pip"), "install", "--quiet", *PEER_PACKAGES])
        runner = self.home / "asv-runner"
        if not runner.exists():
            run_command(
                [self.tool("pip"), "install", "--quiet", "--target", runner, *RUNNER_PACKAGES]
            )

    def _measure_planted_work(self) -> None:
        self.block_share = self.read(BASE_RELEASE, 1.0)["planted"]
        self.extra_file = self.home / "extra.root"
        if not self.extra_file.exists():
            source = _COPY_SOURCE % (self.url, EXTRA_SHARE, str(self.extra_file))
            run_command([self.python(BASE_RELEASE), "-c", source])
        without, with_extra = (
            parse_readspeed(run_command(self.readspeed_command(BASE_RELEASE, count)))["cpu"]
            for count in (0, EXTRA_COUNT)
        )
        self.extra_share = (with_extra - without) / without / EXTRA_COUNT

    def readspeed_command(self, release: str, extra_count: int) -> list[str | Path]:
        """Return the command, with the extra file so many times."""
        return [
            self.readspeed(release),
            *("--trees", "events", "--all-branches", "--files", self.url),
            *[self.extra_file] * extra_count,
        ]


_COPY_SOURCE = """
import ROOT
source = ROOT.TFile.Open(%r)
tree = source.Get("events")
events = round(%r * tree.GetEntries())
target = ROOT.TFile(%r, "RECREATE", "", source.GetCompressionSettings())
tree.CloneTree(events)
target.Write()
target.Close()
"""

_READSPEED_LINES = {"Real time": "wall", "CPU time": "cpu", "Compressed data read": "bytes"}


def parse_readspeed(printed: str) -> dict[str, float]:
    """Read wall seconds, CPU seconds and compressed bytes from the output of rootreadspeed."""
    values: dict[str, float] = {}
    for line in printed.splitlines():
        title, _, text = line.partition(":")
        if title in _READSPEED_LINES:
            values[_READSPEED_LINES[title]] = float(text.split()[0])
    return values


def run_command(
    command: Sequence[str | Path],
    *,
    env: Mapping[str, str] | None = None,
    folder: Path | None = None,
    accepted: Sequence[int] = (0,),
) -> str:
    """Run a command and return its standard output.

    Raises:
        SoftwareError: it ended with a code that is not accepted.
    """
    completed = subprocess.run(
        command,
        env={**os.environ, **(env or {})},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=COMMAND_LIMIT_S,
    )
    if completed.returncode not in accepted:
        tail = (completed.stdout + completed.stderr)[-2000:]
        raise SoftwareError(f"{command[0]} ended with {completed.returncode}:\n{tail}")
    return completed.stdout


# Comparisons

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


def compare_by_treehammer(
    mode: str, environment: PeerEnvironment, scenario: PeerScenario
) -> ToolResult:
    """Submit a campaign in a mode and compare it."""
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
    "Treehammer, paired": partial(compare_by_treehammer, "paired"),
    "Treehammer, solo": partial(compare_by_treehammer, "solo"),
}
