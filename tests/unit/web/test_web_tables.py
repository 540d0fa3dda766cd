"""Tests of labels, units and tables."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import pytest
from measurement_factory import make_campaign_row, make_job_row, make_measurement
from service_thread import ServiceThread

from treehammer.analysis.statistics.metric_units import PLAIN_UNIT, format_metric
from treehammer.errors import ConfigError
from treehammer.hctests.definition.model import Scalar
from treehammer.tables import DataTable, LazyRows, TableColumn
from treehammer.text_formatting import format_significant, write_minus
from treehammer.web.arranged_table import TableArrangement
from treehammer.web.display_formats import (
    aligned_format,
    format_per_cent,
    format_seconds,
    keep_units,
)
from treehammer.web.labels import head_axis, head_column, label_variants


@pytest.mark.parametrize(
    "metric, value, text",
    [
        ("cpu_per_event_s", 5.76e-6, "0.00576 ms/event"),
        ("cpu_per_event_s", 1.2, "1,200 ms/event"),
        ("read_latency_p99_s", 0.0021, "2.10 ms"),
        ("open.p95_s", 0.5, "500 ms"),
        ("loop_wall_s", 0.02, "0.0200 s"),
        ("mount_s", 36.0, "36.0 s"),
        ("bytes_read", 7_600, "0.00760 MB"),
        ("event_rate_hz", 23_456.0, "23,456/s"),
        ("eff_job", 0.85123, "0.851"),
        ("read_calls", 12_000, "12,000"),
        ("day", 20261127, "2026-11-27"),
        ("site", "SITE_A", "SITE_A"),
    ],
)
def test_metric_has_one_unit_whatever_its_size(metric: str, value: Scalar, text: str) -> None:
    assert format_metric(metric, value, "s") == text


def test_decimals_are_aligned() -> None:
    values = [0.183, 0.0471, 0.00002, None, math.inf]
    write = aligned_format(values, PLAIN_UNIT)
    assert [write(value) for value in values] == ["0.1830", "0.0471", "0.000020", "–", "inf"]
    values = [10.2, 0.02, 0.021]
    write = aligned_format(values, PLAIN_UNIT)
    assert [write(value) for value in values] == ["10.20", "0.020", "0.021"]


@pytest.mark.parametrize(
    "seconds, text",
    [
        (0.0, "0 µs"),
        (32e-6, "32 µs"),
        (0.0009996, "1 ms"),
        (0.9996, "1 s"),
        (0.9994, "999 ms"),
        (999.6, "1,000 s"),
        (3350.0, "3,350 s"),
    ],
)
def test_seconds_never_have_exponents(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


def test_lines_do_not_end_between_numbers_and_units() -> None:
    text = keep_units("4.1 % of 20 ms & 3 MB/s of 5 sites, 2 h")
    assert text == "4.1\xa0% of 20\xa0ms &amp; 3\xa0MB/s of 5 sites, 2\xa0h"


def test_small_losses_are_not_minus_zero() -> None:
    texts = [format_per_cent(share) for share in (-0.0004, 0.0004, -0.0006, 0.05)]
    assert texts == ["+0.0 %", "+0.0 %", "−0.1 %", "+5.0 %"]
    texts = [write_minus(text) for text in ("-0 %", "-0.00 ± 0.02", "-0.01", "-0.5 %", "-0,5")]
    assert texts == ["0 %", "0.00 ± 0.02", "−0.01", "−0.5 %", "−0,5"]


@pytest.mark.parametrize(
    "value, digits, text",
    [
        (1455.3, 3, "1,455"),
        (33_500.0, 4, "33,500"),
        (999.6, 3, "1,000"),
        (-0.0321, 2, "−0.032"),
        (0.032, 3, "0.032"),
        (3.1e-5, 2, "0.000031"),
        (0.0, 3, "0"),
        (-0.0, 3, "0"),
        (math.inf, 3, "inf"),
    ],
)
def test_numbers_have_no_powers_of_ten(value: float, digits: int, text: str) -> None:
    assert format_significant(value, digits) == text


@pytest.mark.parametrize(
    "name, title",
    [
        ("cpu_per_event_s", "CPU time per event"),
        ("wall_per_event_s", "Wall time per event"),
        ("axis_root", "ROOT release"),
        ("eff_job", "CPU efficiency"),
        ("pass_loop_user_s", "Pass loop user CPU time"),
        ("read_latency_p95_s", "Read latency, 95 % quantile"),
        ("bytes_read", "Bytes read"),
        ("mem_total_bytes", "Memory total"),
        ("extra_queue_depth", "Queue depth"),
        ("extra_per_event", "Per event"),
        ("p5", "P5"),
    ],
)
def test_columns_have_titles_for_people(name: str, title: str) -> None:
    assert head_column(name) == title


def test_axes_have_titles_for_people() -> None:
    assert head_axis("root") == "ROOT release"
    assert head_axis("site") == "Site"


def variant(**axes: Scalar) -> str:
    return json.dumps(axes, sort_keys=True, separators=(",", ":"))


def test_common_axes_are_left_out() -> None:
    variants = [
        variant(root=root, cache="warm", branches=share, cache_mb=mb)
        for root in ("6.40.00", "6.38.00")
        for share in (1.0, 0.02)
        for mb in (0, 30)
    ]
    labels = label_variants(variants, hide_release=True)
    assert labels.shared_text == "cache=warm"
    assert labels.axes == ("branches", "cache_mb")
    assert labels.names[variants[0]] == "branches=100% cache_mb=0"
    assert labels.values["branches=100% cache_mb=0"] == "100% · 0"
    assert list(dict.fromkeys(labels.names.values())) == [
        "branches=2% cache_mb=0",
        "branches=2% cache_mb=30",
        "branches=100% cache_mb=0",
        "branches=100% cache_mb=30",
    ]


def test_releases_of_a_variant_are_adjacent() -> None:
    variants = [variant(root=root, size=n) for root in ("6.38.00", "6.40.00") for n in (1, 2)]
    assert [*label_variants(variants).names] == [variants[place] for place in (0, 2, 1, 3)]


def test_invalid_variants_are_shown_unchanged() -> None:
    texts = ["<script>", variant(a=1, b=2), "[1]", "{}", '{"a":[1]}', '{"a":' + "9" * 400 + "}"]
    labels = label_variants(texts)
    assert (labels.axes, labels.shared_text) == ((), "")
    expected = dict(zip(texts, texts, strict=True)) | {texts[1]: "a=1 b=2"}
    assert labels.names == expected
    assert labels.label("another") == "another"
    assert labels.label(None) == "–"


def test_single_variant_has_all_axes() -> None:
    base, other = (variant(root=root, only=1) for root in ("6.38.00", "6.40.00"))
    labels = label_variants([base])
    assert (labels.names, labels.shared_text, labels.axes) == (
        {base: "only=1 root=6.38.00"},
        "",
        (),
    )
    labels = label_variants([base, other], hide_release=True)
    assert {*labels.names.values()} == {"only=1"}


@pytest.mark.parametrize(
    "values",
    [
        (1, 1.0, True),
        ("1", 1),
        (0.02, 0.0200000001),
        (0.12345678, 0.12345679),
        (0.5, "50%"),
        (1, "1 b=2"),
    ],
)
def test_different_variants_have_different_labels(values: tuple[Scalar, ...]) -> None:
    variants = [variant(branches=value) for value in values] + [variant(branches=1, b=2)]
    assert len({*label_variants(variants).names.values()}) == len({*variants})
    alone = label_variants(variants[:-1])
    short = {*alone.values.values()}
    assert len(short) == len(alone.values) == (len(values) if alone.axes else 0)


def test_label_is_independent_of_spelling() -> None:
    labels = label_variants(['{"a":1,"b":2}', '{"b": 2, "a": 1}', '{"a":2,"b":2}'])
    assert [*labels.names.values()] == ["a=1", "a=1", "a=2"]


def test_labels_are_in_the_order_of_their_values() -> None:
    """Numbers count as numbers, and text such as versions by its parts."""
    values = ["0.2", "0.04", "1.5", "0.4", "1.25", '"5.10"', '"5.9"']
    names = label_variants(f'{{"x":{value}}}' for value in values).names
    assert [*names.values()] == ["x=0.04", "x=0.2", "x=0.4", "x=1.25", "x=1.5", "x=5.9", "x=5.10"]


def test_pages_list_variants_in_the_order_of_their_values(pages: ServiceThread) -> None:
    """Pages whose tables come from the database sort them as those that sort them themselves."""
    shares = (0.2, 10.5, 0.04, 2.5)
    labels = [f"share={share:g}" for share in shares]
    jobs = [make_job_row(f"j{place}", label=label) for place, label in enumerate(labels)]
    pages.store.add_campaign(make_campaign_row(), jobs)
    for place, share in enumerate(shares):
        for root in ("6.38.00", "6.40.00"):
            values: dict[str, Any] = dict.fromkeys(
                ("cpu_per_event_s", "wall_per_event_s", "loop_cpu_s"), 1e-3
            )
            values |= {"variant": f'{{"root":"{root}","share":{share}}}', "axis_root": root}
            position = 1 + (root == "6.40.00")
            pages.store.add([make_measurement(f"j{place}", 1, position, site="A", **values)])
    day = make_measurement("x").values["day"]
    tables = (
        pages.load_tables("/compare?a=6.38.00&b=6.40.00")["by_site"],
        pages.load_tables("/campaigns/campaign")["jobs"],
        pages.load_tables(f"/days/{day}?site=A")["measured"],
        pages.load_tables("/sites/A")["work"],
        pages.load_tables("/explore?metric=cpu_per_event_s&by=variant")["figure"],
    )
    for rows in tables:
        names = [row["label"] if "label" in row else row["variant"] for row in rows]
        drawn_shares = [float(re.findall(r"share\W+([\d.]+)", name)[0]) for name in names]
        assert list(dict.fromkeys(drawn_shares)) == sorted(shares)


_ROWS: list[dict[str, Any]] = [
    {"release": "6.38.00", "jobs": 2, "change": "+1.0 %", "effect": 0.01},
    {"release": "6.9.00", "jobs": None, "change": "−3.0 %", "effect": -0.03},
    {"release": "6.40.00", "jobs": 0, "change": "", "effect": None},
]


def _table(**changes: Any) -> DataTable:
    columns = (
        TableColumn("release", "ROOT release"),
        TableColumn("jobs", "jobs", is_number=True),
        TableColumn("change", "change", is_number=True, sort_key="effect"),
        TableColumn("effect", hidden=True),
    )
    return DataTable("work", "Work", columns, _ROWS, **changes)


def _releases(**parameters: str) -> list[str]:
    given = {name.replace("_", "-"): value for name, value in parameters.items()}
    return [row["release"] for row in TableArrangement.parse(given, "work").apply(_table()).rows]


@pytest.mark.parametrize(
    "order, expected",
    [
        ("release", ["6.9.00", "6.38.00", "6.40.00"]),
        ("-release", ["6.40.00", "6.38.00", "6.9.00"]),
        ("jobs", ["6.40.00", "6.38.00", "6.9.00"]),
        ("-jobs", ["6.38.00", "6.40.00", "6.9.00"]),
        ("change", ["6.9.00", "6.38.00", "6.40.00"]),
        ("-change", ["6.38.00", "6.9.00", "6.40.00"]),
    ],
)
def test_sort_orders_numbers_text_and_empty_cells(order: str, expected: list[str]) -> None:
    assert _releases(sort_work=order) == expected


def test_filter_needs_all_words_in_any_column() -> None:
    assert _releases(find_work="6. 3") == ["6.38.00", "6.9.00"]
    assert _releases(find_work="−3.0 6.9") == ["6.9.00"]
    assert _releases(find_work="absent") == []
    assert _releases(find_other="absent") == [row["release"] for row in _ROWS]


def test_unknown_column_and_long_filter_are_refused() -> None:
    # Hidden columns are exported, but readers can't see their order.
    for key in ("absent", "effect"):
        with pytest.raises(ConfigError, match="sort-work must be one of release, jobs, change"):
            _releases(sort_work=key)
    with pytest.raises(ConfigError, match="at most 200 characters"):
        _releases(find_work="x" * 201)


def test_headings_cycle_through_both_orders_and_the_tables_own() -> None:
    release, jobs = _table().columns[:2]

    def next_order(order: str, column: TableColumn) -> str | None:
        return TableArrangement.parse({"sort-work": order}, "work").next_order(column)

    assert [next_order(order, release) for order in ("", "release", "-release")] == [
        "release",
        "-release",
        None,
    ]
    assert [next_order(order, jobs) for order in ("", "-jobs", "jobs")] == ["-jobs", "jobs", None]


def test_limit_applies_after_sorting() -> None:
    table = _table(max_rows=1, newest=True)
    assert [row["release"] for row in table.shown_rows] == ["6.40.00"]
    assert table.shown_note == "Last 1 of 3 rows; CSV and JSON hold all."
    arranged = TableArrangement.parse({"sort-work": "release"}, "work").apply(table)
    assert [row["release"] for row in arranged.shown_rows] == ["6.9.00"]
    assert arranged.shown_note == "First 1 of 3 rows; CSV and JSON hold all."


def test_pages_of_longer_lists_keep_their_order() -> None:
    table = _table(is_arrangeable=False)
    assert TableArrangement.parse({"sort-work": "release"}, "work").apply(table) is table


def test_lazy_rows_build_only_what_is_read() -> None:
    built: list[int] = []

    def build(item: int) -> dict[str, int]:
        built.append(item)
        return {"item": item}

    rows = LazyRows(range(100), build)
    assert (len(rows), rows[3], [row["item"] for row in rows[:2]]) == (100, {"item": 3}, [0, 1])
    assert built == [3, 0, 1]
