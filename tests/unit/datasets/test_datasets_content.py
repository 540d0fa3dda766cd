"""Comparison of a dataset's files, and the names under which they are stored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from treehammer.datasets.catalogues.dataset_verification import choose_file_names
from treehammer.datasets.production import compare_trees
from treehammer.errors import DatasetError

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
