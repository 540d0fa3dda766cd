"""Attribution of slowdowns to a release or a site."""

from __future__ import annotations

import pytest
from simulated_campaign import SimulatedCampaign

from treehammer.analysis.comparison.attribution import (
    SeriesVerdict,
    attribute_findings,
    summarize_attribution,
)
from treehammer.analysis.comparison.comparison import ComparisonQuery, compare_samples
from treehammer.analysis.statistics.verdict import Verdict

SLOW, SAME, FEW = Verdict.SLOWER, Verdict.SAME, Verdict.NOT_ENOUGH


def said(table: dict[str, dict[str, Verdict]]) -> tuple[str, ...]:
    findings = [
        SeriesVerdict(site, label, verdict)
        for site, labels in table.items()
        for label, verdict in labels.items()
    ]
    return attribute_findings(findings, "the release")


def test_attribution_without_slowdown_is_empty() -> None:
    assert said({"A": {"x": SAME}, "B": {"x": Verdict.FASTER}}) == ()


def test_slowdown_at_all_sites_is_attributed_to_release() -> None:
    (sentence,) = said({"A": {"x": SLOW, "y": SAME}, "B": {"x": SLOW, "y": SAME}})
    assert sentence == "slower at every site, which points at the release: x"


def test_slowdown_of_all_tests_at_one_site_is_attributed_to_site() -> None:
    (sentence,) = said({"A": {"x": SLOW, "y": SLOW}, "B": {"x": SAME, "y": SAME}})
    assert sentence == "all 2 tests slower at A, which points at that site"


def test_mixed_slowdown_has_no_attribution() -> None:
    (sentence,) = said({"A": {"x": SLOW, "y": SAME}, "B": {"x": SAME, "y": SAME}})
    assert sentence.startswith("slower, but neither")
    assert "x at A" in sentence


def test_attribution_limits_listed_series() -> None:
    def slow(count: int) -> str:
        labels = [f"x{number}" for number in range(count)]
        (sentence,) = said({site: dict.fromkeys(labels, SLOW) for site in "AB"})
        return sentence.partition(": ")[2]

    assert slow(6) == "x0; x1; x2; x3; x4; x5"
    assert slow(7) == "x0; x1; x2; x3; x4; x5; and 1 more"


def test_undecided_sites_are_ignored() -> None:
    (sentence,) = said({"A": {"x": SLOW}, "B": {"x": SLOW}, "C": {"x": FEW}})
    assert "points at the release" in sentence


@pytest.mark.parametrize("verdict", [FEW, Verdict.TOO_SHORT, Verdict.BUILD_DIFFERS])
def test_undecided_series_give_no_attribution(verdict: Verdict) -> None:
    assert said({"A": {"x": verdict}, "B": {"x": verdict}}) == ()


def test_single_series_has_no_attribution() -> None:
    (sentence,) = said({"A": {"x": SLOW}})
    assert "cannot be told" in sentence


def test_attribution_names_release_and_site() -> None:
    sentences = said(
        {
            "A": {"x": SLOW, "y": SLOW, "z": SLOW},
            "B": {"x": SLOW, "y": SAME, "z": SAME},
        }
    )
    assert any("points at the release: x" in one for one in sentences)
    assert any("at A, which points at that site" in one for one in sentences)


@pytest.mark.parametrize(
    "loop_s, said_of_it",
    [
        (10.0, "Nothing slower was found that points at a site or at the release."),
        (0.5, "No verdict could be given, so nothing is attributed to a site or a cause."),
    ],
)
def test_attribution_without_verdicts_is_inconclusive(loop_s: float, said_of_it: str) -> None:
    samples = SimulatedCampaign(sites=("A", "B"), loop_s=loop_s).samples()
    found = compare_samples(samples, ComparisonQuery("root", "6.38.00", "6.40.00"), now_us=1)
    assert summarize_attribution(found.verdicts) == (said_of_it,)
