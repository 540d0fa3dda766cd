"""Files whose trees have friends, unequal branches, odd names or short branches."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from captured_runs import run_captured
from tiny_dataset import WRITE_ODD_FILES, list_ntuple_pages

from treehammer.collectors.job_spec import SoftwareRequest
from treehammer.datasets.catalogues import dataset_rewriting
from treehammer.datasets.catalogues.folder_catalogue import FolderCatalogue
from treehammer.datasets.cli import print_findings
from treehammer.datasets.manifest import Manifest
from treehammer.datasets.root_process import GENERATE_SCRIPT, KIT_FOLDER
from treehammer.datasets.specs.rewrite_options import RewriteOptions
from treehammer.errors import DatasetError
from treehammer.text_formatting import no_progress

pytestmark = pytest.mark.usefixtures("warm_actions")

Add = Callable[..., Manifest]


@pytest.fixture(scope="module")
def odd_files(
    software: Callable[[str], SoftwareRequest], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Return a folder of odd files."""
    folder = tmp_path_factory.mktemp("odd")
    python = Path(software("6.40.00").location) / "bin" / "python"
    subprocess.run([python, "-W", "ignore", "-c", WRITE_ODD_FILES, folder], check=True)
    return folder


@pytest.fixture
def add(
    odd_files: Path, software: Callable[[str], SoftwareRequest], tmp_path: Path
) -> tuple[FolderCatalogue, Add]:
    """Return a catalogue, and a function that adds odd files to it."""
    catalogue = FolderCatalogue(tmp_path)

    def add_files(*names: str, tree: str = "") -> Manifest:
        paths = [odd_files / name for name in names]
        return catalogue.add("odd", paths, software("6.40.00"), tree=tree)

    return catalogue, add_files


def test_friends_are_named_and_not_read(
    add: tuple[FolderCatalogue, Add], odd_files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (odd_files / "elsewhere.root").unlink(missing_ok=True)
    manifest = add[1]("friends.root")
    assert manifest.tree == "T"
    assert manifest.friend_trees == ("sub/inner", "fr of elsewhere.root")
    assert not manifest.unreadable_branches
    assert manifest.files[0].layout.unzipped_bytes < 2 * 200 * 4 * 1.2
    print_findings(manifest)
    assert "Friend trees are not read: sub/inner, fr of elsewhere.root." in capsys.readouterr().out


def test_rewritten_tree_has_no_friends(
    add: tuple[FolderCatalogue, Add], software: Callable[[str], SoftwareRequest]
) -> None:
    catalogue, add_files = add
    made = dataset_rewriting.rewrite_dataset(
        catalogue,
        add_files("inside.root"),
        RewriteOptions(compression="zlib:5"),
        "new",
        software("6.40.00"),
        bars=no_progress,
    )
    assert (made.tree, made.friend_trees) == ("T", ()), "nor is one the main tree, however large"


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("int.root", "long.root"), "branch 'v' is Long64_t here and Int_t in int.root"),
        (("unsigned.root", "int.root"), "branch 'v' is Int_t here and UInt_t in unsigned.root"),
        (("three.root", "four.root"), r"branch 'v' is Float_t\[4\] here and Float_t\[3\] in"),
        (("floats.root", "doubles.root"), "is vector<double> here and vector<float> in floats"),
        # RDataFrame takes the types of the first file, also if it is empty.
        (("empty.root", "long.root"), "branch 'v' is Long64_t here and Int_t in empty.root"),
    ],
)
def test_files_of_other_types_are_refused(
    add: tuple[FolderCatalogue, Add], names: Sequence[str], message: str
) -> None:
    with pytest.raises(DatasetError, match=message):
        add[1](*names)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("chain.root", "'C' is a TChain, which holds no data but names other files"),
        ("relative.root", "branch 'y' of the tree 'T' lies in another file, 'side.root'"),
        ("chained.root", "'counted' counts 1000000000000 entries, but its longest branch has 100"),
        ("unfilled.root", "the tree 'Refs' is empty"),
        ("old.root", "the RNTuple 'ntpl' was written before version 1.0 of the format"),
    ],
)
def test_files_that_cannot_be_measured_are_refused(
    add: tuple[FolderCatalogue, Add], name: str, message: str
) -> None:
    with pytest.raises(DatasetError, match=message) as refused:
        add[1](name)
    assert refused.value.where.endswith(name)


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ("ntpl", "the RNTuple 'ntpl' was written before version"),
        ("C", "'C' is a TChain, which holds no data but names other files"),
        ("D", "has no tree 'D'; it has T, U, ntpl"),
    ],
)
def test_named_objects_that_cannot_be_read_are_refused(
    add: tuple[FolderCatalogue, Add], tree: str, message: str
) -> None:
    with pytest.raises(DatasetError, match=message):
        add[1]("mixed.root", tree=tree)


def test_old_ntuple_beside_trees_is_named(add: tuple[FolderCatalogue, Add]) -> None:
    assert [*add[1]("mixed.root").describe_other_trees()] == [
        "Other trees: U; choose one with --tree.",
        "RNTuples before version 1.0 of the format, which no ROOT since 6.34 reads: ntpl.",
    ]


