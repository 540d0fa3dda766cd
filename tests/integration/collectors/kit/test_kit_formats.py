"""A TTree and the RNTuple that ROOT's importer makes of it: the same values, the same choices."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from treehammer.collectors import software
from treehammer.collectors.kit.treehammer_kit import engine
from treehammer.collectors.kit.treehammer_kit.task import Trouble

pytestmark = pytest.mark.root

Run = Callable[..., Any]

#: Every kind of branch that both formats hold, as ROOT's importer translates it.
MAKE_KINDS = """
import sys, ROOT, os
ROOT.gInterpreter.Declare('''
#include <TFile.h>
#include <TTree.h>
struct Pair { float x; int y; };
void make(const char *path) {
   TFile file(path, "RECREATE");
   auto *t = new TTree("events", "events");
   Pair pair; Char_t c; UChar_t uc; Short_t s; UShort_t us; Long_t l; ULong_t ul; Long64_t ll;
   Double_t d32; double grid[2][3]; char chars[4]; bool flags[3]; int n; unsigned m; float jag[10];
   unsigned char ujag[10];
   std::vector<bool> vb; std::vector<std::string> vs; std::vector<char> vc; std::vector<double> vd;
   std::vector<Long64_t> vl; std::vector<unsigned char> vuc; std::vector<unsigned long> vul;
   t->Branch("pair", &pair, "x/F:y/I"); t->Branch("c", &c, "c/B"); t->Branch("uc", &uc, "uc/b");
   t->Branch("s", &s, "s/S"); t->Branch("us", &us, "us/s"); t->Branch("l", &l, "l/G");
   t->Branch("ul", &ul, "ul/g"); t->Branch("ll", &ll, "ll/L"); t->Branch("d32", &d32, "d32/d");
   t->Branch("grid", grid, "grid[2][3]/D"); t->Branch("chars", chars, "chars[4]/B");
   t->Branch("flags", flags, "flags[3]/O");
   t->Branch("n", &n, "n/I"); t->Branch("jag", jag, "jag[n]/F");
   t->Branch("m", &m, "m/i"); t->Branch("ujag", ujag, "ujag[m]/b");
   t->Branch("lonely.s", &s, "lonely/S"); t->Branch("dotted.name", &vd);
   t->Branch("vb", &vb); t->Branch("vs", &vs); t->Branch("vc", &vc); t->Branch("vl", &vl);
   t->Branch("vuc", &vuc); t->Branch("vul", &vul);
   unsigned long long state = 1;
   auto next = [&] { return (state = state * 6364136223846793005ull + 1442695040888963407ull) >> 33; };
   for (int e = 0; e < 500; ++e) {
      pair = {next() * 1e-3f, -int(next() % 100)};
      c = -int(next() % 128); uc = next(); s = -int(next() % 1000); us = next();
      l = -long(next()); ul = next() << 32; ll = -Long64_t(next() << 20); d32 = next() * 1e-3;
      for (auto &row : grid) for (auto &x : row) x = next() * 1e-3;
      for (auto &x : chars) x = next();
      for (auto &x : flags) x = next() & 1;
      n = next() % 10; m = next() % 10;
      for (auto &x : jag) x = next() * 1e-3f;
      for (auto &x : ujag) x = next();
      vb.assign(next() % 4, next() & 1); vs.assign(next() % 3, std::string(next() % 5, 'z'));
      vc.assign(next() % 4, -3); vd.assign(next() % 4, 0.1 * e); vl.assign(next() % 4, -e);
      vuc.assign(next() % 4, e); vul.assign(next() % 3, next() << 33);
      t->Fill();
   }
   file.Write();
}''')
ROOT.make(sys.argv[1])
sys.stdout.flush(); os._exit(0)
"""

IMPORT = """
import sys, os, ROOT
importer = ROOT.Experimental.RNTupleImporter.Create(sys.argv[1], "events", sys.argv[2])
importer.SetIsQuiet(True); importer.SetConvertDotsInBranchNames(True); importer.Import()
sys.stdout.flush(); os._exit(0)
"""


def _in_root(setup: software.Setup, code: str, *arguments: Path) -> None:
    command = [setup.python, "-W", "ignore", "-c", code, *map(str, arguments)]
    subprocess.run(command, env=dict(setup.env), check=True, timeout=120)


@pytest.fixture
def twin(tree_file: Path, release: software.Setup, tmp_path: Path) -> Path:
    """What the importer makes of the usual tree."""
    path = tmp_path / "twin.root"
    _in_root(release, IMPORT, tree_file, path)
    return path


def test_a_tree_and_its_twin_have_one_checksum(
    tree_file: Path, twin: Path, release: software.Setup, run: Run
) -> None:
    tree, ntuple = (run(release, path, kind="checksum") for path in (tree_file, twin))
    assert tree.failure is None
    assert ntuple.failure is None
    assert ntuple.values["checksum_leaves"] == tree.values["checksum_leaves"] == 32
    assert ntuple.values["branches_total"] == tree.values["branches_total"]
    assert ntuple.values["value_checksum"] == tree.values["value_checksum"]
    twice = run(release, twin, twin, kind="checksum").values
    assert (
        twice["value_checksum"]
        == run(release, tree_file, tree_file, kind="checksum").values["value_checksum"]
    )
    assert twice["value_checksum"] != ntuple.values["value_checksum"]


def test_every_kind_of_branch_has_one_checksum_in_both_formats(
    release: software.Setup, run: Run, tmp_path: Path
) -> None:
    tree, ntuple = tmp_path / "kinds.root", tmp_path / "kinds-twin.root"
    _in_root(release, MAKE_KINDS, tree)
    _in_root(release, IMPORT, tree, ntuple)
    one, other = (run(release, path, kind="checksum").values for path in (tree, ntuple))
    assert one["checksum_leaves"] == other["checksum_leaves"] == 25
    assert json.loads(other["checksum_uncovered"]) == []
    assert one["value_checksum"] == other["value_checksum"]


def test_a_release_before_the_reader_was_released_is_not_supported() -> None:
    class Old(SimpleNamespace):
        def GetVersionInt(self) -> int:  # noqa: N802
            return 63402

        def GetVersion(self) -> str:  # noqa: N802
            return "6.34.02"

    with pytest.raises(Trouble, match="not supported with ROOT 6") as caught:
        engine.declare_ntuple(SimpleNamespace(gROOT=Old()), "ntuple.hpp")
    assert caught.value.document["kind"] == "not-supported"
