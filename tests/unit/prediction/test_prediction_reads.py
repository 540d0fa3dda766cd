"""Predictions of reads: the model, counts under other conditions, ``explain --if`` and a site's page."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from measurement_factory import make_campaign_row, make_measurement
from repository_code import call_command
from service_thread import ServiceThread

from treehammer.config import Settings
from treehammer.datasets.manifest import RAW_LAYOUT, Manifest, ManifestFile
from treehammer.errors import ConfigError, ExitCode, NothingToDoError
from treehammer.prediction.measured_reads import COLUMNS, MeasuredRead, group_reads
from treehammer.prediction.prediction import (
    WAITING_CPU_S,
    Conditions,
    KnownReads,
    ReadPrediction,
    count_cache_fills,
    find_crossing,
    parse_conditions,
)
from treehammer.prediction.read_model import TRIP_EXTRA_S, Distance, ReadWork, Term
from treehammer.prediction.site_gains import find_gains
from treehammer.prediction.verification import build_request, find_zero, verify_predictions
from treehammer.sql.write.store import Store
from treehammer.text_formatting import no_progress

#: One pass without a cache beside the data: 0.2 s of CPU, 300 calls that wait for 1 ms each, and bytes
#: that take 10 ms through a proxy.
UNCACHED: dict[str, Any] = {
    "kind": "timed",
    "plausible": True,
    "run_mode": "solo",
    "test_name": "ttree-read",
    "test_path": "hctests/ttree-read",
    "site": "SITE_A",
    "storage_site": "SITE_A",
    "door": "root",
    "door_protocol": "root",
    "door_rtt_s": 0.0,
    "dataset": "events",
    "dataset_hash": "d" * 64,
    "content_hash": "d" * 64,
    "passes_counted": 2,
    "root_version": "6.40.00",
    "pass_loop_wall_s": [9.0, 0.5, 0.5],
    "loop_wall_s": 0.5,
    "loop_user_s": 0.15,
    "loop_sys_s": 0.05,
    "loop_cpu_s": 0.2,
    "read_calls": 300,
    "bytes_read": 4_000_000,
    "bytes_read_extra": 0,
    "baskets_read": 300,
    "calibration_before_s": 0.5,
}
CACHED = {
    **UNCACHED,
    "pass_loop_wall_s": [9.0, 0.16, 0.16],
    "loop_wall_s": 0.16,
    "loop_user_s": 0.1,
    "loop_cpu_s": 0.15,
    "read_calls": 1,
}
#: An RNTuple with the same content, whose 13 clusters are read ahead of the loop.
NTUPLE = {
    **CACHED,
    "dataset": "events-rntuple",
    "dataset_hash": "e" * 64,
    "pass_loop_wall_s": [9.0, 0.11, 0.11],
    "loop_wall_s": 0.11,
    "loop_user_s": 0.05,
    "loop_cpu_s": 0.1,
    "read_calls": 2,
    "baskets_read": None,
    "ntuple_cluster_cache": True,
    "ntuple_clusters_loaded": 1,
    "ntuple_pages_read": 25,
}


def make_read(values: Mapping[str, Any], **axes: Any) -> MeasuredRead:
    """Make a read of a variant, with values of its row."""
    row = {**dict.fromkeys(COLUMNS), "started_us": 1, **values, "variant": json.dumps(axes)}
    (read,) = group_reads([row])
    return read


def predict(read: MeasuredRead, conditions: Conditions, *others: MeasuredRead) -> ReadPrediction:
    return KnownReads([read, *others], {}).predict(read, conditions)


def make_manifest(name: str, clusters: int, **origin: Any) -> Manifest:
    layout = replace(RAW_LAYOUT, format="ttree", clusters=clusters)
    return Manifest(name, (ManifestFile("events.root", 1, "", "", layout),), origin)


@pytest.mark.parametrize("variant", ["no JSON", "[1]", '{"cache_mb": "<b>"}'])
def test_variants_of_others_without_numbers_are_left_out(variant: str) -> None:
    row = {**make_read(CACHED).row, "variant": variant}
    assert not group_reads([row])


def test_wall_time_is_the_sum_of_its_terms() -> None:
    work = ReadWork(1.0, 0.8, calls=100, byte_count=1e6, opening_trips=7, rest_s=0.5)
    terms = work.split_wall_time(Distance(0.02, 1e6))
    assert terms == pytest.approx({
        Term.CPU: 1.0,
        Term.OPENING: 0.14,
        Term.CALLS: 2.0,
        Term.TRANSFER: 1.0,
        Term.REST: 0.5,
        Term.HIDDEN: 0.0,
    })  # fmt: skip
    assert work.predict(Distance(0.02, 1e6)).wall_s == pytest.approx(4.64)


@pytest.mark.parametrize("rtt_s", [0.01, 0.1, 1.0])
def test_reading_ahead_hides_all_but_the_first_cluster(rtt_s: float) -> None:
    """A step lasts as long as the slower one of reading a cluster and working on another."""
    clusters, loop_s = 10, 2.0
    work = ReadWork(
        loop_s, loop_s, calls=10, byte_count=0, opening_trips=0, clusters_ahead=clusters
    )
    step_s = loop_s / clusters
    expected = rtt_s + (clusters - 1) * max(rtt_s, step_s) + step_s
    assert work.predict(Distance(rtt_s)).wall_s == pytest.approx(expected)


def test_prediction_of_the_own_conditions_is_the_measurement() -> None:
    read = make_read(UNCACHED, cache_mb=0)
    prediction = predict(read, Conditions()).prediction
    assert prediction
    assert prediction.wall_s == pytest.approx(read.wall_s)
    assert prediction.cpu_s == pytest.approx(0.2)


def test_each_call_and_step_of_opening_waits_for_a_round_trip() -> None:
    prediction = predict(make_read(UNCACHED, cache_mb=0), Conditions(latency_ms=20)).prediction
    assert prediction
    wall_s = 0.5 + 307 * (0.02 + TRIP_EXTRA_S) + 300 * WAITING_CPU_S + 0.01
    assert prediction.wall_s == pytest.approx(wall_s)


def test_bandwidth_adds_the_time_of_the_bytes() -> None:
    predicted = predict(make_read(UNCACHED, cache_mb=0), Conditions(bandwidth_mbit=8))
    assert predicted.prediction
    assert predicted.prediction.terms[Term.TRANSFER] == pytest.approx(4.0)


def test_waits_and_scatter_of_passes_or_executions_widen_the_interval() -> None:
    """Student's quantile is 12.7 for 2 passes and 4.3 for 3 executions."""
    calm = make_read(UNCACHED).row
    scattered = [
        {**calm, "loop_wall_s": wall_s, "pass_loop_wall_s": [9.0, wall_s - 0.01, wall_s + 0.01]}
        for wall_s in (0.4, 0.5, 0.6)
    ]
    groups = [calm], [{**calm, "loop_run_queue_s": 0.2}], scattered[:1], scattered
    works = [group_reads(rows)[0].build_work() for rows in groups]
    widths = [work.predict(Distance(0.0), trips_differ=False).half_width_s for work in works]
    assert widths == pytest.approx([0.02, 0.2, 0.22, 0.5], rel=0.01)


