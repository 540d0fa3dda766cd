"""The measurement record: validation, plausibility, derived metrics, rows of operations, outcomes."""

from __future__ import annotations

import json
import math
import statistics
from itertools import product
from typing import Any

import jsonschema
import pytest
import sqlalchemy as sa
from hdrh.histogram import HdrHistogram
from hypothesis import given, settings
from hypothesis import strategies as st
from measurement_factory import STARTED_DAY, STARTED_US, full_measurement, make_measurement

from treehammer.analysis.descriptive.time_breakdown import TimeBreakdown, TimePart
from treehammer.collectors.kit.treehammer_kit.columns.column_analysis import summarize_threads
from treehammer.collectors.kit.treehammer_kit.pass_summary import (
    FileRead,
    PassRead,
    compute_share,
    summarize_times,
)
from treehammer.collectors.record import plausibility
from treehammer.collectors.record.day_numbers import DAY_US, epoch_day_to_number
from treehammer.collectors.record.latency_histograms import HIGHEST_US, LatencyHistogram
from treehammer.collectors.record.measurement_record import (
    Measurement,
    RecordError,
    build_record_schema,
    describe_value_error,
    make_measurement_id,
)
from treehammer.collectors.record.metric_catalogue import (
    CATALOGUE,
    PASS_PHASES,
    metrics_owned_by,
)
from treehammer.collectors.record.operation_steps import (
    OPERATION_METRICS,
    find_operation_problems,
    make_operation_step,
)
from treehammer.collectors.record.outcome import (
    BAD_OUTCOME_LABELS,
    FAILURE_CLASSES,
    NOT_SUPPORTED,
    OUTCOME_COLUMNS,
    Outcome,
    classify_outcome,
    label_outcome,
    sum_outcomes,
)
from treehammer.collectors.worker.run.execution_record import derive_metrics
from treehammer.sql.core.measurement_sql import has_outcome, is_bad, outcome_column
from treehammer.sql.core.schema import measurement
from treehammer.sql.write.store import Store

NAMES = [metric.name for metric in CATALOGUE]
#: Values of every type, at and beyond every limit.
ODD: list[Any] = [
    None, "", "x", "a\x00b", "\ud800", "\U0001f600", "é" * 129, "x" * 128, "x" * 64, "x" * 65,
    "y" * 4000, "y" * 4001, 0, 1, -1, 2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 10**400, True,
    False, 0.0, -0.0, 1.5, 1e308, math.inf, -math.inf, math.nan, [], [1], [1.5], [1, 2.5], [True],
    [None], ["1"], [math.nan], [2**63], [10**400], (1, 2), {}, {"a": 1}, b"x", [[]], set(),
]  # fmt: skip
#: Those of them that JSON can express and JSON Schema can tell apart.
JSON_VALUES: list[Any] = [
    "", "x", "a\x00b", "é" * 129, "x" * 128, "x" * 64, "x" * 65, "y" * 4000, "y" * 4001, 0, 1, -1,
    2**63 - 1, -(2**63), True, False, 1.5, [], [1], [1, 2.5], [-1], [True], [None], ["1"], {}, [[]],
]  # fmt: skip


#: What JSON may spell but no axis can have.
NO_AXIS_VALUES = ("null", "[1]", "NaN", '"\\ud800"', 2**63, 10**400)


def find_problems(values: dict[str, Any], extras: dict[Any, Any] | None = None) -> list[str]:
    """List the reasons for which a document is refused."""
    try:
        Measurement.from_document({"values": values, "extras": extras or {}})
    except RecordError as error:
        return [*error.problems]
    return []


@given(
    st.dictionaries(st.sampled_from([*NAMES, "nonsense"]), st.sampled_from(ODD), max_size=4),
    st.dictionaries(
        st.sampled_from(["a", "_", "a-b", "a\n", "", "é", "a" * 64, "a" * 65, 7]),
        st.sampled_from(ODD),
        max_size=3,
    ),
)
@settings(max_examples=50, derandomize=True)
def test_validation_of_any_value_never_raises(
    changes: dict[str, Any], extras: dict[Any, Any]
) -> None:
    for values in ({**full_measurement(1).values, **changes}, changes):
        find_problems(values, extras)


