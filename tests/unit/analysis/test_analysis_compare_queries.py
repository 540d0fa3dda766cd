"""Queries of comparisons and their sides: axes, commits, builds and values."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from captured_runs import commit_all, make_repository, run_git
from click.testing import Result
from measurement_factory import make_campaign_row
from repository_code import call_command
from simulated_campaign import (
    AT_T2_A,
    THREE,
    A,
    B,
    SimulatedCampaign,
    ask,
    changed,
    evidence,
    is_b,
    rows,
)

from treehammer import config
from treehammer.analysis.comparison import comparison_result, verdict_text
from treehammer.analysis.comparison.comparison import ComparisonQuery
from treehammer.analysis.comparison.series_changes import DETAIL_COLUMNS
from treehammer.analysis.statistics.headline_rows import load_headline_rows
from treehammer.analysis.statistics.sample import HEADLINE_METRICS, Sample, comparison_key
from treehammer.analysis.statistics.verdict import SERIES_SCOPES, Verdict
from treehammer.collectors.record.measurement_record import Measurement
from treehammer.config import Settings
from treehammer.errors import ConfigError, ExitCode, NothingToDoError, SourceError
from treehammer.hctests.definition.model import Variant, compute_setup
from treehammer.sql.core.evidence import VerdictEvidence
from treehammer.sql.read.query_model import Selection
from treehammer.sql.write.store import Store


def test_layouts_with_equal_value_checksums_are_compared() -> None:
    def read(dataset: str, effect: float, content: str) -> list[Sample]:
        made = SimulatedCampaign(
            name=dataset, roots=(A,), jobs=20, job_noise=0.02, effect=effect, checksum={A: content}
        )
        return changed(
            made.samples(), lambda _: True, dataset=dataset, dataset_hash=f"hash of {dataset}"
        )

    question = ComparisonQuery("dataset", "set", "set-by-entry")
    slower = read("set", 0.0, "1" * 64), read("set-by-entry", 0.1, "1" * 64)
    (row,) = rows(ask([*slower[0], *slower[1]], question))
    assert (row.a, row.b) == ("set", "set-by-entry")
    assert evidence(row).same_data == "same data proven"
    assert evidence(row).unpaired
    other = read("set-by-entry", 0.1, "2" * 64)
    comparison = ask([*slower[0], *other], question)
    (row,) = rows(comparison)
    assert row.verdict == Verdict.OTHER_CONTENT
    assert row.effect is not None
    assert not comparison.regressed
    assert any(note.startswith("Other content") for note in comparison.notes)


def test_datasets_of_one_campaign_have_labels_of_their_own() -> None:
    made = [
        changed(
            SimulatedCampaign(jobs=10).samples(), lambda _: True, dataset=name, dataset_hash=name
        )
        for name in ("a", "b", "")
    ]
    labels = {row.label for row in rows(ask([sample for samples in made for sample in samples]))}
    assert {label.rsplit(" ", 1)[-1] for label in labels} == {
        "dataset=a",
        "dataset=b",
        "ttree-read",
    }


def test_sites_and_campaigns_are_comparable() -> None:
    samples = SimulatedCampaign(sites=("T2_A", "T2_B"), roots=(A,), jobs=10).samples()
    comparison = ask(samples, ComparisonQuery("site", "T2_A", "T2_B"))
    assert {row.site for row in comparison.verdicts} == {"T2_A → T2_B"}
    assert comparison.over_sites == []

    before = SimulatedCampaign(
        name="before", roots=(A,), jobs=10, job_noise=0.02, loop_s=10
    ).samples()
    after = SimulatedCampaign(
        name="after", roots=(A,), jobs=10, job_noise=0.02, loop_s=12, seed=2
    ).samples()
    question = ComparisonQuery("campaign", before[0].campaign_id, after[0].campaign_id)
    (row,) = rows(ask(before + after, question))
    assert row.verdict == Verdict.SLOWER
    assert row.effect == pytest.approx(math.log(1.2), abs=0.05)


def test_incompatible_samples_are_not_mixed() -> None:
    samples = SimulatedCampaign(effect=0.06).samples()
    other = [
        replace(
            s, test_hash="other", job_id=f"{s.job_id}-other", metrics=dict.fromkeys(s.metrics, 9.0)
        )
        for s in samples
    ]
    found_rows = rows(ask(samples + other))
    assert len(found_rows) == 2
    assert len({row.label for row in found_rows}) == 2
    assert sorted(row.jobs for row in found_rows) == [8, 8]


def test_equal_queries_have_equal_identity() -> None:
    assert ComparisonQuery("root", A, B).id == ComparisonQuery("root", A, B).id
    queries = [
        ComparisonQuery("root", B, A),
        ComparisonQuery("root", A, B, delta=0.05),
        ComparisonQuery("root", A, B, selection=AT_T2_A),
        ComparisonQuery("root", A, B, where_a=AT_T2_A.conditions),
        ComparisonQuery("root", A, B, where_b=AT_T2_A.conditions),
    ]
    assert len({q.id for q in (ComparisonQuery("root", A, B), *queries)}) == 6


def test_verdicts_record_the_query() -> None:
    question = ComparisonQuery(
        "root", A, B, 0.05, AT_T2_A, where_b=Selection.parse((), ["dirty=no"]).conditions
    )
    comparison = ask(SimulatedCampaign(sites=THREE).samples(), question)
    for row in comparison.verdicts:
        row_evidence = evidence(row)
        assert (row_evidence.campaigns, row_evidence.where, row_evidence.delta) == (
            ("c1",),
            ("site=T2_A",),
            0.05,
        )
        assert (row_evidence.where_a, row_evidence.where_b) == ((), ("dirty=False",))
        title = verdict_text.comparison_title(row, {"c1": "nightly"})
        assert title == (
            f"ROOT {B} against {A}, campaign nightly and site=T2_A and B: dirty=False, ±5 %"
        )


def test_older_verdicts_have_no_recorded_query() -> None:
    (row, *_) = ask(SimulatedCampaign().samples()).verdicts
    assert verdict_text.comparison_title(row) == f"ROOT {B} against {A}, all measurements"
    older = replace(row, evidence=VerdictEvidence())
    assert verdict_text.comparison_title(older) == f"ROOT {B} against {A}, selection not recorded"


@pytest.mark.parametrize("bundled", [True, False])
@pytest.mark.parametrize("with_launches", [True, False])
def test_sides_are_means_over_jobs_as_measured(bundled: bool, with_launches: bool) -> None:
    """Calculate both sides from the rows alone: the mean over jobs of each job's mean."""
    plan = SimulatedCampaign(bundled=bundled, rounds=3, jobs=7, hosts=3, execution_noise=0.3)
    measured = [row for row in plan.rows() if row["kind"] == "timed"]
    samples = [Sample.from_row(row) for row in measured]
    if with_launches:
        samples = [
            replace(
                sample, launch_ratios=dict.fromkeys(HEADLINE_METRICS, 0.5 + 0.01 * sample.round)
            )
            if sample.axis_value("root") == B
            else sample
            for sample in samples
        ]
    comparison = ask(samples)
    for row in comparison.of_series:
        row_evidence = evidence(row)
        assert row_evidence.unpaired != bundled
        for release, value in ((A, row_evidence.a_value), (B, row_evidence.b_value)):
            jobs: dict[str, list[float]] = {}
            for execution in measured:
                if execution["axis_root"] == release:
                    jobs.setdefault(execution["job_id"], []).append(execution[row.metric])
            assert value == pytest.approx(fmean(map(fmean, jobs.values())))
    cpu, wall = map(evidence, comparison.of_series)
    for name in ("a_value", "b_value"):
        assert getattr(cpu, name) <= getattr(wall, name)  # for one thread
    (note,) = [note for note in comparison.notes if note.startswith("Times of either side")]
    assert "mean over jobs of each job's mean" in note
    assert "need not equal the ratio" in note