def test_round_trips_of_opening_are_measured_at_a_distance() -> None:
    distant = {**UNCACHED, "open_wall_s": 0.8, "open_user_s": 0.0, "open_sys_s": 0.0}
    read = make_read({**distant, "distance_method": "netem"}, cache_mb=0, latency_ms=50)
    assert read.build_work().opening_trips == pytest.approx(16)
    for method, rtt_s in (("link", 0.04), ("proxy", 0.06)):
        door = make_read({**UNCACHED, "door_rtt_s": 0.02, "distance_method": method})
        assert door.find_distance(latency_ms=40).rtt_s == pytest.approx(rtt_s + TRIP_EXTRA_S)


def test_counts_come_from_a_run_with_the_requested_cache() -> None:
    read = make_read(UNCACHED, cache_mb=0, latency_ms=0)
    cached = make_read(CACHED, cache_mb=30, latency_ms=0)
    predicted = predict(read, Conditions(latency_ms=20, cache_mb=30), cached)
    assert predicted.work
    assert predicted.work.calls == 1
    assert predicted.prediction
    wall_s = 0.16 + 8 * (0.02 + TRIP_EXTRA_S) + WAITING_CPU_S + 0.01
    assert predicted.prediction.wall_s == pytest.approx(wall_s)
    assert "a run at SITE_A" in predicted.basis


