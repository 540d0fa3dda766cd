"""Commands ``treehammer datasets``, and specs of datasets: mistakes, shipped specs, rewriting."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from captured_runs import run_captured
from click.testing import CliRunner, Result
from tiny_dataset import change_spec, load_generated_spec

from treehammer.collectors.job_spec import SoftwareRequest
from treehammer.config import Settings
from treehammer.datasets import root_process
from treehammer.datasets.catalogues.folder_catalogue import FolderCatalogue
from treehammer.datasets.manifest import Manifest
from treehammer.datasets.production import RAW_BLOCK_BYTES, generate_blocks
from treehammer.datasets.specs import dataset_specs
from treehammer.datasets.specs.dataset_specs import GeneratedSpec, RawSpec
from treehammer.datasets.specs.rewrite_options import RewriteOptions, parse_rewrite_options
from treehammer.errors import DatasetError, DefinitionError
from treehammer.submit.campaigns.campaign_request import plan_request
from treehammer.submit.cli.datasets_commands import datasets
from treehammer.submit.planning.submission_options import CampaignRequest

SPEC = """
[dataset]
name = "bytes"
description = "nine files"
seed = 7
[raw]
files = 9
size = 1500000
"""


@pytest.fixture
def raw_spec_file(tmp_path: Path) -> Path:
    path = tmp_path / "bytes.toml"
    path.write_text(SPEC)
    return path


def load_raw_spec(path: Path) -> RawSpec:
    spec = dataset_specs.load_spec(path)
    assert isinstance(spec, RawSpec)
    return spec


def run(settings: Settings, *words: object) -> Result:
    return CliRunner().invoke(datasets, [*map(str, words)], obj=settings, standalone_mode=False)


def test_raw_dataset_is_made_shown_and_verified(settings: Settings, raw_spec_file: Path) -> None:
    assert "9 files, 13.5 MB, raw bytes" in run(settings, "make", str(raw_spec_file)).stdout
    manifest = FolderCatalogue(settings.datasets_dir).manifest("bytes")
    assert [file.size for file in manifest.files] == [1_500_000] * 9
    assert len({file.sha256 for file in manifest.files}) == 9
    rows = json.loads(run(settings, "show", "bytes", "--json").stdout)
    assert [row["sha256"] for row in rows] == [file.sha256 for file in manifest.files]
    hashes = [manifest.hash for _ in range(2)]
    assert hashes[0] is hashes[1], "rows of all files have it: it is computed once"
    text = run(settings, "show", "bytes").stdout
    assert "branches" not in text
    assert [file.name in text for file in manifest.files] == [True] * 8 + [False]
    assert "and 1 more file (all with --json)" in text
    assert run(settings, "verify", "bytes").exception is None
    file = settings.datasets_dir / "bytes" / manifest.files[1].name
    file.chmod(0o600)
    file.write_bytes(b"x" * 1_500_000)
    verified = run(settings, "verify", "bytes")
    assert verified.exception or verified.return_value


def test_bytes_are_defined_by_seed_file_and_position(raw_spec_file: Path) -> None:
    first, second = generate_blocks(load_raw_spec(raw_spec_file), 2)
    assert first == hashlib.shake_128(b"treehammer/raw/7/2/0").digest(RAW_BLOCK_BYTES)
    assert second == hashlib.shake_128(b"treehammer/raw/7/2/1").digest(1_500_000 - RAW_BLOCK_BYTES)


def test_other_bytes_than_pinned_are_refused(settings: Settings, raw_spec_file: Path) -> None:
    catalogue = FolderCatalogue(settings.datasets_dir)
    spec = load_raw_spec(raw_spec_file)
    with pytest.raises(DatasetError, match="pinned is 0000"):
        catalogue.make_raw(change_spec(spec, dataset={"hash": "0" * 64}))
    assert not catalogue.has("bytes")
    made = catalogue.make_raw(spec)
    pinned = change_spec(spec, dataset={"hash": made.hash})
    assert catalogue.make_raw(pinned, replace_existing=True) == made


@pytest.mark.parametrize("options", [("--compression", "zlib:1"), ("--as", "other")])
def test_specs_have_one_layout(
    settings: Settings, raw_spec_file: Path, options: tuple[str, ...]
) -> None:
    with pytest.raises(DatasetError, match="one layout"):
        raise run(settings, "make", str(raw_spec_file), *options).exception or AssertionError


@pytest.mark.parametrize(
    ("test", "is_refused"),
    [
        ('payload = "run.sh"\ndataset = "bytes"\n[matrix]\nroot = ["current"]', True),
        ('payload = "run.sh"\ndataset = "bytes"\n[matrix]\nroot = ["none"]', False),
        ('payload = "run.sh"\ndataset = "bytes"\ntree = "events"\n[matrix]\nroot = ["none"]', True),
    ],
)
def test_only_tests_without_tree_take_raw_files(
    settings: Settings, raw_spec_file: Path, tmp_path: Path, test: str, is_refused: bool
) -> None:
    FolderCatalogue(settings.datasets_dir).make_raw(load_raw_spec(raw_spec_file))
    folder = tmp_path / "test"
    folder.mkdir()
    (folder / "test.toml").write_text(f'[test]\nname = "load"\n{test}\n')
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o755)
    request = CampaignRequest(str(folder))
    if is_refused:
        with pytest.raises(DefinitionError, match="holds raw files, but this test reads a tree"):
            plan_request(request, settings, bars=None)
        return
    plan = plan_request(request, settings, bars=None)
    (execution, *_) = next(iter(plan.jobs)).spec.executions
    assert [file.size for file in execution.files] == [1_500_000] * 9


ROWS = """"1","Open","1700000000.0","root://host//data/x.root;16;0;0","1700000001.0","[SUCCESS]",""
"1","Read","1700000001.0","0;300;0","1700000002.5","[SUCCESS]","300"
"""
PROCESS = {"started_us": 1_699_999_996_000_000, "ended_us": 1_700_000_010_000_000}


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    path = tmp_path / "1-1.csv"
    path.write_text(ROWS)
    path.with_suffix(".json").write_text(json.dumps({**PROCESS, "door_url": "root://host//data"}))
    return path


def test_recording_becomes_a_dataset(settings: Settings, recording: Path) -> None:
    added = run(settings, "add", "analysis", recording)
    assert "analysis: 2 files, 552 bytes, a recording of 2 operations" in added.stdout
    catalogue = FolderCatalogue(settings.datasets_dir)
    manifest = catalogue.verify("analysis")
    assert manifest.is_raw
    assert manifest.origin["kind"] == "recording"
    figures = {
        key: manifest.origin[key] for key in ("initialise_s", "io_s", "compute_s", "bytes_read")
    }
    assert figures == {"initialise_s": 4.0, "io_s": 2.5, "compute_s": 7.5, "bytes_read": 300}
    assert (catalogue.folder("analysis") / "recording.csv").read_text() == ROWS
    document = json.loads((catalogue.folder("analysis") / "recording.json").read_text())
    assert document["urls"] == ["root://host//data/x.root"]
    assert document["process"]["door_url"] == "root://host//data"
    assert "root://host//data/x.root" in run(settings, "show", "analysis").stdout
    assert run(settings, "add", "analysis", recording).exception is None
    recording.write_text(ROWS * 2)
    refused = run(settings, "add", "analysis", recording).exception
    assert isinstance(refused, DatasetError)
    assert "of other content" in str(refused)


def test_recording_of_an_unknown_process_has_no_outer_phases(
    settings: Settings, recording: Path
) -> None:
    recording.with_suffix(".json").unlink()
    assert run(settings, "add", "analysis", recording).exception is None
    origin = FolderCatalogue(settings.datasets_dir).manifest("analysis").origin
    assert "initialise_s" not in origin
    assert origin["io_s"] == 2.5


@pytest.mark.parametrize("text", ["", "a,b,c\n1,2,3\n"])
def test_other_tables_are_refused(settings: Settings, recording: Path, text: str) -> None:
    recording.write_text(text)
    refused = run(settings, "add", "analysis", recording).exception
    assert isinstance(refused, DatasetError)
    assert "is not a recording" in str(refused)
    assert isinstance(run(settings, "add", "two", recording, recording).exception, DatasetError)


@pytest.fixture
def catalogue(settings: Settings) -> FolderCatalogue:
    return FolderCatalogue(settings.datasets_dir)


@pytest.fixture
def manifest(
    catalogue: FolderCatalogue, plan: GeneratedSpec, software: SoftwareRequest, fake_root: list[str]
) -> Manifest:
    """The dataset ``tiny``."""
    return catalogue.make(plan, software)


def test_list_shows_existing_and_shipped_datasets(settings: Settings, manifest: Manifest) -> None:
    rows = json.loads(run(settings, "list", "--json").stdout)
    states = {row["name"]: row["state"] for row in rows}
    assert states.pop("tiny") == "generated"
    assert set(states) >= {"reference-small", "reference-750mb"}
    assert set(states.values()) == {"not made"}


def test_show(settings: Settings, manifest: Manifest) -> None:
    text = run(settings, "show", "tiny").stdout
    assert manifest.hash in text
    assert "_" not in "".join(line.partition("  ")[0] for line in text.splitlines())
    (row,) = json.loads(run(settings, "show", "tiny", "--json").stdout)
    assert row["basket_zipped_bytes_median"] == 40
    assert "not made" in run(settings, "show", "reference-small").stdout


@pytest.mark.usefixtures("manifest")
def test_verify_reports_all_and_exits_with_1(
    settings: Settings, catalogue: FolderCatalogue, software: SoftwareRequest, tmp_path: Path
) -> None:
    source = tmp_path / "a.root"
    source.write_bytes(b"root")
    catalogue.add("mine", [source], software)
    assert run(settings, "verify").return_value == 0
    (catalogue.folder("mine") / "a.root").unlink()
    result = run(settings, "verify", "--json")
    assert result.return_value == 1
    states = {row["name"]: row["state"] for row in json.loads(result.stdout)}
    assert states == {"mine": "refused", "tiny": "unchanged"}
    assert isinstance(run(settings, "verify", "other").exception, DatasetError)


def test_make_and_add(
    settings: Settings, tmp_path: Path, fake_root: list[str], spec_file: Write, spec_text: str
) -> None:
    assert "tree 'events'" in run(settings, "make", spec_file(spec_text)).stdout
    assert fake_root == ["make", "measure"]
    source = tmp_path / "a.root"
    source.write_bytes(b"root")
    result = run(settings, "add", "mine", str(source), "--tree", "Events")
    assert "'Events'" in result.stdout
    assert "Other trees: Runs" in result.stdout
    assert "ROOT cannot read 1 of 3 branches:\n  odd: Odd: Fatal in <F>: no.\n" in result.stdout
    unknown = run(settings, "make", "mine").exception
    assert isinstance(unknown, DatasetError)
    assert "reference-small" in unknown.hint
    refused = run(settings, "make", "reference-small").exception
    assert isinstance(refused, DatasetError)
    assert "pinned" in refused.message


Write = Callable[[str], Path]


def test_plan_is_determined_by_spec_text(spec_file: Write, spec_text: str) -> None:
    path = spec_file(spec_text)
    plan = load_generated_spec(path)
    assert plan == load_generated_spec(path)
    branches = {branch["name"]: branch for branch in plan.plan_branches()}
    assert [*branches] == ["HLT_08", "HLT_09", "HLT_10", "HLT_11", "flag", "Muon_pt"]
    assert plan.layout.compression_setting == 101
    muon = branches.pop("Muon_pt")
    zeros = {branch["zeros"] for branch in branches.values()}
    assert all(0.1 * 65536 - 1 < count < 0.9 * 65536 + 1 for count in zeros)
    assert len(zeros) == 5
    assert muon.items() >= {"type": "F", "counter": "nMuon", "bits": 8, "vector": False}.items()


def test_seed_changes_values_but_not_names(spec_file: Write, spec_text: str) -> None:
    plan = load_generated_spec(spec_file(spec_text))
    other = load_generated_spec(spec_file(spec_text.replace("seed = 7", "seed = 8")))
    assert plan.branch_names == other.branch_names
    seeds, other_seeds = ({b["seed"] for b in spec.plan_branches()} for spec in (plan, other))
    assert not seeds & other_seeds


def test_branches_are_independent(spec_file: Write, spec_text: str) -> None:
    plan = load_generated_spec(spec_file(spec_text))
    fewer = load_generated_spec(spec_file(spec_text.replace('"HLT_{08..11}", ', "")))
    assert fewer.plan_branches() == plan.plan_branches()[4:]


@pytest.mark.parametrize(
    ("old", "new", "key", "message"),
    [
        ("seed = 7", "sed = 7", "dataset.seed", "Field required\n  dataset.sed: unknown key"),
        ('root = "6.40.00"', "root = 6.40", "dataset.root", "valid string"),
        ('"zlib"', '"zstd"', "layout.compression", "'zlib', 'lzma' or 'lz4'"),
        ("entries = 100", "entries = 0", "dataset.entries", "greater than or equal to 1"),
        ("[0.1, 0.9]", "[0.9, 0.1]", "branches.0.zeros", "larger one"),
        ("[0.1, 0.9]", "1.5", "branches.0.zeros.0", "less than or equal to 1"),
        ('"bool"', '"boolean"', "branches.0.type", "'float'"),
        ("bits = 8", "bits = 24", "branches.1", "at most 23\n  The shipped specs"),
        ("bits = 8", "bits = 8\nhold = 2", "branches.1", "'hold' counts events"),
        ('collection = "Muon"', "", "branches.1", "'collection' is required for"),
        ('collection = "Muon"', 'collection = "Muons"', "the whole", "did you mean 'Muon'?"),
        ('"jagged"', '"array"', "branches.1", "'length' is required for"),
        ('"flag"', '"HLT_09"', "the whole", "named twice: HLT_09"),
        ('"flag"', '"f{3..1}"', "the whole", "'f{3..1}' has no names, or more than 100,000"),
        ('"flag"', '"nMuon"', "the whole", "named twice: nMuon"),
        ('"flag"', '"a flag"', "the whole", "'a flag' is not a name"),
    ],
)
def test_spec_mistakes_name_their_key(
    spec_file: Write, spec_text: str, old: str, new: str, key: str, message: str
) -> None:
    assert old in spec_text
    path = spec_file(spec_text.replace(old, new, 1))
    with pytest.raises(DatasetError) as caught:
        dataset_specs.load_spec(path)
    assert str(path) in str(caught.value)
    assert f"{key}: " in str(caught.value)
    assert message in str(caught.value)


def test_invalid_spec_files_are_refused(tmp_path: Path, spec_text: str) -> None:
    with pytest.raises(DatasetError, match="No such file"):
        dataset_specs.load_spec(tmp_path / "none.toml")
    broken = tmp_path / "broken.toml"
    broken.write_text("[dataset")
    with pytest.raises(DatasetError, match="not valid TOML"):
        dataset_specs.load_spec(broken)
    renamed = tmp_path / "other.toml"
    renamed.write_text(spec_text)
    with pytest.raises(DatasetError, match="'tiny'"):
        dataset_specs.load_spec(renamed)


def test_every_shipped_spec_is_valid_and_pinned() -> None:
    names = list(dataset_specs.list_shipped_specs())
    assert {"reference-750mb", "reference-small"} <= set(names)
    for name in names:
        plan = dataset_specs.load_shipped_spec(name)
        assert plan is not None
        assert plan.name == name
        assert plan.dataset.hash if isinstance(plan, RawSpec) else plan.dataset.sha256
        assert plan.file_size > 0
        assert plan.dataset.description


@pytest.mark.parametrize(
    "options, value",
    [
        *(({"compression": text}, ("compression_setting", number)) for text, number in (("zstd:5", 505), ("lz4", 404), ("zlib:9", 109), ("lzma", 207), ("none", 0), ("", -1))),
        *(({"autoflush": text}, ("auto_flush", number)) for text, number in (("400", 400), ("30MB", -30_000_000), ("1.5 MB", -1_500_000), ("", 0))),
        ({"basket_size": "32kB"}, ("basket_bytes", 32_000)),
        ({"basket_memory": "10MB"}, ("memory_bytes", 10_000_000)),
    ],
)  # fmt: skip
def test_options_are_parsed(options: dict[str, Any], value: tuple[str, int]) -> None:
    assert getattr(RewriteOptions(**options), value[0]) == value[1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        *(({"compression": text}, "is not a compression") for text in ("zstd:", "zstd:0", "zstd:10", "gzip", "505")),
        *(({"basket_size": text}, "size like") for text in ("0", "-1", "30", "3GB", "0MB", "many", "30 M")),
        ({"order": "events"}, "unknown value 'events'; expected one of entry, branch, offset"),
        ({"format": "parquet"}, "unknown value 'parquet'; expected one of ttree, rntuple"),
        ({"order": "entry", "format": "rntuple"}, "--order: cannot be combined with --format rntuple"),
        ({"basket_size": "32kB", "format": "rntuple"}, "--basket-size: cannot be combined with --format"),
        ({"autoflush": "400", "format": "rntuple"}, "--autoflush 400: cannot be combined with --format"),
        ({"basket_size": "32kB", "basket_memory": "1MB"}, "cannot be combined with --basket-memory"),
        ({"autoflush": "67", "across_clusters": True}, "--across-clusters: needs the events of a cluster"),
        ({"basket_size": "2kB", "across_clusters": True}, "--across-clusters: needs the events of a cluster"),
    ],
)  # fmt: skip
def test_invalid_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(DatasetError) as caught:
        RewriteOptions(**options)
    assert message in str(caught.value)
    assert caught.value.hint or "basket_size" in options or "unknown" in message


def test_suggested_names_contain_options() -> None:
    asked = RewriteOptions(root="6.38.00", compression="zstd:5", autoflush="30MB", order="branch")
    assert asked.suggest_name("nano") == "nano-root6.38.00-zstd5-flush30mb-by-branch"
    assert (
        RewriteOptions(format="rntuple", skip_unwritable=True).suggest_name("nano")
        == "nano-rntuple"
    )
    with pytest.raises(DatasetError, match="is not a valid name") as caught:
        RewriteOptions(root="path:/opt/root").suggest_name("nano")
    assert "--as" in caught.value.hint


def test_options_round_trip_through_manifest() -> None:
    asked = RewriteOptions(
        autoflush="67", basket_size="2kB", across_clusters=True, skip_unwritable=True
    )
    assert parse_rewrite_options(asked.to_mapping()) == asked
    command = asked.to_command("nano", "mine")
    assert command == (
        "treehammer datasets make nano --autoflush 67 --basket-size 2kB --across-clusters --skip-unwritable --as mine"
    )


def test_baskets_are_copied_if_only_order_differs() -> None:
    assert not RewriteOptions(order="entry").rewrites_events
    assert RewriteOptions(order="entry", compression="zstd").rewrites_events
    assert RewriteOptions().rewrites_events
    assert not RewriteOptions(root="6.38.00").changes_layout
    assert RewriteOptions(format="ttree").changes_layout


def test_output_of_a_release_at_its_start_is_no_message(tmp_path: Path) -> None:
    (tmp_path / "ROOT.py").write_text(
        "import sys\n"
        "from unittest.mock import MagicMock\n"
        "print('This release has a new engine', flush=True)\n"
        "sys.modules['ROOT'] = MagicMock()\n"
    )
    done = run_captured(
        [sys.executable, str(root_process.GENERATE_SCRIPT), "hashes"],
        env={"PYTHONPATH": f"{tmp_path}:{root_process.KIT_FOLDER}"},
        input=json.dumps({"paths": ["a.root"], "adler32s": [""], "tree": "T"}),
        check=True,
    )
    messages = [json.loads(line) for line in done.stdout.splitlines()]
    assert messages[-1]["error"]["message"] == "no leaf of 'T' can be hashed"
    assert done.stderr == "This release has a new engine\n"