def test_side_is_described_by_common_axes() -> None:
    samples = SimulatedCampaign(sites=THREE, branches=(1.0, 0.5)).samples()
    for row in ask(samples).verdicts:
        for side, of in ((A, evidence(row).of_a), (B, evidence(row).of_b)):
            executions = [s for s in samples if s.kind == "timed" and s.axis_value("root") == side]
            chosen = [
                s
                for s in executions
                if s.variant.canonical_json == of["variant"] and s.site == of.get("site", s.site)
            ]
            assert len(chosen) == 8 * 2 * (1 if row.scope in SERIES_SCOPES else 3)


def test_missing_side_is_not_an_unknown_build() -> None:
    samples = SimulatedCampaign(sites=THREE).samples()
    comparison = ask([s for s in samples if not (s.site == "T2_A" and is_b(s))])
    assert {row.verdict for row in rows(comparison) if row.site == "T2_A"} == {Verdict.ONLY_IN_A}
    assert not any("Recorded for one build only" in note for note in comparison.notes)
    labels = {row.label[-14:] for row in rows(ask(changed(samples, is_b, dataset_hash="e" * 64)))}
    assert labels == {"data dddddddd)", "data eeeeeeee)"}


def test_invalid_queries_are_refused() -> None:
    with pytest.raises(ConfigError, match="both sides"):
        ComparisonQuery("root", A, A)
    with pytest.raises(ConfigError, match="between 0 and 1"):
        ComparisonQuery("root", A, B, delta=0.0)
    with pytest.raises(NothingToDoError):
        ask(SimulatedCampaign().samples(), ComparisonQuery("root", "5.34", "6.00"))


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    flags = {"data_dir": tmp_path / "data", "cache_dir": tmp_path / "cache"}
    return config.load_settings(flags, environ={}, folder=tmp_path)


