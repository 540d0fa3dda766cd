"""Expansion of axes to variants, orders of executions, and identities."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treehammer.collectors.record import metric_catalogue
from treehammer.config import Settings
from treehammer.hctests import pinned_tests
from treehammer.hctests.definition import model
from treehammer.hctests.definition.definition_loader import load_definition
from treehammer.hctests.definition.execution_order import (
    derive_job_seed,
    expand_variants,
    group_variants,
    order_executions,
)
from treehammer.hctests.definition.model import (
    SERIES_COLUMNS,
    Variant,
    VariantGroup,
    compute_comparison_key,
    compute_series,
    drop_release_axis,
)
from treehammer.hctests.definition.test_identity import (
    PinnedTest,
    compute_test_hash,
    get_payload_hash,
)

WriteTest = Callable[..., Path]
MATRIX = """
[matrix]
root = ["6.38.00", "6.40.00"]
branches = [1.0, 0.02]
cache_mb = [0, 3, 30]
bundle = ["root"]
"""


def letters(count: int) -> VariantGroup:
    return VariantGroup(tuple(Variant((("letter", n),)) for n in range(count)))


def rows(count: int, rounds: int, seed: int) -> list[list[int]]:
    orders: list[list[int]] = [[] for _ in range(rounds)]
    for round_, position, variant in order_executions(letters(count), rounds, seed):
        orders[round_ - 1].append(int(variant["letter"]))
        assert position == len(orders[round_ - 1])
    return orders


def axes_of(variants: tuple[Variant, ...], *names: str) -> set[tuple[object, ...]]:
    return {tuple(variant[name] for name in names) for variant in variants}


def test_matrix_is_expanded_and_grouped(write_test: WriteTest) -> None:
    # The rule includes variants that the matrix has already.
    definition = load_definition(write_test(MATRIX + "[[include]]\ncache_mb = 3\n"))
    variants = expand_variants(definition, "file")
    assert len(variants) == len(set(variants)) == 12
    groups = group_variants(definition, "file")
    assert [len(group.variants) for group in groups] == [2] * 6
    for group in groups:
        assert len(axes_of(group.variants, "branches", "cache_mb")) == 1
        assert [variant["root"] for variant in group.variants] == ["6.38.00", "6.40.00"]
    assert definition.label_axes == ("root", "branches", "cache_mb")


def test_exclude_removes_and_include_adds(write_test: WriteTest) -> None:
    rules = """
[[exclude]]
branches = 1.0
cache_mb = 0
[[exclude]]
root = "6.38.00"
branches = 0.02
[[include]]
branches = 1
cache_mb = 300
"""
    definition = load_definition(write_test(MATRIX + rules))
    variants = expand_variants(definition, "file")
    assert axes_of(variants, "root", "branches", "cache_mb") == {
        *((root, 1.0, mb) for root in ("6.38.00", "6.40.00") for mb in (3, 30, 300)),
        *(("6.40.00", 0.02, mb) for mb in (0, 3, 30)),
    }
    assert len(variants) == 9


def test_door_is_part_of_rules_only(write_test: WriteTest) -> None:
    text = """
