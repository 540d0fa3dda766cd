"""``treehammer tests check`` against the contents of datasets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from treehammer.config import load_settings
from treehammer.submit.cli.tests_check_command import tests as commands

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