def make_tagged_repository(folder: Path) -> tuple[str, str]:
    """Make a repository with two commits, ``v1`` and ``main``; return them."""
    make_repository(folder)
    first = commit_all(folder)
    run_git(folder, "tag", "v1")
    return first, commit_all(folder, "second")


def measured_rows(commit: str, *, effect: float = 0.0, **changes: Any) -> Iterator[dict[str, Any]]:
    """Measurements of a test at a commit, which has a payload of its own."""
    name = str(changes.pop("name", commit))
    campaign = SimulatedCampaign(
        name=name, roots=("6.40.00",), hosts=1, job_noise=0.001, loop_s=10 * (1 + effect)
    )
    test_hash = hashlib.sha256(commit.encode()).hexdigest()
    for row in campaign.rows():
        identity = {"commit_id": commit, "test_hash": test_hash, "test_path": "tests/read"}
        yield row | identity | {"dirty": False} | changes


def remember(stored: Settings, rows: Iterator[dict[str, Any]], **definition: Any) -> None:
    measurements = list(rows)
    first = measurements[0]
    with Store.open(stored.database) as store:
        row = make_campaign_row(
            first["campaign_id"],
            name=first["campaign_name"],
            repository=first["repository"],
            commit_id=first["commit_id"],
            plan=json.dumps({"definition": definition}),
        )
        store.add_campaign(row, [])
        store.add(map(Measurement, measurements))


def compare(settings: Settings, *arguments: str) -> tuple[int, Result]:
    result = call_command("compare", settings, *arguments, "--axis", "commit")
    return result.return_value, result


def sample(commit: str, **changes: Any) -> Sample:
    return replace(Sample.from_row(next(measured_rows(commit))), **changes)


def resolve(settings: Settings, *texts: str) -> list[str]:
    with Store.open(settings.database) as store:
        return list(comparison_result.resolve_commits(store, Selection(), texts, settings))


def test_branches_and_tags_of_separate_campaigns_are_compared(
    settings: Settings, tmp_path: Path
) -> None:
    first, second = make_tagged_repository(tmp_path / "repository")
    folder = str(tmp_path / "repository")
    remember(settings, measured_rows(first, repository=folder))
    remember(settings, measured_rows(second, effect=0.1, repository=folder))
    code, result = compare(settings, "v1", "main")
    assert code == ExitCode.REGRESSION
    assert f"main ({second[:10]}) needs 10" in result.stdout
    assert f"than v1 ({first[:10]})" in result.stdout
    code, result = compare(settings, first[:7], second[:8])
    assert code == ExitCode.REGRESSION
    assert f"commit {second[:10]} needs 10" in result.stdout


