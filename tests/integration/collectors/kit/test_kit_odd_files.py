"""Payloads at unusual files: friends, unequal branches, odd names, and damage that must not pass."""

from __future__ import annotations

import random
import signal
import struct
import subprocess
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tiny_dataset import WRITE_ODD_FILES

from treehammer.collectors.software import providers
from treehammer.hctests import __file__ as hctests_file

pytestmark = pytest.mark.root

KIT = Path(providers.__file__).parents[1] / "kit"
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
    run_payload: Callable[..., Any], latest_release: providers.SoftwareSetup, odd_files: Path
) -> Read:
    """Return a function that reads odd files with a payload."""

    def run(*names: str, tree: str = "T", payload: Path | None = None, **options: Any) -> Any:
        setup = latest_release
        more: dict[str, Any] = {}
        if payload == UPROOT_READ:
            request = providers.parse_software_request("none")
            setup = providers.setup_software(request, {"PATH": "/usr/bin:/bin"}, KIT)
            more = {"fresh": True}
        if payload in (RDF_READ, UPROOT_READ):
            more |= {"settings": SETTINGS, "branches": options.pop("branches", "*")}
        if payload is not None:
            more |= {"payload": payload}
        return run_payload(
            setup, *(odd_files / name for name in names), tree=tree, **more, **options
        )

    return run


def test_friends_are_not_read_and_named_in_the_record(read: Read) -> None:
    done = read("friends.root")
    assert done.failure is None, done.log
    assert done.values["loop_unzipped_bytes"] == 200 * 2 * 4
    assert done.values["content_notes"] == (
        "friends.root: the friend tree sub/inner is not read; "
        "friends.root: the friend tree fr of elsewhere.root is not read"
    )
    frame = read("friends.root", payload=RDF_READ)
    assert "opens the file of each friend tree (sub/inner, fr of elsewhere.root)" in str(
        frame.failure
    )
    inside = read("inside.root", payload=RDF_READ)
    assert inside.values["branches_selected"] == 2
    assert "sub/inner is not read" in inside.values["content_notes"]


@pytest.mark.parametrize("payload", [None, RDF_READ, UPROOT_READ])
def test_files_of_other_types_are_not_measured(read: Read, payload: Path | None) -> None:
    failure = read("int.root", "long.root", payload=payload).failure
    assert failure["failure_class"] == "data-check"
    assert "branch 'v' is" in failure["message"]
    assert "treehammer datasets add" in failure["message"]


def test_fractions_are_of_the_common_branches(read: Read) -> None:
    done = read("int.root", "fewer.root", missing_branches=["v"])
    assert done.failure is None, done.log
    names = ("branches_total", "branches_selected", "events_read", "loop_unzipped_bytes")
    assert [done.values[name] for name in names] == [1, 1, 200, 800]
    failure = read("int.root", "fewer.root").failure
    assert "fewer.root has no branch 'v'" in failure["message"]


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
    for payload in (RDF_READ, UPROOT_READ):
        refused = read("lengths.root", payload=payload, branches="short")
        assert "branch 'short' has 40 of 100 entries" in refused.failure["message"]
        assert read("lengths.root", payload=payload, branches="x").failure is None


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
        if reachable:
            assert other.values["events_read"] == entries
        elif other.failure:
            assert f"{tree!r}" in other.failure["message"]
        else:  # uproot reaches folders that ROOT does not
            assert other.values["events_read"] == entries


def test_ambiguous_path_is_named(read: Read) -> None:
    for kind in ("timed", "checksum"):
        message = read("twice.root", tree="a/b", kind=kind).failure["message"]
        assert "the path 'a/b' means several objects" in message


def test_missing_object_is_named_with_the_paths_in_folders(read: Read) -> None:
    message = read("names.root", tree="ped/iner").failure["message"]
    assert "did you mean 'ped/inner'?" in message


@pytest.mark.parametrize("payload", [RNTUPLE_READ, RDF_READ])
def test_ntuple_in_folders_is_read(read: Read, payload: Path) -> None:
    done = read("ntuples.root", tree="one/two/deep", payload=payload, format="rntuple")
    assert done.failure is None, done.log
    assert (done.values["events_read"], done.values["branches_selected"]) == (100, 2)


@pytest.mark.parametrize("payload", [None, RDF_READ, UPROOT_READ])
def test_file_names_are_no_patterns(read: Read, payload: Path | None) -> None:
    names = ("a[1].root", "x*.root", "c:d.root", "h#i?.root")
    done = read(*names, payload=payload)
    assert done.failure is None, done.log
    assert done.values["events_read"] == 400


def test_abort_for_a_damaged_heap_ends_the_process_by_its_signal(
    latest_release: providers.SoftwareSetup,
) -> None:
    # ROOT's handler would exit, and wait in functions that are called on exit.
    code = "import os; from treehammer_kit import root_engine; root_engine.load_root(); os.abort()"
    command = [latest_release.python, "-W", "ignore", "-c", code]
    done = subprocess.run(
        command, env=latest_release.env, capture_output=True, timeout=120, check=False
    )
    assert done.returncode == -signal.SIGABRT


Run = Callable[..., Any]

