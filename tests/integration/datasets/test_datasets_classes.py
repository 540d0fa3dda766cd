"""Files with classes: dictionary libraries and modules of a test, and branches that ROOT cannot read."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from treehammer import config
from treehammer.collectors.job_spec import SoftwareRequest
from treehammer.config import Settings
from treehammer.datasets.catalogues.folder_catalogue import FolderCatalogue
from treehammer.datasets.cli import print_findings
from treehammer.datasets.manifest import Manifest
from treehammer.sql.read.query_model import Selection
from treehammer.sql.write.store import Store
from treehammer.submit.cli.submit_commands import submit

HIT = """
#include <TObject.h>
class Hit : public TObject {
public:
   float energy = 0;
   ClassDef(Hit, 1)
};
"""

# Compiles the class to libHit.so, and writes a file with it and one without.
WRITE_FILES = """
import ROOT
assert ROOT.gSystem.CompileMacro("Hit.C", "kOs", "libHit")
ROOT.gInterpreter.Declare('''
#include <TClonesArray.h>
#include <TTree.h>
void Fill(TTree &tree, int entries) {
   TClonesArray hits("Hit");
   tree.Branch("hits", &hits, 32000, 0);
   for (int entry = 0; entry < entries; ++entry) {
      hits.Clear();
      static_cast<Hit *>(hits.ConstructedAt(0))->energy = entry;
      tree.Fill();
   }
}
''')
for name, entries in (("few", 50), ("many", 200)):
    file = ROOT.TFile(f"{name}.root", "RECREATE")
    tree = ROOT.TTree("tree", "")
    ROOT.Fill(tree, entries)
    file.Write()
    file.Close()
"""

TEST = """
[test]
name = "hits"
payload = "read.py"
load = ["libHit.so"]
imports = ["prepare"]
files = ["prepare.py", "libHit_ACLiC_dict_rdict.pcm"]
tree = "tree"
rounds = 1
passes = 2
[matrix]
root = ["6.40.00"]
dataset = ["few", "many"]
"""

PREPARE = """
import ROOT
ROOT.gInterpreter.Declare("constexpr int prepared = 1;")
"""

READ = """
import treehammer_kit
treehammer_kit.run('''
void read(treehammer::Pass &pass)
{
   for (Long64_t entry : pass.entries)
      pass.Add(pass.tree->GetEntry(entry));
   if (!TClass::GetClass("Hit")->HasDictionary() || prepared != 1)
      pass.Add(-1); // which fails the measurement
}
''')
"""


@pytest.fixture
def hits_settings(tmp_path: Path) -> Settings:
    """Settings with an empty data folder and no datasets, and the user's cached software."""
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "software").symlink_to(config.load_settings().software_dir)
    options = {"cache_dir": tmp_path / "cache", "data_dir": tmp_path / "data"}
    return config.load_settings(options, environ={}, folder=tmp_path)


def test_own_dictionaries_and_modules_are_loaded_first(
    hits_settings: Settings, software: Callable[[str], SoftwareRequest], tmp_path: Path
) -> None:
    if shutil.which("g++") is None:
        pytest.skip("ROOT compiles dictionaries with g++, which is not installed")
    request = software("6.40.00")
    folder = tmp_path / "hits"
    folder.mkdir()
    (folder / "Hit.C").write_text(HIT)
    python = Path(request.location) / "bin" / "python"
    subprocess.run([python, "-c", WRITE_FILES], check=True, cwd=folder)
    catalogue = FolderCatalogue(hits_settings.datasets_dir)
    library = folder / "libHit.so"
    for name in ("few", "many"):
        manifest = catalogue.add(name, [folder / f"{name}.root"], request, libraries=[library])
        assert manifest.origin["libraries"] == ["libHit.so"]
    for name, text in (("test.toml", TEST), ("prepare.py", PREPARE), ("read.py", READ)):
        (folder / name).write_text(text)
    CliRunner().invoke(submit, [str(folder), "--wait"], obj=hits_settings)
    with Store.open(hits_settings.database) as store:
        columns = ("kind", "dataset", "events_total", "failure_message", "value_checksum")
        selection = Selection((store.campaign("last").id,))
        rows = [*store.measurements(selection, columns)]
    timed = {row["dataset"]: row for row in rows if row["kind"] == "timed"}
    assert {name: row["events_total"] for name, row in timed.items()} == {"few": 50, "many": 200}
    # Objects have no checksum: their values are not checked, and nothing fails.
    checksums = [row for row in rows if row["kind"] == "checksum"]
    assert [row["value_checksum"] for row in checksums] == [None, None]
    assert {row["failure_message"] for row in rows} == {None}


SHIPPED = Path(__file__).parents[3] / "hctests"