def test_commits_measured_in_another_way_exit_with_3(settings: Settings) -> None:
    a, b = "a" * 40, "b" * 40
    remember(settings, measured_rows(a), seed=1)
    remember(settings, measured_rows(b), seed=2)
    code, result = compare(settings, a, b)
    assert code == ExitCode.NOTHING
    assert "only in" in result.stdout
    assert "seed: 1 at aaaaaaaaaa, 2 at bbbbbbbbbb" in result.stderr
    with Store.open(settings.database) as store:
        stored = load_headline_rows(store, Selection(), DETAIL_COLUMNS)
        axes = {"commit": (a, b)}
        verdict = comparison_result.judge_campaign(store, store.campaigns()[0], stored, axes=axes)
    assert not verdict.results[0].is_comparable


def test_comparison_key_of_commits_omits_the_payload() -> None:
    a, b = sample("a" * 40), sample("b" * 40)
    assert comparison_key(a, "root") != comparison_key(b, "root")
    assert comparison_key(a, "commit") == comparison_key(b, "commit")
    for change in ({"test_path": "other"}, {"setup": "other"}, {"dataset_hash": "other"}):
        assert comparison_key(a, "commit") != comparison_key(replace(b, **change), "commit")  # type: ignore[arg-type]


def test_setup_omits_payload_libraries_and_matrix() -> None:
    definition = {"payload": "a.py", "libraries": ["libA"], "axes": {}, "mode": "solo", "tree": "t"}
    other = definition | {
        "payload": "b.C",
        "libraries": [],
        "axes": {"root": ["1"]},
        "record": False,
    }
    assert compute_setup(definition) == compute_setup(other)
    assert compute_setup(definition) != compute_setup({**other, "mode": "paired"})


def test_states_of_a_working_tree_are_values_of_their_own(settings: Settings) -> None:
    commit = "c0ffee" + 34 * "0"
    remember(settings, measured_rows(commit))
    remember(settings, measured_rows(commit, name="one", dirty=True, test_hash="12345678" * 8))
    tree = f"{commit}+123456781234"
    assert resolve(settings, "c0ffee", "c0ffee+dirty") == [commit, tree]
    remember(settings, measured_rows(commit, name="other", dirty=True, test_hash="9abcdef0" * 8))
    assert resolve(settings, "c0ffee+1234", "c0ffee+9") == [tree, f"{commit}+9abcdef09abc"]
    with pytest.raises(ConfigError, match="fits 2 measured commits"):
        resolve(settings, "c0ffee+dirty")


def test_unknown_commits_are_named(settings: Settings, tmp_path: Path) -> None:
    first, second = make_tagged_repository(tmp_path / "repository")
    remember(settings, measured_rows(first, repository=str(tmp_path / "repository")))
    with pytest.raises(NothingToDoError, match=f"commit main .{second[:10]}"):
        resolve(settings, "main")
    with pytest.raises(SourceError, match="v2"):
        resolve(settings, "v2")
    with pytest.raises(ConfigError, match="both sides"):
        resolve(settings, "v1", first[:9])


PACKAGED = "c++ (GCC) 14.2.1 20250110 (Red Hat 14.2.1-{})".format


@pytest.mark.parametrize(
    "fact, of_a, of_b, verdict, kind, text",
    [
        ("root_compiler", "gcc1421", "clang18", Verdict.BUILD_DIFFERS, "build", "compiler {} → {}"),
        (
            "root_compiler",
            PACKAGED(7),
            "c++ (GCC) 14.3.1 20250110 (x)",
            Verdict.BUILD_DIFFERS,
            "",
            "",
        ),
        (
            "root_compiler",
            PACKAGED(7),
            "g++ (GCC) 14.2.1 20250110 (x)",
            Verdict.BUILD_DIFFERS,
            "",
            "",
        ),
        ("root_compiler", PACKAGED(7), PACKAGED(11), Verdict.SLOWER, "repackaged", "{} → {}"),
        (
            "loop_compiler",
            "g++ -O2",
            "cling",
            Verdict.BUILD_DIFFERS,
            "build",
            "loop compiler {} → {}",
        ),
        ("zlib_version", "1.2", "1.3", Verdict.BUILD_DIFFERS, "", ""),
        ("zstd_version", "1.5.5", "1.5.7", Verdict.SLOWER, "bundled", "zstd {} → {}"),
    ],
)
def test_difference_of_builds_prevents_verdict_unless_it_belongs_to_the_release(
    fact: str, of_a: str, of_b: str, verdict: Verdict, kind: str, text: str
) -> None:
    comparison = ask(
        [
            replace(s, build={**s.build, fact: value}, is_interpreted=value == "cling")
            for s in SimulatedCampaign(effect=0.06).samples()
            for value in [of_b if is_b(s) else of_a]
        ]
    )
    (row,) = rows(comparison)
    assert (row.verdict, row.label) == (verdict, "ttree-read")
    assert comparison.regressed == (verdict is Verdict.SLOWER)
    assert row.effect == pytest.approx(0.06, abs=0.02)
    if kind:
        assert getattr(evidence(row), kind) == (text.format(of_a, of_b),)


