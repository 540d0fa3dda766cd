"""Environment of the compared tools: installation, software, planted work, and commands."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.harness.program_runs import PAYLOADS_FOLDER, dataset_file, set_up_software
from treehammer import config
from treehammer.errors import SoftwareError

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
    done = subprocess.run(
        command,
        env={**os.environ, **(env or {})},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=COMMAND_LIMIT_S,
    )
    if done.returncode not in accepted:
        tail = (done.stdout + done.stderr)[-2000:]
        raise SoftwareError(f"{command[0]} ended with {done.returncode}:\n{tail}")
    return done.stdout
