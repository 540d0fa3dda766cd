"""Builds and values that forbid a comparison."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from comparison_questions import THREE, A, B, ask, changed, evidence, is_b, rows
from simulated_campaign import SimulatedCampaign

from treehammer.analysis.comparison.comparison import (
    ComparisonQuery,
)
from treehammer.analysis.statistics.verdict import (
    Verdict,
)


def test_different_compiler_prevents_verdict() -> None:
    samples = [
        replace(s, build={**s.build, "root_compiler": "clang18"}) if is_b(s) else s
        for s in SimulatedCampaign(sites=THREE, effect=0.2).samples()
    ]
    found = ask(samples)
    assert {row.verdict for row in found.verdicts} == {Verdict.BUILD_DIFFERS}
    assert evidence(found.verdicts[0]).build == ("compiler gcc1421 → clang18",)
    assert found.over_sites[0].effect == pytest.approx(0.2, abs=0.02)
    assert not found.regressed


def test_loop_compiled_differently_prevents_verdict() -> None:
    samples = [
        replace(s, build={**s.build, "loop_compiler": "cling" if is_b(s) else "g++ 12.2.0 -O2"})
        for s in SimulatedCampaign(effect=0.06).samples()
    ]
    (row,) = rows(ask(samples))
    assert row.verdict == Verdict.BUILD_DIFFERS
    assert evidence(row).build == ("loop compiler g++ 12.2.0 -O2 → cling",)


def test_compiler_package_difference_is_listed_and_ignored() -> None:
    packaged = "c++ (GCC) 14.2.1 20250110 (Red Hat 14.2.1-{})".format
    samples = [
        replace(s, build={**s.build, "root_compiler": packaged(11 if is_b(s) else 7)})
        for s in SimulatedCampaign(effect=0.06).samples()
    ]
    found = ask(samples)
    assert rows(found)[0].verdict == Verdict.SLOWER
    assert evidence(rows(found)[0]).repackaged == (f"{packaged(7)} → {packaged(11)}",)
    assert any("same compiler" in note for note in found.notes)


@pytest.mark.parametrize(
    "other", ["c++ (GCC) 14.3.1 20250110 (x)", "g++ (GCC) 14.2.1 20250110 (x)"]
)
def test_compiler_version_or_name_difference_prevents_verdict(other: str) -> None:
    samples = [
        replace(
            s,
            build={
                **s.build,
                "root_compiler": other if is_b(s) else "c++ (GCC) 14.2.1 20250110 (x)",
            },
        )
        for s in SimulatedCampaign(effect=0.06).samples()
    ]
    assert rows(ask(samples))[0].verdict == Verdict.BUILD_DIFFERS


def test_verdict_is_worst_reason_and_lists_all() -> None:
    samples = [
        replace(s, build={**s.build, "root_flags": "-O0" if is_b(s) else "-O3"})
        for s in SimulatedCampaign(hosts=1, jobs=1, loop_s=0.5).samples()
    ]
    (row,) = rows(ask(samples))
    assert row.verdict == Verdict.BUILD_DIFFERS
    for reason in ("other flags", "2 s needed", "1 job on one host"):
        assert reason in evidence(row).why


def test_bundled_library_belongs_to_release() -> None:
    samples = [
        replace(s, build={**s.build, "zstd_version": "1.5.7"}) if is_b(s) else s
        for s in SimulatedCampaign(effect=0.06).samples()
    ]
    (row,) = rows(ask(samples))
    assert row.verdict == Verdict.SLOWER
    assert evidence(row).bundled == ("zstd 1.5.5 → 1.5.7",)


def test_external_library_prevents_verdict() -> None:
    samples = [
        replace(s, build={**s.build, "zlib_version": "1.3" if is_b(s) else "1.2"})
        for s in SimulatedCampaign(effect=0.06).samples()
    ]
    assert rows(ask(samples))[0].verdict == Verdict.BUILD_DIFFERS


def test_different_builds_of_one_request_are_detected_on_other_axes() -> None:
    campaign = SimulatedCampaign(roots=("current",), cache_mb=(0.0, 30.0), effect=0.0)
    samples = [
        replace(s, build={**s.build, "root_commit": str(s.axis_value("cache_mb"))})
        for s in campaign.samples()
    ]
    found = ask(samples, ComparisonQuery("cache_mb", 0.0, 30.0))
    assert {row.verdict for row in found.of_series} == {Verdict.BUILD_DIFFERS}


def test_different_values_are_not_compared() -> None:
    found = ask(SimulatedCampaign(effect=0.2, checksum={A: "1" * 64, B: "2" * 64}).samples())
    assert {row.verdict for row in found.verdicts} == {Verdict.VALUES_DIFFER}
    assert all(row.effect is None for row in found.verdicts)
    assert found.pairs == ()


@pytest.mark.parametrize(
    "checksum, said",
    [
        ({A: "1" * 64, B: "1" * 64}, "same data proven"),
        ({A: "1" * 64}, "not checked"),
        ({}, "not checked"),
    ],
)
def test_equal_value_checksums_prove_same_data(checksum: dict[str, str], said: str) -> None:
    assert evidence(rows(ask(SimulatedCampaign(checksum=checksum).samples()))[0]).same_data == said


@pytest.mark.parametrize(
    "question", [ComparisonQuery("root", A, B), ComparisonQuery("cache_mb", 0.0, 30.0)]
)
def test_damaged_files_are_not_compared(question: ComparisonQuery) -> None:
    """Detect a damaged file by its checksum although both releases read the same values."""
    campaign = SimulatedCampaign(cache_mb=(0.0, 30.0), checksum={A: "1" * 64, B: "1" * 64})
    samples = changed(
        campaign.samples(),
        lambda s: s.kind == "checksum",
        failure_class="data-check",
        value_checksum="",
    )
    found = ask(samples, question)
    assert {row.verdict for row in found.verdicts} == {Verdict.VALUES_DIFFER}
    assert evidence(rows(found)[0]).same_data == "not the dataset's content"
    assert "another content than the dataset's" in evidence(rows(found)[0]).why
    assert found.pairs == ()


def test_checksums_of_different_leaves_are_not_compared() -> None:
    samples = changed(
        SimulatedCampaign(checksum={A: "1" * 64, B: "2" * 64}).samples(),
        lambda s: is_b(s) and s.kind == "checksum",
        checksum_skipped_leaves='["x"]',
    )
    assert evidence(rows(ask(samples))[0]).same_data == "not checked"


def test_checksums_of_different_versions_are_not_compared() -> None:
    samples = changed(
        SimulatedCampaign(checksum={A: "1" * 64, B: "2" * 64}).samples(),
        lambda s: is_b(s) and s.kind == "checksum",
        checksum_version=2,
    )
    assert evidence(rows(ask(samples))[0]).same_data == "not checked"


def test_type_names_of_skipped_leaves_may_differ_by_format() -> None:
    samples = changed(
        SimulatedCampaign(checksum={A: "1" * 64, B: "1" * 64}).samples(),
        lambda s: s.kind == "checksum",
        checksum_skipped_leaves='["hits.vv (vector<vector<float> >)"]',
    )
    samples = changed(
        samples,
        lambda s: is_b(s) and s.kind == "checksum",
        checksum_skipped_leaves='["hits_vv (std::vector<std::vector<float>>)"]',
    )
    assert evidence(rows(ask(samples))[0]).same_data == "same data proven"


def test_shared_checksum_does_not_cover_other_axes() -> None:
    campaign = SimulatedCampaign(roots=(A,), cache_mb=(0.0, 30.0), checksum={A: "1" * 64})
    found = ask(campaign.samples(), ComparisonQuery("cache_mb", 0.0, 30.0))
    assert evidence(found.verdicts[0]).same_data == "not checked"


def test_servers_of_both_sides_are_named() -> None:
    samples = [
        replace(s, server_version="XRootD v6.2.0" if is_b(s) else "XRootD v5.5.3")
        for s in SimulatedCampaign(effect=0.2).samples()
    ]
    found = ask(samples)
    assert f"Storage servers: {A} XRootD v5.5.3; {B} XRootD v6.2.0." in found.notes
    assert not any("changed within series" in note for note in found.notes)
    same = ask([replace(s, server_version="XRootD v5.5.3") for s in samples])
    assert "Storage servers of both sides: XRootD v5.5.3." in same.notes


def test_server_upgrade_is_a_step_within_series() -> None:
    """Both versions are in one series, and can be compared as an axis."""
    old, new = "XRootD v5.5.3", "XRootD v6.2.0"
    simulated = SimulatedCampaign(effect=0.0).samples()
    samples = [replace(s, server_version=old) for s in simulated]
    samples += [
        replace(
            s,
            job_id=f"{s.job_id}-later",
            server_version=new,
            metrics={name: 2 * value for name, value in s.metrics.items()},
        )
        for s in simulated
    ]
    assert any("Servers changed within series" in note for note in ask(samples).notes)
    steps = rows(ask(samples, ComparisonQuery("server_version", old, new)))
    assert steps
    assert {row.verdict for row in steps} == {Verdict.SLOWER}
    assert {round(math.exp(row.effect), 3) for row in steps if row.effect} == {2.0}
