"""Folder catalogue with a stand-in for the ROOT process: making, adding, verifying and rewriting datasets."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
import subprocess
import sys
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from tiny_dataset import change_spec

from treehammer import config
from treehammer.collectors.job_spec import SoftwareRequest
from treehammer.collectors.software import providers
from treehammer.datasets import root_process
from treehammer.datasets.catalogues import dataset_rewriting, folder_catalogue
from treehammer.datasets.catalogues.dataset_verification import choose_file_names
from treehammer.datasets.catalogues.folder_catalogue import FolderCatalogue, ensure_dataset
from treehammer.datasets.manifest import Manifest
from treehammer.datasets.specs import dataset_specs
from treehammer.datasets.specs.dataset_specs import GeneratedSpec
from treehammer.datasets.specs.rewrite_options import RewriteOptions
from treehammer.datasets.tree_measurement import compare_trees
from treehammer.errors import ConfigError, DatasetError, SoftwareError, SourceError, TreehammerError
from treehammer.hctests import git_repository
from treehammer.text_formatting import no_progress

DATA = b"root" + bytes(3_000_000)


@pytest.fixture
def catalogue(tmp_path: Path) -> FolderCatalogue:
    return FolderCatalogue(tmp_path / "datasets")


@pytest.fixture
def made(
    catalogue: FolderCatalogue, plan: GeneratedSpec, software: SoftwareRequest, fake_root: list[str]
) -> FolderCatalogue:
    catalogue.make(plan, software)
    fake_root.clear()
    return catalogue


def _there(catalogue: FolderCatalogue) -> list[str]:
    """List everything in the catalogue's folder except locks."""
    return sorted(path.name for path in catalogue.root.iterdir() if path.suffix != ".lock")


def test_existing_dataset_is_verified(
    made: FolderCatalogue, plan: GeneratedSpec, software: SoftwareRequest, fake_root: list[str]
) -> None:
    before = made.verify("tiny")
    assert made.make(plan, software) == before
    assert fake_root == []
    assert _there(made) == ["tiny"]
    (file,) = made.files("tiny")
    assert Path(file.url).read_bytes() == DATA
    assert not Path(file.url).stat().st_mode & 0o222
    assert (file.size, file.adler32) == (len(DATA), f"{zlib.adler32(DATA):08x}")


def test_layout_weights_embedded_baskets(made: FolderCatalogue) -> None:
    layout = made.manifest("tiny").files[0].layout
    assert (layout.unzipped_bytes, layout.zipped_bytes, layout.embedded_bytes) == (700, 200, 50)
    assert layout.ratio == pytest.approx(3.5)
    assert layout.top2_share == pytest.approx(0.5)
    assert (layout.basket_zipped_bytes.count, layout.embedded_baskets) == (5, 2)
    assert layout.basket_zipped_bytes.minimum == 12.5
    assert (layout.branch_ratio.minimum, layout.branch_ratio.maximum) == (2, 4)
    assert layout.branch_ratio.count == 3
    assert layout.cluster_zipped_bytes.maximum == 100


def _flip(path: Path) -> None:
    path.chmod(0o644)
    with path.open("r+b") as file:
        file.seek(1000)
        file.write(b"\x01")


def _cut(path: Path) -> None:
    path.chmod(0o644)
    os.truncate(path, 1000)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (_flip, "tiny.root has sha256 "),
        (_flip, "tiny.root has adler32 "),
        (_cut, "tiny.root has 1000 bytes instead of 3000004"),
        (Path.unlink, "tiny.root is missing"),
        (
            lambda path: path.with_name("more.root").touch(),
            "more.root is not a file of the dataset",
        ),
    ],
)
def test_changed_dataset_is_refused(
    made: FolderCatalogue,
    plan: GeneratedSpec,
    software: SoftwareRequest,
    spoil: Callable[[Path], Any],
    message: str,
) -> None:
    spoil(made.folder("tiny") / "tiny.root")
    with pytest.raises(DatasetError) as caught:
        made.verify("tiny")
    assert message in str(caught.value)
    assert "treehammer datasets make tiny.toml --replace" in caught.value.hint
    with pytest.raises(DatasetError, match="refused"):
        made.make(plan, software)
    made.make(plan, software, replace_existing=True)
    assert made.verify("tiny").size == len(DATA)
    assert _there(made) == ["tiny"]


