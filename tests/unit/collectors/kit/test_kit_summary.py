"""Summary of passes to the values of the record."""

from __future__ import annotations

from typing import Any

import pytest

from treehammer.collectors.kit.treehammer_kit import pass_summary
from treehammer.collectors.kit.treehammer_kit.pass_summary import LATENCY_PARTS as PARTS
from treehammer.collectors.kit.treehammer_kit.pass_summary import LOOP_COUNTERS, FileRead, PassRead
from treehammer.collectors.record import metric_catalogue
from treehammer.collectors.record.measurement_record import describe_value_error


def one_file(
    loop: tuple[float, float, float] = (2.0, 1.0, 0.5),
    *,
    queue: float = 0.25,
    events: int = 100,
    **changes: Any,
) -> FileRead:
    figures: dict[str, Any] = {
        "phases": {**dict.fromkeys(pass_summary.PASS_PHASES, (0.1, 0.05, 0.01)), "loop": loop},
        "events": events,
        "unzipped_bytes": 8000,
        "file_size": 10_000,
        "file_class": "TFile",
        "cached": True,
        "prefetching": False,
        "cache_size": 3_000_000,
        "cache_efficiency": 0.9,
        "cache_efficiency_rel": 0.8,
        "first_byte_s": 0.02,
        "longest_read_s": 7e-6,
        "run_queue_s": queue,
        "latencies": [0] * (2 * PARTS) + [4] + [0] * (30 * PARTS - 1),  # all in [4, 4.25) us
        "counters": dict.fromkeys(LOOP_COUNTERS, 5),
    }
    return FileRead(**{**figures, **changes})


def one_pass(*args: Any, **kwargs: Any) -> PassRead:
    return PassRead([one_file(*args, **kwargs)])


def test_phases_and_bins_match_the_catalogue() -> None:
    assert pass_summary.PASS_PHASES == metric_catalogue.PASS_PHASES
    assert (
        len(pass_summary.summarize_tree_passes([one_pass()])["read_latency_hist"])
        == metric_catalogue.LATENCY_BINS
    )


def test_prefetched_reads_are_those_without_read_events() -> None:
    def count(reads: int, events: int, **changes: Any) -> dict[str, Any]:
        counters = {"read_calls": reads, "perfstats_read_calls": events}
        counters = {**dict.fromkeys(LOOP_COUNTERS, 5), **counters}
        one = one_pass(counters=counters, file_class="TNetXNGFile", **changes)
        return pass_summary.summarize_tree_passes([one, one])

    assert count(20, 20)["read_calls_prefetch"] == 0
    assert "read_calls_single" in count(20, 20)
    ahead = count(20, 3, prefetching=True)
    assert ahead["read_calls_prefetch"] == 17
    assert not {"read_calls_single", "read_calls_vector"} & set(ahead)


def test_values_belong_to_the_payload_and_have_their_type() -> None:
    for name, value in pass_summary.summarize_tree_passes([one_pass(), one_pass()]).items():
        metric = metric_catalogue.METRICS_BY_NAME[name]
        assert metric.owner == "payload"
        assert not describe_value_error(metric, value), name


def test_first_pass_is_recorded_but_not_counted() -> None:
    values = pass_summary.summarize_tree_passes(
        [one_pass((50.0, 9.0, 9.0)), one_pass(), one_pass((4.0, 1.0, 1.0))]
    )
    assert values["pass_loop_wall_s"] == [50.0, 2.0, 4.0]
    assert values["loop_wall_s"] == 3.0
    assert values["loop_cpu_s"] == 1.75
    assert (values["passes_done"], values["passes_counted"]) == (3, 2)


def test_a_single_pass_counts() -> None:
    values = pass_summary.summarize_tree_passes([one_pass()])
    assert values["passes_counted"] == 1
    assert values["cpu_per_event_s"] == pytest.approx(0.015)
    assert values["event_rate_hz"] == pytest.approx(50)
    assert values["eff_loop"] == 0.75
    assert values["eff_loop_corrected"] == pytest.approx(1.5 / 1.75)
    assert values["read_fraction"] == pytest.approx((5 + 5) / 10_000)  # gaps are fetched too


def test_unknown_kernel_counters_are_omitted() -> None:
    counters = {**dict.fromkeys(LOOP_COUNTERS, 5), "kernel_read_chars": -1}
    values = pass_summary.summarize_tree_passes([one_pass(queue=-1.0, counters=counters)])
    for name in ("kernel_read_chars", "loop_run_queue_s", "pass_loop_run_queue_s"):
        assert name not in values
    assert "eff_loop_corrected" not in values
    assert values["kernel_read_calls"] == 5
    longer_than_loop = pass_summary.summarize_tree_passes([one_pass(queue=3.0)])
    assert "eff_loop_corrected" not in longer_than_loop


@pytest.mark.parametrize("reader", ["TDavixFile", "TCurlFile", "TWebFile"])
def test_kernel_counters_are_unknown_over_http(reader: str) -> None:
    counters = {**dict.fromkeys(LOOP_COUNTERS, 5), "kernel_read_chars": 0, "kernel_read_calls": 0}
    values = pass_summary.summarize_tree_passes([one_pass(counters=counters, file_class=reader)])
    assert not {"kernel_read_chars", "kernel_read_calls"} & set(values)
    assert values["kernel_read_bytes"] == 5  # nothing comes from a device, which is no mistake


def test_files_of_a_pass_are_summed() -> None:
    values = pass_summary.summarize_tree_passes([PassRead([one_file(), one_file((1.0, 1.0, 0.0))])])
    assert values["loop_wall_s"] == 3.0
    assert values["events_read"] == 200
    assert values["bytes_read"] == 10
    assert values["read_latency_hist"][2] == 8
    assert "cache_efficiency" not in values  # two ratios cannot be combined without their terms


def test_uncached_reads_are_single_without_cache_counters() -> None:
    values = pass_summary.summarize_tree_passes([one_pass(cached=False, file_class="TNetXNGFile")])
    assert not [name for name in values if name.startswith(("cache_missed", "cache_eff"))]
    assert (values["read_calls_single"], values["read_calls_vector"]) == (5, 0)


def test_blocks_of_vector_reads_are_counted_for_a_remote_cache() -> None:
    counters = {**one_file().counters, "read_calls": 5, "vector_calls": 4, "vector_blocks": 18}
    values = pass_summary.summarize_tree_passes(
        [one_pass(file_class="TNetXNGFile", counters=counters)]
    )
    assert (values["read_calls_single"], values["read_calls_vector"]) == (1, 4)
    assert values["vector_chunks"] == 4.5
    assert not [name for name in values if name in ("vector_calls", "vector_blocks")]


def test_read_kinds_are_unknown_for_other_classes_with_a_cache() -> None:
    values = pass_summary.summarize_tree_passes([one_pass(file_class="TDavixFile")])
    assert not [name for name in values if name in ("read_calls_single", "read_calls_vector")]
    assert "vector_chunks" not in values


def test_payload_counters_are_medians_over_counted_passes() -> None:
    passes = [one_pass(reported_values={"seen": value}) for value in (100.0, 4.0, 6.0)]
    assert pass_summary.summarize_extras(passes) == {"seen": 5.0}