def test_cpu_of_a_run_elsewhere_is_scaled_by_the_calibration_loop() -> None:
    elsewhere = {**CACHED, "site": "SITE_B", "calibration_before_s": 0.25}
    read = make_read(UNCACHED, cache_mb=0)
    predicted = predict(read, Conditions(cache_mb=30), make_read(elsewhere, cache_mb=30))
    assert predicted.prediction
    assert predicted.prediction.cpu_s == pytest.approx(0.3)
    predicted = predict(read, Conditions(cpu="SITE_B"), make_read(elsewhere, cache_mb=30))
    assert predicted.prediction
    assert predicted.prediction.cpu_s == pytest.approx(0.1)


def test_counts_come_from_the_layout_where_no_run_has_them() -> None:
    manifest = make_manifest("events", clusters=20)
    read = make_read({**UNCACHED, "dataset_hash": manifest.hash}, cache_mb=0)
    known_reads = KnownReads([read], {manifest.hash: manifest})
    cached = known_reads.predict(read, Conditions(cache_mb=1))
    assert cached.work
    assert cached.work.calls == 4
    assert cached.work.calls_error > 0
    assert "layout" in cached.basis
    read = make_read({**CACHED, "dataset_hash": manifest.hash}, cache_mb=30)
    uncached = KnownReads([read], {}).predict(read, Conditions(cache_mb=0))
    assert uncached.work
    assert (uncached.work.calls, uncached.work.calls_error) == (300, 0)


@pytest.mark.parametrize(
    "megabytes, clusters, cache_mb, fills",
    [(753, 30, 30, 30), (753, 30, 300, 3), (25, 30, 30, 1), (50, 20, 1, 60), (0, 20, 30, 1)],
)
def test_cache_is_filled_with_whole_clusters(
    megabytes: int, clusters: int, cache_mb: int, fills: int
) -> None:
    """The first three were measured with 6.40 over root://."""
    assert count_cache_fills(megabytes * 1e6, clusters, cache_mb * 1e6) == fills


@pytest.mark.parametrize(
    "changes, axes, conditions, reason",
    [
        ({"door_protocol": "file"}, {}, {"latency_ms": 20}, "at no distance"),
        ({"door_protocol": "http"}, {}, {"latency_ms": 20}, "known only from a run at a distance"),
        ({"read_calls": None}, {}, {}, "does not count ROOT's read calls"),
        ({}, {"threads": 4}, {}, "threads wait for each other"),
        ({"read_calls_prefetch": 3}, {}, {}, "prefetching thread"),
        ({}, {"access": "staged"}, {}, "reads a copy"),
        ({}, {"server_cache": "warm"}, {}, "a cache answers"),
        ({"origin_version": "XRootD v5.8.1"}, {}, {"latency_ms": 20}, "a cache answers"),
        ({}, {}, {"cache_mb": 30}, "the clusters of events are not known here"),
        ({"baskets_read": None}, {"cache_mb": 30}, {"cache_mb": 0}, "baskets_read was not recorded"),
        ({}, {}, {"format": "rntuple"}, "format=rntuple are known from a run only"),
        ({}, {}, {"compression": "zstd:5"}, "datasets make events --compression zstd:5"),
        ({"calibration_before_s": None}, {}, {"cpu": "SITE_B"}, "no calibration loop was timed at SITE_B"),
    ],
)  # fmt: skip
def test_unpredictable_conditions_have_a_reason(
    changes: dict[str, Any], axes: dict[str, Any], conditions: dict[str, Any], reason: str
) -> None:
    read = make_read({**UNCACHED, **changes}, **{"cache_mb": 0, **axes})
    predicted = predict(read, Conditions(**conditions))
    assert (predicted.prediction, reason in predicted.reason) == (None, True)


