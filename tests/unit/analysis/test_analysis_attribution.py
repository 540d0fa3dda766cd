"""Attribution of slowdowns to a release or a site."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from simulated_campaign import SimulatedCampaign

from treehammer.analysis.comparison.comparison import (
    Comparison,
    ComparisonQuery,
    compare_samples,
)
from treehammer.analysis.comparison.comparison_notes import (
    MAX_NAMED,
    attribute_rows,
    summarize_attribution,
)
from treehammer.analysis.statistics.sample import Sample

SITES = ("A", "B", "C", "D", "E")
BOTH = SimulatedCampaign(sites=SITES, branches=(1.0, 0.5), hosts=3, jobs=6)


def ask(samples: list[Sample]) -> Comparison:
    return compare_samples(samples, ComparisonQuery("root", "6.38.00", "6.40.00"), now_us=1)


def said(campaign: SimulatedCampaign) -> tuple[str, ...]:
    return attribute_rows(ask(campaign.samples()).verdicts)


def slow_down(samples: list[Sample], **where: object) -> list[Sample]:
    """Make side B 10 % slower where fields or axes have these values."""

    def matches(sample: Sample) -> bool:
        found = {**vars(sample), **dict(sample.variant.values)}
        return all(found[name] == value for name, value in where.items())

    return [
        replace(s, metrics={name: 1.1 * value for name, value in s.metrics.items()})
        if s.axis_value("root") == "6.40.00" and matches(s)
        else s
        for s in samples
    ]


def test_attribution_without_slowdown_is_empty() -> None:
    assert said(BOTH) == ()
    assert said(replace(BOTH, effect=-0.1)) == ()


@pytest.mark.parametrize("noise", [0.01, 0.03])
def test_slowdown_at_all_sites_is_attributed_to_release(noise: float) -> None:
    sentences = said(replace(BOTH, effect=0.06, execution_noise=noise))
    assert sentences == (
        "CPU and wall: slower over the sites, which points at the release: "
        "branches=50%; branches=100%",
    )


@pytest.mark.parametrize("noise", [0.01, 0.03])
@pytest.mark.parametrize("sites", [3, 5])
def test_slow_site_is_set_apart(noise: float, sites: int) -> None:
    effects: Mapping[str, float] = {"B": 0.1}
    campaign = replace(BOTH, sites=SITES[:sites], effect_at=effects, execution_noise=noise)
    (sentence,) = said(campaign)
    assert sentence.startswith("CPU and wall: B is ")
    assert sentence.endswith("than the other sites, which points at that site")


def test_slow_variant_is_attributed_to_release() -> None:
    (sentence,) = attribute_rows(ask(slow_down(BOTH.samples(), branches=0.5)).verdicts)
    assert (
        sentence == "CPU and wall: slower over the sites, which points at the release: branches=50%"
    )


def test_release_and_site_are_separated() -> None:
    samples = slow_down(BOTH.samples(), branches=0.5)
    first, second = attribute_rows(ask(slow_down(samples, site="C")).verdicts)
    assert "slower at the other sites, which points at the release: branches=50%" in first
    assert second.endswith("than the other sites, which points at that site")
    assert "C is 9.8 % slower" in second


def test_one_slow_host_or_series_is_no_slow_site() -> None:
    for where in ({"host": "b-01"}, {"site": "B", "branches": 0.5}):
        found = ask(slow_down(BOTH.samples(), **where))
        assert not any("points at" in sentence for sentence in attribute_rows(found.verdicts))


def test_undecided_site_contradicts_nothing() -> None:
    noisy = replace(BOTH, sites=("Z",), effect=0.06, execution_noise=0.2, jobs=3, name="noisy")
    found = ask([*replace(BOTH, effect=0.06).samples(), *noisy.samples()])
    assert any("points at the release" in sentence for sentence in attribute_rows(found.verdicts))


def test_single_site_leaves_release_or_site() -> None:
    (sentence,) = said(replace(BOTH, sites=("A",), effect=0.1))
    assert sentence.endswith("points at the release or at that site")


def test_attribution_limits_listed_variants() -> None:
    branches = tuple(0.1 * number for number in range(1, MAX_NAMED + 2))
    campaign = replace(BOTH, branches=branches, effect=0.1, loop_s=30)
    (sentence,) = said(campaign)
    assert sentence.endswith("; and 1 more")


@pytest.mark.parametrize(
    "loop_s, sentence",
    [
        (10.0, "Nothing slower was found that points at a site or at the release."),
        (0.5, "No verdict could be given, so nothing is attributed to a site or a cause."),
    ],
)
def test_attribution_without_verdicts_is_inconclusive(loop_s: float, sentence: str) -> None:
    samples = SimulatedCampaign(sites=("A", "B"), loop_s=loop_s).samples()
    assert summarize_attribution(ask(samples).verdicts) == (sentence,)
