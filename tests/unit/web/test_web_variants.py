"""Labels of variants beside each other."""

from __future__ import annotations

from treehammer.web.pages.variants import told_apart, without_release


def test_what_all_have_is_told_once() -> None:
    labels = [
        f"root={root} cache=warm branches={share} cache_mb={mb}"
        for root in ("6.40.00", "6.38.00")
        for share in ("100 %", "2 %")
        for mb in (0, 30)
    ]
    told = told_apart(labels, release_told=True)
    assert told.shared == "cache=warm"
    assert told.axes == ("branches", "cache_mb")
    assert told.names[labels[0]] == "branches=100 % cache_mb=0"
    assert told.values(told.names[labels[0]]) == "100 % · 0"
    assert list(dict.fromkeys(told.names.values())) == [
        "branches=2 % cache_mb=0",
        "branches=2 % cache_mb=30",
        "branches=100 % cache_mb=0",
        "branches=100 % cache_mb=30",
    ]


def test_releases_of_a_variant_stand_side_by_side() -> None:
    labels = [f"root={root} n={n}" for root in ("6.38.00", "6.40.00") for n in (1, 2)]
    assert [*told_apart(labels).names.values()] == [labels[0], labels[2], labels[1], labels[3]]


def test_labels_that_are_no_terms_stay_as_they_are() -> None:
    told = told_apart(["<script>", "a=1 b=2", "all"])
    assert told.axes == ()
    assert told.shared == ""
    assert set(told.names.values()) == {"<script>", "a=1 b=2", "all"}
    assert told_apart(["only=1"]).names == {"only=1": "only=1"}


def test_a_label_without_its_release() -> None:
    assert without_release("root=6.38.00 branches=2%") == "branches=2%"
    assert without_release("root=6.38.00") == "root=6.38.00"
    assert without_release(None) == "–"