def test_verify_can_check_sizes_only(made: FolderCatalogue) -> None:
    _flip(made.folder("tiny") / "tiny.root")
    made.verify("tiny", content=False)


def test_file_differing_from_pin_is_refused(
    catalogue: FolderCatalogue, plan: GeneratedSpec, software: SoftwareRequest, fake_root: list[str]
) -> None:
    pinned = change_spec(plan, dataset={"size": len(DATA), "sha256": "0" * 64})
    with pytest.raises(DatasetError, match=r"pinned are 3000004 bytes with 0000") as caught:
        catalogue.make(pinned, software)
    assert "ROOT 6.40.00" in caught.value.hint
    assert _there(catalogue) == []


def test_small_files_are_copies_of_one(
    catalogue: FolderCatalogue,
    plan: GeneratedSpec,
    software: SoftwareRequest,
    fake_root: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    digest = hashlib.sha256(DATA).hexdigest()
    several = change_spec(plan, dataset={"size": len(DATA), "sha256": digest}, layout={"files": 3})
    manifest = catalogue.make(several, software)
    assert fake_root == ["make", "measure"]
    assert [file.name for file in manifest.files] == [
        "tiny.root",
        "tiny-00001.root",
        "tiny-00002.root",
    ]
    assert {file.sha256 for file in manifest.files} == {digest}
    monkeypatch.setattr(dataset_specs, "load_shipped_spec", lambda _name: several)
    assert catalogue.verify("tiny") == manifest
    for sha256, files in ((digest, 1), ("0" * 64, 3)):
        other = change_spec(plan, dataset={"sha256": sha256}, layout={"files": files})
        monkeypatch.setattr(dataset_specs, "load_shipped_spec", lambda _, other=other: other)
        with pytest.raises(DatasetError, match="another version of treehammer"):
            catalogue.verify("tiny")


@pytest.mark.parametrize(
    "error, expected",
    [
        (DatasetError("broken"), "broken"),
        (KeyboardInterrupt("Ctrl-C"), "Ctrl-C"),
        (OSError(errno.ENOSPC, "No space left on device"), "the disk is full"),
    ],
)
def test_interrupted_make_leaves_nothing(
    catalogue: FolderCatalogue,
    plan: GeneratedSpec,
    software: SoftwareRequest,
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
    expected: str,
) -> None:
    def run(_action: str, document: Any, *_: Any) -> dict[str, Any]:
        Path(document["path"]).write_bytes(b"half")
        raise error

    monkeypatch.setattr(root_process, "run_action", run)
    with pytest.raises((DatasetError, KeyboardInterrupt), match=expected):
        catalogue.make(plan, software)
    assert _there(catalogue) == []


DIE = """
import json, os, signal, sys, time
if {announced}:
    print(json.dumps({{"file": "x.root", "object": "T"}}), flush=True)
{end}
sys.exit("no ROOT here")
"""


@pytest.mark.parametrize(
    ("announced", "end", "where", "message", "hint"),
    [
        (True, "os.kill(os.getpid(), signal.SIGSEGV)", "x.root", "by SIGSEGV at 'T'", "^$"),
        (True, "os.kill(os.getpid(), signal.SIGKILL)", "at T of x.root", "was killed", "make room"),
        (True, "os.close(1); time.sleep(.3); sys.exit('boom')", "measure", ":\n    boom", "^$"),
        (False, "", "measure", "without an answer:\n    no ROOT here", "can be imported"),
        (False, """sys.exit("'new' file not found")""", "measure", "without", "install a C"),
    ],
)
def test_crash_names_the_file_and_object(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    announced: bool,
    end: str,
    where: str,
    message: str,
    hint: str,
) -> None:
    (tmp_path / "__main__.py").write_text(DIE.format(announced=announced, end=end))
    monkeypatch.setattr(root_process, "GENERATE_SCRIPT", tmp_path)
    software = providers.parse_software_request("none")
    notes: list[tuple[int, str]] = []
    with pytest.raises(TreehammerError) as caught:
        root_process.run_action("measure", {}, software, lambda *note: notes.append(note))
    assert notes[0] == (0, "loading ROOT none")
    assert where in caught.value.where
    assert message in caught.value.message
    assert re.search(hint, caught.value.hint)


def test_process_with_root_ends_with_the_one_that_asked(tmp_path: Path) -> None:
    shutil.copy(root_process.GENERATE_SCRIPT / "__main__.py", tmp_path)
    (tmp_path / "treehammer_generate.py").write_text(
        "import os, time\n"
        "def answer_request(channel):\n"
        "    print(os.getpid(), file=channel, flush=True)\n"
        "    time.sleep(60)\n"
    )
    code = f"import subprocess, sys; subprocess.run([sys.executable, {str(tmp_path)!r}])"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as asking:
        assert asking.stdout is not None
        child = psutil.Process(int(asking.stdout.readline()))
        asking.kill()
    child.wait(timeout=30)


def test_remains_of_killed_process_are_removed(
    catalogue: FolderCatalogue, plan: GeneratedSpec, software: SoftwareRequest, fake_root: list[str]
) -> None:
    left = catalogue.root / ".tiny.part-x1"
    left.mkdir(parents=True)
    (left / "manifest.json").write_text("{}")
    assert catalogue.names() == ()
    catalogue.make(plan, software)
    assert _there(catalogue) == ["tiny"]


def test_full_disk_is_reported_before_making(
    catalogue: FolderCatalogue, plan: GeneratedSpec, software: SoftwareRequest, fake_root: list[str]
) -> None:
    with pytest.raises(DatasetError, match=r"tiny needs \d+ MB and \d+ MB are free") as caught:
        catalogue.make(change_spec(plan, dataset={"size": 10**18}), software)
    assert "--cache-dir" in caught.value.hint
    assert fake_root == []


def test_added_files_are_copied_and_recorded(
    catalogue: FolderCatalogue, software: SoftwareRequest, fake_root: list[str], tmp_path: Path
) -> None:
    sources = [tmp_path / "b.root", tmp_path / "a.root"]
    for number, source in enumerate(sources):
        source.write_bytes(b"root%d" % number * 400)
    manifest = catalogue.add("mine", sources, software, tree="Events")
    assert [file.name for file in manifest.files] == ["b.root", "a.root"]
    assert manifest.origin["sources"] == [str(source) for source in sources]
    assert manifest.tree == "Events"
    assert manifest.unreadable_branches == {"odd": "Odd: Fatal in <F>: no."}
    assert catalogue.add("mine", sources, software) == manifest
    for other_sources, tree in ((sources[::-1], ""), (sources[:1], ""), (sources, "Runs")):
        with pytest.raises(DatasetError, match="other content"):
            catalogue.add("mine", other_sources, software, tree=tree)
    sources[0].write_bytes(b"root changed")
    with pytest.raises(DatasetError, match="other content"):
        catalogue.add("mine", sources, software)
    assert catalogue.verify("mine") == manifest
    _cut(catalogue.folder("mine") / "a.root")
    with pytest.raises(DatasetError) as caught:
        catalogue.verify("mine")
    assert "datasets add" in caught.value.hint


@pytest.mark.parametrize(
    ("name", "files", "message", "hint"),
    [
        ("CMS NanoAOD_2015", ["a.root"], "lower-case", "For example: cms-nanoaod_2015"),
        ("../mine", ["a.root"], "lower-case", "For example: mine"),
        (".mine", ["a.root"], "lower-case", "For example: mine"),
        ("..", ["a.root"], "lower-case", ""),
        ("reference-small", ["a.root"], "shipped", "Choose another."),
        ("mine", ["none.root"], "no regular file", ""),
        ("mine", ["a.root", "sub/a.root"], "names of their own", ""),
        ("mine", ["manifest.json"], "names of their own", ""),
        ("mine", ["empty"], "ROOT file: it is empty", "Copy it again, and look into the copy."),
        ("mine", ["page"], "it is a web page or XML", "Copy it again, and look into the copy."),
    ],
)
def test_invalid_files_are_not_added(
    catalogue: FolderCatalogue,
    software: SoftwareRequest,
    tmp_path: Path,
    name: str,
    files: list[str],
    message: str,
    hint: str,
) -> None:
    (tmp_path / "sub").mkdir()
    for file in ("a.root", "sub/a.root", "manifest.json"):
        (tmp_path / file).write_bytes(DATA)
    (tmp_path / "empty").touch()
    (tmp_path / "page").write_text("<!DOCTYPE html><title>403</title>")
    with pytest.raises(DatasetError, match=message) as caught:
        catalogue.add(name, [tmp_path / file for file in files], software)
    assert caught.value.hint == hint
    assert not catalogue.root.exists()


def test_unknown_datasets_have_remedies(made: FolderCatalogue) -> None:
    hints = {
        "tinny": "Did you mean 'tiny'? Known datasets: ",
        "reference-small": "Make it: treehammer datasets make reference-small",
        "reference-small-rntuple": "treehammer datasets make reference-small --format rntuple",
        "../datasets/tiny": "Known datasets: ",
    }
    for name, hint in hints.items():
        with pytest.raises(DatasetError, match="no dataset") as caught:
            made.manifest(name)
        assert hint in caught.value.hint


def test_damaged_manifest_is_reported(made: FolderCatalogue) -> None:
    path = made.folder("tiny") / "manifest.json"
    path.chmod(0o644)
    path.write_text(path.read_text()[:-20])
    with pytest.raises(DatasetError, match="damaged manifest") as caught:
        made.verify("tiny")
    assert caught.value.where == str(path)


def test_hash_depends_on_names_and_content_only(made: FolderCatalogue) -> None:
    manifest = made.manifest("tiny")
    assert replace(manifest, origin={}).hash == manifest.hash
    file = manifest.files[0]
    other = Manifest("tiny", (replace(file, adler32="00000000"),), manifest.origin)
    assert other.hash != manifest.hash


@pytest.mark.parametrize("root", ["6.41.00", "none", ""])
def test_unknown_root_is_refused(root: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        root_process.prepare_dataset_root(root, tmp_path, no_progress)


def test_ensure_makes_shipped_and_verifies_existing_datasets(
    plan: GeneratedSpec, fake_root: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = config.load_settings({"cache_dir": tmp_path}, environ={}, folder=tmp_path)
    with pytest.raises(DatasetError, match="no dataset 'tiny'"):
        ensure_dataset("tiny", settings)
    monkeypatch.setattr(dataset_specs, "load_shipped_spec", lambda _name: plan)
    manifest = ensure_dataset("tiny", settings)
    assert ensure_dataset("tiny", settings) == manifest
    assert fake_root == ["make", "measure"]
    _flip(settings.datasets_dir / "tiny" / "tiny.root")
    with pytest.raises(DatasetError, match="refused"):
        ensure_dataset("tiny", settings)


def test_missing_root_is_not_installed_implicitly(
    catalogue: FolderCatalogue, plan: GeneratedSpec, software: SoftwareRequest
) -> None:
    with pytest.raises(SoftwareError, match="is not installed"):
        catalogue.make(plan, software)
    assert _there(catalogue) == []


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (errno.EROFS, "you may only read this cache"),
        (errno.EACCES, "you may only read this cache"),
        (errno.ENOLCK, "this file system has no locks"),
        (errno.EDQUOT, "the disk is full"),
    ],
)
def test_unusable_cache_is_refused_with_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, expected: str
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, "refused", "cache")

    monkeypatch.setattr(git_repository, "hold_lock", refuse)
    with (
        pytest.raises(DatasetError, match=expected) as caught,
        folder_catalogue._report_disk_errors(tmp_path),
    ):
        refuse()
    assert "--cache-dir" in caught.value.hint
    assert caught.value.exit_code == (4 if number == errno.EDQUOT else 2)
    with pytest.raises(SourceError, match=expected), git_repository.hold_cache_lock(tmp_path):
        pass


