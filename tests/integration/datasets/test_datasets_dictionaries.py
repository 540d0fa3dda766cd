"""A test with a dictionary library and a Python module of its own, over two datasets."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from treehammer import config
from treehammer.collectors.job_spec import SoftwareRequest
from treehammer.config import Settings
from treehammer.datasets.catalogues.folder_catalogue import FolderCatalogue
from treehammer.sql.read.query_model import Selection
from treehammer.sql.write.store import Store
from treehammer.submit.cli.submit_render_commands import submit

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
