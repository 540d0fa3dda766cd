"""Imports of trees written by Treehammer, filtered by RDataFrame or merged by hadd."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from measurement_factory import make_measurement, make_operation
from store_fixtures import ExportedStore
from store_helpers import (
    awkward_measurements,
    export_csv,
    import_counts,
    import_file,
    read_contents,
    write_export,
)

from treehammer.collectors.job_spec import SoftwareRequest
from treehammer.sql.read.query_model import Selection
from treehammer.sql.transfer import arrow_columns
from treehammer.sql.write.store import Store

pytestmark = pytest.mark.root

SNAPSHOT = """
import sys, ROOT
ROOT.RDataFrame("results", sys.argv[1]).Filter('job_id != "numbers"').Snapshot("results", sys.argv[2])
"""
MERGE = """
import sys, ROOT
merger = ROOT.TFileMerger(False)
merger.OutputFile(sys.argv[1], "RECREATE")
for name in sys.argv[2:]:
    merger.AddFile(name)
assert merger.Merge()
"""


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Store]:
    with Store.open(f"sqlite:///{tmp_path}/here.db") as opened:
        yield opened


@pytest.fixture
def root(release: Callable[[str], SoftwareRequest]) -> Path:
    return Path(release("6.40.00").location)


@pytest.fixture(scope="module")
def exported_tree(
    exported_store: ExportedStore,
    release: Callable[[str], SoftwareRequest],
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """Export the other installation once, with small batches."""
    folder = tmp_path_factory.mktemp("trees")
    shutil.copy(exported_store.database, folder / "others.db")
    software = Path(release("6.40.00").location).parent
    with (
        pytest.MonkeyPatch.context() as patch,
        Store.open(f"sqlite:///{folder}/others.db") as opened,
    ):
        patch.setattr(arrow_columns, "BATCH_ROWS", 7)
        return write_export(opened, folder / "all.root", software=software)


def run(root: Path, code: str, *arguments: Path) -> None:
    command = [str(root / "bin" / "python"), "-c", code, *map(str, arguments)]
    subprocess.run(command, check=True, capture_output=True, timeout=300)


def test_tree_round_trip(
    here: Store, other_store: Store, exported_tree: Path, tmp_path: Path
) -> None:
    rows = len([*awkward_measurements()])
    (found,) = import_file(here, exported_tree)
    assert import_counts([found]) == [(rows, 0, 0, 0)], found.problems
    assert found.describe_remarks() == []
    assert export_csv(here, tmp_path) == export_csv(other_store, tmp_path)
    assert read_contents(here) == read_contents(other_store)
    assert here.campaigns() == other_store.campaigns()
    assert here.attempts(["done"]) == other_store.attempts(["done"])
    assert here.replicas() == other_store.replicas()
    assert import_counts(import_file(here, exported_tree)) == [(0, rows, 0, 0)]


def test_tree_filtered_by_rdataframe_is_imported(
    here: Store,
    other_store: Store,
    exported_tree: Path,
    root: Path,
    tmp_path: Path,
) -> None:
    run(root, SNAPSHOT, exported_tree, tmp_path / "some.root")
    selection = Selection.parse(wheres=["job_id!=numbers"])
    (found,) = import_file(here, tmp_path / "some.root")
    assert found.problems == []
    assert found.new == len([*other_store.measurements(selection)])
    expected = write_export(other_store, tmp_path / "some.csv", selection).read_text()
    assert export_csv(here, tmp_path) == expected


def test_tree_merged_by_hadd_is_imported(
    here: Store,
    other_store: Store,
    exported_tree: Path,
    root: Path,
    tmp_path: Path,
) -> None:
    other_store.add([make_measurement(job="later")])
    two = write_export(other_store, tmp_path / "two.root", software=root.parent)
    run(root, MERGE, tmp_path / "both.root", exported_tree, two)
    rows = len([*awkward_measurements()])
    assert import_counts(import_file(here, tmp_path / "both.root")) == [(rows + 1, rows, 0, 0)]
    assert read_contents(here) == read_contents(other_store)
    assert here.campaigns() == other_store.campaigns()


DRAW = """
import json, sys, ROOT
file = ROOT.TFile.Open(sys.argv[1])
tree = file.Get("op")
drawn = tree.Draw("p99_s:max_s:step", 'operation == "open" && done > 0', "goff")
found = [[tree.GetV1()[n], tree.GetV2()[n], tree.GetV3()[n]] for n in range(drawn)]
open(sys.argv[2], "w").write(json.dumps(found))
"""


def test_operations_are_drawn_by_root(here: Store, root: Path, tmp_path: Path) -> None:
    steps = [make_operation([0.001] * 199 + [2.0], step=3), make_operation([], {"reset": 1})]
    here.add([make_measurement(operations=steps)])
    file = write_export(here, tmp_path / "load.root", software=root.parent)
    run(root, DRAW, file, tmp_path / "drawn.json")
    [row] = json.loads((tmp_path / "drawn.json").read_text())
    assert row == pytest.approx([0.001, 2.0, 3], rel=0.01)