MAKER = Path(__file__).parents[3] / "helpers" / "datasets" / "codec_file.py"
SEED, FLIPS_PER_REGION = 7, 3
RegionSpans = dict[str, list[tuple[int, int]]]

#: Marks at the beginning of a compressed basket; uncompressed ones have none.
CODECS = {b"ZL": "zlib", b"L4": "lz4", b"ZS": "zstd", b"XZ": "lzma"}
HEADER_BYTES = 9  # of a compressed block


def list_records(content: bytes) -> Iterator[tuple[int, int, int, str]]:
    """Yield offset, length, key length and class of every record of a ROOT file."""
    at, end = struct.unpack(">ii", content[8:16])
    while at < end:
        length, version, _, _, key, _ = struct.unpack(">ihiIhh", content[at : at + 18])
        name = at + (26 if version < 1000 else 34)
        yield at, length, key, content[name + 1 : name + 1 + content[name]].decode("latin1")
        at += length


def find_regions(content: bytes) -> RegionSpans:
    """Find the spans of each kind of region in a ROOT file."""
    found: RegionSpans = {"file header": [(0, 64)]}
    for at, length, key, kind in list_records(content):
        body, end = at + key, at + length
        if kind == "TBasket":
            codec = CODECS.get(content[body : body + 2], "")
            found.setdefault("basket key", []).append((at, body))
            if codec:
                found.setdefault("block header", []).append((body, body + HEADER_BYTES))
                body += HEADER_BYTES
            found.setdefault(f"{codec or 'stored'} basket", []).append((body, end))
        else:
            names = {"TTree": "tree", "TList": "streamer info"}
            found.setdefault(names.get(kind, "directory"), []).append((at, end))
    return found


def file_offset(spans: list[tuple[int, int]], position: int) -> int:
    """Convert a position within a region to an offset in the file."""
    for start, end in spans:
        if position < end - start:
            return start + position
        position -= end - start
    raise IndexError(position)


def list_flips(content: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield the file with a random bit flipped, several times in every kind of region."""
    chosen = random.Random(SEED)
    for region, spans in sorted(find_regions(content).items()):
        size = sum(end - start for start, end in spans)
        for _ in range(FLIPS_PER_REGION):
            flipped = bytearray(content)
            offset = file_offset(spans, chosen.randrange(size))
            flipped[offset] ^= 1 << chosen.randrange(8)
            yield region, bytes(flipped)


@pytest.fixture(scope="module")
def all_codecs(
    tmp_path_factory: pytest.TempPathFactory,
    latest_release: providers.SoftwareSetup,
    run_script: Run,
) -> Path:
    """A file below 100 kB with branches for each compression algorithm."""
    path = tmp_path_factory.mktemp("damage") / "codecs.root"
    run_script(latest_release, MAKER.read_text(), path)
    return path


def name_failure(done: Any) -> str:
    """Name how a payload failed, '' for success."""
    if done.failure:
        return f"{done.failure['failure_class']}/{done.failure['kind']}"
    return f"left with {done.code}" if done.code else ""


def test_every_flipped_bit_is_detected(
    release: providers.SoftwareSetup, all_codecs: Path, run_payload: Run, tmp_path: Path
) -> None:
    content, damaged = all_codecs.read_bytes(), tmp_path / "damaged.root"
    adler32 = f"{zlib.adler32(content):08x}"
    timed: dict[str, set[str]] = defaultdict(set)
    for region, flipped in list_flips(content):
        damaged.write_bytes(flipped)
        failure = name_failure(run_payload(release, damaged, may_crash=True))
        timed[region].add(failure)
        if not failure:
            done = run_payload(release, damaged, kind="checksum", adler32=adler32, may_crash=True)
            assert name_failure(done) == "data-check/content", region
    # Regions with checksums of their own: ROOT detects the damage.
    for codec in ("zlib", "lz4", "lzma"):
        assert timed[f"{codec} basket"] == {"read/entry"}
    # Uncompressed baskets have none: only the adler32 of the file detects the damage.
    assert "" in timed["stored basket"]


def test_undetected_without_adler32(
    latest_release: providers.SoftwareSetup, all_codecs: Path, run_payload: Run, tmp_path: Path
) -> None:
    """No release detects a changed number by itself, hence the check of the file's content."""
    content = bytearray(all_codecs.read_bytes())
    content[content.index(b"\x07TBasket\x0cstored_plain") + 200] ^= 1
    damaged = tmp_path / "damaged.root"
    damaged.write_bytes(content)
    sums = set()
    for file in (all_codecs, damaged):
        assert name_failure(run_payload(latest_release, file)) == ""
        sums.add(run_payload(latest_release, file, kind="checksum").values["value_checksum"])
    assert len(sums) == 2


def test_reported_error_fails_the_read(
    release: providers.SoftwareSetup, all_codecs: Path, run_payload: Run, tmp_path: Path
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
    release: providers.SoftwareSetup, all_codecs: Path, run_payload: Run
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
    done = subprocess.run(
        [release.python, "-W", "ignore", str(script)],
        env=dict(release.env),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == -11
    assert "Segmentation fault" in done.stderr
    assert 'crash.py", line 5' in done.stderr
