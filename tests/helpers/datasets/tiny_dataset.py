"""Small datasets of tests: specs of one kind, files without trees, ``tiny``, and odd ROOT files.

Of files without trees it matters that every byte arrives.  ``tiny`` is made once in each process that
runs tests.  Odd files have friends, chains of unequal files, names, cycles and short branches.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

import pytest

from treehammer import config
from treehammer.datasets import root_process
from treehammer.datasets.catalogues.folder_catalogue import FolderCatalogue
from treehammer.datasets.manifest import (
    MANIFEST_NAME,
    Distribution,
    Manifest,
    ManifestFile,
    TreeLayout,
    digest_file,
)
from treehammer.datasets.specs import dataset_specs
from treehammer.datasets.specs.dataset_specs import GeneratedSpec, MergedSpec, RawSpec
from treehammer.text_formatting import no_progress


def list_ntuple_pages(path: Path, name: str) -> dict[int, int]:
    """List the pages of an RNTuple with uproot: offset in the file -> bytes with their checksum."""
    import uproot  # most users of this module need no arrays

    with uproot.open(path) as file:
        return {
            page.locator.offset: page.locator.num_bytes + 8 * page.has_checksum
            for columns in file[name].page_link_list
            for column in columns
            for page in column.pages
        }


def load_generated_spec(path: Path) -> GeneratedSpec:
    """The spec of random values in a file."""
    plan = dataset_specs.load_spec(path)
    assert isinstance(plan, GeneratedSpec)
    return plan


def load_merged_spec(path: Path) -> MergedSpec:
    """The spec of real events in a file."""
    plan = dataset_specs.load_spec(path)
    assert isinstance(plan, MergedSpec)
    return plan


Spec = TypeVar("Spec", GeneratedSpec, MergedSpec, RawSpec)


def change_spec(spec: Spec, **tables: Mapping[str, object]) -> Spec:
    """Return a spec with other values in its tables, unchecked."""
    changes = {
        name: getattr(spec, name).model_copy(update=values) for name, values in tables.items()
    }
    return spec.model_copy(update=changes)


def raw_spec(name: str, files: int, size: int = 2_500_000) -> RawSpec:
    """Return the spec of raw files."""
    dataset = {"name": name, "description": f"{files} files", "seed": 3}
    return RawSpec.model_validate({"dataset": dataset, "raw": {"files": files, "size": size}})


NONE = Distribution(0, 0, 0, 0, 0, 0)
LAYOUT = TreeLayout("events", "ttree", 1, 1, 1, 1, 0, 1.0, 1, NONE, NONE, NONE)


def write_dataset(root: Path, name: str, contents: Mapping[str, bytes]) -> Manifest:
    """Have a dataset in a folder catalogue."""
    folder = root / name
    folder.mkdir(parents=True)
    files = []
    for file, content in contents.items():
        (folder / file).write_bytes(content)
        digest = digest_file(folder / file)
        files.append(ManifestFile(file, digest.size, digest.adler32, digest.sha256, LAYOUT))
    manifest = Manifest(name, tuple(files), {"kind": "added", "description": ""})
    (folder / MANIFEST_NAME).write_text(manifest.to_json())
    return manifest


TINY_SPEC = Path(__file__).parents[2] / "integration" / "datasets" / "tiny.toml"


@pytest.fixture(scope="session")
def tiny_catalogue(tmp_path_factory: pytest.TempPathFactory) -> FolderCatalogue:
    """Return a catalogue with ``tiny``, one file, for tests that only read it."""
    software = root_process.prepare_dataset_root(
        "6.40.00", config.load_settings().software_dir, no_progress
    )
    catalogue = FolderCatalogue(tmp_path_factory.mktemp("datasets"))
    catalogue.make(load_generated_spec(TINY_SPEC), software)
    return catalogue


#: Writes all files into the folder of its argument. Trees hold ``x`` = entry and ``y`` = 2 x entry.
WRITE_ODD_FILES = """
import os, sys, ROOT
os.chdir(sys.argv[1])
ROOT.gInterpreter.Declare('''
#include <TFile.h>
#include <TTree.h>
#include <bitset>
#include <set>
#include <ROOT/RField.hxx>
#include <ROOT/RNTupleModel.hxx>
#include <ROOT/RNTupleWriter.hxx>

namespace ROOT { namespace Experimental { struct RNTuple { int version = 0; }; } }

TTree *fill(const char *name, Long64_t entries)
{
   auto *tree = new TTree(name, "");
   static float x, y;
   tree->Branch("x", &x);
   tree->Branch("y", &y);
   for (Long64_t entry = 0; entry < entries; ++entry) {
      x = entry;
      y = 2 * entry;
      tree->Fill();
   }
   tree->Write();
   return tree;
}

/// A tree with a branch v of this leaf, or of a vector, or without it.
template <typename T>
void chain(const char *path, const std::string &leaf = "", int entries = 100)
{
   TFile file(path, "RECREATE");
   auto *tree = new TTree("T", "");
   T values[4] = {1, 2, 3, 4};
   std::vector<T> vector{1, 2};
   float x = 0;
   tree->Branch("x", &x);
   if (leaf == "vector")
      tree->Branch("v", &vector);
   else if (!leaf.empty())
      tree->Branch("v", values, leaf.c_str());
   for (int entry = 0; entry < entries; ++entry)
      tree->Fill();
   leaf.empty() ? file.WriteTObject(tree) : tree->Write(); // embedded in its record, or flushed
}

void lengths(const char *path)
{
   TFile file(path, "RECREATE");
   auto *tree = new TTree("T", "");
   float x = 0;
   for (const char *name : {"x", "short", "none", "long", "#s"})
      tree->Branch(name, &x);
   tree->Branch("text", new std::string);
   for (int entry = 0; entry < 120; ++entry) {
      x = entry;
      if (entry < 100)
         tree->GetBranch("x")->Fill();
      if (entry < 40)
         tree->GetBranch("short")->Fill();
      tree->GetBranch("long")->Fill();
   }
   tree->SetEntries(100);
   tree->Write();
}

void ntuple(TDirectory &folder, const char *name)
{
   auto model = ROOT::RNTupleModel::Create();
   auto x = model->MakeField<float>("x");
   auto y = model->MakeField<float>("y");
   auto writer = ROOT::RNTupleWriter::Append(std::move(model), name, folder);
   for (int entry = 0; entry < 100; ++entry) {
      *x = entry;
      *y = 2 * entry;
      writer->Fill();
   }
}

/// A tree whose branch y lies in a file of this name, which may be its own.
void elsewhere(const char *path, const std::string &name)
{
   auto *other = name == path ? nullptr : new TFile(name.c_str(), "RECREATE"); // the branch deletes it
   TFile file(path, "RECREATE");
   auto *tree = new TTree("T", "");
   float x = 1;
   tree->Branch("x", &x);
   tree->Branch("y", &x)->SetFile(name.c_str());
   for (int entry = 0; entry < 100; ++entry)
      tree->Fill();
   file.cd();
   tree->Write();
   if (other)
      other->Write();
}

/// 31,996 uncompressed bytes in five columns, four projections of them, and a field after all entries.
void projected(const char *path)
{
   auto model = ROOT::RNTupleModel::Create();
   auto values = model->MakeField<std::vector<float>>("values");
   auto pair = model->MakeField<std::pair<float, std::vector<int>>>("pair");
   auto project = [&](const char *name, const char *type, std::map<std::string, std::string> sources) {
      model->AddProjectedField(ROOT::RFieldBase::Create(name, type).Unwrap(),
                               [=](const std::string &field) { return sources.at(field); });
   };
   project("size", "ROOT::RNTupleCardinality<std::uint64_t>", {{"size", "values"}});
   project("alias", "std::vector<float>", {{"alias", "values"}, {"alias._0", "values._0"}});
   project("first", "float", {{"first", "pair._0"}});
   project("second", "std::vector<std::int32_t>", {{"second", "pair._1"}, {"second._0", "pair._1._0"}});
   auto writer = ROOT::RNTupleWriter::Recreate(std::move(model), "N", path);
   for (int entry = 0; entry < 1000; ++entry) {
      values->assign(entry % 5, entry * 0.5f);
      pair->first = entry;
      pair->second.assign(entry % 3, entry);
      writer->Fill();
   }
   auto updater = writer->CreateModelUpdater();
   updater->BeginUpdate();
   updater->MakeField<float>("late");
   updater->CommitUpdate();
}

/// An RNTuple with a field at which data frames of ROOT 6.40 fail.
void bits()
{
   auto model = ROOT::RNTupleModel::Create();
   model->MakeField<std::bitset<9>>("bits");
   ROOT::RNTupleWriter::Recreate(std::move(model), "N", "bits.root")->Fill();
}

void write()
{
   bits();
   elsewhere("relative.root", "side.root");
   elsewhere("absolute.root", std::string(gSystem->pwd()) + "/side2.root");
   elsewhere("itself.root", "itself.root");
   projected("projected.root");
   {
      TFile file("old.root", "RECREATE");
      ROOT::Experimental::RNTuple anchor;
      file.WriteObjectAny(&anchor, "ROOT::Experimental::RNTuple", "ntpl");
      TFile mixed("mixed.root", "RECREATE");
      fill("T", 100);
      fill("U", 10);
      mixed.WriteObjectAny(&anchor, "ROOT::Experimental::RNTuple", "ntpl");
      TChain chain("T");
      chain.Add("friends.root");
      chain.Write("C");
      TFile alone("chain.root", "RECREATE");
      chain.Write("C");
      TFile chained("chained.root", "RECREATE");
      auto *tree = fill("T", 100);
      TChain far("fr");
      tree->AddFriend(&far, "far");
      chained.WriteTObject(tree, "T", "Overwrite");
      tree->SetEntries(1000000000000);
      chained.WriteTObject(tree, "counted");
      auto *outer = fill("outer", 100);
      outer->AddFriend("T");
      outer->Write("", TObject::kOverwrite);
   }
   {
      TFile file("unfilled.root", "RECREATE");
      TTree tree("Refs", "");
      float x = 1;
      tree.Branch("links", &x);
      tree.Branch("params", &x)->Fill();
      tree.Write();
   }
   {
      TFile file("elsewhere.root", "RECREATE");
      fill("fr", 100);
   }
   {
      TFile file("friends.root", "RECREATE");
      file.mkdir("sub")->cd();
      fill("inner", 100);
      file.cd();
      auto *tree = fill("T", 200);
      tree->AddFriend("sub/inner");
      tree->AddFriend("alias = fr", "elsewhere.root");
      tree->Write("", TObject::kOverwrite);
   }
   {
      TFile file("inside.root", "RECREATE");
      file.mkdir("sub")->cd();
      auto *indexed = fill("one of two", 400);
      indexed->BuildIndex("x");
      indexed->Write("", TObject::kOverwrite);
      file.cd();
      auto *tree = fill("T", 200);
      tree->AddFriend("sub/one of two;1");
      tree->Write("", TObject::kOverwrite);
      auto *empty = fill("empty", 0);
      empty->AddFriend("T");
      empty->AddFriend("itself = empty", (gSystem->pwd() + std::string("/inside.root")).c_str());
      empty->Write("", TObject::kOverwrite);
   }
   chain<int>("int.root", "v/I");
   chain<unsigned>("unsigned.root", "v/i");
   chain<Long64_t>("long.root", "v/L");
   chain<float>("three.root", "v[3]/F");
   chain<float>("four.root", "v[4]/F");
   chain<int>("empty.root", "v/I", 0);
   chain<float>("floats.root", "vector");
   chain<double>("doubles.root", "vector");
   chain<int>("fewer.root");
   {
      TFile file("formats.root", "RECREATE");
      ntuple(file, "T");
      fill("T", 50);
   }
   {
      TFile file("same.root", "RECREATE");
      auto *tree = fill("T", 20);
      int n = 2;
      float rows[4] = {500, 600, 700, 800};
      for (auto *branch : {tree->Branch("y", rows), tree->Branch("n", &n), tree->Branch("rows", rows, "rows[n][2]/F"),
                           tree->Branch("half", rows, "half[2]/f"), tree->Branch("numbers", new std::set<int>{3, 4}),
                           tree->Branch("letters", &n, "letters/C"), tree->Branch("object", new TObjString("")),
                           tree->Branch("points", new TClonesArray("TVector3", 2))})
         for (int entry = 0; entry < 20; ++entry)
            branch->Fill();
      tree->Write("", TObject::kOverwrite);
   }
   lengths("lengths.root");
   {
      TFile file("names.root", "RECREATE");
      file.mkdir("ped")->cd();
      fill("inner", 10);
      file.cd();
      file.WriteTObject(fill("aside", 50), "ped");
      file.Delete("aside;*");
      fill("a/b", 30);
      file.mkdir("c")->cd();
      fill("d/e", 20);
   }
   {
      TFile file("cycles.root", "RECREATE");
      fill("T", 10);
      fill("T", 20);
   }
   {
      TFile file("twice.root", "RECREATE");
      fill("a/b", 10);
      file.mkdir("a")->cd();
      fill("b", 20);
   }
   {
      TFile file("ntuples.root", "RECREATE");
      ntuple(*file.mkdir("one")->mkdir("two"), "deep");
   }
   for (const char *path : {"a[1].root", "x*.root", "x1.root", "c:d.root", "h#i?.root"}) {
      TFile file("plain.root", "RECREATE");
      fill("T", path == std::string("x1.root") ? 70 : 100);
      file.Close();
      rename("plain.root", path);
   }
}
''')
ROOT.write()
sys.stdout.flush(); os._exit(0)
"""

#: Writes an RNTuple to the file of its argument, with fields of a class that readers do not know.
WRITE_UNKNOWN_CLASS = """
import sys, ROOT
ROOT.gInterpreter.Declare('''
#include <ROOT/RNTupleModel.hxx>
#include <ROOT/RNTupleWriter.hxx>
struct Point { float x = 1, y = 2; };
void write(const char *path)
{
   auto model = ROOT::RNTupleModel::Create();
   model->MakeField<float>("energy");
   model->MakeField<Point>("point");
   model->MakeField<std::vector<Point>>("points");
   model->MakeField<std::vector<float>>("values");
   auto writer = ROOT::RNTupleWriter::Recreate(std::move(model), "events", path);
   for (int entry = 0; entry < 100; ++entry)
      writer->Fill();
}
''')
ROOT.write(sys.argv[1])
"""
