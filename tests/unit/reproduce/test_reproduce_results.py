"""Published results: their files, the ratios of campaigns, and what these say of print."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from measurement_factory import make_campaign_row, make_job_row, make_measurement
from page_contents import load_charts
from repository_code import call_command, invoke_command
from service_thread import ServiceThread
from simulated_campaign import add_campaign as add_simulated

from treehammer.config import load_settings
from treehammer.datasets.specs.dataset_specs import load_spec
from treehammer.errors import ExitCode
from treehammer.reproduce.agreement import (
    Agreement,
    MeasuredRatio,
    UnmeasuredError,
    compare_with_print,
    measure_ratio,
)
from treehammer.reproduce.output import format_here, format_interval
from treehammer.reproduce.published_result import (
    QuantityTable,
    ResultFileError,
    find_results,
    list_shipped_names,
    read_result,
)
from treehammer.sql.core.campaign_plan import CampaignPlan
from treehammer.sql.write.store import Store

#: Variant and metrics of a measurement.
Sided = tuple[Mapping[str, str], Mapping[str, Any]]

RESULT = """
[published]
title = "B reads twice the bytes of A"
source = "a paper"
ratio = [2.0, 2.0]
exact = true

[campaign]
test = "ttree-read"
axes = { root = ["6.38.00", "6.40.00"] }

