"""A TTree and the RNTuple imported from it: equal values and selections."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tiny_dataset import list_ntuple_pages

from treehammer.collectors.kit.treehammer_kit import root_engine
from treehammer.collectors.kit.treehammer_kit.payload_task import PayloadError
from treehammer.collectors.software import providers
from treehammer.hctests import __file__ as hctests_file

pytestmark = pytest.mark.root

READ, UPROOT_READ = (
    Path(hctests_file).parent / name / "read.py" for name in ("rntuple-read", "uproot-read")
)

Run = Callable[..., Any]

#: Every kind of branch that both formats support.
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


@pytest.fixture
def twin(
    tree_file: Path, release: providers.SoftwareSetup, import_ntuple: Run, tmp_path: Path
) -> Path:
    """The usual tree as an RNTuple."""
    path = tmp_path / "twin.root"
    import_ntuple(release, tree_file, path)
    return path


@pytest.mark.parametrize(("kinds", "leaves"), [("usual", 32), ("all", 25)])
def test_tree_and_rntuple_have_equal_checksums(
    kinds: str,
    leaves: int,
    tree_file: Path,
    release: providers.SoftwareSetup,
    plain_python: providers.SoftwareSetup,
    run_payload: Run,
    run_script: Run,
    import_ntuple: Run,
    tmp_path: Path,
) -> None:
    tree, twin = tree_file, tmp_path / "twin.root"
    if kinds == "all":
        tree = tmp_path / "kinds.root"
        run_script(release, MAKE_KINDS, tree)
    import_ntuple(release, tree, twin)

    def sum_values(*files: Path, reader: providers.SoftwareSetup = release, **options: Any) -> str:
        done = run_payload(reader, *files, kind="checksum", **options)
        assert done.failure is None
        assert done.values["checksum_leaves"] == leaves
        assert json.loads(done.values["checksum_skipped_leaves"]) == []
        return str(done.values["value_checksum"])

    checksum = sum_values(tree)
    assert sum_values(twin) == checksum
    by_uproot: dict[str, Any] = {"reader": plain_python, "payload": UPROOT_READ}
    assert sum_values(tree, **by_uproot) == checksum
    assert sum_values(twin, format="rntuple", **by_uproot) == checksum
    if kinds == "usual":
        assert sum_values(twin, twin) == sum_values(tree, tree) != checksum


def test_distances_are_the_gaps_between_pages(twin: Path, run_payload: Run, release: Any) -> None:
    values = run_payload(release, twin, payload=READ, format="rntuple", cache_mb=30).values
    pages = list_ntuple_pages(twin, "events")
    span = max(start + size for start, size in pages.items()) - min(pages)
    fetched = values["bytes_read"] + values["bytes_read_extra"]
    assert values["skipped_forward_bytes"] == span - fetched
    assert values["skipped_backward_bytes"] == 0
    # Single pages of many fields lie behind and before each other.
    single = run_payload(release, twin, payload=READ, format="rntuple", cache_mb=0).values
    assert single["skipped_backward_bytes"] > 0
    net = single["skipped_forward_bytes"] - single["skipped_backward_bytes"]
    assert 0.9 * span < net + single["bytes_read"] <= span


#: Reports a hash of the names of the branches or fields read.
WHICH = """
#include <TBranch.h>
static double Number(const std::string &name)
{
   unsigned number = 0;
   for (char letter : name)
      number = 31 * number + letter;
   return number % 1000003;
}
void which(treehammer::Pass &pass)
{
   for (auto *object : *pass.tree->GetListOfBranches())
      if (!static_cast<TBranch *>(object)->TestBit(kDoNotProcess))
         pass.Report("names", Number(object->GetName()));
   for (Long64_t entry : pass.entries)
      pass.Add(pass.tree->GetEntry(entry));
}
#ifdef TREEHAMMER_READS_NTUPLE
void which(treehammer::NTuplePass &pass)
{
   for (const auto &view : pass.views)
      pass.Report("names", Number(view.GetField().GetFieldName()));
   for (Long64_t entry : pass.entries)
      pass.Load(entry);
}
#endif
"""


@pytest.mark.parametrize("branches", [0.5, "Muon_*,flag"])
def test_both_formats_read_the_same_branches_and_events(
    tree_file: Path,
    newest_twin: Path,
    latest_release: providers.SoftwareSetup,
    run_payload: Run,
    branches: Any,
    tmp_path: Path,
) -> None:
    macro = tmp_path / "which.C"
    macro.write_text(WHICH)
    tree = run_payload(latest_release, tree_file, payload=macro, branches=branches, events=0.3)
    ntuple = run_payload(
        latest_release, newest_twin, payload=macro, branches=branches, events=0.3, format="rntuple"
    )
    assert tree.failure is None
    assert ntuple.failure is None
    for name in ("branches_total", "branches_selected", "events_total", "events_read"):
        assert ntuple.values[name] == tree.values[name], name
    assert ntuple.extras == tree.extras


@pytest.mark.parametrize(("branches", "cache_mb"), [(1.0, 30), (0.2, 0)])
def test_bytes_match_kernel_and_pages(
    twin: Path, release: providers.SoftwareSetup, run_payload: Run, branches: float, cache_mb: int
) -> None:
    done = run_payload(
        release, twin, payload=READ, branches=branches, cache_mb=cache_mb, format="rntuple"
    )
    assert done.failure is None
    values = done.values
    assert values["ntuple_cluster_cache"] is (cache_mb > 0)
    fetched = values["ntuple_payload_bytes"] + values["ntuple_overhead_bytes"]
    assert values["kernel_read_chars"] == fetched
    assert values["kernel_read_calls"] == values["ntuple_ranges_read"] == values["read_calls"]
    assert values["bytes_read"] == values["ntuple_payload_bytes"]
    assert values["ntuple_pages_unzipped"] == values["ntuple_pages_read"]
    # Page by page, pages that are stored once are read several times.
    held = values["selected_zip_bytes"]
    assert held <= values["ntuple_payload_bytes"] <= held * 1.05
    if cache_mb:
        assert values["ntuple_payload_bytes"] == held
        assert values["ntuple_vector_reads"] == values["ntuple_clusters_loaded"] == 1
    if branches == 1.0:
        assert held < twin.stat().st_size


#: Writes an RNTuple of 12 clusters.
MAKE_CLUSTERS = """
import sys, os, ROOT
ROOT.gInterpreter.Declare('''
#include <ROOT/RNTupleModel.hxx>
#include <ROOT/RNTupleWriter.hxx>
void make(const char *path) {
   auto model = ROOT::RNTupleModel::Create();
   auto value = model->MakeField<double>("value");
   auto writer = ROOT::RNTupleWriter::Recreate(std::move(model), "events", path);
   for (int entry = 1; entry <= 1200; ++entry) {
      *value = 0.1 * entry;
      writer->Fill();
      if (entry % 100 == 0)
         writer->CommitCluster();
   }
}''')
ROOT.make(sys.argv[1])
sys.stdout.flush(); os._exit(0)
"""

#: Writes an RNTuple whose second field is added after the first cluster.
MAKE_LATE_FIELD = """
import sys, os, ROOT
ROOT.gInterpreter.Declare('''
#include <ROOT/RNTupleModel.hxx>
#include <ROOT/RNTupleWriter.hxx>
void make_late(const char *path) {
   auto model = ROOT::RNTupleModel::Create();
   model->MakeField<double>("value");
   auto writer = ROOT::RNTupleWriter::Recreate(std::move(model), "events", path);
   for (int entry = 0; entry < 200; ++entry) {
      if (entry == 100) {
         writer->CommitCluster();
         auto updater = writer->CreateModelUpdater();
         updater->BeginUpdate();
         updater->MakeField<int>("late");
         updater->CommitUpdate();
      }
      writer->Fill();
   }
}''')
ROOT.make_late(sys.argv[1])
sys.stdout.flush(); os._exit(0)
"""

#: Books a histogram, with the environment's number of clusters as its entries' value.
CLUSTERS_OF_DATAFRAME = """
from treehammer_kit import columns

