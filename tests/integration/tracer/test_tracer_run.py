"""``treehammer run`` with real programs: counts beside strace's, branches beside ROOT's, a verdict."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from repository_code import call_command

from treehammer.config import Settings, load_settings
from treehammer.errors import ExitCode

pytestmark = pytest.mark.slow

_CALLS = "read,pread64,readv,preadv,sendfile,copy_file_range"
_LINE = re.compile(rf"\d+ +({_CALLS.replace(',', '|')})\((.*)\) += (\d+)")
_FILE = re.compile(r"\d+<(/[^>]*)>")

#: Reads so many blocks.
READER = """
import os, sys
descriptor = os.open(sys.argv[1], os.O_RDONLY)
for number in range(int(sys.argv[2])):
    os.pread(descriptor, 65536, number % 100 * 65536)
"""

TREE_READER = """
import sys, ROOT
file = ROOT.TFile.Open(sys.argv[1])
tree = file.Get("events")
tree.SetBranchStatus("*", 0)
for name in sys.argv[2].split(","):
    tree.SetBranchStatus(name, 1)
for entry in range(tree.GetEntries()):
    tree.GetEntry(entry)
branches = tree.GetListOfBranches()
names = [branch.GetName() for branch in branches if not branch.TestBit(ROOT.kDoNotProcess)]
names += [branch.GetLeaf(branch.GetName()).GetLeafCount().GetName() for branch in map(tree.GetBranch, names)]
print("RESULT", file.GetBytesRead() + file.GetBytesReadExtra(), file.GetReadCalls(), *names)
"""


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return load_settings({"data_dir": tmp_path / "data"})


def run_command(settings: Settings, *words: str) -> list[dict[str, Any]]:
    """Run ``treehammer run``; return the rows of its files."""
    done = call_command("run", settings, "--json", *words)
    assert done.return_value == ExitCode.DONE, done.output
    rows: list[dict[str, Any]] = json.loads(done.stdout)
    return rows


def count_by_strace(command: list[str], log: Path) -> dict[str, tuple[int, int]]:
    """Count calls and bytes by path with strace."""
    subprocess.run(
        ["strace", "-f", "-y", "-s", "0", "-e", f"trace={_CALLS}", "-o", log, *command],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for line in log.read_text(errors="replace").splitlines():
        if match := _LINE.match(line):
            paths = _FILE.findall(match[2])
            path = paths[-1] if match[1] == "sendfile" else paths[0] if paths else ""
            counts[path][0] += 1
            counts[path][1] += int(match[3])
    return {path: (calls, size) for path, (calls, size) in counts.items()}


@pytest.mark.skipif(not shutil.which("strace"), reason="strace is not installed")
@pytest.mark.parametrize(
    "command",
    [
        f"{sys.executable} reader.py data.bin 50",
        "cat data.bin data.bin",
        "/bin/sh -c 'head -c 5000 data.bin; sort text.txt; wc text.txt'",
        "cp data.bin copy.bin",
    ],
)
def test_counts_are_those_of_strace(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "reader.py").write_text(READER)
    (tmp_path / "data.bin").write_bytes(bytes(7_000_000))
    (tmp_path / "text.txt").write_text("word\n" * 20_000)
    expected = count_by_strace(shlex.split(command), tmp_path / "strace.log")
    rows = run_command(settings, "--", command)
    data = {str(tmp_path / name) for name in ("data.bin", "text.txt")} & expected.keys()
    counts = {row["path"]: (row["calls"], row["bytes"]) for row in rows}
    assert data
    assert {path: counts[path] for path in data} == {path: expected[path] for path in data}


@pytest.mark.root
def test_branches_bytes_and_calls_are_those_of_root(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    call_command("datasets", settings, "make", "reference-small")
    (tmp_path / "tree.py").write_text(TREE_READER)
    path = settings.datasets_dir / "reference-small" / "reference-small.root"
    command = f"python tree.py {path} Jet_pt,Electron_pt > result.txt"
    (row,) = [
        row
        for row in run_command(settings, "--root", "6.40.00", "--", command)
        if row["path"] == str(path)
    ]
    line = next(
        line for line in (tmp_path / "result.txt").read_text().splitlines() if "RESULT" in line
    )
    _, size, calls, *names = line.split()
    assert (row["bytes"], row["calls"]) == (int(size), int(calls))
    assert {*row["names"]} == {*names} == {"Jet_pt", "Electron_pt", "nJet", "nElectron"}
    assert row["branches_most"] == row["branches_read"] == 4
    assert row["compression"] > 1


def test_commands_are_compared_until_decided(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large difference, so that a busy machine decides as well."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "reader.py").write_text(READER)
    (tmp_path / "data.bin").write_bytes(bytes(7_000_000))
    sides = [f"{sys.executable} reader.py data.bin {count}" for count in (2000, 8000)]
    done = call_command("run", settings, "--json", "--a", sides[0], "--b", sides[1])
    assert done.return_value == ExitCode.REGRESSION, done.output
    verdicts = {(row["metric"], row["verdict"]) for row in json.loads(done.stdout)}
    assert ("cpu_per_event_s", "slower") in verdicts
    compared = call_command("compare", settings, "A", "B", "--axis", "command", "--json")
    assert "slower" in compared.stdout