def test_schema_and_validation_agree() -> None:
    described = build_record_schema()["properties"]["values"]["properties"]
    for metric in CATALOGUE:
        schema = jsonschema.Draft202012Validator(described[metric.name])
        for value in JSON_VALUES:
            if metric.name == "variant" and isinstance(value, str):
                continue  # JSON Schema does not look into a text.
            is_valid = describe_value_error(metric, value) == ""
            assert schema.is_valid(value) == is_valid, (metric.name, value)


@pytest.mark.parametrize(
    "name, valid, invalid",
    [
        *((name, [1, 2], [0, -1, -(2**63)]) for name in ("attempt", "repeat", "round", "position")),
        ("record_version", [1], [0, 2]),
        ("kind", ["timed", "checksum"], ["", "Timed", "timed ", "good"]),
        ("failure_class", ["", None, *FAILURE_CLASSES], ["good", "implausible", "stage in"]),
        (
            "variant",
            ["{}", '{"a": 1.5}', '{"a": 1e300, "b": true}', f'{{"a": {2**63 - 1}}}'],
            ["", "x", "null", "[1]", '{"a\\u0000": 1}', *map('{{"a": {}}}'.format, NO_AXIS_VALUES)],
        ),
        ("implausible_reasons", ["", None], ["too short"]),
        ("read_latency_hist", [[], None, [0, 3]], [[1, -1], [-5]]),
        ("day", [STARTED_DAY], [STARTED_DAY - 1, STARTED_DAY + 1, 20260229, 0, -1, 2**63 - 1]),
        (
            "started_us",
            [STARTED_US, STARTED_US + DAY_US - 1],
            [STARTED_US - 1, STARTED_US + DAY_US, -1, 2**62],
        ),
        ("measurement_id", [], ["x", "é" * 24]),
        ("job_id", [], ["another job"]),
    ],
)
def test_values_that_cannot_have_been_measured_are_refused(
    name: str, valid: list[Any], invalid: list[Any]
) -> None:
    identity = ("job_id", "attempt", "round", "position")

    def problems(value: Any) -> list[str]:
        values = {**make_measurement().values, name: value}
        if name in identity[1:]:
            values["measurement_id"] = make_measurement_id(*(values[part] for part in identity))
        return find_problems(values)

    assert [problems(value) for value in valid] == [[]] * len(valid)
    assert [value for value in invalid if len(problems(value)) != 1] == []


@pytest.mark.parametrize("day", [0, 10_956, 10_957, 2_932_896])
def test_starts_outside_of_the_years_of_measuring_are_refused(day: int) -> None:
    times = {"day": epoch_day_to_number(day), "started_us": day * DAY_US}
    values = {**make_measurement().values, **times}
    document = {"values": values, "extras": {}}
    if day == 10_957:  # 2000-01-01
        assert Measurement.from_document(document).values == values
        return
    with pytest.raises(RecordError, match=r"2000 to 20.* UTC: set the node's clock, or this one"):
        Measurement.from_document(document)


@pytest.mark.parametrize("name", [metric.name for metric in CATALOGUE if metric.is_identity])
def test_identity_must_not_be_empty(name: str) -> None:
    values = {**make_measurement().values, name: ""}
    assert find_problems(values) == [f"{name} must not be empty"]


def test_every_problem_is_reported() -> None:
    values = {**make_measurement().values, "day": "x", "host": 3, "more": 1}
    with pytest.raises(RecordError, match="day must be") as caught:
        Measurement.from_document({"values": values, "extras": {"-": 1}})
    assert len(caught.value.problems) == 4
    with pytest.raises(RecordError) as other:
        Measurement.from_json("[")
    assert len(other.value.problems) == 1


LATENCIES_US = st.lists(
    st.one_of(st.integers(0, 300), st.integers(0, 10**7), st.integers(0, HIGHEST_US)), min_size=1
)


def make_histogram(latencies_us: list[int]) -> LatencyHistogram:
    histogram = LatencyHistogram()
    for latency in latencies_us:
        histogram.record(latency / 1e6)
    return histogram