columns.run_dataframe('''
#include <cstdlib>
void analyze(treehammer::FramePass &pass)
{
   const char *clusters = std::getenv("ROOT_RNTUPLE_CLUSTERBUNCHSIZE");
   const double number = clusters ? std::atof(clusters) : 0;
   auto frame = pass.frame.Define("number", [number] { return number; });
   pass.Book(frame.Histo1D<double>({"clusters", "", 10, -0.5, 9.5}, "number"));
}
''')
"""


def test_prefetch_reads_several_clusters_of_an_rntuple_at_once(
    release: providers.SoftwareSetup, run_payload: Run, run_script: Run, tmp_path: Path
) -> None:
    path = tmp_path / "clusters.root"
    run_script(release, MAKE_CLUSTERS, path)
    reads = {}
    for prefetch in (0, 1, 4):
        done = run_payload(release, path, payload=READ, format="rntuple", prefetch=prefetch)
        assert done.failure is None, done.log
        assert done.values["ntuple_clusters_loaded"] == 12
        reads[prefetch] = done.values["ntuple_vector_reads"]
    assert reads == {0: 12, 1: 12, 4: 3}
    off = run_payload(release, path, payload=READ, format="rntuple", prefetch=4, cache_mb=0)
    assert "which cache_mb = 0 turns off" in off.failure["message"]


def test_fields_that_were_added_later_are_read(
    release: providers.SoftwareSetup,
    latest_release: providers.SoftwareSetup,
    run_payload: Run,
    run_script: Run,
    tmp_path: Path,
) -> None:
    path = tmp_path / "late.root"
    run_script(latest_release, MAKE_LATE_FIELD, path)
    done = run_payload(release, path, payload=READ, format="rntuple")
    assert done.failure is None
    assert (done.values["events_read"], done.values["branches_selected"]) == (200, 2)
    assert done.values["selected_zip_bytes"] > 0
    assert run_payload(release, path, kind="checksum").values["checksum_leaves"] == 2


def test_prefetch_reaches_the_dataframe_of_an_rntuple(
    latest_release: providers.SoftwareSetup, run_payload: Run, run_script: Run, tmp_path: Path
) -> None:
    path, payload = tmp_path / "clusters.root", tmp_path / "frame.py"
    run_script(latest_release, MAKE_CLUSTERS, path)
    payload.write_text(CLUSTERS_OF_DATAFRAME)
    checksums = set()
    for prefetch in (0, 3):
        options = {"payload": payload, "format": "rntuple", "prefetch": prefetch}
        done = run_payload(latest_release, path, **options)
        assert done.failure is None, done.log
        assert done.values["events_read"] == 1200
        checksums.add(done.extras["histogram_checksum"])
    assert len(checksums) == 2


def test_a_cache_of_trees_has_no_number_of_clusters(
    tree_file: Path, latest_release: providers.SoftwareSetup, run_payload: Run
) -> None:
    done = run_payload(latest_release, tree_file, prefetch=2)
    assert "prefetching is off (0) or on (1)" in done.failure["message"]


def test_other_format_is_named(
    tree_file: Path, newest_twin: Path, latest_release: providers.SoftwareSetup, run_payload: Run
) -> None:
    as_tree = run_payload(latest_release, newest_twin).failure["message"]
    assert "is of class ROOT::RNTuple, not a TTree; the axis format = 'rntuple' reads it" in as_tree
    as_ntuple = run_payload(latest_release, tree_file, payload=READ, format="rntuple").failure
    assert "'events' is of class TTree, not an RNTuple" in as_ntuple["message"]
    missing = run_payload(
        latest_release, newest_twin, payload=READ, format="rntuple", tree="event"
    ).failure
    assert "contains no RNTuple 'event'; did you mean 'events'?" in missing["message"]
    without_loop = run_payload(latest_release, newest_twin, format="rntuple").failure
    assert without_loop["kind"] == "format"
    assert "void read(treehammer::NTuplePass &pass)" in without_loop["message"]


def test_release_without_reader_is_not_supported() -> None:
    class Old(SimpleNamespace):
        def GetVersionInt(self) -> int:  # noqa: N802
            return 63402

        def GetVersion(self) -> str:  # noqa: N802
            return "6.34.02"

    with pytest.raises(PayloadError, match="not supported with ROOT 6") as caught:
        root_engine.compile_ntuple_header(SimpleNamespace(gROOT=Old()), "ntuple.hpp")
    assert caught.value.document["kind"] == "not-supported"