def interpret(rows: Iterator[dict[str, Any]], *hosts: str) -> list[Sample]:
    """Let ROOT's interpreter compile the loops on some hosts, where release B is 30 % slower."""
    samples = []
    for row in rows:
        values: dict[str, Any] = {"loop_compiler": "g++ -O2"}
        if row["host"] in hosts:
            slower = 1.3 if json.loads(row["variant"])["root"] == B else 1.0
            values = {"loop_compiler": "cling", "loop_fallback": "no compiler"}
            values |= {name: slower * row[name] for name in HEADLINE_METRICS if row.get(name)}
        samples.append(Sample.from_row({**row, **values}))
    return samples


def test_two_compilers_at_a_site_are_two_series() -> None:
    """Half of the nodes have scratch without programs; together they would be 14 % slower."""
    campaign = SimulatedCampaign(jobs=24, job_noise=0.02, hosts=6)
    mixed = interpret(campaign.rows(), "t2_a-00", "t2_a-02", "t2_a-04")
    by_label = {row.label: row for row in rows(ask(mixed))}
    verdicts = {label: (row.verdict, evidence(row).jobs_a) for label, row in by_label.items()}
    assert verdicts == {
        "ttree-read": (Verdict.SAME, 12),
        "ttree-read loop=cling": (Verdict.SLOWER, 12),
    }
    assert by_label["ttree-read loop=cling"].effect == pytest.approx(math.log(1.3), abs=0.02)
    (row,) = rows(ask(interpret(campaign.rows())))
    assert row.comparison_key == by_label["ttree-read"].comparison_key


def test_sites_of_two_compilers_are_not_pooled() -> None:
    campaign = SimulatedCampaign(sites=("T2_A", "T2_B", "T2_C", "T2_D"), jobs=8, job_noise=0.02)
    hosts = [f"{site}-{number:02d}" for site in ("t2_c", "t2_d") for number in range(4)]
    pooled = {row.label: row for row in rows(ask(interpret(campaign.rows(), *hosts)), "sites")}
    assert {label: evidence(row).sites for label, row in pooled.items()} == {
        "ttree-read": ("T2_A", "T2_B"),
        "ttree-read loop=cling": ("T2_C", "T2_D"),
    }


def test_failures_without_a_compiler_follow_their_series() -> None:
    campaign = SimulatedCampaign(jobs=8, job_noise=0.02, hosts=2)
    samples = interpret(campaign.rows(), "t2_a-00", "t2_a-01")
    failed = replace(
        samples[0],
        job_id="failed",
        failure_class="open",
        is_interpreted=False,
        build={**samples[0].build, "loop_compiler": ""},
    )
    (row,) = rows(ask([failed, *samples]))
    assert (row.verdict, evidence(row).left_out) == (Verdict.SLOWER, {"failed: open": 1})


def test_verdict_is_worst_reason_and_lists_all() -> None:
    samples = [
        replace(s, build={**s.build, "root_flags": "-O0" if is_b(s) else "-O3"})
        for s in SimulatedCampaign(hosts=1, jobs=1, loop_s=0.5).samples()
    ]
    (row,) = rows(ask(samples))
    assert row.verdict == Verdict.BUILD_DIFFERS
    for reason in ("other flags", "2 s needed", "1 job on one host"):
        assert reason in evidence(row).why


def test_different_builds_of_one_request_are_detected_on_other_axes() -> None:
    campaign = SimulatedCampaign(roots=("current",), cache_mb=(0.0, 30.0), effect=0.0)
    samples = [
        replace(s, build={**s.build, "root_commit": str(s.axis_value("cache_mb"))})
        for s in campaign.samples()
    ]
    comparison = ask(samples, ComparisonQuery("cache_mb", 0.0, 30.0))
    assert {row.verdict for row in comparison.of_series} == {Verdict.BUILD_DIFFERS}