def make_row(**changes: Any) -> dict[str, Any]:
    row = make_operation_step(
        make_histogram([1000, 2000]),
        {"timeout": 1},
        side="client",
        operation="open",
        server="",
        step=0,
        step_start_us=0,
        step_s=10.0,
        clients=1,
        scheduled=4,
        late=0,
        lateness_max_s=0.0,
        generator_cpu=0.1,
        generator_limited=False,
        bytes=0,
    )
    return {**row, **changes}


# Histograms


@given(LATENCIES_US)
def test_quantiles_are_within_one_per_cent(latencies: list[int]) -> None:
    histogram = make_histogram(latencies)
    ordered = sorted(latencies)
    for fraction in (0.0, 0.5, 0.95, 0.99, 1.0):
        exact = ordered[max(0, -int(-fraction * len(ordered) // 1) - 1)]
        assert histogram.quantile(fraction) * 1e6 == pytest.approx(exact, rel=0.008, abs=0.5)
    assert histogram.mean * 1e6 == pytest.approx(statistics.fmean(latencies), rel=0.008, abs=0.5)


@given(LATENCIES_US)
def test_reference_library_reads_and_writes_the_same_histogram(latencies: list[int]) -> None:
    reference = HdrHistogram(1, HIGHEST_US, 2)
    for latency in latencies:
        reference.record_value(latency)
    ours = make_histogram(latencies)
    read = HdrHistogram.decode(ours.encode())
    assert read.get_total_count() == len(latencies)
    assert read.get_value_at_percentile(50) == reference.get_value_at_percentile(50)
    assert LatencyHistogram.decode(reference.encode().decode()).encode() == ours.encode()


@given(LATENCIES_US, LATENCIES_US)
def test_merged_histograms_equal_the_histogram_of_all(a: list[int], b: list[int]) -> None:
    merged = LatencyHistogram.sum([make_histogram(a), make_histogram(b)])
    assert merged.encode() == make_histogram([*a, *b]).encode()


def test_bins_contain_the_recorded_values() -> None:
    bins = make_histogram([100, 100, 1000]).bins()
    assert [*map(tuple, bins)] == [(100e-6, 101e-6, 2), (1000e-6, 1004e-6, 1)]


@given(st.text(max_size=80) | st.binary(max_size=80).map(lambda raw: "HISTFAAA" + raw.hex()))
def test_hostile_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"histogram|base64|padding|ASCII"):
        LatencyHistogram.decode(text)


def test_empty_histogram_has_no_quantiles() -> None:
    with pytest.raises(ValueError, match="no quantiles"):
        LatencyHistogram().quantile(0.5)
    assert LatencyHistogram.decode(LatencyHistogram().encode()).count == 0


# Rows


def test_complete_row_is_valid() -> None:
    """Kits of release 0.2.0 do not count operations that a ceiling held back."""
    assert find_operation_problems([make_row(), make_row(held=1)]) == []
    assert set(make_row(held=1)) == {metric.name for metric in OPERATION_METRICS}
    described = build_record_schema()["properties"]["operations"]["items"]
    assert set(described["required"]) == set(make_row())


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"side": "middle"}, "side must be one of client, server"),
        ({"operation": "Open"}, "lower-case word"),
        ({"done": 3}, "latency counts 2 operations, done is 3"),
        ({"scheduled": 2}, "more operations ended than were scheduled"),
        ({"late": 5}, "more operations were late"),
        ({"held": 5}, "more operations were held"),
        ({"failures": "{}"}, "add up to failed"),
        ({"failures": '{"timeout": true}'}, "add up to failed"),
        ({"failures": json.dumps({"timeout": -1, "other": 2})}, "add up to failed"),
        ({"latency": "HISTFAAA"}, "latency is not a histogram"),
        ({"step_s": 0.0}, "step_s must be positive"),
        ({"bytes": -1}, "bytes must be at least 0"),
        ({"server": None}, "server is missing"),
        ({"rate": 1}, "unknown field 'rate'"),
    ],
)
def test_wrong_row_is_named_with_its_problem(changes: dict[str, Any], problem: str) -> None:
    [message] = find_operation_problems([make_row(), make_row(**changes)])
    assert message.startswith("operations[1]: ")
    assert problem in message


