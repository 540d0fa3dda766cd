"""Variants beside each other."""

from __future__ import annotations

import json

import pytest

from treehammer.hctests.matrix.definition import Scalar
from treehammer.web.display.variant_labels import label_variants


def variant(**axes: Scalar) -> str:
    return json.dumps(axes, sort_keys=True, separators=(",", ":"))


def test_what_all_have_is_told_once() -> None:
    variants = [
        variant(root=root, cache="warm", branches=share, cache_mb=mb)
        for root in ("6.40.00", "6.38.00")
        for share in (1.0, 0.02)
        for mb in (0, 30)
    ]
    told = label_variants(variants, hide_release=True)
    assert told.shared_text == "cache=warm"
    assert told.axes == ("branches", "cache_mb")
    assert told.names[variants[0]] == "branches=100% cache_mb=0"
    assert told.values["branches=100% cache_mb=0"] == "100% · 0"
    assert list(dict.fromkeys(told.names.values())) == [
        "branches=2% cache_mb=0",
        "branches=2% cache_mb=30",
        "branches=100% cache_mb=0",
        "branches=100% cache_mb=30",
    ]


def test_releases_of_a_variant_stand_side_by_side() -> None:
    variants = [variant(root=root, size=n) for root in ("6.38.00", "6.40.00") for n in (1, 2)]
    assert [*label_variants(variants).names] == [variants[place] for place in (0, 2, 1, 3)]


def test_what_is_no_variant_stays_as_it_is() -> None:
    texts = ["<script>", variant(a=1, b=2), "[1]", "{}", '{"a":[1]}', '{"a":' + "9" * 400 + "}"]
    told = label_variants(texts)
    assert (told.axes, told.shared_text) == ((), "")
    expected = dict(zip(texts, texts, strict=True)) | {texts[1]: "a=1 b=2"}
    assert told.names == expected
    assert told.label("another") == "another"
    assert told.label(None) == "–"


def test_one_alone_is_told_in_full() -> None:
    one, other = (variant(root=root, only=1) for root in ("6.38.00", "6.40.00"))
    told = label_variants([one])
    assert (told.names, told.shared_text, told.axes) == ({one: "only=1 root=6.38.00"}, "", ())
    told = label_variants([one, other], hide_release=True)
    assert {*told.names.values()} == {"only=1"}


@pytest.mark.parametrize(
    "values",
    [
        (1, 1.0, True),
        ("1", 1),
        (0.02, 0.0200000001),
        (0.12345678, 0.12345679),
        (0.5, "50%"),
        (1, "1 b=2"),
    ],
)
def test_different_variants_never_share_a_name(values: tuple[Scalar, ...]) -> None:
    variants = [variant(branches=value) for value in values] + [variant(branches=1, b=2)]
    assert len({*label_variants(variants).names.values()}) == len({*variants})
    alone = label_variants(variants[:-1])
    short = {*alone.values.values()}
    assert len(short) == len(alone.values) == (len(values) if alone.axes else 0)


def test_one_variant_has_one_name_however_it_is_written() -> None:
    told = label_variants(['{"a":1,"b":2}', '{"b": 2, "a": 1}', '{"a":2,"b":2}'])
    assert [*told.names.values()] == ["a=1", "a=1", "a=2"]
