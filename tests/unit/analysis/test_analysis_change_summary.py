"""Summary of a comparison, and differences of the environments of its sides."""

from __future__ import annotations

from typing import Any

import pytest
from measurement_factory import build_verdict

from treehammer.analysis.comparison.change_summary import summarize_changes
from treehammer.analysis.comparison.comparison_notes import comparison_notes, describe_environment
from treehammer.analysis.comparison.series_sides import compare_nodes
from treehammer.analysis.statistics.sample import Sample
from treehammer.sql.core.evidence import VerdictEvidence
from treehammer.sql.core.rows import VerdictRow


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
    )
    slower, faster = (summary.to_row() for summary in summarize_changes(rows))
    assert (slower["changes"], slower["count"], slower["of"]) == ("regressions", 2, 4)
    assert slower["mean"] == pytest.approx(0.04)
    assert (slower["smallest"], slower["largest"]) == (0.03, 0.05)
    assert slower["largest_in"] == "2 % of the branches (cache_mb=0)"
    # The value that all regressions, and nothing else, have.
    assert slower["kinds"] == "2 % of the branches"
    # No single value has improved as a whole.
    assert faster["kinds"] == "all branches (cache_mb=0)"


def test_summary_names_all_kinds_and_sites_and_needs_several_verdicts() -> None:
    changes: dict[str, Any] = {"scope": "site", "verdict": "slower", "label": "read"}
    rows = [build_verdict("c", site=site, effect=0.1, **changes) for site in ("A", "B")]
    (summary,) = summarize_changes(rows)
    assert summary.to_row()["kinds"] == "all"
    assert summary.to_row()["largest_in"] == "read at A"
    assert not summarize_changes(rows[:1])
    assert not summarize_changes(build_rows(("a", "same", 0.0), ("b", "undecided", 0.1)))


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