def test_compression_is_predicted_from_a_run_on_the_rewritten_dataset() -> None:
    source = make_manifest("events", clusters=20)
    origin = {"from": {"name": "events", "hash": source.hash}, "options": {"compression": "lz4:4"}}
    twin = make_manifest("events-lz4", clusters=20, **origin)
    twin = replace(twin, files=(replace(twin.files[0], size=2),))
    read = make_read({**UNCACHED, "dataset_hash": source.hash}, cache_mb=0)
    rewritten = {**UNCACHED, "dataset_hash": twin.hash, "dataset": "events-lz4", "loop_cpu_s": 0.1}
    known_reads = KnownReads(
        [read, make_read({**rewritten, "loop_user_s": 0.05}, cache_mb=0)],
        {item.hash: item for item in (source, twin)},
    )
    predicted = known_reads.predict(read, Conditions(compression="lz4:4"))
    assert predicted.dataset == "events-lz4"
    assert predicted.prediction
    assert predicted.prediction.cpu_s == pytest.approx(0.1)


def test_formats_cross_where_fewer_round_trips_outweigh_the_cpu() -> None:
    """An RNTuple takes 50 ms less beside the data, and five round trips more."""
    ttree = make_read(CACHED, cache_mb=30)
    known_reads = KnownReads([ttree, make_read(NTUPLE, cache_mb=30, format="rntuple")], {})
    crossing = find_crossing(known_reads, ttree)
    assert crossing
    assert crossing.latency_ms == pytest.approx(1e3 * (0.05 / 5 - TRIP_EXTRA_S), abs=0.2)
    assert crossing.low_ms < crossing.latency_ms < crossing.high_ms
    assert crossing.faster_beyond == "TTree"
    assert find_crossing(KnownReads([ttree], {}), ttree) is None


def test_cluster_cache_of_an_rntuple_has_no_size() -> None:
    read = make_read(NTUPLE, cache_mb=30, format="rntuple")
    predicted = predict(read, Conditions(cache_mb=100))
    assert predicted.prediction
    assert predicted.prediction.wall_s == pytest.approx(read.wall_s)


def test_conditions_are_combined() -> None:
    texts = [
        item.describe() for item in parse_conditions(["latency_ms=20,80", "cache_mb=30", "cpu=B"])
    ]
    assert texts == ["latency_ms=20 cache_mb=30 cpu=B", "latency_ms=80 cache_mb=30 cpu=B"]


