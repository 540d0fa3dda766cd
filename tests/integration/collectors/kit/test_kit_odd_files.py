"""Payloads at unusual files: friends, unequal branches, odd names, and damage that must not pass."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from captured_runs import run_captured
from tiny_dataset import WRITE_ODD_FILES, WRITE_UNKNOWN_CLASS

from treehammer.collectors.software import providers
from treehammer.hctests import __file__ as hctests_file

pytestmark = pytest.mark.root

RNTUPLE_READ, RDF_READ, UPROOT_READ = (
    Path(hctests_file).parent / name / "read.py"
    for name in ("rntuple-read", "rdf-read", "uproot-read")
)
SETTINGS = {"filter": "x", "minimum": 5, "bins": 10, "low": 0.0, "high": 1000.0}

Read = Callable[..., Any]


@pytest.fixture(scope="session")
def odd_files(
    tmp_path_factory: pytest.TempPathFactory,
    latest_release: providers.SoftwareSetup,
    run_script: Callable[..., None],
) -> Path:
    """Return a folder of odd files, without a file that holds a friend tree."""
    folder = tmp_path_factory.mktemp("odd")
    run_script(latest_release, WRITE_ODD_FILES, folder)
    (folder / "elsewhere.root").unlink()
    return folder


@pytest.fixture
def read(
    run_payload: Callable[..., Any],
    latest_release: providers.SoftwareSetup,
    plain_python: providers.SoftwareSetup,
    odd_files: Path,
) -> Read:
    """Return a function that reads odd files with a payload."""

    def run(*names: str, tree: str = "T", payload: Path | None = None, **options: Any) -> Any:
        setup = plain_python if payload == UPROOT_READ else latest_release
        if payload in (RDF_READ, UPROOT_READ):
            options = {"settings": SETTINGS, "branches": "*", **options}
        if payload is not None:
            options["payload"] = payload
        return run_payload(setup, *(odd_files / name for name in names), tree=tree, **options)

    return run


def test_friends_are_not_read_and_named_in_the_record(read: Read) -> None:
    done = read("friends.root")
    assert done.failure is None, done.log
    assert done.values["loop_unzipped_bytes"] == 200 * 2 * 4
    assert done.values["content_notes"] == (
        "friends.root: the friend tree sub/inner is not read; "
        "friends.root: the friend tree fr of elsewhere.root is not read"
    )
    message = read("friends.root", payload=RDF_READ).failure["message"]
    assert "opens the file of each friend tree (sub/inner, fr of elsewhere.root)" in message
    message = read("chained.root", tree="outer", payload=RDF_READ).failure["message"]
    assert "opens the file of each friend tree (fr)" in message
    inside = read("inside.root", payload=RDF_READ)
    assert inside.values["branches_selected"] == 2
    assert "reads by the index of sub/one of two;1" in inside.values["content_notes"]


@pytest.mark.parametrize("payload", [None, RDF_READ])
@pytest.mark.parametrize("names", [("relative.root",), ("itself.root", "absolute.root")])
def test_branch_in_another_file_is_refused(
    read: Read, names: tuple[str, ...], payload: Path | None
) -> None:
    failure = read(*names, payload=payload).failure
    assert (failure["failure_class"], failure["kind"]) == ("payload", "files")
    assert f"{names[-1]}: branch " in failure["message"]
    assert "'y'" in failure["message"]
    assert "lies in another file, " in failure["message"]


OPENS_ANOTHER_FILE = """
import treehammer_kit
treehammer_kit.run('''
void read(treehammer::Pass &pass)
{
   static auto *other = TFile::Open(pass.Setting("other").c_str());
   for (Long64_t entry : pass.entries)
      pass.Add(pass.tree->GetEntry(entry));
}''')
"""


def test_files_that_a_loop_opens_are_named_in_the_record(
    read: Read, odd_files: Path, tmp_path: Path
) -> None:
    payload, other = tmp_path / "read.py", str(odd_files / "long.root")
    payload.write_text(OPENS_ANOTHER_FILE)
    done = read("int.root", payload=payload, settings={"other": other})
    assert done.failure is None, done.log
    assert done.values["content_notes"] == (
        f"the loop opened {other}, which is no file of the dataset"
    )


def test_ntuples_that_cannot_be_read_are_named(read: Read) -> None:
    done = read("old.root", tree="ntpl", payload=RNTUPLE_READ, format="rntuple")
    assert "'ntpl' was written before version 1.0 of the format" in done.failure["message"]
    done = read("bits.root", tree="N", payload=RDF_READ, format="rntuple")
    assert "bits.root: ROOT cannot make a data frame of 'N': " in done.failure["message"]


@pytest.mark.parametrize("payload", [None, RDF_READ, UPROOT_READ])
def test_files_of_other_types_are_not_measured(read: Read, payload: Path | None) -> None:
    failure = read("int.root", "long.root", payload=payload).failure
    assert (failure["failure_class"], failure["kind"]) == ("payload", "branches")
    assert "branch 'v' is" in failure["message"]
    assert "treehammer datasets add" in failure["message"]


def test_fractions_are_of_the_common_branches(read: Read) -> None:
    done = read("int.root", "fewer.root", branch_lists={"missing_branches": ["v"]})
    assert done.failure is None, done.log
    names = ("branches_total", "branches_selected", "events_read", "loop_unzipped_bytes")
    assert [done.values[name] for name in names] == [1, 1, 200, 800]
    assert "fewer.root has no branch 'v'" in read("int.root", "fewer.root").failure["message"]


@pytest.mark.parametrize("payload", [None, RDF_READ, UPROOT_READ])
def test_empty_files_of_a_chain_are_read(read: Read, payload: Path | None) -> None:
    done = read("empty.root", "int.root", "empty.root", "int.root", payload=payload)
    assert done.failure is None, done.log
    assert (done.values["events_read"], done.values["branches_selected"]) == (200, 2)


def test_branches_of_other_lengths_are_noted_or_refused(read: Read) -> None:
    done = read("lengths.root")
    assert done.failure is None, done.log
    assert done.values["loop_unzipped_bytes"] == (100 + 40 + 100) * 4
    assert "lengths.root: branch short has 40 of 100 entries" in done.values["content_notes"]
    assert "content_notes" not in read("lengths.root", branches="x").values
    others = {RDF_READ: ("!*o*", "#s, text"), UPROOT_READ: ("!*[#o]*", "text")}
    for payload, (branches, omitted) in others.items():
        refused = read("lengths.root", payload=payload, branches="short")
        assert "branch 'short' has 40 of 100 entries" in refused.failure["message"]
        assert read("lengths.root", payload=payload, branches="x").failure is None
        noted = read("lengths.root", payload=payload, branches=branches)
        assert noted.values["content_notes"] == f"there is no histogram of {omitted}"
        named = read("lengths.root", payload=payload, branches="text,x")
        assert "no histogram of text. Choose other branches." in named.failure["message"]


@pytest.mark.parametrize(
    ("tree", "entries", "reachable"),
    [("ped", 50, True), ("ped/inner", 10, False), ("a/b", 30, False), ("c/d/e", 20, False)],
)
def test_objects_of_odd_paths_are_read_or_named(
    read: Read, tree: str, entries: int, reachable: bool
) -> None:
    done = read("names.root", tree=tree)
    assert done.failure is None, done.log
    assert done.values["events_read"] == entries
    assert read("names.root", tree=tree, kind="checksum").values["events_total"] == entries
    for payload in (RDF_READ, UPROOT_READ):
        other = read("names.root", tree=tree, payload=payload)
        assert "Traceback" not in other.log
        if other.failure and not reachable:  # uproot reaches folders that ROOT does not
            assert f"{tree!r}" in other.failure["message"]
        else:
            assert other.values["events_read"] == entries


def test_no_newer_tree_is_read_instead_of_an_ntuple(read: Read) -> None:
    frame = read("formats.root", payload=RDF_READ, format="rntuple")
    assert "cannot find 'T': it takes each slash for a folder, and the" in frame.failure["message"]
    whole = read("formats.root", payload=RNTUPLE_READ, format="rntuple", kind="checksum")
    assert whole.values["events_total"] == 100


def test_all_readers_read_the_same_of_odd_branches(read: Read) -> None:
    """Two branches have one name; uproot fails to interpret one, and data frames have no histograms of two."""
    frame, arrays = (
        read("same.root", payload=payload, branches="!half") for payload in (RDF_READ, UPROOT_READ)
    )
    assert frame.values["content_notes"].endswith("numbers, letters, object, points"), frame.log
    assert frame.extras["histogram_entries"] == 3 * frame.extras["events_kept"]
    assert frame.extras["histogram_checksum"] == arrays.extras["histogram_checksum"]
    options = {"kind": "checksum", "branch_lists": {"missing_branches": ["half", "numbers"]}}
    hashes = [read("same.root", payload=payload, **options) for payload in (None, UPROOT_READ)]
    assert hashes[0].values["value_checksum"] == hashes[1].values["value_checksum"]
    assert (
        "of rows, half, numbers" in read("same.root", payload=UPROOT_READ).values["content_notes"]
    )


def test_ambiguous_and_missing_paths_are_named(read: Read) -> None:
    for kind in ("timed", "checksum"):
        message = read("twice.root", tree="a/b", kind=kind).failure["message"]
        assert "the path 'a/b' means several objects" in message
    message = read("names.root", tree="ped/iner").failure["message"]
    assert "did you mean 'ped/inner'?" in message


@pytest.mark.parametrize("payload", [RNTUPLE_READ, RDF_READ])
def test_ntuple_in_folders_is_read_or_missed(read: Read, payload: Path) -> None:
    options = {"tree": "one/two/deep", "payload": payload, "format": "rntuple"}
    done = read("ntuples.root", **options)
    assert done.failure is None, done.log
    assert (done.values["events_read"], done.values["branches_selected"]) == (100, 2)
    message = read("ntuples.root", "int.root", **options).failure["message"]
    assert message.endswith("int.root contains no RNTuple 'one/two/deep' (RNTuples: none)")


def test_fields_of_unknown_classes_are_left_out_or_named(
    run_payload: Callable[..., Any],
    run_script: Callable[..., None],
    latest_release: providers.SoftwareSetup,
    tmp_path: Path,
) -> None:
    path = tmp_path / "fields.root"
    run_script(latest_release, WRITE_UNKNOWN_CLASS, path)

    def read_fields(**options: Any) -> Any:
        lists = {"unreadable_branches": ["point", "points"]}
        return run_payload(latest_release, path, branch_lists=lists, **options)

    options = {"payload": RNTUPLE_READ, "format": "rntuple"}
    good = read_fields(branches="readable", **options)
    assert good.failure is None, good.log
    assert good.values["branches_selected"] == 2
    assert read_fields(kind="checksum").failure is None
    failure = read_fields(**options).failure
    assert failure["failure_class"] == "open"
    assert "field 'point': unknown type: Point. Read branches = " in failure["message"]


@pytest.mark.parametrize("payload", [None, RDF_READ, UPROOT_READ])
def test_file_names_are_no_patterns(read: Read, payload: Path | None) -> None:
    done = read("a[1].root", "x*.root", "c:d.root", "h#i?.root", payload=payload)
    assert done.failure is None, done.log
    assert done.values["events_read"] == 400


MAKER = Path(__file__).parents[3] / "helpers" / "datasets" / "codec_file.py"


@pytest.fixture(scope="module")
def all_codecs(
    tmp_path_factory: pytest.TempPathFactory,
    latest_release: providers.SoftwareSetup,
    run_script: Callable[..., None],
) -> Path:
    """A file below 100 kB with branches for each compression algorithm."""
    path = tmp_path_factory.mktemp("damage") / "codecs.root"
    run_script(latest_release, MAKER.read_text(), path)
    return path


def test_reported_error_fails_the_read(
    release: providers.SoftwareSetup, all_codecs: Path, run_payload: Read, tmp_path: Path
) -> None:
    """For a vector with fewer elements GetEntry reports an error and returns as usual."""
    content = bytearray(all_codecs.read_bytes())
    basket = content.index(b"\x07TBasket\x0dstored_floats")
    # Byte count, version and size of the first entry's vector.
    vector = content.index(b"\x40\x00\x00\x16\x00\x0a\x00\x00\x00\x04", basket)
    content[vector + 9] = 1
    damaged = tmp_path / "damaged.root"
    damaged.write_bytes(content)
    done = run_payload(release, damaged)
    assert done.failure["failure_class"] == "read"
    assert done.failure["kind"] == "error"
    assert "CheckByteCount" in done.failure["message"]
    assert str(damaged) in done.failure["message"]
    assert done.failure["transient"] is False


def test_changed_content_names_the_remedy(
    release: providers.SoftwareSetup, all_codecs: Path, run_payload: Read
) -> None:
    done = run_payload(release, all_codecs, kind="checksum", adler32="00000001")
    failed = done.failure
    assert (failed["failure_class"], failed["kind"], failed["phase"]) == (
        "data-check",
        "content",
        "checksum",
    )
    assert (
        f"{zlib.adler32(all_codecs.read_bytes()):08x}, the manifest says 00000001"
        in (failed["message"])
    )
    assert "Make or place the dataset again" in failed["message"]
    assert "value_checksum" not in done.values


def test_crash_inside_root_ends_by_its_signal(
    release: providers.SoftwareSetup, all_codecs: Path, tmp_path: Path
) -> None:
    """ROOT's own handler would print a stack trace and exit with a misleading code."""
    script = tmp_path / "crash.py"
    script.write_text(
        "import treehammer_kit\n"
        "from treehammer_kit import root_engine\n"
        "root, _ = root_engine.load_root()\n"
        "root.gInterpreter.Declare('void boom() { *(volatile int *)nullptr = 1; }')\n"
        "root.boom()\n"
    )
    done = run_captured(
        [release.python, "-W", "ignore", str(script)], env=dict(release.env), timeout=120
    )
    assert done.returncode == -11
    assert "Segmentation fault" in done.stderr
    assert 'crash.py", line 5' in done.stderr
