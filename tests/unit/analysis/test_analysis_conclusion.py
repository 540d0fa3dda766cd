"""Conclusions of comparisons in plain sentences, their summary, and differences of environments."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from click import unstyle
from measurement_factory import build_verdict
from simulated_campaign import SimulatedCampaign

from treehammer.analysis.cli.comparison_output import describe_comparisons, list_reasons
from treehammer.analysis.comparison.change_summary import SUMMARY_COLUMNS, summarize_changes
from treehammer.analysis.comparison.comparison import ComparisonQuery, compare_samples
from treehammer.analysis.comparison.comparison_notes import comparison_notes, describe_environment
from treehammer.analysis.comparison.comparison_result import ComparisonResult
from treehammer.analysis.comparison.conclusion import (
    count_slower,
    describe_conclusion,
    select_headline,
)
from treehammer.analysis.comparison.series_sides import compare_nodes
from treehammer.analysis.statistics.estimates import find_scatter
from treehammer.analysis.statistics.sample import Sample
from treehammer.analysis.statistics.verdict import Verdict, attach_controls
from treehammer.sql.core.evidence import ControlCheck, VerdictEvidence
from treehammer.sql.core.rows import VerdictRow
from treehammer.sql.read.stored_comparisons import VerdictCount
from treehammer.terminal import TextTable

A, B = "6.38.00", "6.40.00"
CPU, WALL = "cpu_per_event_s", "wall_per_event_s"
LESS, MORE, UNCLEAR = (-1.7, -2.6, -0.8), (3.1, 2.2, 4.0), (0.9, -0.8, 2.6)


def make_row(
    verdict: Verdict,
    change: tuple[float, float, float] | None = None,
    label: str = "branches=100%",
    **values: Any,
) -> VerdictRow:
    """Make a row; ``change`` is the effect with its interval, in percent."""
    effect, low, high = (math.log1p(percent / 100) for percent in change) if change else (None,) * 3
    row: dict[str, Any] = {
        "scope": "host",
        "site": "local",
        "comparison_key": label,
        "label": label,
        "verdict": str(verdict),
        "effect": effect,
        "low": low,
        "high": high,
        "evidence": VerdictEvidence(delta=0.02, campaigns=()),
    }
    return build_verdict("c", **{**row, **values})


@pytest.mark.parametrize(
    "verdict, change, sentence",
    [
        (
            Verdict.SLOWER,
            MORE,
            f"ROOT {B} needs 3.1 % (2.2 to 4.0 %) more CPU time per event than {A}",
        ),
        (
            Verdict.FASTER,
            (-9.0, -12.0, -6.0),
            f"ROOT {B} needs 9.0 % (6.0 to 12.0 %) less CPU time per event than {A}",
        ),
        (
            Verdict.DIFFERENT,
            LESS,
            f"ROOT {B} needs 1.7 % (0.8 to 2.6 %, not surely beyond 2 %) less CPU time per event "
            f"than {A}",
        ),
        (
            Verdict.SAME,
            (0.1, -0.4, 0.6),
            f"there is no difference beyond 2 % in CPU time per event between ROOT {B} and {A}",
        ),
        (
            Verdict.UNDECIDED,
            UNCLEAR,
            f"it is undecided whether ROOT {B} needs more or less CPU time per event than {A} "
            "(between 0.8 % less and 2.6 % more)",
        ),
        (
            Verdict.NOT_ENOUGH,
            None,
            f"there are not enough data to compare the CPU time per event of ROOT {B} and {A}",
        ),
        (Verdict.TOO_LITTLE, None, f"too little was read to compare ROOT {B} and {A}"),
        (
            Verdict.BUILD_DIFFERS,
            None,
            f"ROOT {B} and {A} are not compared, because their builds differ",
        ),
        (
            Verdict.VALUES_DIFFER,
            None,
            f"ROOT {B} and {A} are not compared, because they read different values",
        ),
        (Verdict.ONLY_IN_A, None, f"ROOT {B} was not measured"),
        (Verdict.ONLY_IN_B, None, f"ROOT {A} was not measured"),
        (Verdict.FAILED, None, f"ROOT {B} and {A} are not compared, because measurements failed"),
    ],
)
def test_every_verdict_has_a_sentence(
    verdict: Verdict, change: tuple[float, float, float] | None, sentence: str
) -> None:
    assert describe_conclusion([make_row(verdict, change)]) == f"On this host, {sentence}."


def test_variants_with_different_verdicts_are_named() -> None:
    rows = [
        make_row(Verdict.SAME, (0.0, -0.5, 0.5), "branches=2% cache_mb=30"),
        make_row(Verdict.DIFFERENT, LESS, "branches=100% cache_mb=30"),
        make_row(Verdict.UNDECIDED, UNCLEAR, "events=50%"),
    ]
    assert describe_conclusion(rows) == (
        f"On this host, ROOT {B} needs 1.7 % (0.8 to 2.6 %, not surely beyond 2 %) less CPU time "
        f"per event than {A} for all branches (cache_mb=30); there is no difference beyond 2 % "
        "for 2 % of the branches (cache_mb=30); "
        "it is undecided (between 0.8 % less and 2.6 % more) for 50 % of the events."
    )


def test_series_with_the_same_label_leave_no_gap() -> None:
    rows = [
        make_row(Verdict.SLOWER, MORE, comparison_key="one"),
        make_row(Verdict.ONLY_IN_A, comparison_key="other"),
    ]
    assert describe_conclusion(rows).endswith(f" than {A}; ROOT {B} was not measured.")


def test_many_variants_are_counted_with_the_range_of_their_changes() -> None:
    rows = [make_row(Verdict.SLOWER, (n, n - 1, n + 1), f"cache_mb={n}") for n in (4, 6, 5, 7)]
    assert describe_conclusion(rows) == (
        f"On this host, ROOT {B} needs 4.0 to 7.0 % more CPU time per event than {A} in all 4 variants."
    )
    rows.append(make_row(Verdict.TOO_LITTLE, None, "cache_mb=0"))
    assert "in 4 of 5 variants; too little was read for cache_mb=0." in describe_conclusion(rows)
    rows += [make_row(Verdict.FAILED, None, f"cache_mb={n}") for n in (8, 9, 10, 11)]
    rows += [make_row(Verdict.ONLY_IN_B, None, "cache_mb=20", comparison_key=key) for key in "abcd"]
    text = describe_conclusion(rows)
    assert "4 of 9 variants (for cache_mb=8, for cache_mb=9, for cache_mb=10 and 1 more)." in text
    assert f"; ROOT {A} was not measured in 4 other cases (for cache_mb=20, " in text


def test_planted_limit_is_different_but_not_relevant() -> None:
    at_limit = make_row(Verdict.DIFFERENT, (2.0, 1.8, 2.2), "branches=2%")
    beyond = make_row(Verdict.SLOWER, (3.4, 3.0, 3.8))
    assert describe_conclusion([at_limit, beyond]) == (
        f"On this host, ROOT {B} needs 2.0 to 3.4 % (not all surely beyond 2 %) more CPU time per "
        f"event than {A} for 2 % of the branches and for all branches."
    )
    (note,) = [n for n in comparison_notes([at_limit, beyond]) if n.startswith("Different: ")]
    assert "may lie within ±2 %" in note
    assert not [n for n in comparison_notes([beyond]) if n.startswith("Different: ")]


def test_wall_time_is_mentioned_where_its_claim_differs() -> None:
    rows = [
        make_row(Verdict.SAME, (0.0, -0.5, 0.5)),
        make_row(Verdict.SAME, (0.0, -0.5, 0.5), "branches=2%"),
        make_row(Verdict.SAME, (0.1, -0.5, 0.5), metric=WALL),
    ]
    assert "wall" not in describe_conclusion(
        [*rows, make_row(Verdict.SAME, (0.2, -0.5, 0.5), "branches=2%", metric=WALL)]
    )
    text = describe_conclusion([*rows, make_row(Verdict.SLOWER, MORE, "branches=2%", metric=WALL)])
    assert text.endswith(
        f"for all branches and for 2 % of the branches. ROOT {B} needs 3.1 % (2.2 to 4.0 %) more "
        f"wall time per event than {A} for 2 % of the branches."
    )


def test_wall_time_follows_cpu_time_where_the_same_is_claimed() -> None:
    labels = ("branches=2%", "branches=100%")
    rows = [make_row(Verdict.SLOWER, MORE, label) for label in labels]
    walls = [make_row(Verdict.SLOWER, (4.0, 3.0, 5.0), label, metric=WALL) for label in labels]
    text = describe_conclusion([*rows, *walls])
    assert f"more CPU time per event than {A} (wall time 4.0 %) for 2 % of the branches" in text
    other = [walls[0], make_row(Verdict.UNDECIDED, UNCLEAR, labels[1], metric=WALL)]
    assert "(wall time" not in describe_conclusion([*rows, *other])


def test_pooled_variants_say_over_how_many_sites() -> None:
    rows = [
        make_row(
            Verdict.SAME,
            (0.1, -0.4, 0.6),
            f"cache_mb={count}",
            scope="sites",
            site="",
            hosts=count,
            evidence=VerdictEvidence(delta=0.02, sites=tuple(map(str, range(count))), tau=0.01),
        )
        for count in (11, 1200, 4, 5)
    ]
    text = describe_conclusion(rows)
    assert text.startswith("Over 4 to 1,200 sites, there is no difference beyond 2 %")
    assert text.endswith("in all 4 variants.")


def test_results_of_several_sites_name_them() -> None:
    rows = [
        make_row(Verdict.SLOWER, MORE, scope="site", site="T2_A", hosts=4),
        make_row(Verdict.ONLY_IN_A, None, site="T2_B", hosts=0),
    ]
    assert describe_conclusion(rows) == (
        f"ROOT {B} needs 3.1 % (2.2 to 4.0 %) more CPU time per event than {A} at T2_A; "
        f"ROOT {B} was not measured at T2_B."
    )


def test_variant_without_effect_over_sites_is_not_hidden() -> None:
    evidence = VerdictEvidence(delta=0.02, sites=("A", "B"))
    rows = [
        make_row(Verdict.SLOWER, MORE, scope="sites", site="", hosts=8, evidence=evidence),
        make_row(Verdict.NOT_ENOUGH, None, "branches=2%", scope="sites", site="", hosts=0),
        make_row(Verdict.ONLY_IN_A, None, "branches=2%"),
    ]
    assert describe_conclusion(rows) == (
        f"On average at these 2 sites, ROOT {B} needs 3.1 % (2.2 to 4.0 %) more CPU time per event "
        f"than {A} for all branches; there are not enough data for 2 % of the branches."
    )


def make_mixed_rows() -> list[VerdictRow]:
    """One variant is judged over sites, another at one of its sites alone, and a third nowhere."""
    evidence = VerdictEvidence(delta=0.02, sites=("A", "B"))
    over_sites: dict[str, Any] = {"scope": "sites", "site": "", "hosts": 8}
    return [
        make_row(Verdict.SAME, (0.1, -0.4, 0.6), "branches=2%", site="A"),
        make_row(Verdict.TOO_LITTLE, None, "branches=2%", site="B"),
        make_row(Verdict.NOT_ENOUGH, None, "branches=2%", **over_sites),
        make_row(Verdict.SLOWER, MORE, site="A"),
        make_row(Verdict.UNDECIDED, UNCLEAR, site="B"),
        make_row(Verdict.SLOWER, MORE, **over_sites, evidence=evidence),
        make_row(Verdict.ONLY_IN_A, None, "branches=5%", site="A"),
        make_row(Verdict.NOT_ENOUGH, None, "branches=5%", **over_sites),
    ]


def test_headline_is_of_the_widest_scope_with_a_verdict() -> None:
    headline = select_headline(make_mixed_rows())
    assert [(row.label, row.scope, row.verdict) for row in headline] == [
        ("branches=2%", "host", "same"),
        ("branches=2%", "host", "too little read"),
        ("branches=100%", "sites", "slower"),
        ("branches=5%", "sites", "not enough data"),
    ]


def test_slower_variants_are_counted_once_for_all_sites() -> None:
    rows = [
        VerdictCount("cpu_per_event_s", label, "site", verdict, 20, 0.05)
        for label, verdict in (
            ("2%", "slower"),
            ("2%", "same"),
            ("5%", "same"),
            ("9%", "undecided"),
            ("7%", "only in A"),
        )
    ]
    assert count_slower(rows) == (1, 2, 3, "by site")


def test_place_of_a_verdict_that_no_site_enters_has_no_number() -> None:
    rows = [make_row(Verdict.TOO_LITTLE, None, scope="sites", site="", hosts=0)]
    assert describe_conclusion(rows).startswith("Over sites, too little was read to compare")


def test_conclusion_names_the_scope_of_each_part() -> None:
    assert describe_conclusion(make_mixed_rows()) == (
        f"ROOT {B} needs 3.1 % (2.2 to 4.0 %) more CPU time per event than {A} for all branches on "
        "average at these 2 sites; there is no difference beyond 2 % for 2 % of the branches at A; "
        "there are not enough data for 5 % of the branches; too little was read for 2 % of the "
        "branches at B."
    )


def test_effects_over_sites_replace_those_of_sites() -> None:
    rows = compare_samples(
        SimulatedCampaign(sites=("A", "B", "C", "D"), effect=0.1).samples(),
        ComparisonQuery("root", A, B),
        now_us=1,
    ).verdicts
    text = describe_conclusion(rows)
    assert text.startswith(f"Over 4 sites, ROOT {B} needs 10.")
    assert len(text.split(". ")) == 1


def test_other_axes_are_named_with_their_values() -> None:
    row = make_row(Verdict.DIFFERENT, LESS, axis="cache_mb", a="0", b="30")
    assert "cache_mb=30 needs" in describe_conclusion([row])
    check = ControlCheck(CPU, "0", 1, 0.002, None, None, None)
    text = describe_conclusion(attach_controls([row], [check]))
    assert "than cache_mb=0. The only control launch (cache_mb=0 against itself) differs" in text
    row = make_row(Verdict.DIFFERENT, LESS, axis="campaign", a="c1", b="c2")
    assert "campaign night needs" in describe_conclusion([row], names={"c2": "night"})


@pytest.mark.parametrize(
    "mean, sd, launches, sentence",
    [
        (0.002, 0.006, 6, "The control (6.38.00 against itself) differs by 0.2 %, which is fine."),
        (
            -0.03,
            0.08,
            6,
            "The control (6.38.00 against itself) differs by 3.0 %, which may be its scatter.",
        ),
        (0.002, None, 1, "The only control launch (6.38.00 against itself) differs by 0.2 %."),
    ],
)
def test_control_follows_the_result(
    mean: float, sd: float | None, launches: int, sentence: str
) -> None:
    low, high = (None, None) if sd is None else (mean - sd, mean + sd)
    check = ControlCheck(CPU, A, launches, mean, sd, low, high)
    text = describe_conclusion(attach_controls([make_row(Verdict.SLOWER, MORE)], [check]))
    assert text.endswith(f"than {A}. {sentence}")


def test_control_of_the_headline_that_is_off_comes_first() -> None:
    good = ControlCheck(WALL, A, 6, 0.001, 0.002, -0.001, 0.003)
    off = ControlCheck(CPU, A, 6, 0.03, 0.002, 0.028, 0.032)
    row = make_row(Verdict.CONTROL_OFF, MORE)
    text = describe_conclusion(attach_controls([row], [off, good]))
    assert text == (
        "Do not trust the CPU time: the control (6.38.00 against itself) differs by 3.0 %, although it "
        f"compares equals. On this host, there is no verdict on the CPU time per event of ROOT {B} and "
        f"{A}, since the control is off."
    )
    # Wall time does not concern the answer on CPU time.
    good, off = replace(good, metric=CPU), replace(off, metric=WALL)
    text = describe_conclusion(attach_controls([make_row(Verdict.SLOWER, MORE)], [good, off]))
    assert text.startswith("On this host")
    assert "Do not trust the wall time: the control" in text


def test_nothing_to_conclude() -> None:
    assert (describe_comparisons([]), describe_conclusion([])) == ([], "")


def test_answer_stands_first_and_alone() -> None:
    samples = SimulatedCampaign(effect=0.1).samples()
    comparison = compare_samples(samples, ComparisonQuery("root", A, B), now_us=1)
    answer, *blocks = describe_comparisons([ComparisonResult(comparison)])
    assert unstyle(str(answer)).startswith(f"At T2_A, ROOT {B} needs 10.")
    assert "against itself" not in str(answer)
    assert not [block for block in blocks if isinstance(block, str) and block]
    wall = next(block for block in blocks if isinstance(block, TextTable)).rows[1]
    assert (wall["metric"], "would decide" in wall["shown_verdict"]) == (WALL, False)


def test_reason_for_no_verdict_names_its_variants() -> None:
    evidence = VerdictEvidence(why="0.3 s", remedy="read more")
    rows = [make_row(Verdict.TOO_LITTLE, None, f"n={n}", evidence=evidence) for n in (1, 2)]
    assert [*list_reasons(rows)] == ["Too little read for n=1, for n=2: 0.3 s; read more."]


def test_results_that_differ_come_before_times() -> None:
    rows = [make_row(Verdict.SLOWER, MORE)]
    counters = {
        "pairs": ("fewer", 1000.0, 818.0, 5, ""),
        "digest_hash": ("other", 1.0, 2.0, 5, ""),
        "read_calls": ("more", 1.0, 2.0, 5),
        "steps": ("varies", 1.0, 2.0, 5, ""),
    }
    rows[0] = replace(rows[0], evidence=replace(rows[0].evidence, counters=counters))
    expected = "pairs −18.2 %, digest_hash changed: the results differ. On this host, ROOT"
    assert describe_conclusion(rows).startswith(expected)


def test_wall_time_that_lacks_jobs_is_no_news() -> None:
    rows = [make_row(Verdict.SLOWER, MORE), make_row(Verdict.UNDECIDED, UNCLEAR, metric=WALL)]
    assert "wall" not in describe_conclusion(rows)
    assert "undecided" in describe_conclusion(rows[1:])


@pytest.mark.parametrize("spread, scatters", [(0.09, True), (0.02, False)])
def test_certain_effect_stands_before_its_scatter(spread: float, scatters: bool) -> None:
    ratios = [0.5 + spread * step for step in (-1, -0.5, 0, 0.5, 1)]
    scatter = find_scatter(ratios, 1, 0.007**2)
    assert bool(scatter) == scatters
    size = "scatters 5 times more from launch to launch than equal sides"
    for verdict, values in ((Verdict.SLOWER, MORE), (Verdict.UNDECIDED, UNCLEAR)):
        row = make_row(verdict, values)
        row = replace(row, evidence=replace(row.evidence, scatter=scatter))
        text = describe_conclusion([row, make_row(verdict, values, metric=WALL)])
        assert (size in text) == scatters
        assert ("on average" in text) == (scatters and verdict is Verdict.UNDECIDED)
        is_claimed = verdict is Verdict.SLOWER or not scatters
        assert ("needs" in text.partition(size)[0]) == is_claimed, text


def build_rows(*effects: tuple[str, str, float]) -> list[VerdictRow]:
    return [
        build_verdict("c", label=label, verdict=verdict, effect=effect)
        for label, verdict, effect in effects
    ]


def test_summary_counts_regressions_and_improvements_with_their_sizes() -> None:
    rows = build_rows(
        ("branches=2% cache_mb=0", "slower", 0.05),
        ("branches=2% cache_mb=30", "slower", 0.03),
        ("branches=100% cache_mb=0", "faster", -0.04),
        ("branches=100% cache_mb=30", "same", 0.001),
        ("branches=2% cache_mb=60", "only in A", 0.0),
    )
    slower, faster = (summary.to_row() for summary in summarize_changes(rows))
    assert (slower["changes"], slower["count"], slower["of"]) == ("regressions", 2, 4)
    sizes = (slower["smallest"], slower["mean"], slower["largest"])
    assert sizes == pytest.approx((0.03, 0.04, 0.05))
    assert slower["largest_in"] == "2 % of the branches (cache_mb=0)"
    # The value that all regressions, and nothing else, have.
    assert slower["kinds"] == "2 % of the branches"
    # No single value has improved as a whole.
    assert faster["kinds"] == "all branches (cache_mb=0)"


def test_summary_names_all_kinds_and_sites_and_needs_several_verdicts() -> None:
    changes: dict[str, Any] = {"scope": "site", "verdict": "slower", "label": "read"}
    rows = [build_verdict("c", site=site, effect=0.1, **changes) for site in ("A", "B")]
    (summary,) = summarize_changes(rows)
    assert (summary.kinds, summary.to_row()["largest_in"]) == ("all", "read at A")
    assert not summarize_changes(rows[:1])
    assert all(column.title or column.hidden for column in SUMMARY_COLUMNS)
    assert not summarize_changes(build_rows(("a", "same", 0.0), ("b", "undecided", 0.1)))
    rows = build_rows(("command=sort -n", "slower", 0.1), ("command=wc -l", "same", 0.0))
    assert summarize_changes(rows)[0].kinds == "command=sort -n"


def test_environment_names_builds_libraries_nodes_and_servers_that_differ() -> None:
    evidence = VerdictEvidence(
        unpaired=True,
        build=("compiler gcc 13 → gcc 14",),
        bundled=("zlib 1.2 → 1.3",),
        nodes=("CPU model a → b",),
        servers_a=("5.7",),
        servers_b=("5.8",),
    )
    rows = [build_verdict("c", scope="host", verdict="build differs", evidence=evidence)]
    build, library, nodes, servers = describe_environment(rows)
    assert "gcc 13 → gcc 14" in build
    assert "zlib 1.2 → 1.3" in library
    assert nodes.startswith("Nodes differ between the sides, whose effect cannot be told from")
    assert "6.38.00 5.7; 6.40.00 5.8" in servers
    assert {build, library, nodes, servers} < {*comparison_notes(rows)}
    same = VerdictEvidence(servers_a=("5.7",), servers_b=("5.7",))
    rows = [build_verdict("c", scope="host", evidence=same)]
    assert describe_environment(rows) == []
    assert "Storage servers of both sides: 5.7." in comparison_notes(rows)


def test_nodes_are_compared_by_what_both_sides_recorded() -> None:
    def build(**node: str) -> Sample:
        sample = object.__new__(Sample)
        object.__setattr__(sample, "node", node)
        return sample

    a = [build(cpu_model=f"m{number}", os_name="EL9") for number in range(5)]
    b = [build(cpu_model="m0", os_name="EL9", kernel="6.1")]
    assert compare_nodes(a, b) == ("CPU model m0 and m1 and m2 and 2 more → m0",)
    assert compare_nodes(a, a) == ()