@pytest.mark.parametrize(
    "text, problem",
    [
        ("latency=80", "did you mean 'latency_ms'"),
        ("latency_ms", "is no condition\n  Write NAME=VALUE"),
        ("latency_ms=", "latency_ms has no value"),
        ("cache_mb=-1", "a number of 0 or more"),
        ("cache_mb=nan", "a number of 0 or more"),
        ("format=csv", "ttree or rntuple"),
    ],
)
def test_mistakes_in_conditions_are_named(text: str, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_conditions([text])
    assert problem.lower() in f"{caught.value} {caught.value.hint}".lower()


def test_verification_measures_all_values_in_one_campaign() -> None:
    read = make_read(NTUPLE, cache_mb=30, format="rntuple", root="6.40.00")
    group = [predict(read, Conditions(latency_ms=value)) for value in (10.0, 20.0)]
    request = build_request(group)
    assert request.test_spec == "ttree-read"
    assert request.axes["latency_ms"] == ("10", "20")
    assert (request.axes["bundle"], request.axes["door"]) == ((), ("root",))
    assert request.overrides["twins.rntuple"] == "events-rntuple"
    assert (request.sites, request.from_sites) == (("SITE_A",), ())


def test_crossing_is_measured_at_three_distances() -> None:
    ttree, rntuple = {0.0: 1.0, 10.0: 1.1, 20.0: 1.2}, {0.0: 0.9, 10.0: 1.1, 20.0: 1.3}
    assert find_zero(ttree, rntuple) == pytest.approx(10)
    assert find_zero({0.0: 1.0, 10.0: 1.1}, rntuple) is None
    assert find_zero(rntuple, {latency: wall + 1 for latency, wall in rntuple.items()}) is None


def test_refused_verification_names_the_reasons(settings: Settings) -> None:
    alternatives = Conditions(format="rntuple"), Conditions(cpu="SITE_A")
    predictions = [predict(make_read(UNCACHED, cache_mb=0), item) for item in alternatives]
    with pytest.raises(NothingToDoError, match=r"(?s)here.*from a run only.*campaign at that site"):
        verify_predictions(predictions, settings, no_progress)


def store_reads(store: Store, *reads: tuple[Mapping[str, Any], Mapping[str, Any]]) -> None:
    """Store measurements of today with their variants."""
    now = datetime.now(UTC)
    store.add(
        make_measurement(
            "job",
            number,
            campaign_id="near",
            **{**values, "variant": json.dumps(axes), "variant_label": f"cache_mb={axes['cache_mb']}"},
            day=int(f"{now:%Y%m%d}"),
            started_us=int(now.timestamp() * 1e6),
        )
        for number, (values, axes) in enumerate(reads, 1)
    )  # fmt: skip


def test_command_prints_predictions_with_their_terms(store: Store, tmp_path: Path) -> None:
    store.add_campaign(make_campaign_row("near", name="near"), [])
    store_reads(store, (UNCACHED, {"cache_mb": 0}), (CACHED, {"cache_mb": 30}))
    explain = partial(call_command, "explain", tmp_path, "--campaign", "near", "--if")
    assert "300 × 1 round trip" in explain("latency_ms=20,80").output
    refused = explain("cpu=NOWHERE")
    assert refused.return_value == ExitCode.NOTHING
    assert "\ncache_mb=0, cache_mb=30, cpu=NOWHERE: cannot be predicted: " in refused.output
    row, _ = json.loads(explain("latency_ms=80", "--json").stdout)
    wall_s = 0.5 + 307 * (0.08 + TRIP_EXTRA_S) + 300 * WAITING_CPU_S + 0.01
    assert row["predicted_wall_s"] == pytest.approx(wall_s)
    assert row["low_s"] < row["predicted_wall_s"] < row["high_s"]
    with pytest.raises(ConfigError, match="nothing to verify"):
        call_command("explain", tmp_path, "--campaign", "near", "--verify")


def test_page_of_a_site_names_the_setting_that_saves_most(pages: ServiceThread) -> None:
    distant = {**UNCACHED, "loop_wall_s": 6.5, "pass_loop_wall_s": [9.0, 6.5, 6.5]}
    link = {"distance_method": "netem"}
    near = {"cache_mb": 0, "latency_ms": 20}
    store_reads(
        pages.store,
        ({**distant, **link}, near),
        ({**CACHED, **link, "loop_wall_s": 0.3}, {**near, "cache_mb": 30}),
    )
    assert "30 MB would save most: −95 % wall time" in pages.load_page("/sites/SITE_A")


def test_gain_within_the_interval_is_none() -> None:
    known_reads = KnownReads([make_read(CACHED, cache_mb=30), make_read(CACHED, cache_mb=100)], {})
    assert not [*find_gains(known_reads)]