@pytest.mark.parametrize(
    "failure_class, failure_kind, plausible, outcome, label",
    [
        (None, None, True, Outcome.GOOD, "good"),
        (None, None, False, Outcome.IMPLAUSIBLE, "implausible"),
        ("read", "timeout", True, Outcome.FAILED, "read"),
        ("read", "timeout", False, Outcome.FAILED, "read"),
        ("read", NOT_SUPPORTED, True, Outcome.FAILED, "read"),
        ("stage-in", "copy", True, Outcome.FAILED, "stage-in"),
        ("stage-in", NOT_SUPPORTED, True, Outcome.NOT_SUPPORTED, "stage-in: not supported"),
    ],
)
def test_outcome_follows_from_failure_and_plausibility(
    failure_class: str | None,
    failure_kind: str | None,
    plausible: bool,
    outcome: Outcome,
    label: str,
) -> None:
    row = dict(zip(OUTCOME_COLUMNS, (failure_class, failure_kind, plausible), strict=True))
    assert classify_outcome(row) is outcome
    assert label_outcome(row) == label
    assert sum_outcomes({label: 3}) == {**dict.fromkeys(Outcome, 0), outcome: 3}


def test_sql_gives_the_same_outcome_as_python() -> None:
    combinations = product((None, *FAILURE_CLASSES), (None, "exit", NOT_SUPPORTED), (True, False))
    rows: list[dict[str, Any]] = [
        dict(zip(OUTCOME_COLUMNS, values, strict=True)) for values in combinations
    ]
    measurements = [make_measurement(position=n + 1, **row) for n, row in enumerate(rows)]
    expected = {item.id: label_outcome(row) for item, row in zip(measurements, rows, strict=True)}
    id_ = measurement.c.measurement_id
    with Store.open("sqlite://") as store:
        store.add(measurements)
        with store.connection() as connection:
            rows_found = connection.execute(sa.select(id_, outcome_column())).all()
            labels = {row[0]: row[1] for row in rows_found}
            bad = set(connection.scalars(sa.select(id_).where(is_bad())))
            by_condition = {
                row_id: label
                for label in ("good", *BAD_OUTCOME_LABELS)
                for row_id in connection.scalars(sa.select(id_).where(has_outcome(label)))
            }
    assert labels == by_condition == expected
    assert bad == {row_id for row_id, label in expected.items() if label != "good"}


#: A measurement as a quiet machine gives it.
GOOD: dict[str, Any] = {
    "kind": "timed",
    "axis_cache": "warm",
    "cores_allowed": 2,
    "payload_wall_s": 10.0,
    "payload_user_s": 8.0,
    "payload_sys_s": 1.0,
    "eff_payload": 0.9,
    "eff_job": 0.85,
    "eff_loop": 0.95,
    "import_wall_s": 1.0,
    "import_user_s": 0.8,
    "import_sys_s": 0.2,
    "passes_done": 3,
    "passes_counted": 2,
    "loop_wall_s": 2.0,
    "pass_loop_wall_s": [2.5, 1.9, 2.1],
    "pass_loop_user_s": [2.0, 1.8, 1.9],
    "pass_loop_sys_s": [0.2, 0.1, 0.1],
    "events_total": 1000,
    "events_read": 1000,
    "branches_total": 50,
    "branches_selected": 50,
    "selected_zip_bytes": 1_000_000,
    "bytes_read": 1_010_000,
    "loop_unzipped_bytes": 4_000_000,
    "kernel_read_chars": 1_010_000,
    "address_family": "local",
    "wall_per_event_s": 0.002,
    "event_rate_hz": 500.0,
    "client_cached_fraction": 1.0,
}

#: The same, large and cold: all that was read came from a device.
COLD: dict[str, Any] = {
    "axis_cache": "cold",
    "client_cache_state": "evicted",
    "client_cached_fraction": 0.0,
    "selected_zip_bytes": 10_000_000,
    "bytes_read": 10_000_000,
    "bytes_read_extra": 0,
    "kernel_read_chars": 10_000_000,
    "kernel_read_bytes": 10_000_000,
}