SAME, OTHER = {A: "1" * 64, B: "1" * 64}, {A: "1" * 64, B: "2" * 64}
LEAVES = '["hits.vv (vector<vector<float> >)"]', '["hits_vv (std::vector<std::vector<float>>)"]'


@pytest.mark.parametrize(
    "checksum, of_a, of_b, conclusion",
    [
        (SAME, {}, {}, "same data proven"),
        ({A: "1" * 64}, {}, {}, "not checked"),
        ({}, {}, {}, "not checked"),
        (OTHER, {}, {"checksum_skipped_leaves": '["x"]'}, "not checked"),
        (OTHER, {}, {"checksum_version": 2}, "not checked"),
        # Names of types differ by format.
        (
            SAME,
            {"checksum_skipped_leaves": LEAVES[0]},
            {"checksum_skipped_leaves": LEAVES[1]},
            "same data proven",
        ),
    ],
)
def test_equal_value_checksums_prove_same_data(
    checksum: dict[str, str], of_a: dict[str, Any], of_b: dict[str, Any], conclusion: str
) -> None:
    samples = [
        replace(s, **(of_b if is_b(s) else of_a))
        if s.kind == "checksum"
        else replace(s, events_read=5)
        for s in SimulatedCampaign(checksum=checksum).samples()
    ]
    samples.append(replace(samples[-1], events_read=3, failure_class="read"))
    samples.append(replace(samples[-2], events_read=3, plausible=False))
    assert evidence(rows(ask(samples))[0]).same_data == conclusion


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
    comparison = ask(samples, question)
    assert {row.verdict for row in comparison.verdicts} == {Verdict.VALUES_DIFFER}
    assert evidence(rows(comparison)[0]).same_data == "not the dataset's content"
    assert "another content than the dataset's" in evidence(rows(comparison)[0]).why
    assert comparison.pairs == ()


def test_shared_checksum_does_not_cover_other_axes() -> None:
    campaign = SimulatedCampaign(roots=(A,), cache_mb=(0.0, 30.0), checksum={A: "1" * 64})
    (row, *_) = ask(campaign.samples(), ComparisonQuery("cache_mb", 0.0, 30.0)).verdicts
    assert evidence(row).same_data == "not checked"
    entries = [
        replace(s, variant=Variant((("root", A), ("events", size))), events_read=int(size))
        for s in campaign.samples()
        for size in [s.axis_value("cache_mb") or 0]
    ]
    (row, *_) = ask(entries, ComparisonQuery("events", 0.0, 30.0)).verdicts
    assert evidence(row).same_data == "not checked"


def test_servers_of_both_sides_are_named() -> None:
    samples = [
        replace(s, server_version="XRootD v6.2.0" if is_b(s) else "XRootD v5.5.3")
        for s in SimulatedCampaign(effect=0.2).samples()
    ]
    comparison = ask(samples)
    assert f"Storage servers: {A} XRootD v5.5.3; {B} XRootD v6.2.0." in comparison.notes
    assert not any("changed within series" in note for note in comparison.notes)
    same = ask([replace(s, server_version="XRootD v5.5.3") for s in samples])
    assert "Storage servers of both sides: XRootD v5.5.3." in same.notes


def test_architectures_are_compared_as_an_axis() -> None:
    simulated = SimulatedCampaign(effect=0.0).samples()
    samples = [
        replace(
            s,
            job_id=f"{s.job_id}-{name}",
            host=f"{s.host}-{name}",
            architecture=name,
            build={**s.build, "root_platform": f"linux{name}"},
            metrics={metric: factor * value for metric, value in s.metrics.items()},
        )
        for name, factor in (("x86_64", 1), ("aarch64", 2))
        for s in simulated
    ]
    steps = rows(ask(samples, ComparisonQuery("architecture", "x86_64", "aarch64")))
    assert {row.verdict for row in steps} == {Verdict.SLOWER}
    assert {round(math.exp(row.effect), 3) for row in steps if row.effect} == {2.0}


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
