from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treehammer.hctests.definition.definition_loader import load_definition
from treehammer.hctests.definition.matrix import (
    derive_job_seed,
    expand_variants,
    find_label_axes,
    group_variants,
    order_executions,
)
from treehammer.hctests.definition.model import Variant, VariantGroup

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
    found: list[list[int]] = [[] for _ in range(rounds)]
    for round_, position, variant in order_executions(letters(count), rounds, seed):
        found[round_ - 1].append(int(variant["letter"]))
        assert position == len(found[round_ - 1])
    return found


def axes_of(variants: tuple[Variant, ...], *names: str) -> set[tuple[object, ...]]:
    return {tuple(variant[name] for name in names) for variant in variants}


def test_matrix_is_expanded_and_grouped(write_test: WriteTest) -> None:
    definition = load_definition(write_test(MATRIX))
    variants = expand_variants(definition, "file")
    assert len(variants) == len(set(variants)) == 12
    groups = group_variants(definition, "file")
    assert [len(group.variants) for group in groups] == [2] * 6
    for group in groups:
        assert len(axes_of(group.variants, "branches", "cache_mb")) == 1
        assert [variant["root"] for variant in group.variants] == ["6.38.00", "6.40.00"]
    assert find_label_axes(definition) == ("root", "branches", "cache_mb")


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


def test_duplicate_variants_are_merged(write_test: WriteTest) -> None:
    definition = load_definition(write_test(MATRIX + "[[include]]\ncache_mb = 3\n"))
    assert len(expand_variants(definition, "file")) == 12


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


@given(st.integers(1, 40), st.integers(0, 2**63))
def test_two_variants_alternate(rounds: int, seed: int) -> None:
    found = rows(2, rounds, seed)
    assert all(sorted(row) == [0, 1] for row in found)
    assert all(a != b for a, b in pairwise(found))


@given(st.integers(1, 9), st.integers(1, 25), st.integers(0, 2**63))
def test_rounds_are_complete_and_mirrored(count: int, rounds: int, seed: int) -> None:
    found = rows(count, rounds, seed)
    assert all(sorted(row) == list(range(count)) for row in found)
    for even, odd in zip(found[::2], found[1::2], strict=False):
        assert odd == even[::-1]
    assert rows(count, rounds, seed) == found


@given(st.integers(2, 9), st.integers(0, 2**63))
def test_full_set_of_rounds_is_balanced(count: int, seed: int) -> None:
    rounds = count if count % 2 == 0 else 2 * count
    found = rows(count, rounds, seed)
    positions = Counter((letter, place) for row in found for place, letter in enumerate(row))
    assert set(positions.values()) == {rounds // count}
    assert len(positions) == count * count
    followers = Counter(pair for row in found for pair in pairwise(row))
    assert set(followers.values()) == {rounds // count}
    assert len(followers) == count * (count - 1)


@pytest.mark.parametrize("count", [2, 3, 4, 5])
def test_positions_are_equally_frequent_over_jobs(count: int) -> None:
    jobs = 3000
    first = Counter(rows(count, 1, derive_job_seed(7, job))[0][0] for job in range(jobs))
    for letter in range(count):
        assert first[letter] == pytest.approx(jobs / count, rel=0.15)


def test_orders_are_stable() -> None:
    # Fixed values: planning a campaign again must give the same orders.
    assert rows(3, 4, 1) == [[0, 2, 1], [1, 2, 0], [2, 1, 0], [0, 1, 2]]
    assert derive_job_seed(1, "site", 2) == 20432702097683249