def test_every_measured_number_has_a_range() -> None:
    for metric in CATALOGUE:
        is_number = metric.type not in ("text", "bool")
        has_range = is_number and metric.owner != "plan"
        assert (metric.plausible_range is not None) == has_range, metric


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"payload_wall_s": -1.0}, plausibility.check_ranges),
        ({"pass_loop_sys_s": [0.1, -0.1, 0.1]}, plausibility.check_ranges),
        ({"cpu_per_event_s": -9.2e18}, plausibility.check_ranges),
        ({"cpu_per_event_s": 9.2e18}, plausibility.check_ranges),
        ({"bytes_read": -1}, plausibility.check_ranges),
        ({"segment_cpu_log_ratio": -60.0}, plausibility.check_ranges),
        ({"read_latency_hist": [1, -2]}, plausibility.check_ranges),
        ({"started_us": 8, "ended_us": 7}, plausibility.check_order),
        ({"eff_loop": 2.2}, plausibility.check_efficiency_bound),
        ({"eff_job": 2.2}, plausibility.check_efficiency_bound),
        ({"eff_loop": 0.6, "variant": '{"threads":4}'}, plausibility.check_efficiency_bound),
        ({"cores_allowed": 1, "eff_payload": 1.4}, plausibility.check_efficiency_bound),
        ({"events_read": 0}, plausibility.check_something_read),
        ({"bytes_read": 0}, plausibility.check_something_read),
        ({"loop_unzipped_bytes": 0}, plausibility.check_something_read),
        ({"events_read": 1001}, plausibility.check_within_totals),
        ({"branches_selected": 51}, plausibility.check_within_totals),
        ({"bytes_read": 900_000}, plausibility.check_baskets_read),
        ({"kernel_read_chars": 500_000}, plausibility.check_kernel_bytes),
        ({"pass_loop_user_s": [5.0, 5.0, 5.0]}, plausibility.check_phase_cpu),
        ({"import_user_s": 9.0}, plausibility.check_phase_cpu),
        ({"pass_loop_wall_s": [12.0, 2.0, 2.0]}, plausibility.check_phase_wall),
        ({"passes_done": 2}, plausibility.check_pass_times),
        ({"passes_counted": 4}, plausibility.check_pass_times),
        ({"loop_wall_s": 1.0}, plausibility.check_pass_times),
        ({"event_rate_hz": 600.0}, plausibility.check_event_rate),
        ({"axis_cache": "cold"}, plausibility.check_cold_start),
        ({**COLD, "kernel_read_bytes": 0}, plausibility.check_cold_fetch),
        ({**COLD, "kernel_read_bytes": 3_900_000}, plausibility.check_cold_fetch),
    ],
)
def test_rule(change: dict[str, Any], rule: plausibility.Rule) -> None:
    values = {**GOOD, **change}
    assert rule(GOOD) == ""
    problem = rule(values)
    assert problem
    assert problem in plausibility.find_implausibilities(values)


@pytest.mark.parametrize(
    "change",
    [
        {},
        # ROOT keeps the baskets of small branches in the tree's header, read before the loop.
        {"bytes_read": 0, "selected_zip_bytes": 0, "kernel_read_chars": 0},
        # Half of the events need not fetch every basket.
        {"events_read": 500, "bytes_read": 600_000, "kernel_read_chars": 600_000},
        # A file behind a door is not read with read().
        {"kernel_read_chars": 0, "address_family": "IPv4"},
        # A checksum execution times nothing.
        {"kind": "checksum", "events_read": 0, "bytes_read": 0},
        # The clock tick is coarser than a very short loop.
        {"eff_loop": 3.0, "loop_wall_s": 0.01, "pass_loop_wall_s": [0.01, 0.01, 0.01]},
        {"axis_cache": "cold", "client_cached_fraction": 0.0},
        COLD,
        # Where eviction could not be proved, nothing is known of what comes from a device.
        {**COLD, "client_cache_state": "unknown", "kernel_read_bytes": 0},
        # Opening a small file fetches all of it ahead of the loop.
        {**COLD, "selected_zip_bytes": 900_000, "bytes_read": 900_000, "kernel_read_bytes": 0},
        # A cache that is too small reads the same bytes again, then from memory.
        {**COLD, "bytes_read": 40_000_000, "kernel_read_chars": 40_000_000},
    ],
)
def test_what_can_be_true_passes(change: dict[str, Any]) -> None:
    assert plausibility.find_implausibilities({**GOOD, **change}) == []
    assert plausibility.find_implausibilities({"kind": "timed"}) == []


