"""Properties of the shipped specs, computed without writing files."""

from __future__ import annotations

from collections import Counter
from functools import cache
from math import log2

import pytest

from treehammer.datasets.specs import dataset_specs

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