PATHS = [Path("a.root"), Path("b.root"), Path("c.root")]


def describe_tree(entries: int, types: dict[str, str], **more: Any) -> dict[str, Any]:
    branches = [name for name in types if "/" not in name]
    defaults = {"lengths": {}, "friends": [], "branches": branches}
    return {"entries": entries, "types": types, **defaults, **more}


def test_common_branches_are_those_of_all_files_with_entries() -> None:
    content = compare_trees(
        PATHS,
        [
            describe_tree(0, {"x": "Int_t"}),
            describe_tree(5, {"x": "Int_t", "y": "Int_t", "z": "Int_t"}, friends=["f"]),
            describe_tree(5, {"z": "Int_t", "x": "Int_t"}, lengths={"z": 3}, friends=["f"]),
        ],
    )
    assert content.branches == ("x", "z")
    assert content.missing == {"y": "c.root"}
    assert content.other_lengths == {"z": "3 of 5 entries in c.root"}
    assert content.friends == ("f",)
    trees = [describe_tree(5, dict.fromkeys("x" if n else "xy", "Int_t")) for n in range(6)]
    content = compare_trees([Path(f"{n}.root") for n in range(6)], trees)
    assert content.missing == {"y": "1.root, 2.root, 3.root and 2 more"}


@pytest.mark.parametrize("name", ["x", "event/energy"])
def test_other_types_are_refused_in_any_file_and_depth(name: str) -> None:
    trees = [
        describe_tree(0, {"x": "Int_t", "event": "Event"}),
        describe_tree(5, {"x": "Int_t", "event": "Event", name: "float"} | {"x": "Int_t"}),
        describe_tree(5, {"x": "Int_t", "event": "Event", name: "double"}),
    ]
    with pytest.raises(DatasetError, match=f"branch '{name}' is double here and ") as error:
        compare_trees(PATHS, trees)
    assert error.value.where == "c.root"