def test_projected_and_late_fields_are_measured_by_their_pages(
    add: tuple[FolderCatalogue, Add], odd_files: Path
) -> None:
    layout = add[1]("projected.root").files[0].layout
    assert layout.branches == 7
    assert layout.unzipped_bytes == 1000 * (8 + 4 + 8) + (2000 + 999) * 4
    pages = list_ntuple_pages(odd_files / "projected.root", "N")
    assert layout.basket_zipped_bytes.count == len(pages) == 5
    assert layout.zipped_bytes == layout.cluster_zipped_bytes.maximum == sum(pages.values())


def test_branches_that_a_file_lacks_are_listed(add: tuple[FolderCatalogue, Add]) -> None:
    manifest = add[1]("empty.root", "int.root", "fewer.root")
    assert manifest.missing_branches == {"v": "fewer.root"}
    assert manifest.branches == ("x",)
    layouts = [file.layout for file in manifest.files]
    assert [(layout.entries, layout.clusters) for layout in layouts] == [(0, 0), (100, 1), (100, 1)]
    assert "fractions are of the 1 common branch." in next(manifest.describe_peculiarities())


def test_branches_of_other_lengths_are_listed(add: tuple[FolderCatalogue, Add]) -> None:
    assert add[1]("lengths.root").other_lengths == {
        "short": "40 of 100 entries",
        "long": "120 of 100 entries",
        **dict.fromkeys(("none", "text", "#s"), "0 of 100 entries"),
    }


@pytest.mark.parametrize(
    ("name", "tree", "entries"),
    [
        ("names.root", "ped", 50),
        ("names.root", "ped/inner", 10),
        ("names.root", "a/b", 30),
        ("names.root", "c/d/e", 20),
        ("cycles.root", "", 20),
        ("cycles.root", "T;1", 10),
        ("ntuples.root", "", 100),
    ],
)
def test_objects_of_odd_paths_are_added(
    add: tuple[FolderCatalogue, Add], name: str, tree: str, entries: int
) -> None:
    manifest = add[1](name, tree=tree)
    assert manifest.files[0].layout.entries == entries
    assert not manifest.unreadable_branches


def test_ambiguous_path_is_refused(add: tuple[FolderCatalogue, Add]) -> None:
    with pytest.raises(DatasetError, match="the path 'a/b' means 2 objects"):
        add[1]("twice.root", tree="a/b")


def test_tree_with_a_slash_is_rewritten(
    add: tuple[FolderCatalogue, Add], software: Callable[[str], SoftwareRequest]
) -> None:
    catalogue, add_files = add
    source = add_files("names.root", tree="c/d/e")
    options = RewriteOptions(compression="zlib:5")
    made = dataset_rewriting.rewrite_dataset(
        catalogue, source, options, "new", software("6.40.00"), bars=no_progress
    )
    assert (made.tree, made.files[0].layout.entries) == ("c/d/e", 20)


def test_files_get_names_that_no_library_expands(
    add: tuple[FolderCatalogue, Add], capsys: pytest.CaptureFixture[str]
) -> None:
    names = ("a[1].root", "x*.root", "c:d.root", "h#i?.root")
    manifest = add[1](*names)
    assert [file.name for file in manifest.files] == [
        "a_1_.root",
        "x_.root",
        "c_d.root",
        "h_i_.root",
    ]
    assert [file.layout.entries for file in manifest.files] == 4 * [100]
    assert add[1](*names) == manifest
    print_findings(manifest)
    assert "a[1].root is stored as a_1_.root" in capsys.readouterr().out


# Each child that reads both 3 and 5 ends by SIGABRT; 9 fails by itself.
REDUCE = f"""
import json, os, sys
sys.path[:0] = [{str(GENERATE_SCRIPT)!r}, {str(KIT_FOLDER)!r}]
from treehammer_generate import branch_probe

def read(positions, address):
    if {{3, 5}} <= set(positions):
        os.abort()
    return {{9: "no"}} if 9 in positions else {{}}

failed = {{}}
progress = branch_probe._Progress(open(os.devnull, "w"), 10)
branch_probe._reduce_until_clean(read, [4, 3, 2, 1, 0, 5, 6, 9], failed, progress)
print(json.dumps({{number: failure.end for number, failure in failed.items()}}))
try:
    branch_probe._find_failing_branches(lambda *_: os.kill(os.getpid(), 9), [0])
except branch_probe.RequestError as error:
    print(error)
sys.stdout.flush(); os._exit(0)
"""


def test_branches_that_fail_together_are_left_out(
    software: Callable[[str], SoftwareRequest],
) -> None:
    python = Path(software("6.40.00").location) / "bin" / "python"
    command = [str(python), "-W", "ignore", "-c", REDUCE]
    done = run_captured(command, check=True)
    failures, killed = done.stdout.splitlines()[-2:]
    assert failures == (
        '{"5": "together with others was ended by SIGABRT", "9": "together with others failed"}'
    )
    assert killed.startswith("was killed, as the kernel does where memory is short")
