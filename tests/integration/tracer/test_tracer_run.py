"""``treehammer run`` with real programs: branches beside ROOT's, and a verdict."""

from __future__ import annotations

import json
import shlex
import sys
from dataclasses import astuple
from pathlib import Path
from typing import Any

import pytest
import uproot
from repository_code import call_command

from treehammer.config import Settings, load_settings
from treehammer.errors import ExitCode
from treehammer.tracer.kit.treehammer_tracer import root_map
from treehammer.tracer.kit.treehammer_tracer.file_map import map_baskets

pytestmark = pytest.mark.slow

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
names = [branch.GetName() for branch in tree.GetListOfBranches() if tree.GetBranchStatus(branch.GetName())]
print("RESULT", file.GetBytesRead() + file.GetBytesReadExtra(), file.GetReadCalls(), *names)
"""

#: Writes a TTree and an RNTuple to one file, and trees of one name to folders of another.
WRITER = """
import ROOT
ROOT.gSystem.Load("libROOTNTuple")
frame = ROOT.RDataFrame(50_000).Define("x", "0.5f * rdfentry_").Define("y", "int(rdfentry_)")
frame = frame.Define("values", "ROOT::RVecF(rdfentry_ % 5, 1.f)")
pairs = frame.Define("a", "std::pair<float, int>(x, y)").Define("b", "a")
options = ROOT.RDF.RSnapshotOptions()
options.fMode = "RECREATE"
frame.Snapshot("tree", "both.root", "", options)
pairs.Snapshot("one/tree", "folders.root", "", options)
options.fMode = "UPDATE"
pairs.Snapshot("two/tree", "folders.root", "", options)
options.fOutputFormat = ROOT.RDF.ESnapshotOutputFormat.kRNTuple
frame.Snapshot("ntuple", "both.root", "", options)
"""
NTUPLE_READER = """
import ROOT
ROOT.gSystem.Load("libROOTNTuple")
print(ROOT.RDataFrame("ntuple", "both.root").Mean("y").GetValue())
print(ROOT.RDataFrame("two/tree", "folders.root").Mean("y").GetValue())
"""


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.chdir(tmp_path)
    return load_settings({"data_dir": tmp_path / "data"})


def run_command(settings: Settings, *words: str) -> list[dict[str, Any]]:
    """Run ``treehammer run``; return the rows of its files."""
    done = call_command("run", settings, "--json", *words)
    assert done.return_value == ExitCode.DONE, done.output
    rows: list[dict[str, Any]] = json.loads(done.stdout)
    return rows


@pytest.mark.root
def test_branches_bytes_and_calls_are_those_of_root(settings: Settings, tmp_path: Path) -> None:
    call_command("datasets", settings, "make", "reference-small")
    (tmp_path / "tree.py").write_text(TREE_READER)
    path = settings.datasets_dir / "reference-small" / "reference-small.root"
    # The baskets of Jet_pt and Jet_eta are adjacent in the file.
    command = f"python tree.py {path} Jet_pt,Jet_eta,Electron_pt > result.txt"
    rows = run_command(settings, "--root", "6.40.00", "--", command)
    (row,) = [row for row in rows if row["path"] == str(path)]
    lines = (tmp_path / "result.txt").read_text().splitlines()
    line = next(line for line in lines if "RESULT" in line)
    _, size, calls, *names = line.split()
    assert (row["bytes"], row["calls"]) == (int(size), int(calls))
    assert {*row["names"]} == {*names} == {"Jet_pt", "Jet_eta", "Electron_pt", "nJet", "nElectron"}
    assert row["branches_most"] == row["branches_read"] == 5
    assert row["compression"] > 1


@pytest.mark.root
def test_pages_that_root_lists_are_those_of_uproot(settings: Settings, tmp_path: Path) -> None:
    (tmp_path / "write.py").write_text(WRITER)
    (tmp_path / "read.py").write_text(NTUPLE_READER)
    root = ("--root", "6.40.00", "--")
    run_command(settings, *root, "python write.py")
    rows = run_command(settings, *root, "python read.py")
    names = {(*row["names"], row["branches"]) for row in rows}
    assert names == {("ntuple/y", 6), ("two/tree/y", 14)}
    run_command(
        settings, *root, f"printf 'both.root\\nnone.root' | python {root_map.__file__} > root.txt"
    )
    listed, message = map(json.loads, (tmp_path / "root.txt").read_text().splitlines())
    baskets = {astuple(basket) for basket in map_baskets("both.root")[0]}
    uproot_rows = set(root_map.list_with_uproot(uproot, "both.root"))
    assert baskets < uproot_rows == {tuple(row) for row in listed}
    assert "none.root" in message


def test_commands_are_compared_until_decided(settings: Settings, tmp_path: Path) -> None:
    """A large difference, so that a busy machine decides as well."""
    (tmp_path / "reader.py").write_text(READER)
    (tmp_path / "data.bin").write_bytes(bytes(7_000_000))
    sides = [f"{sys.executable} reader.py data.bin {count}" for count in (2000, 8000)]
    done = call_command("run", settings, "--json", "--a", sides[0], "--b", sides[1])
    assert done.return_value == ExitCode.REGRESSION, done.output
    verdicts = {(row["metric"], row["verdict"]) for row in json.loads(done.stdout)}
    assert ("cpu_per_event_s", "slower") in verdicts
    compared = call_command("compare", settings, "A", "B", "--axis=command", "--campaign=last")
    assert "CPU time per run than A" in compared.stdout
    assert "ms/run" in compared.stdout
    assert f"Runs A: {sides[0]}; B: {sides[1]}." in compared.stderr
    assert "(ms/run)" in call_command("summary", settings).stdout
    words = ("--name", "twice", "--", *sides[0].split())
    for _ in range(2):
        kept = call_command("run", settings, *words).stdout.partition("Kept: ")[2]
    assert call_command("summary", settings, *shlex.split(kept)[2:]).exit_code == ExitCode.DONE