OUTSIDE = {
    "payload_wall_s": 10.0,
    "payload_user_s": 4.0,
    "payload_sys_s": 1.0,
    "setup_wall_s": 2.0,
    "setup_cpu_s": 1.0,
}
INSIDE: dict[str, Any] = {
    "events_read": 1000,
    **{f"{phase}_wall_s": 0.2 for phase in PASS_PHASES},
    **{f"{phase}_user_s": 0.05 for phase in PASS_PHASES},
    **{f"{phase}_sys_s": 0.05 for phase in PASS_PHASES},
}
COPY = {"stagein_wall_s": 3.0, "stagein_cpu_s": 1.5}


def test_copy_counts_once_per_pass() -> None:
    direct = derive_metrics({**OUTSIDE, **INSIDE})
    staged = derive_metrics({**OUTSIDE, **INSIDE, **COPY})
    assert direct["access_rate_hz"] == pytest.approx(1000 / 1.0)
    assert staged["access_rate_hz"] == pytest.approx(1000 / (3.0 + 1.0))
    assert direct["eff_access"] == pytest.approx(0.5)
    assert staged["eff_access"] == pytest.approx((1.5 + 0.5) / 4.0)
    assert direct["eff_payload"] == staged["eff_payload"] == pytest.approx(0.5)
    assert staged["eff_job"] == pytest.approx((5 + 1 + 1.5) / (10 + 2 + 3))
    assert set(staged) <= {metric.name for metric in metrics_owned_by("worker")}


def test_efficiency_counts_all_reserved_cpus() -> None:
    single, four = (derive_metrics({**OUTSIDE, **INSIDE, **COPY}, threads) for threads in (1, 4))
    for name in ("eff_payload", "eff_job", "eff_access"):
        assert four[name] == pytest.approx(single[name] / 4)
    assert four["access_rate_hz"] == single["access_rate_hz"]


@pytest.mark.parametrize("missing", ["events_read", "open_wall_s", "loop_sys_s"])
def test_metrics_without_a_term_are_omitted(missing: str) -> None:
    values = {name: value for name, value in INSIDE.items() if name != missing}
    assert set(derive_metrics({**OUTSIDE, **values})) == {"eff_payload", "eff_job"}


@pytest.mark.parametrize(
    ("excess", "efficiency"), [(-0.5, 0.5), (2e-13, 1.0), (0.01, 1.01), (-1.0, 0.0)]
)
def test_shares_are_bounded_but_for_a_wrong_clock(excess: float, efficiency: float) -> None:
    cpu = 1 + excess
    assert compute_share(cpu, 1.0) == efficiency
    phases = {name: value for name, value in INSIDE.items() if not name.startswith("loop")}
    phases = {**dict.fromkeys(phases, 0.0), "events_read": 9}
    loop = {"loop_wall_s": 1.0, "loop_user_s": cpu, "loop_sys_s": 0.0}
    payload = {"payload_wall_s": 1.0, "payload_user_s": cpu, "payload_sys_s": 0.0}
    setup = {"setup_wall_s": 0.0, "setup_cpu_s": 0.0}
    values = derive_metrics({**payload, **setup, **phases, **loop})
    names = ("eff_payload", "eff_job", "eff_access")
    assert {name: values[name] for name in names} == dict.fromkeys(names, efficiency)
    clocks = {**dict.fromkeys(PASS_PHASES, (0.0, 0.0, 0.0)), "loop": (1.0, cpu, 0.0)}
    passes = [PassRead([FileRead(clocks, 9, 0, 0, "TFile", True, -1.0, 0.0, {})])] * 3
    for times in (summarize_times(passes), summarize_threads(passes, 1)):
        assert times["eff_loop"] == efficiency
        assert times.get("eff_loop_corrected") in (efficiency, None)
    breakdown = TimeBreakdown(1, {TimePart.OTHER: 1.0}, {}, cpu)
    assert breakdown.efficiency == efficiency