[quantity]
kind = "count"
metric = "bytes_read"
axis = "root"
a = "6.38.00"
b = "6.40.00"
"""


def write_result(folder: Path, text: str = RESULT, name: str = "twice") -> Path:
    folder = folder / name
    folder.mkdir()
    (folder / "result.toml").write_text(text, encoding="utf-8")
    return folder


def add_campaign(store: Store, name: str, values: Sequence[Sided]) -> None:
    """Store a campaign whose measurements have these variants and metrics."""
    store.add_campaign(make_campaign_row(name, name=name), [make_job_row(name, campaign_id=name)])
    store.add(
        make_measurement(
            name,
            number,
            campaign_id=name,
            variant=json.dumps(variant),
            variant_label=" ".join(f"{axis}={value}" for axis, value in variant.items()),
            **{"kind": "timed", "plausible": True, **metrics},
        )
        for number, (variant, metrics) in enumerate(values, 1)
    )


@pytest.mark.parametrize("name", list_shipped_names())
def test_shipped_results_are_right(name: str) -> None:
    (result,) = find_results((name,))
    low, high = result.bounds
    assert 0 < low <= result.published.ratio[0] <= result.published.ratio[1] <= high
    for dataset in result.dataset:
        assert not dataset.is_spec or load_spec(result.folder / dataset.source).name
    if result.quantity.a:
        values = result.campaign.axes[result.quantity.axis]
        assert {result.quantity.a, result.quantity.b} <= {*values}


@pytest.mark.parametrize(
    "before, after, problem",
    [
        ('kind = "count"', 'kind = "counts"', "quantity.kind"),
        ('metric = "bytes_read"', 'metric = "bytes_reed"', "no metric 'bytes_reed'; did you mean 'bytes_read'?"),
        ('a = "6.38.00"\n', "", "'a' is missing, which kind 'count' needs"),
        ('axis = "root"', 'axis = "root"\ndivisor = "read_calls"', "has no meaning for kind 'count'"),
        ("ratio = [2.0, 2.0]", "ratio = [3.0, 2.0]", "the smallest ratio comes first"),
        ("exact = true", "", "published.exact"),
        ('source = "a paper"', 'source = "a paper"\nurl = "x"', "published.url"),
        ("[campaign]", '[[dataset]]\nfrom = "a"\nname = "b"\ncompression = "zip:3"\n[campaign]', "'zip:3' is not a compression"),
    ],
)  # fmt: skip
def test_mistakes_in_a_result_are_named(
    tmp_path: Path, before: str, after: str, problem: str
) -> None:
    assert before in RESULT
    folder = write_result(tmp_path, RESULT.replace(before, after))
    with pytest.raises(ResultFileError) as caught:
        read_result(folder)
    assert len(caught.value.problems) == 1, caught.value.problems
    assert problem in caught.value.problems[0]
    assert "result.toml" in str(caught.value)


@pytest.mark.parametrize("words", ["zlib-over-lz5 --list", "zlib-over-lz4 --sites locel"])
def test_unknown_name_is_refused_with_the_nearest(tmp_path: Path, words: str) -> None:
    done = invoke_command("reproduce", tmp_path, *words.split())
    assert "did you mean '" in str(done.exception).casefold()


@pytest.mark.parametrize(
    "measured, agreement, reason",
    [
        ((2.0, 1.9, 2.1), Agreement.AGREES, ""),
        ((2.3, 2.25, 2.4), Agreement.DIFFERS, "2.3 lies above 1.8 to 2.2"),
        ((1.5, 1.4, 1.6), Agreement.DIFFERS, "1.5 lies below 1.8 to 2.2"),
        ((2.0, 1.7, 2.1), Agreement.UNJUDGED, "the interval contains the bound 1.8"),
        ((2.0, 1.9, 2.3), Agreement.UNJUDGED, "the interval contains the bound 2.2"),
        ((2.0, 2.0, 2.0, 1), Agreement.UNJUDGED, "of what scatters, 3 measurements are needed"),
    ],
)
def test_whole_interval_decides(
    tmp_path: Path, measured: tuple[Any, ...], agreement: Agreement, reason: str
) -> None:
    text = RESULT.replace("exact = true", "exact = false\ntolerance = 0.1")
    result = read_result(write_result(tmp_path, text))
    assert compare_with_print(result, MeasuredRatio(*measured)) == (agreement, reason)


@pytest.mark.parametrize(
    "quantity, values, ratio",
    [
        (
            QuantityTable(kind="count", metric="bytes_read", axis="root", a="A", b="B"),
            [
                ({"root": "A"}, {"bytes_read": 50}),
                ({"root": "B"}, {"bytes_read": 100}),
                ({"root": "B"}, {"bytes_read": 110}),
            ],
            MeasuredRatio(2.1, 2, 2.2),
        ),
        (
            QuantityTable(kind="count", metric="bytes_read", axis="dataset", a="one", b="two"),
            [({}, {"dataset": "one", "bytes_read": 5}), ({}, {"dataset": "two", "bytes_read": 10})],
            MeasuredRatio(2, 2, 2),
        ),
        (
            QuantityTable(
                kind="quotient", metric="bytes_read", divisor="read_calls", where={"root": "A"}
            ),
            [
                ({"root": "A"}, {"bytes_read": 30, "read_calls": 10}),
                ({"root": "B"}, {"bytes_read": 90, "read_calls": 10}),
            ],
            MeasuredRatio(3, 3, 3),
        ),
        (
            QuantityTable(kind="quotient", metric="extra_fetched_mb", divisor="extra_asked_mb"),
            [({}, {"extras": {"fetched_mb": 9.0, "asked_mb": 4.0}})],
            MeasuredRatio(2.25, 2.25, 2.25),
        ),
        (
            QuantityTable(
                kind="slope", metric="loop_wall_s", axis="origin_rtt_s", divisor="retries"
            ),
            [
                ({"far": s // 20}, {"loop_wall_s": s, "origin_rtt_s": s // 20, "retries": 20})
                for s in (1, 9, 21, 29, 41, 49)  # two rounds at each distance
            ],
            MeasuredRatio(1, 1, 1),
        ),
        *(
            (
                QuantityTable(kind="same", metric="value_checksum", axis="dataset"),
                [
                    ({}, {"dataset": name, "value_checksum": text, "kind": "checksum"})
                    for name, text in (("a", "12ab"), ("b", "12ab"), ("c", last))
                ],
                MeasuredRatio(same, same, same),
            )
            for last, same in (("12ab", 1), ("12ac", 0))
        ),
    ],
)
def test_ratio_of_a_campaign(
    store: Store, quantity: QuantityTable, values: Sequence[Sided], ratio: MeasuredRatio
) -> None:
    add_campaign(store, "c", values)
    measured = measure_ratio(store, quantity, store.campaign("c"))
    assert (measured.value, measured.low, measured.high) == pytest.approx(
        (ratio.value, ratio.low, ratio.high)
    )


@pytest.mark.parametrize(
    "values, message",
    [
        ([], "no measurement is good"),
        ([({"root": "A"}, {"failure_class": "payload"})], "no measurement is good"),
        ([({"root": "A"}, {})], "no measurement has retries"),
        ([({"root": "A"}, {"retries": 5})], "nothing was measured with root=B"),
        ([({"root": "A"}, {"retries": 0}), ({"root": "B"}, {"retries": 5})], "is 0 with root=A"),
    ],
)  # fmt: skip
def test_missing_measurements_have_a_reason(
    store: Store, values: Sequence[Sided], message: str
) -> None:
    add_campaign(store, "c", values)
    quantity = QuantityTable(kind="count", metric="retries", axis="root", a="A", b="B")
    with pytest.raises(UnmeasuredError, match=message):
        measure_ratio(store, quantity, store.campaign("c"))


def test_value_that_was_not_measured_is_not_called_the_same(store: Store) -> None:
    add_campaign(store, "c", [({"root": "A"}, {"value_checksum": "12ab", "kind": "checksum"})])
    plan = CampaignPlan.model_validate({"definition": {"axes": {"root": ["A", "B"]}}})
    quantity = QuantityTable(kind="same", metric="value_checksum", axis="root")
    with pytest.raises(UnmeasuredError, match="nothing was measured with root=B"):
        measure_ratio(store, quantity, replace(store.campaign("c"), plan=plan))


def test_effect_without_a_verdict_is_no_ratio(store: Store) -> None:
    quantity = QuantityTable(
        kind="effect", metric="cpu_per_event_s", axis="root", a="6.38.00", b="6.40.00"
    )
    id_ = add_simulated(store, "enough", math.log(2))
    assert measure_ratio(store, quantity, store.campaign(id_)).value == pytest.approx(2, rel=0.02)
    id_ = add_simulated(store, "little", math.log(2), loop_s=0.5)
    with pytest.raises(UnmeasuredError, match=r"too little read: .* s of CPU per side in a job"):
        measure_ratio(store, quantity, store.campaign(id_))


def test_stored_results_are_printed_without_measuring(store: Store, tmp_path: Path) -> None:
    folder = write_result(tmp_path)
    sides = [({"root": "6.38.00"}, {"bytes_read": 5}), ({"root": "6.40.00"}, {"bytes_read": 15})]
    add_campaign(store, "in-print-twice", sides)
    done = call_command("reproduce", tmp_path, "--stored", str(folder), "rntuple-size")
    assert done.return_value == ExitCode.REGRESSION
    lines = [" ".join(line.split()) for line in done.output.splitlines()]
    assert "twice 2 3 exact differs" in lines
    assert "twice: 3 lies above 2." in lines
    assert "rntuple-size 0.69 to 0.87 – – cannot be judged here" in lines
    row = {"measured": 2.7249, "low": 2.644, "high": 2.801}
    assert (format_here(row), format_interval(row)) == ("2.72", "2.64 to 2.80")


@pytest.mark.parametrize(
    "name, problem",
    [
        ("distance-by-calls", "start a testbed and name its last site with --sites"),
        ("foreign-writers-hzz", "uproot-HZZ.root: is not at hand. Set sources_dir to the folder"),
    ],
)
def test_what_a_machine_lacks_is_said_before_anything_runs(
    tmp_path: Path, name: str, problem: str
) -> None:
    settings = load_settings({"data_dir": tmp_path, "cache_dir": tmp_path / "cache"})
    done = call_command("reproduce", settings, name)
    assert done.return_value == ExitCode.NOTHING
    assert problem in " ".join(done.output.split())
    assert not list(tmp_path.glob("*.db"))


@pytest.mark.usefixtures("draw_in_process")
def test_page_shows_print_beside_the_newest_campaign(pages: ServiceThread) -> None:
    sizes = (("ttree", 50), ("rntuple", 36))
    values = [({"format": name}, {"file_size_bytes": size}) for name, size in sizes]
    add_campaign(pages.store, "in-print-rntuple-size", values)
    page = pages.load_page("/published")
    (chart,) = load_charts(page)
    assert {parameter["name"] for parameter in chart["params"]} == {"hidden", "lit"}
    total = len(list_shipped_names())
    assert f"1 of {total} published results agrees with what was" in page
    assert f"{total - 1} could not be judged." in page
    (row,) = [
        row for row in pages.load_tables("/published")["results"] if row["measured"] is not None
    ]
    assert (row["name"], row["measured"], row["verdict"]) == ("rntuple-size", 0.72, "agrees")
    drawing = pages.load_page("/published?drawing=published.svg")
    assert "rntuple-size" in drawing