def test_stored_names_hold_no_pattern_option_or_separator() -> None:
    names = ["data-1.2_x+y=z@w.root", "a[1].root", "x*?.root", "c:d e#f.root", "ü|$~{}%.root"]
    assert choose_file_names([Path("folder") / name for name in names]) == [
        "data-1.2_x+y=z@w.root",
        "a_1_.root",
        "x__.root",
        "c_d_e_f.root",
        "_______.root",
    ]


Rewrite = Callable[..., Manifest]


@pytest.fixture
def source(
    catalogue: FolderCatalogue, plan: GeneratedSpec, software: SoftwareRequest, fake_root: list[str]
) -> Manifest:
    manifest = catalogue.make(plan, software)
    fake_root.clear()
    return manifest


@pytest.fixture
def rewrite(catalogue: FolderCatalogue, source: Manifest, software: SoftwareRequest) -> Rewrite:
    """Return a function that rewrites the source as dataset ``mine``."""

    def make(name: str = "mine", replace_existing: bool = False, **options: Any) -> Manifest:
        return dataset_rewriting.rewrite_dataset(
            catalogue,
            options.pop("of", source),
            RewriteOptions(**options),
            name,
            software,
            bars=no_progress,
            replace_existing=replace_existing,
        )

    return make


def test_manifest_records_source_options_and_checksums(
    catalogue: FolderCatalogue, source: Manifest, rewrite: Rewrite, fake_root: list[str]
) -> None:
    made = rewrite(compression="zstd:5")
    assert fake_root == ["rewrite", "measure", "hashes", "hashes"]
    assert made.origin["kind"] == "rewritten"
    assert made.origin["from"] == {"name": "tiny", "hash": source.hash}
    assert made.origin["options"] == {"compression": "zstd:5"}
    assert made.origin["value_checksum"] == made.origin["value_checksum_of_source"] == "c"
    assert [file.name for file in made.files] == [file.name for file in source.files]
    assert catalogue.manifest("mine") == made


