"""Specs of datasets: mistakes are named, shipped specs have the stated properties; options for rewriting."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cache
from math import log2
from pathlib import Path

import pytest
from tiny_dataset import load_generated_spec

from treehammer.datasets.specs import dataset_specs
from treehammer.datasets.specs.dataset_specs import RawSpec
from treehammer.datasets.specs.rewrite_options import RewriteOptions, parse_rewrite_options
from treehammer.errors import DatasetError

Write = Callable[[str], Path]


def test_plan_is_determined_by_spec_text(spec_file: Write, spec_text: str) -> None:
    path = spec_file(spec_text)
    plan = load_generated_spec(path)
    assert plan == load_generated_spec(path)
    assert [branch.name for branch in plan.branches] == [
        *("HLT_08", "HLT_09", "HLT_10", "HLT_11"),
        "flag",
        "Muon_pt",
    ]
    assert plan.compression == 101
    flags = plan.branches[:5]
    assert all(0.1 * 65536 - 1 < branch.zeros < 0.9 * 65536 + 1 for branch in flags)
    assert len({branch.zeros for branch in flags}) == 5
    muon = plan.branches[5]
    assert (muon.type, muon.counter, muon.bits, muon.vector) == ("F", "nMuon", 8, False)


def test_seed_changes_values_but_not_names(spec_file: Write, spec_text: str) -> None:
    plan = load_generated_spec(spec_file(spec_text))
    other = load_generated_spec(spec_file(spec_text.replace("seed = 7", "seed = 8")))
    assert [b.name for b in plan.branches] == [b.name for b in other.branches]
    assert not {b.seed for b in plan.branches} & {b.seed for b in other.branches}


def test_branches_are_independent(spec_file: Write, spec_text: str) -> None:
    plan = load_generated_spec(spec_file(spec_text))
    fewer = load_generated_spec(spec_file(spec_text.replace('"HLT_{08..11}", ', "")))
    assert fewer.branches == plan.branches[4:]


@pytest.mark.parametrize(
    ("old", "new", "key", "message"),
    [
        ("seed = 7", "sed = 7", "dataset.sed", "unknown key"),
        ("seed = 7", "", "dataset.seed", "Field required"),
        ('root = "6.40.00"', "root = 6.40", "dataset.root", "valid string"),
        ('"zlib"', '"zstd"', "layout.compression", "'zlib', 'lzma' or 'lz4'"),
        ("entries = 100", "entries = 0", "dataset.entries", "greater than or equal to 1"),
        ("[0.1, 0.9]", "[0.9, 0.1]", "branches.0.zeros", "larger one"),
        ("[0.1, 0.9]", "1.5", "branches.0.zeros.0", "less than or equal to 1"),
        ('"bool"', '"boolean"', "branches.0.type", "'float'"),
        ("bits = 8", "bits = 24", "branches.1", "at most 23"),
        ("bits = 8", "bits = 8\nhold = 2", "branches.1", "'hold' counts events"),
        ('collection = "Muon"', "", "branches.1", "'collection' is required for"),
        ('collection = "Muon"', 'collection = "Muons"', "the whole", "did you mean 'Muon'?"),
        ('"jagged"', '"array"', "branches.1", "'length' is required for"),
        ('"flag"', '"HLT_09"', "the whole", "named twice: HLT_09"),
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


def test_all_spec_mistakes_are_reported_together(spec_file: Write, spec_text: str) -> None:
    text = spec_text.replace("seed = 7", "sed = 7").replace("level = 1", "level = 0")
    with pytest.raises(DatasetError) as caught:
        dataset_specs.load_spec(spec_file(text))
    for key in ("dataset.sed", "dataset.seed", "layout.level"):
        assert f"{key}: " in str(caught.value)


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
        assert len(plan.hash if isinstance(plan, RawSpec) else plan.sha256) == 64
        assert plan.size > 0
        assert plan.description


NAMES = ("reference-small", "reference-750mb")
WIDTHS = {"F": 4, "D": 8, "I": 4, "i": 4, "L": 8, "O": 1}
#: Random bits of a nonzero floating-point value: the sign and two bits of the exponent.
SIGN_AND_EXPONENT = {"F": 3, "D": 3}


@cache
def _shipped(name: str) -> dataset_specs.GeneratedSpec:
    plan = dataset_specs.load_shipped_spec(name)
    assert isinstance(plan, dataset_specs.GeneratedSpec)
    return plan


def _values(plan: dataset_specs.GeneratedSpec, branch: dataset_specs.BranchPlan) -> int:
    """Compute the expected number of values of a branch in all events."""
    means = {collection.counter: collection.mean for collection in plan.collections}
    return plan.entries * means.get(branch.counter, branch.length)


def _random_bytes(plan: dataset_specs.GeneratedSpec, branch: dataset_specs.BranchPlan) -> float:
    """Compute the incompressible bytes of a branch by Shannon's formula."""
    if branch.hold:
        return 0.0
    zero = branch.zeros / dataset_specs.PROBABILITY_SCALE
    choice = -sum(p * log2(p) for p in (zero, 1 - zero) if p)
    bits = branch.bits + SIGN_AND_EXPONENT.get(branch.type, 0)
    return _values(plan, branch) * (choice + (1 - zero) * bits) / 8


def test_reference_750mb_matches_study_s0() -> None:
    plan = _shipped("reference-750mb")
    assert len(plan.collections) + len(plan.branches) == 3000
    assert plan.entries == 12_000
    assert 740e6 < plan.size < 760e6
    assert (plan.tree, plan.compression) == ("events", 101)


