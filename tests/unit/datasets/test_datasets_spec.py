from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from spec_files import load_generated_spec

from treehammer.datasets.specs import dataset_specs
from treehammer.datasets.specs.dataset_specs import RawSpec
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
