"""Checks of tests against the contents of datasets."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from plan_factory import make_manifest

from treehammer.config import load_settings
from treehammer.datasets.manifest import Manifest
from treehammer.errors import DefinitionError
from treehammer.hctests import pinned_tests
from treehammer.hctests.definition import definition_loader
from treehammer.hctests.definition.model import TestDefinition
from treehammer.submit.cli.tests_check_command import tests as commands
from treehammer.submit.planning.content_checks import check_contents, list_content_notes


@pytest.fixture(scope="module")
def definition() -> TestDefinition:
    return definition_loader.load_definition(pinned_tests.SHIPPED_TESTS_FOLDER / "ttree-read")


def make_listed_manifest(**origin: Any) -> Manifest:
    manifest = make_manifest()
    known = {"other_trees": ["Runs"], "branches": ["x", "odd", "y"], "unreadable_branches": {}}
    return replace(manifest, origin={**manifest.origin, **known, **origin})


def with_branches(definition: TestDefinition, tree: str, *branches: str | float) -> TestDefinition:
    return replace(definition, tree=tree, axes={**definition.axes, "branches": branches})


def test_existing_tree_and_branches_are_accepted(definition: TestDefinition) -> None:
    manifest = make_listed_manifest(unreadable_branches={"odd": "no"})
    wanted = ("x,y", "!odd", "readable", "@list", 0.5)
    check_contents(with_branches(definition, manifest.tree, *wanted), [manifest])
    # The branches of another tree are not known.
    check_contents(with_branches(definition, "Runs", "z"), [manifest])


def test_bundled_datasets_have_the_same_events(definition: TestDefinition) -> None:
    bundled = replace(definition, bundle=("dataset",))
    twin, other = replace(make_manifest(), name="twin"), replace(make_manifest(999), name="other")
    check_contents(bundled, [make_manifest(), twin])
    with pytest.raises(DefinitionError, match="1000 events in 1 file and 999 events") as error:
        check_contents(bundled, [make_manifest(), twin, other])
    assert "Remove dataset from bundle" in error.value.hint


def test_unknown_tree_is_refused_with_the_nearest_name(definition: TestDefinition) -> None:
    with pytest.raises(DefinitionError, match="has no tree 'Runz'") as error:
        check_contents(with_branches(definition, "Runz", 1.0), [make_listed_manifest()])
    assert "Did you mean 'Runs'?" in error.value.hint


@pytest.mark.parametrize(
    ("request_", "problem"),
    [("odt", "no branch matches 'odt'; near: odd"), ("readable", "leaves none to read")],
)
def test_unmatched_branches_are_refused(
    definition: TestDefinition, request_: str, problem: str
) -> None:
    manifest = make_listed_manifest(unreadable_branches=dict.fromkeys("xy", "") | {"odd": ""})
    with pytest.raises(DefinitionError, match=problem):
        check_contents(with_branches(definition, manifest.tree, request_), [manifest])


def test_manifest_without_names_is_not_checked(definition: TestDefinition) -> None:
    check_contents(with_branches(definition, "any", "z"), [make_manifest()])


@pytest.mark.parametrize(
    ("name", "change", "key"),
    [
        ("read-rate", {}, "settings.block_kb"),
        ("read-rate", {"axes": {"block_kb": (1, 2500)}}, "matrix.block_kb"),
        ("read-pattern", {}, "matrix.chunk_kb"),
    ],
)
def test_reads_larger_than_a_file_are_refused(name: str, change: Any, key: str) -> None:
    test = definition_loader.load_definition(pinned_tests.SHIPPED_TESTS_FOLDER / name)
    test = replace(test, **change)
    manifest = make_manifest()
    small, large = (
        replace(manifest, files=tuple(replace(file, size=size) for file in manifest.files))
        for size in (1_000_000, 10_000_000)
    )
    check_contents(test, [large])
    with pytest.raises(DefinitionError, match="larger than the smallest file") as error:
        check_contents(test, [small])
    assert key in str(error.value)
    assert "at most 1000 kB" in error.value.hint


def test_branch_that_a_file_lacks_is_named_with_the_file(definition: TestDefinition) -> None:
    manifest = make_listed_manifest(missing_branches={"gone": "b.root"})
    with pytest.raises(DefinitionError, match=r"no branch matches 'go\?e'") as error:
        check_contents(with_branches(definition, manifest.tree, "x,go?e"), [manifest])
    assert error.value.hint == "Branches must be in all files: 'gone' is missing in b.root."


def test_plan_lists_what_the_numbers_of_a_dataset_do_not_show(definition: TestDefinition) -> None:
    manifest = make_listed_manifest(
        missing_branches={"gone": "b.root"},
        branches_of_other_lengths={"y": "4 of 10 entries"},
        friend_trees=["f of other.root"],
    )
    notes = list_content_notes(with_branches(definition, manifest.tree, 0.5), [manifest])
    assert notes == [
        f"Dataset {manifest.name}: 1 branch is missing in some files and never read (gone in b.root); "
        "fractions are of the 3 common branches.",
        f"Dataset {manifest.name}: 1 branch has another number of entries than the tree "
        "(y: 4 of 10 entries).",
        f"Dataset {manifest.name}: friend trees are not read: f of other.root.",
    ]
    # They are of the main tree.
    assert not list_content_notes(with_branches(definition, "Runs", 0.5), [manifest])


TEST = """\
[test]
name = "mine"
payload = "read.py"
dataset = "{dataset}"
tree = "{tree}"