def test_reference_750mb_distinguishes_cache_sizes() -> None:
    plan = _shipped("reference-750mb")
    clusters, rest = divmod(plan.entries, plan.events_per_cluster)
    assert (clusters, rest) == (30, 0)
    cluster = plan.size / clusters
    # 30 MB hold one cluster but not two; 300 MB hold ten; 3 MB hold none.
    assert 15e6 < cluster < 30e6
    assert 10 * cluster < 300e6


@pytest.mark.parametrize("name", NAMES)
def test_few_branches_hold_most_bytes(name: str) -> None:
    plan = _shipped(name)
    sizes = sorted(_random_bytes(plan, branch) for branch in plan.branches)
    largest = sizes[-round(0.02 * len(sizes)) :]
    assert 0.30 <= sum(largest) / sum(sizes) <= 0.50
    middle, tenth = sizes[len(sizes) // 2], sizes[-len(sizes) // 10]
    assert tenth > 5 * middle


@pytest.mark.parametrize("name", NAMES)
def test_pinned_size_is_between_random_and_stored_bytes(name: str) -> None:
    plan = _shipped(name)
    stored = sum(_values(plan, branch) * WIDTHS[branch.type] for branch in plan.branches)
    assert 3 <= stored / plan.size <= 5
    assert sum(_random_bytes(plan, branch) for branch in plan.branches) < plan.size


@pytest.mark.parametrize("name", NAMES)
def test_spec_contains_all_types_and_shapes(name: str) -> None:
    plan = _shipped(name)
    assert {branch.type for branch in plan.branches} == set(WIDTHS)
    assert {branch.vector for branch in plan.branches if branch.counter} == {True, False}
    assert any(branch.length > 1 for branch in plan.branches)
    shared = Counter(branch.counter for branch in plan.branches if branch.counter)
    assert set(shared) == {collection.counter for collection in plan.collections}
    assert min(shared.values()) > 1
    assert max(collection.mean for collection in plan.collections) > 100


@pytest.mark.parametrize(
    ("text", "setting"),
    [("zstd:5", 505), ("lz4", 404), ("zlib:9", 109), ("lzma", 207), ("none", 0), ("", -1)],
)
def test_compression_is_parsed(text: str, setting: int) -> None:
    assert RewriteOptions(compression=text).compression_setting == setting


@pytest.mark.parametrize("text", ["zstd:", "zstd:0", "zstd:10", "gzip", "zstd5", "505"])
def test_invalid_compression_is_refused(text: str) -> None:
    with pytest.raises(DatasetError, match="not a compression") as caught:
        RewriteOptions(compression=text)
    assert caught.value.where == "--compression"
    assert "zstd:5" in caught.value.hint


def test_autoflush_accepts_events_or_bytes() -> None:
    assert RewriteOptions(autoflush="400").auto_flush == 400
    assert RewriteOptions(autoflush="30MB").auto_flush == -30_000_000
    assert RewriteOptions(autoflush="1.5 MB").auto_flush == -1_500_000
    assert RewriteOptions().auto_flush == 0
    assert RewriteOptions(basket_size="32kB").basket_bytes == 32_000
    assert RewriteOptions(basket_memory="10MB").memory_bytes == 10_000_000


@pytest.mark.parametrize("text", ["0", "-1", "30", "3GB", "0MB", "many", "30 M"])
def test_invalid_size_is_refused(text: str) -> None:
    with pytest.raises(DatasetError, match="size like") as caught:
        RewriteOptions(basket_size=text)
    assert caught.value.where == "--basket-size"


@pytest.mark.parametrize(
    ("options", "where", "other"),
    [
        ({"order": "entry", "format": "rntuple"}, "--order", "--format rntuple"),
        ({"basket_size": "32kB", "format": "rntuple"}, "--basket-size", "--format rntuple"),
        ({"autoflush": "400", "format": "rntuple"}, "--autoflush 400", "--format rntuple"),
        ({"basket_size": "32kB", "basket_memory": "1MB"}, "--basket-size", "--basket-memory"),
    ],
)
def test_conflicting_options_are_refused(options: dict[str, str], where: str, other: str) -> None:
    with pytest.raises(DatasetError, match=f"cannot be combined with {other}") as caught:
        RewriteOptions(**options)  # type: ignore[arg-type]
    assert caught.value.where == where
    assert caught.value.hint


def test_unknown_values_are_refused() -> None:
    with pytest.raises(
        DatasetError, match="unknown value 'events'; expected one of entry, branch, offset"
    ):
        RewriteOptions(order="events")
    with pytest.raises(
        DatasetError, match="unknown value 'parquet'; expected one of ttree, rntuple"
    ):
        RewriteOptions(format="parquet")


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
    asked = RewriteOptions(compression="lz4:4", basket_size="16kB", skip_unwritable=True)
    assert parse_rewrite_options(asked.to_mapping()) == asked
    command = asked.to_command("nano", "mine")
    assert command == (
        "treehammer datasets make nano --compression lz4:4 --basket-size 16kB --skip-unwritable --as mine"
    )


def test_baskets_are_copied_if_only_order_differs() -> None:
    assert not RewriteOptions(order="entry").rewrites_events
    assert RewriteOptions(order="entry", compression="zstd").rewrites_events
    assert RewriteOptions().rewrites_events
    assert not RewriteOptions(root="6.38.00").changes_layout
    assert RewriteOptions(format="ttree").changes_layout