[matrix]
door = ["root", "https"]
cache_mb = [0, 30]
[[exclude]]
door = "https"
cache_mb = 0
[[include]]
door = "root"
cache_mb = 300
"""
    definition = load_definition(write_test(text))
    at = {
        door: [variant["cache_mb"] for variant in expand_variants(definition, door)]
        for door in ("root", "https", "file")
    }
    assert at == {"root": [0, 30, 300], "https": [30], "file": []}
    undeclared = load_definition(write_test("[matrix]\ncache_mb = [30]\n"))
    assert expand_variants(undeclared, "https") == expand_variants(definition, "https")


@given(st.integers(1, 9), st.integers(1, 25), st.integers(0, 2**63))
def test_rounds_are_complete_and_mirrored(count: int, rounds: int, seed: int) -> None:
    found_rows = rows(count, rounds, seed)
    assert all(sorted(row) == list(range(count)) for row in found_rows)
    for even, odd in zip(found_rows[::2], found_rows[1::2], strict=False):
        assert odd == even[::-1]
    assert rows(count, rounds, seed) == found_rows


@given(st.integers(2, 9), st.integers(0, 2**63))
def test_full_set_of_rounds_is_balanced(count: int, seed: int) -> None:
    rounds = count if count % 2 == 0 else 2 * count
    found_rows = rows(count, rounds, seed)
    positions = Counter((letter, place) for row in found_rows for place, letter in enumerate(row))
    assert set(positions.values()) == {rounds // count}
    assert len(positions) == count * count
    followers = Counter(pair for row in found_rows for pair in pairwise(row))
    assert set(followers.values()) == {rounds // count}
    assert len(followers) == count * (count - 1)


def test_orders_are_stable() -> None:
    # Fixed values: planning a campaign again must give the same orders.
    assert rows(3, 4, 1) == [[0, 2, 1], [1, 2, 0], [2, 1, 0], [0, 1, 2]]
    assert derive_job_seed(1, "site", 2) == 20432702097683249


Pin = Callable[..., PinnedTest]

BASE: dict[str, Any] = {
    "test": {"name": "mine", "payload": "read.py", "seed": 1, "tree": "events"},
    "matrix": {"root": ["6.38.00", "6.40.00"], "cache_mb": [0, 30]},
    "settings": {"a": 1, "b": [1, 2]},
    "metrics": {"mine": {"unit": "B"}},
    "environment": {"A": "1"},
}


def toml(document: dict[str, Any]) -> str:
    """Format a document as TOML, in the given order of tables and keys."""
    tables = []
    for name, table in document.items():
        tables.append(f"[{name}]")
        for key, value in table.items():
            if isinstance(value, dict):
                inner = ", ".join(f"{k} = {json.dumps(v)}" for k, v in value.items())
                tables.append(f"{key} = {{{inner}}}")
            else:
                tables.append(f"{key} = {json.dumps(value)}")
    return "\n".join(tables) + "\n"


@pytest.fixture
def pin(write_test: WriteTest, settings: Settings) -> Pin:
    def pinned(
        changes: dict[str, dict[str, Any]] | None = None, order: int = 1, **files: str
    ) -> PinnedTest:
        document = {name: {**table} for name, table in BASE.items()}
        for table, keys in (changes or {}).items():
            document[table].update(keys)
        document = {
            name: dict(list(document[name].items())[::order]) for name in list(document)[::order]
        }
        return pinned_tests.pin_test(str(write_test(toml(document), **files)), settings)

    return pinned


def key(pinned: PinnedTest) -> str:
    variant = expand_variants(pinned.definition, "file")[0]
    return compute_series(compute_test_hash(pinned), variant, "d" * 64, "local", "file")


def test_order_and_comments_do_not_change_the_identity(pin: Pin) -> None:
    first = pin()
    second = pin(order=-1)
    assert second.hashes["test.toml"] != first.hashes["test.toml"]
    assert compute_test_hash(second) == compute_test_hash(first)
    assert key(second) == key(first)


@pytest.mark.parametrize(
    "changes",
    [
        {"test": {"name": "other"}},
        {"test": {"description": "words"}},
        {"test": {"repeats": 6, "rounds": 4, "passes": 9}},
        {"test": {"wall_limit_s": 5, "memory_limit_mb": 9}},
        {"test": {"dataset": "renamed"}},
        {"matrix": {"events": [1.0, 0.5], "bundle": ["root"]}},
        {"metrics": {"mine": {"unit": "B", "description": "words", "better": "lower"}}},
    ],
)
def test_irrelevant_changes_keep_the_series(pin: Pin, changes: dict[str, dict[str, Any]]) -> None:
    assert compute_test_hash(pin(changes)) == compute_test_hash(pin())


@pytest.mark.parametrize(
    "changes",
    [
        {"test": {"seed": 2}},
        {"test": {"tree": "other"}},
        {"test": {"payload": "again.py"}},
        {"settings": {"a": 2}},
        {"test": {"record": True}},
        {"environment": {"A": "2"}},
        {"metrics": {"mine": {"unit": "s"}}},
    ],
)
def test_relevant_changes_start_a_new_series(pin: Pin, changes: dict[str, dict[str, Any]]) -> None:
    assert compute_test_hash(pin(changes, again_py="1")) != compute_test_hash(pin())


def test_file_content_is_part_of_the_identity(pin: Pin) -> None:
    first = pin()
    second = pin(read_py="print('other')\n")
    assert compute_test_hash(first) != compute_test_hash(second)
    assert get_payload_hash(first) != get_payload_hash(second)
    listed = {"test": {"files": ["helper.h"]}}
    third = pin(listed, helper_h="1", read_py="print()\n")
    fourth = pin(listed, helper_h="2")
    assert get_payload_hash(third) == get_payload_hash(first)
    assert len({compute_test_hash(test) for test in (first, third, fourth)}) == 3


def test_series_depends_on_each_of_its_columns(pin: Pin, monkeypatch: pytest.MonkeyPatch) -> None:
    test = compute_test_hash(pin())
    one, other = expand_variants(pin().definition, "file")[:2]
    columns: list[tuple[Any, ...]] = [
        (test, one, "d", "local", "file"),
        (test, other, "d", "local", "file"),
        (test, one, "e", "local", "file"),
        (test, one, "d", "cern", "file"),
        (test, one, "d", "local", "root"),
        (test, one, "d", "local", "file", "cern"),
        (test, one, "d", "local", "file", "local"),  # the first: its own storage is no other
    ]
    keys = {compute_series(*values) for values in columns}
    monkeypatch.setattr(model, "INSTRUMENT_VERSION", metric_catalogue.INSTRUMENT_VERSION + 1)
    assert len(keys | {compute_series(*columns[0])}) == 7


def test_comparison_key_ignores_the_compared_axes(pin: Pin) -> None:
    test = pin()
    variants = expand_variants(test.definition, "file")

    def keys(*without: str) -> int:
        return len(
            {
                compute_comparison_key(
                    {
                        "test_hash": compute_test_hash(test),
                        "variant": variant.canonical_json,
                        "dataset_hash": "d",
                        "site": site,
                        "door": door,
                        "instrument_version": metric_catalogue.INSTRUMENT_VERSION,
                    },
                    without=without,
                )
                for variant in variants
                for site in ("x", "y")
                for door in ("file", "root")
            }
        )

    assert len(variants) == 4
    assert keys() == 16
    assert keys("root") == 8
    assert keys("root", "cache_mb") == 4
    assert keys("door") == 8
    assert keys("site", "door") == 4


def test_formats_share_only_the_comparison_key(pin: Pin) -> None:
    def key(format_: str, dataset: str, content: str, *without: str) -> str:
        row = {
            "test_hash": "t",
            "variant": Variant((("format", format_), ("root", "6.40.00"))).canonical_json,
            "dataset_hash": dataset,
            "content_hash": content,
            "site": "x",
            "door": "file",
            "instrument_version": 1,
        }
        return compute_comparison_key(row, without=without)

    tree, ntuple = ("ttree", "d", "d"), ("rntuple", "twin of d", "d")
    assert key(*tree, "format") == key(*ntuple, "format")
    assert key(*tree, "format") != key("rntuple", "twin of e", "e", "format")
    assert key(*tree, "root") != key("ttree", "twin of d", "d", "root")


def test_stored_rows_have_the_planned_keys(pin: Pin) -> None:
    test = pin()
    variant = expand_variants(test.definition, "file")[1]
    row: dict[str, Any] = {
        "test_hash": compute_test_hash(test),
        "variant": variant.canonical_json,
        "dataset_hash": None,  # as the database stores a test without dataset
        "site": "local",
        "door": "file",
        "instrument_version": metric_catalogue.INSTRUMENT_VERSION,
        "host": "node7",
        "axis_root": "6.40.00",
    }
    series = compute_series(compute_test_hash(test), variant, "", "local", "file")
    assert compute_comparison_key(row, without=()) == series
    assert compute_comparison_key(row, without=("root",)) != series
    assert set(SERIES_COLUMNS) <= set(metric_catalogue.METRICS_BY_NAME)


def test_labels_have_all_digits_of_values() -> None:
    values = {"a": 16777216, "b": 1234567.5, "c": 0.12345678, "d": 30.0, "e": 0.1, "branches": 0.07}
    label = Variant((*values.items(),)).label((*values,))
    assert label == "a=16777216 b=1234567.5 c=0.12345678 d=30 e=0.1 branches=7%"


def test_variant_identity_depends_on_values_alone() -> None:
    variant = Variant((("root", "6.40.00"), ("cache_mb", 30)))
    assert variant.canonical_json == Variant(variant.values[::-1]).canonical_json
    assert (
        dataclasses.replace(variant, values=(("root", "6.40.00"),)).canonical_json
        != variant.canonical_json
    )


def test_variant_without_release_is_canonical() -> None:
    texts = ('{"root":"6.38.00","a":1,"b":"x"}', '{ "b": "x", "a": 1, "root": "6.40.00" }')
    assert {drop_release_axis(text) for text in texts} == {'{"a":1,"b":"x"}'}
    assert drop_release_axis('{"a":2,"b":"x"}') == '{"a":2,"b":"x"}'
    for other in ("", "[1]", "no JSON", "[" * 50_000):
        assert drop_release_axis(other) == other
