"""Files with branches that ROOT cannot read."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from treehammer import config
from treehammer.collectors.job_spec import SoftwareRequest
from treehammer.config import Settings
from treehammer.datasets.catalogues.folder_catalogue import FolderCatalogue
from treehammer.datasets.cli.dataset_output import print_findings
from treehammer.datasets.model.manifest import Manifest
from treehammer.sql.read.measurement_selection import Selection
from treehammer.sql.write.store import Store
from treehammer.submit.cli.submit_render_commands import submit

SHIPPED = Path(__file__).parents[3] / "hctests" / "ttree-read"

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
    request = software("6.40.00")
    path = tmp_path_factory.mktemp("odd") / "odd.root"
    python = Path(request.location) / "bin" / "python"
    subprocess.run([python, "-c", WRITE_FILE, path], check=True, cwd=path.parent)
    return FolderCatalogue(own_settings.datasets_dir).add("odd", [path], request)


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
    CliRunner().invoke(submit, [str(SHIPPED), *options, "--wait"], obj=own_settings)
    with Store.open(own_settings.database) as store:
        columns = ("kind", "axis_branches", "branches_selected", "failure_class", "failure_message")
        rows = {
            str(row["axis_branches"] if row["kind"] == "timed" else row["kind"]): row
            for row in store.measurements(Selection((store.campaign("last").id,)), columns)
        }
    for name in ("readable", "!odd"):
        assert (rows[name]["branches_selected"], rows[name]["failure_message"]) == (2, None)
    assert rows["1.0"]["failure_class"] == "read"
