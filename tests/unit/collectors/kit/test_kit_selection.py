"""Selection of branches."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treehammer.collectors.kit.treehammer_kit.payload_task import (
    PayloadError,
    make_plain_url,
    select_branches,
    select_fraction,
)

NAMES = ["nMuon", "Muon_pt", "Muon_eta", "Jet_pt", "odd[name]", "run"]
COUNTERS = {"Muon_pt": ["nMuon"], "Muon_eta": ["nMuon"]}


def chosen(request: str, folder: Path | str = "", seed: int = 1) -> list[str]:
    positions = select_branches(NAMES, COUNTERS, request, seed=seed, folder=str(folder))
    return [NAMES[position] for position in positions]


@pytest.mark.parametrize(
    "request_, expected",
    [
        ("Muon_*", ["nMuon", "Muon_pt", "Muon_eta"]),
        ("Jet_pt, run", ["Jet_pt", "run"]),
        ("run,Jet_pt,run", ["Jet_pt", "run"]),
        ("odd[name]", ["odd[name]"]),
        ("!Muon_*,!odd[name]", ["nMuon", "Jet_pt", "run"]),
        ("*,!Jet_pt", ["nMuon", "Muon_pt", "Muon_eta", "odd[name]", "run"]),
        ("Muon_*,!Muon_eta", ["nMuon", "Muon_pt"]),
    ],
)
def test_patterns_select_in_tree_order_with_counters(request_: str, expected: list[str]) -> None:
    assert chosen(request_) == expected


def test_readable_leaves_out_unreadable_branches() -> None:
    found = select_branches(NAMES, {}, "readable", seed=1, folder="", unreadable=["run", "Jet_pt"])
    assert [NAMES[position] for position in found] == [*NAMES[:3], "odd[name]"]
    with pytest.raises(PayloadError, match="leaves none to read"):
        select_branches(NAMES, {}, "readable", seed=1, folder="", unreadable=NAMES)


def test_list_file_contains_one_pattern_per_line(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("# muons\nMuon_eta\n\nrun  # the run\n")
    assert chosen("@mine.txt", tmp_path) == ["nMuon", "Muon_eta", "run"]


@pytest.mark.parametrize(
    "request_, expected",
    [
        ("Muon_pT", "Muon_pt"),
        ("run,!run", "leaves none"),
        ("!Tau_*", "'Tau_*'"),
        ("Tau_*", "'Tau_*'"),
        (" , ", "empty"),
        ("@none.txt", "none.txt"),
    ],
)
def test_unmatched_pattern_fails(request_: str, expected: str) -> None:
    with pytest.raises(PayloadError) as error:
        chosen(request_)
    assert error.value.document["failure_class"] == "open"
    assert expected in error.value.document["message"]


@given(st.integers(1, 400), st.floats(1e-4, 1.0), st.floats(1e-4, 1.0), st.integers(0, 2**32))
def test_fraction_is_exact_and_nested(count: int, one: float, two: float, seed: int) -> None:
    names = [f"b{number}" for number in range(count)]
    small, large = (set(select_fraction(names, share, seed)) for share in sorted((one, two)))
    assert small <= large
    share = min(one, two)
    assert abs(len(small) - max(1, share * count)) <= 0.5 or len(small) == 1
    assert set(select_fraction(names[::-1], share, seed)) == small


def test_seed_changes_the_selection() -> None:
    names = [f"b{number}" for number in range(100)]
    assert select_fraction(names, 0.1, 1) != select_fraction(names, 0.1, 2)


def test_paths_with_patterns_are_opened_as_they_are(tmp_path: Path) -> None:
    for name in ("a[1]*.root", "x#y?.root", "p|q:r.root", "$HOME ~.root", "ü{1}.root"):
        path = tmp_path / name
        path.write_text(name)
        url = make_plain_url(str(path))
        assert url.startswith("/proc/self/fd/")
        assert Path(url).read_text() == name
    (tmp_path / "b[2]").mkdir()
    (tmp_path / "b[2]" / "plain.root").write_text("here")
    plain = make_plain_url(f"{tmp_path}/b[2]/plain.root")
    assert plain.endswith("/plain.root")
    assert Path(plain).read_text() == "here"


@pytest.mark.parametrize(
    "url",
    ["/data/a.root", "root://host//a[1].root?b=1", "https://host/a%5B.root", "/none/a[1].root"],
)
def test_plain_remote_and_missing_addresses_stay(url: str) -> None:
    assert make_plain_url(url) == url
