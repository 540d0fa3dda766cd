"""The tables [[expect]]: known metrics, bounds, bases, variants and sites."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest

from treehammer.config import load_settings
from treehammer.errors import DefinitionError
from treehammer.hctests import pinned_tests
from treehammer.hctests.definition.definition_loader import load_definition, override_definition
from treehammer.hctests.definition.judged_metrics import (
    ExpectedLimit,
    LimitBounds,
    parse_stored_limits,
)
from treehammer.hctests.definition.model import Scalar, compute_test_hash

WriteTest = Callable[..., Path]

MATRIX = """
[matrix]
root = ["6.38.00", "6.40.00"]
cache_mb = [0, 30]
bundle = ["root"]

[metrics.depth]
"""
LIMITS = """
[[expect]]
metric = "cpu_per_event_s"
at_most = 1.02
base = "first"
where = { cache_mb = 30 }

[[expect]]
metric = "depth"
at_least = 4
at_most = 9
[expect.sites.SITE_A]
at_most = 12
"""


def test_limits_are_read_stored_and_no_part_of_the_identity(write_test: WriteTest) -> None:
    folder = write_test(MATRIX)
    settings = load_settings({}, environ={}, folder=folder)
    before = compute_test_hash(pinned_tests.pin_test(str(folder), settings))
    definition = load_definition(write_test(MATRIX + LIMITS))
    assert definition.expect == (
        ExpectedLimit("cpu_per_event_s", at_most=1.02, base="first", where={"cache_mb": 30}),
        ExpectedLimit("depth", 9, 4, sites={"SITE_A": LimitBounds(at_most=12)}),
    )
    assert compute_test_hash(pinned_tests.pin_test(str(folder), settings)) == before
    assert tuple(parse_stored_limits(asdict(definition)["expect"])) == definition.expect
    assert [*definition.expect[1].list_bounds("SITE_A")] == [("at_most", 12), ("at_least", 4)]
    assert [*definition.expect[1].list_bounds("local")] == [("at_most", 9), ("at_least", 4)]


def test_command_line_keeps_limits_of_remaining_variants(write_test: WriteTest) -> None:
    definition = load_definition(write_test(MATRIX + LIMITS))
    replaced = override_definition(definition, {"root": ("6.37.01", "6.40.00")}, {})
    assert replaced.expect == definition.expect
    limit = replaced.expect[0]
    assert limit.resolve_base(replaced.axes, replaced.bundle) == ("root", "6.37.01")
    without_cache = override_definition(definition, {"cache_mb": ("0",)}, {})
    assert [limit.metric for limit in without_cache.expect] == ["depth"]


@pytest.mark.parametrize(
    ("base", "resolved"),
    [
        ("", ("", "")),
        ("6.38.00", ("root", "6.38.00")),
        ("cache_mb=30", ("cache_mb", 30)),
        ("pypi:ROOT==0.1a9", ("root", "pypi:ROOT==0.1a9")),
    ],
)
def test_bases_name_an_axis_or_a_release(base: str, resolved: tuple[str, object]) -> None:
    axes: dict[str, tuple[Scalar, ...]] = {"root": ("6.38.00", "6.40.00"), "cache_mb": (0, 30)}
    assert ExpectedLimit("x", 1, base=base).resolve_base(axes, ["root"]) == resolved


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        (
            'metric = "cpu_per_evnt_s"\nat_most = 1',
            "metric: 'cpu_per_evnt_s' is not a metric; did you mean 'cpu_per_event_s'?",
        ),
        ('metric = "deph"\nat_most = 1', "metric: 'deph' is not a metric; did you mean 'depth'?"),
        ('metric = "host"\nat_most = 1', "metric: 'host' is not a number"),
        ('metric = "open_p99_s"\nat_most = 1', "which only a test with the table [load] has"),
        ('metric = "depth"', "expect: has no bound: add at_most or at_least"),
        ('metric = "depth"\nat_most = 1\nat_least = 2', "at_least = 2 is above at_most = 1"),
        (
            'metric = "depth"\nat_least = 2\n[expect.sites.A]\nat_most = 1',
            "expect.sites.A: at_least = 2 is above at_most = 1",
        ),
        (
            'metric = "depth"\nat_most = 0.0\nbase = "first"',
            "at_most: 0 is no multiple of a base (expected more than 0)",
        ),
        (
            'metric = "depth"\nat_most = 1\nbase = "6.38.0"',
            "base: '6.38.0' is not a value of root (expected one of: 6.38.00, 6.40.00); did you mean",
        ),
        (
            'metric = "depth"\nat_most = 1\nwhere = { cache = "cold" }',
            "'cold' is not a value of that axis",
        ),
        ('metric = "depth"\nat_mots = 1', "unknown key of [expect]"),
        ("at_most = 1", "expect.metric: is missing"),
        ('metric = "depth"\nat_most = "1 s"', "'1 s' is wrong (expected a number)"),
    ],
)
def test_mistakes_are_named_with_line_and_key(
    write_test: WriteTest, keys: str, problem: str
) -> None:
    with pytest.raises(DefinitionError) as caught:
        load_definition(write_test(f"{MATRIX}\n[[expect]]\n{keys}\n"))
    assert problem in "\n".join(caught.value.problems)
    assert "test.toml:1" in caught.value.problems[0]  # the table begins in line 12


def test_stored_limits_of_other_versions_are_left_out() -> None:
    documents = [{"metric": "a", "at_most": 2}, {"at_most": 1}, {"metric": "b", "at_most": []}, 7]
    assert parse_stored_limits(documents) == [ExpectedLimit("a", 2.0)]


@pytest.mark.parametrize(
    ("limit", "text"),
    [
        (ExpectedLimit("a", 2e9), "a at most 2e+09 B"),
        (ExpectedLimit("a", 1.02, base="first"), "a at most 1.02 × first"),
        (
            ExpectedLimit("a", 9, 4, where={"root": "x"}, sites={"S": LimitBounds(at_most=12)}),
            "a at most 9 B, at least 4 B, at most 12 B at S where root=x",
        ),
    ],
)
def test_limits_are_described_with_units(limit: ExpectedLimit, text: str) -> None:
    assert limit.describe("B") == text