def test_existing_dataset_is_verified_or_refused(
    catalogue: FolderCatalogue, source: Manifest, rewrite: Rewrite, fake_root: list[str]
) -> None:
    made = rewrite(compression="zstd:5")
    fake_root.clear()
    assert rewrite(compression="zstd:5") == made
    assert fake_root == []
    with pytest.raises(DatasetError, match="made with other options") as caught:
        rewrite(compression="lz4")
    assert "--replace" in caught.value.hint
    other = rewrite(compression="lz4", replace_existing=True)
    assert other.origin["options"] == {"compression": "lz4"}
    (catalogue.folder("mine") / "tiny.root").unlink()
    with pytest.raises(DatasetError) as broken:
        catalogue.verify("mine")
    assert "make tiny --compression lz4 --as mine --replace" in broken.value.hint


def test_writing_and_ordering_take_two_steps(
    catalogue: FolderCatalogue, source: Manifest, rewrite: Rewrite, fake_root: list[str]
) -> None:
    file = source.files[0]
    plain = replace(source, files=(replace(file, layout=replace(file.layout, embedded_bytes=0)),))
    rewrite("one", of=plain, order="entry")
    assert fake_root == ["order", "measure", "hashes", "hashes"]
    fake_root.clear()
    rewrite(name="embedded", order="entry")
    assert fake_root == ["rewrite", "order", "measure", "hashes", "hashes"]
    fake_root.clear()
    rewrite(name="two", order="entry", compression="lz4")
    assert fake_root == ["rewrite", "order", "measure", "hashes", "hashes"]
    files = sorted(path.name for path in catalogue.folder("two").iterdir())
    assert files == ["manifest.json", "tiny.root"]
    fake_root.clear()
    rewrite(name="three", order="offset", compression="lz4")
    assert "order" not in fake_root


