"""Trees come back exactly: written by us, cut by RDataFrame, merged by hadd."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from import_contract import awkward, counts, csv_of, take_in, write
from sql_makers import make_measurement

from treehammer.collectors.job import SoftwareRequest
from treehammer.sql.selection import Selection
from treehammer.sql.store import Store

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


def run(root: Path, code: str, *arguments: Path) -> None:
    command = [str(root / "bin" / "python"), "-c", code, *map(str, arguments)]
    subprocess.run(command, check=True, capture_output=True, timeout=300)


def test_what_was_exported_comes_back(
    here: Store,
    others: Store,
    root: Path,
    tmp_path: Path,
) -> None:
    file = write(others, tmp_path / "all.root", software=root.parent)
    rows = len([*awkward()])
    (found,) = take_in(here, file)
    assert counts([found]) == [(rows, 0, 0, 0)], found.problems
    assert found.remarks() == []
    assert csv_of(here, tmp_path) == csv_of(others, tmp_path)
    assert here.campaigns() == others.campaigns()
    assert here.attempts(["done"]) == others.attempts(["done"])
    assert here.replicas() == others.replicas()
    assert counts(take_in(here, file)) == [(0, rows, 0, 0)]


def test_what_rdataframe_has_cut_is_understood(
    here: Store,
    others: Store,
    root: Path,
    tmp_path: Path,
) -> None:
    file = write(others, tmp_path / "all.root", software=root.parent)
    run(root, SNAPSHOT, file, tmp_path / "some.root")
    selection = Selection.of(wheres=["job_id!=numbers"])
    (found,) = take_in(here, tmp_path / "some.root")
    assert found.problems == []
    assert found.new == len([*others.measurements(selection)])
    expected = write(others, tmp_path / "some.csv", selection).read_text()
    assert csv_of(here, tmp_path) == expected


def test_what_hadd_has_merged_is_understood(
    here: Store,
    others: Store,
    root: Path,
    tmp_path: Path,
) -> None:
    one = write(others, tmp_path / "one.root", software=root.parent)
    others.add([make_measurement(job="later")])
    two = write(others, tmp_path / "two.root", software=root.parent)
    run(root, MERGE, tmp_path / "both.root", one, two)
    rows = len([*awkward()])
    assert counts(take_in(here, tmp_path / "both.root")) == [(rows + 1, rows, 0, 0)]
    assert csv_of(here, tmp_path) == csv_of(others, tmp_path)
    assert here.campaigns() == others.campaigns()
