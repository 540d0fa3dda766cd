"""Files with classes: dictionary libraries and modules of a test, and branches that ROOT cannot read."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from tiny_dataset import WRITE_UNKNOWN_CLASS

from treehammer import config
from treehammer.collectors.job_spec import SoftwareRequest
from treehammer.config import Settings
from treehammer.datasets.catalogues.folder_catalogue import FolderCatalogue
from treehammer.datasets.cli import print_findings
from treehammer.datasets.manifest import Manifest
from treehammer.sql.read.query_model import Selection
from treehammer.sql.write.store import Store
from treehammer.submit.cli.submit_commands import submit

pytestmark = pytest.mark.usefixtures("warm_actions")

HIT = """
#include <TObject.h>
class Hit : public TObject {
public:
   float energy = 0;
   ClassDef(Hit, 1)
};
"""

#: Compiles the class to libHit.so, and writes a file with it.
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
file = ROOT.TFile("hits.root", "RECREATE")
tree = ROOT.TTree("tree", "")
ROOT.Fill(tree, 200)
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
dataset = ["hits"]
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
    manifest = catalogue.add("hits", [folder / "hits.root"], request, libraries=[library])
    assert manifest.origin["libraries"] == ["libHit.so"]
    for name, text in (("test.toml", TEST), ("prepare.py", PREPARE), ("read.py", READ)):
        (folder / name).write_text(text)
    CliRunner().invoke(submit, [str(folder), "--wait"], obj=hits_settings)
    with Store.open(hits_settings.database) as store:
        columns = ("kind", "events_total", "failure_message", "value_checksum")
        selection = Selection((store.campaign("last").id,))
        rows = {row["kind"]: row for row in store.measurements(selection, columns)}
    assert {row["failure_message"] for row in rows.values()} == {None}
    assert rows["timed"]["events_total"] == 200
    # Objects have no checksum: their values are not checked, and nothing fails.
    assert rows["checksum"]["value_checksum"] is None


#: The only basket of the branch 'odd' is damaged.
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


AddFile = Callable[[str], Manifest]


@pytest.fixture
def add_file(software: Callable[[str], SoftwareRequest], tmp_path: Path) -> AddFile:
    """Return a function that adds the file that a script writes."""

    def add(script: str) -> Manifest:
        request, path = software("6.40.00"), tmp_path / "odd.root"
        python = Path(request.location) / "bin" / "python"
        subprocess.run([python, "-c", script, path], check=True)
        return FolderCatalogue(tmp_path / "datasets").add("odd", [path], request)

    return add


def test_unreadable_branches_and_other_trees_are_recorded(
    add_file: AddFile, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = add_file(WRITE_FILE)
    assert manifest.tree == "tree"
    assert list(manifest.unreadable_branches) == ["odd"]
    print_findings(manifest)
    printed = capsys.readouterr().out
    assert "Other trees: aside; choose one with --tree." in printed
    assert "ROOT cannot read 1 of 3 branches:\n  odd: ReadError: entry 0 of odd cannot" in printed
    assert "Stored bytes are damaged, or too new for this ROOT: copy" in printed


def test_fields_of_unknown_classes_are_recorded(add_file: AddFile) -> None:
    manifest = add_file(WRITE_UNKNOWN_CLASS)
    assert manifest.unreadable_branches == {
        "point": "Point: ReadError: unknown type: Point.",
        "points": "std::vector<Point>: ReadError: unknown type: Point.",
    }
    assert list(manifest.branches) == ["energy", "point", "points", "values"]