def test_wrong_basket_order_is_refused(
    catalogue: FolderCatalogue, source: Manifest, rewrite: Rewrite, fake_root: list[str]
) -> None:
    with pytest.raises(DatasetError, match=r"by branch and do not \(measured: entry\)"):
        rewrite(order="branch")
    assert _there(catalogue) == ["tiny"]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"lines": ["a x 2"], "checksum": "d"}, "leaves they differ: a x"),
        ({"lines": ["b x 1"], "checksum": "d"}, "leaves they differ: a x, b x"),
        ({"checksum": "d"}, "the checksum of all"),
    ],
)
def test_differing_values_are_refused(
    changes: dict[str, Any],
    expected: str,
    catalogue: FolderCatalogue,
    rewrite: Rewrite,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain = root_process.run_action

    def run(action: str, document: Any, *rest: Any) -> dict[str, Any]:
        answer = plain(action, document, *rest)
        read_again = action == "hashes" and "/tiny/" not in document["paths"][0]
        return answer | changes if read_again else answer

    monkeypatch.setattr(root_process, "run_action", run)
    with pytest.raises(DatasetError, match="does not hold the values of its source") as caught:
        rewrite(compression="zstd")
    assert expected in caught.value.message
    assert _there(catalogue) == ["tiny"]


def test_taken_names_are_refused(rewrite: Rewrite) -> None:
    for name, message in (
        ("tiny", "is the dataset itself"),
        ("reference-small", "name of a shipped dataset"),
        ("Mine", "lower-case"),
    ):
        with pytest.raises(DatasetError, match=message):
            rewrite(name=name, compression="zstd")


@pytest.mark.parametrize(
    "options, size",
    [
        ({"compression": "zstd"}, 1.25 * len(DATA)),
        ({"order": "offset"}, 1.25 * len(DATA)),
        ({"order": "entry", "root": "6.38.00"}, 2.5 * len(DATA)),
        ({"compression": "none"}, 1.25 * 700),  # unzipped
    ],
)
def test_largest_step_determines_required_space(
    source: Manifest, options: dict[str, Any], size: float
) -> None:
    assert dataset_rewriting.estimate_disk_space(source, RewriteOptions(**options)) == round(size)