[matrix]
root = ["6.40.00"]
branches = ["{branches}"]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "read.py").write_text("print()\n")
    (tmp_path / "list.txt").write_text("Jet_pt\nMuon_ptt\n")
    return tmp_path


def check(folder: Path, dataset: str, tree: str, branches: str, *options: str) -> Result:
    text = TEST.format(dataset=dataset, tree=tree, branches=branches)
    (folder / "test.toml").write_text(text)
    settings = load_settings({"cache_dir": folder / "cache"}, environ={}, folder=folder)
    return CliRunner().invoke(commands, ["check", str(folder), *options], obj=settings)


def test_names_of_a_shipped_dataset_are_known_before_it_is_made(folder: Path) -> None:
    result = check(folder, "reference-small", "events", "Jet_pt,nMuon,Muon_*")
    assert (result.exit_code, result.output) == (0, f"ok {folder}: mine\n")


@pytest.mark.parametrize(
    ("dataset", "tree", "branches", "problem"),
    [
        (
            "reference-smal",
            "events",
            "Jet_pt",
            "test.dataset: there is no dataset 'reference-smal'. Did you mean 'reference-small'?",
        ),
        (
            "reference-small",
            "event",
            "Jet_pt",
            "test.tree: dataset 'reference-small' has no tree 'event'. Did you mean 'events'?",
        ),
        (
            "reference-small",
            "events",
            "Jet_pt,Muon_ptt",
            "matrix.branches: dataset 'reference-small': no branch matches 'Muon_ptt'; near: Muon_pt",
        ),
        (
            "reference-small",
            "events",
            "@list.txt",
            "matrix.branches: dataset 'reference-small': no branch matches 'Muon_ptt'; near: Muon_pt",
        ),
    ],
)
def test_unknown_names_are_found(
    folder: Path, dataset: str, tree: str, branches: str, problem: str
) -> None:
    result = check(folder, dataset, tree, branches)
    assert result.exit_code == 2
    assert result.output.startswith(f"{folder / 'test.toml'}: {problem}")
    (document,) = json.loads(check(folder, dataset, tree, branches, "--json").output)
    assert not document["ok"]
    assert problem in document["problems"][0]


def test_a_payload_without_the_kit_is_not_started(folder: Path) -> None:
    (folder / "read.py").write_text("import sys\nsys.exit(9)\n")
    result = check(folder, "reference-small", "events", "Jet_pt", "--compile")
    assert (result.exit_code, result.output) == (
        0,
        f"ok {folder}: mine (not compiled: its payload has no loop of the kit)\n",
    )
