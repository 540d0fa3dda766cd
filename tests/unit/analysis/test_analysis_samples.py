"""Comparison keys, axes and parsing of axis values."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from simulated_campaign import SimulatedCampaign

from treehammer.analysis.statistics.sample import (
    BUILD_FACTS,
    SAMPLE_COLUMNS,
    comparison_key,
    count_hosts,
    find_axis_value,
    find_bundled_axes,
    find_varying_axes,
    matches_value,
    natural_sort_key,
    possible_values,
    release_key,
)
from treehammer.collectors.record.metric_catalogue import METRICS_BY_NAME
from treehammer.errors import ConfigError, NothingToDoError
from treehammer.hctests.definition.model import Scalar, Variant


def test_sample_columns_are_in_catalogue() -> None:
    assert set(SAMPLE_COLUMNS) <= set(METRICS_BY_NAME)
    assert set(BUILD_FACTS) <= set(SAMPLE_COLUMNS)


def test_comparison_key_omits_compared_axis() -> None:
    a, b, *_ = SimulatedCampaign().samples()
    assert a.axis_value("root") != b.axis_value("root")
    assert comparison_key(a, "root") == comparison_key(b, "root")
    assert comparison_key(a, "cache_mb") != comparison_key(b, "cache_mb")


@pytest.mark.parametrize(
    "change",
    [
        {"test_hash": "other"},
        {"dataset_hash": "other"},
        {"site": "other"},
        {"door": "other"},
        {"instrument_version": 2},
        {"variant": Variant((("root", "6.38.00"), ("cache_mb", 3.0)))},
    ],
)
def test_comparison_key_contains_other_axes(change: dict[str, object]) -> None:
    one = SimulatedCampaign().samples()[0]
    assert comparison_key(one, "root") != comparison_key(replace(one, **change), "root")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["host", "test_name", "job_id", "campaign_id", "dirty"])
def test_comparison_key_omits_names_and_hosts(name: str) -> None:
    one = SimulatedCampaign().samples()[0]
    other = replace(one, **{name: "other"})  # type: ignore[arg-type]
    assert comparison_key(one, "root") == comparison_key(other, "root")


def test_sites_and_doors_are_pooled_protocols_are_not() -> None:
    one = SimulatedCampaign().samples()[0]
    other = replace(one, site="x", storage_site="x", door="y")
    assert release_key(one, "root") == release_key(other, "root")
    assert release_key(one, "root") != release_key(replace(one, door_protocol="https"), "root")


def test_bundled_axes_vary_inside_jobs() -> None:
    samples = SimulatedCampaign(branches=(1.0, 0.02), cache_mb=(0.0, 30.0)).samples()
    assert find_bundled_axes(samples) == ("root",)
    varying = find_varying_axes(sample.variant for sample in samples)
    assert set(varying) == {"root", "branches", "cache_mb"}
    assert varying["branches"] == [0.02, 1.0]


def test_versions_sort_naturally() -> None:
    versions = ["6.40.00", "6.9.2", "6.38.00", "current"]
    assert sorted(versions, key=natural_sort_key) == ["6.9.2", "6.38.00", "6.40.00", "current"]
    numbers = [10**400, 1.5, 2, -1]
    assert sorted(numbers, key=natural_sort_key) == [-1, 1.5, 2, 10**400]


@pytest.mark.parametrize(
    "ordered",
    [
        ["0.04", "0.2", "0.4", "1"],
        ["fraction=0.04", "fraction=0.2", "fraction=0.4", "fraction=1", "fraction=10"],
        ["x=-1.5", "x=-0.5", "x=1e-05", "x=0.5", "x=1.25", "x=1.5", "x=10.5"],
        ["x=1.25 root=6.9", "x=1.25 root=6.10", "x=1.5 root=6.9"],
        ["branches=0.5% x=1", "branches=2% x=1", "branches=2% x=1.25", "branches=100% x=0"],
        ["0.04 · 30", "0.2 · 4", "0.2 · 30"],
        ["9.25 %", "9.5 %", "10.0 %"],
        ["6.9", "6.10", "6.38.00", "6.40.00", "v5.6.9", "v5.6.10"],
        ["server_version=5.9", "server_version=5.10"],
        ["0.9.1", "0.10.1", "1.0"],
        ["node-2.example", "node-10.example"],
        ["9" * 300, "text " + "9" * 5000],
    ],
)
def test_decimals_sort_as_numbers_and_versions_by_parts(ordered: list[str]) -> None:
    shuffled = random.Random(1).sample(ordered, len(ordered))
    assert sorted(shuffled, key=natural_sort_key) == ordered


def test_axis_values_parse_numbers_and_versions() -> None:
    samples = SimulatedCampaign(roots=("6.4", "6.40"), cache_mb=(0.0, 30.0)).samples()
    assert find_axis_value(samples, "cache_mb", "30") == 30.0
    assert find_axis_value(samples, "root", "6.40") == "6.40"
    with pytest.raises(NothingToDoError, match=r"6\.4, 6\.40"):
        find_axis_value(samples, "root", "6.400")


def test_axis_values_parse_booleans() -> None:
    one = replace(SimulatedCampaign().samples()[0], variant=Variant((("prefetch", True),)))
    assert find_axis_value([one], "prefetch", "true") is True


def test_unknown_axis_lists_known_axes() -> None:
    with pytest.raises(ConfigError, match="cache_mb") as caught:
        find_axis_value(SimulatedCampaign().samples(), "cach_mb", "0")
    assert caught.value.where == "--axis"


@pytest.mark.parametrize("text", ["1", "0.5", "1e3", "-2.0", "True", "6.40", "6.40.00", "Muon_*"])
def test_axis_value_candidates_of_text(text: str) -> None:
    known: list[Scalar] = [True, False, 1, 0.5, 1000, -2, 6.4, text, "other", 7]
    found = [*possible_values(text)]
    assert found[0] == text
    assert all(matches_value(text, value) for value in found)
    assert {repr(v) for v in known if matches_value(text, v)} <= {repr(v) for v in found}


def test_storage_sites_are_series_of_their_own_and_an_axis() -> None:
    own = SimulatedCampaign().samples()[0]
    own = replace(own, storage_site=own.site)
    far, farther = (
        replace(own, storage_site=name, door=f"{name}-door") for name in ("FAR", "FARTHER")
    )
    assert comparison_key(own, "root") == comparison_key(replace(own, storage_site=""), "root")
    assert len({release_key(one, "root") for one in (own, far, farther)}) == 3
    # Local and remote reading are compared through doors of one protocol.
    assert len({comparison_key(one, "storage_site") for one in (own, far, farther)}) == 1
    assert far.axis_value("storage_site") == "FAR"


def test_pods_of_one_machine_count_as_one_host() -> None:
    rows = [{"host": f"pod-{number}", "machine": f"wn{number % 2}"} for number in range(6)]
    assert count_hosts([*rows, {"host": "wn7"}, {"host": None, "machine": None}]) == 3