# The only basket of the branch 'odd' is damaged.
WRITE_FILE = """
import sys, ROOT
file = ROOT.TFile(sys.argv[1], "RECREATE")
aside = ROOT.TNtuple("aside", "", "one")
aside.Fill(1)
tree = ROOT.TNtuple("tree", "", "x:odd:y")
for entry in range(500):
    tree.Fill(entry, entry, entry)
file.Write()
branch = tree.GetBranch("odd")
position, size = int(branch.GetBasketSeek(0)), int(branch.GetBasketBytes()[0])
file.Close()
with open(sys.argv[1], "r+b") as stream:
    stream.seek(position + size // 2)
    stream.write(bytes(size // 4))
"""

# Readers do not know the class Point.
WRITE_NTUPLE = """
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


@pytest.fixture(scope="module")
def own_settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """Settings with an empty data folder and no datasets, and the user's cached software."""
    folder = tmp_path_factory.mktemp("unreadable")
    (folder / "cache").mkdir()
    (folder / "cache" / "software").symlink_to(config.load_settings().software_dir)
    options = {"cache_dir": folder / "cache", "data_dir": folder / "data"}
    return config.load_settings(options, environ={}, folder=folder)


@pytest.fixture(scope="module")
def manifest(
    own_settings: Settings,
    software: Callable[[str], SoftwareRequest],
    tmp_path_factory: pytest.TempPathFactory,
) -> Manifest:
    path = tmp_path_factory.mktemp("odd") / "odd.root"
    return add_written_file(WRITE_FILE, path, own_settings, software("6.40.00"))


def add_written_file(
    script: str, path: Path, settings: Settings, software: SoftwareRequest
) -> Manifest:
    python = Path(software.location) / "bin" / "python"
    subprocess.run([python, "-c", script, path], check=True, cwd=path.parent)
    return FolderCatalogue(settings.datasets_dir).add(path.stem, [path], software)


def test_unreadable_branches_and_other_trees_are_recorded(
    manifest: Manifest, capsys: pytest.CaptureFixture[str]
) -> None:
    assert manifest.tree == "tree"
    assert list(manifest.unreadable_branches) == ["odd"]
    assert manifest.unreadable_branches["odd"].startswith(
        "ReadError: entry 0 of odd cannot be read ("
    )
    print_findings(manifest)
    printed = capsys.readouterr().out
    assert "Other trees: aside; choose one with --tree." in printed
    assert "ROOT cannot read 1 of 3 branches:\n  odd: ReadError: " in printed


@pytest.mark.usefixtures("manifest")
def test_readable_branches_are_measured_and_others_fail(own_settings: Settings) -> None:
    options = ["-P", "root=6.40.00", "-P", "branches=readable,1.0,!odd", "-P", "cache_mb=0"]
    options += ["-S", "dataset=odd", "-S", "tree=tree", "-S", "repeats=1", "-S", "rounds=1"]
    rows = measure_branches("ttree-read", own_settings, *options)
    for name in ("readable", "!odd"):
        assert (rows[name]["branches_selected"], rows[name]["failure_message"]) == (2, None)
    assert rows["1.0"]["failure_class"] == "read"


def measure_branches(test: str, settings: Settings, *options: str) -> dict[str, Any]:
    """Measure; return the rows by their branches, and that of the checksum by its kind."""
    CliRunner().invoke(submit, [str(SHIPPED / test), *options, "--wait"], obj=settings)
    with Store.open(settings.database) as store:
        columns = ("kind", "axis_branches", "branches_selected", "failure_class", "failure_message")
        return {
            str(row["axis_branches"] if row["kind"] == "timed" else row["kind"]): row
            for row in store.measurements(Selection((store.campaign("last").id,)), columns)
        }


def test_fields_of_unknown_classes_are_recorded_and_left_out(
    own_settings: Settings, software: Callable[[str], SoftwareRequest], tmp_path: Path
) -> None:
    path = tmp_path / "fields.root"
    manifest = add_written_file(WRITE_NTUPLE, path, own_settings, software("6.40.00"))
    assert manifest.unreadable_branches == {
        "point": "Point: ReadError: unknown type: Point.",
        "points": "std::vector<Point>: ReadError: unknown type: Point.",
    }
    assert list(manifest.branches) == ["energy", "point", "points", "values"]
    rows = measure_branches(
        "rntuple-read",
        own_settings,
        *("-P", "branches=readable,1.0", "-P", "cache_mb=30", "-P", "root=6.40.00"),
        *("-S", "dataset=fields", "-S", "repeats=1", "-S", "rounds=1"),
    )
    good, failed = rows["readable"], rows["1.0"]
    assert (good["branches_selected"], good["failure_message"]) == (2, None)
    assert rows["checksum"]["failure_message"] is None
    assert failed["failure_class"] == "open"
    assert "field 'point': unknown type: Point. Read branches = " in failed["failure_message"]
