"""Comparable work is identified by a variant's axes, not by its label.

A label names only the axes that vary in its campaign. Two campaigns may give one label to different
variants, and different labels to the same variant.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import timedelta
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from measurement_factory import make_campaign_row, make_job_row, make_measurement
from page_charts import list_names, load_charts
from service_thread import ServiceThread, run_service

from treehammer.collectors.record.measurement_record import Measurement
from treehammer.sql.write.store import Store
from treehammer.web import display_formats

RELEASE = "6.40.00"
DAY = display_formats.today() - timedelta(days=1)
ALL = "from=&to="


def variant(branches: float, cache_mb: int, root: str = RELEASE) -> str:
    axes = {"access": "direct", "branches": branches, "cache_mb": cache_mb, "root": root}
    return json.dumps(axes, separators=(",", ":"))


WHOLE, PART, CACHED = variant(1.0, 0), variant(0.02, 0), variant(0.02, 30)
#: Site, campaign, variant, its label there, CPU time per event and CPU efficiency.
MEASURED = (
    ("A", "whole", WHOLE, "cache_mb=0", 80e-6, 0.9),
    ("B", "part", PART, "cache_mb=0", 7e-6, 0.5),
    ("C", "part", PART, "cache_mb=0", 9e-6, 0.7),
    ("A", "both", CACHED, "branches=2% cache_mb=30", 10e-6, 0.6),
    ("B", "part", CACHED, "cache_mb=30", 12e-6, 0.8),
    ("C", "root", CACHED, f"root={RELEASE}", 14e-6, 0.4),
    # Several variants with one label on one day at one site.
    ("A", "part", PART, "cache_mb=0", 8e-6, 0.5),
)


def measure_work() -> Iterator[Measurement]:
    for number, (site, campaign, axes, label, cpu_s, efficiency) in enumerate(MEASURED):
        shared: dict[str, Any] = {"door": "near", "door_protocol": "root", "plausible": True}
        shared |= {"test_name": "ttree-read", "dataset": "small", "dataset_hash": "sha256:0"}
        yield make_measurement(
            f"{number}",
            day=display_formats.day_number(DAY),
            site=site,
            campaign_id=campaign,
            variant=axes,
            variant_label=label,
            axis_root=RELEASE,
            cpu_per_event_s=cpu_s,
            eff_job=efficiency,
            **shared,
        )


@pytest.fixture(scope="module")
def work_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceThread]:
    folder = tmp_path_factory.mktemp("same")
    with Store.open(f"sqlite:///{folder / 'results.db'}") as store:
        for campaign in sorted({one[1] for one in MEASURED}):
            mine = [(n, one[0]) for n, one in enumerate(MEASURED) if one[1] == campaign]
            jobs = [make_job_row(f"{n}", campaign_id=campaign, site=site) for n, site in mine]
            store.add_campaign(make_campaign_row(campaign), jobs)
        store.add(measure_work())
    with run_service(folder, reading_open=True) as work_service:
        yield work_service


def test_site_is_compared_by_variant_not_label(work_service: ServiceThread) -> None:
    parameters = {"metric": "cpu_per_event_s"}
    (row,) = work_service.load_document("/sites/A", **parameters)["tables"]["series"]
    # No other site measured the variant that takes 80 µs.
    assert (row["measurements"], row["compared"], row["sites"]) == (3, 2, 2)
    assert row["own"] == pytest.approx(9e-6)
    assert row["median"] == pytest.approx((8e-6 + 13e-6) / 2)
    (row,) = work_service.load_document("/sites/B", **parameters)["tables"]["series"]
    assert row["median"] == pytest.approx((8.5e-6 + 12e-6) / 2)


def test_site_list_compares_same_variants(work_service: ServiceThread) -> None:
    rows = {row["site"]: row for row in work_service.load_document("/sites")["tables"]["sites"]}
    assert rows["A"]["own"] == pytest.approx((0.6 + 0.5) / 2)
    assert rows["A"]["median"] == pytest.approx((0.6 + 0.6) / 2)
    assert rows["B"]["median"] == pytest.approx((0.6 + 0.5) / 2)


def test_site_page_filters_by_variant(work_service: ServiceThread) -> None:
    chosen = json.dumps({"access": "direct", "branches": 0.02, "cache_mb": 30})
    parameters = {"metric": "cpu_per_event_s", "variant": chosen}
    (row,) = work_service.load_document("/sites/A", **parameters)["tables"]["series"]
    assert (row["measurements"], row["median"]) == (1, pytest.approx(13e-6))


@pytest.mark.parametrize("view", ["", "&panels=host", "&bars=interval", "&view=distribution"])
def test_grouping_by_label_notes_aggregated_variants(
    work_service: ServiceThread, view: str
) -> None:
    query = f"metric=cpu_per_event_s&by=variant_label&color=&{ALL}{view}"
    found = work_service.load_document(f"/explore?{query}")
    assert found["about"]["aggregated"].startswith("Points aggregate up to 2 variants")
    mixes = {row["variant_label"]: row["aggregates"] for row in found["tables"]["figure"]}
    assert mixes["cache_mb=0"].startswith("2 variants")
    assert mixes["branches=2% cache_mb=30"] == ""


def test_variants_with_same_label_are_counted_separately(work_service: ServiceThread) -> None:
    found = work_service.load_document(f"/explore?by=site&color=&{ALL}")
    assert found["about"]["aggregated_max"] == {"variant": 3}


SHARED = "access=direct"
NAMES = ["branches=2% cache_mb=0", "branches=2% cache_mb=30", "branches=100% cache_mb=0"]


def test_s0_has_one_series_per_variant(work_service: ServiceThread) -> None:
    found = work_service.load_document(f"/figures/s0?{ALL}")
    assert found["about"]["aggregated"] == ""
    means = {(row["site"], row["variant"]): row["mean"] for row in found["tables"]["figure"]}
    expected = {(site, axes): mean for site, _, axes, _, _, mean in MEASURED}
    assert means == pytest.approx(expected)
    (chart,) = load_charts(work_service.load_page(f"/figures/s0?{ALL}"))
    assert list_names(chart, "series") == NAMES
    assert f"all variants: {SHARED} root={RELEASE}" in chart["title"]["subtitle"]


@pytest.mark.parametrize("view", ["", "&bars=interval", "&view=distribution"])
def test_figure_by_variant_does_not_aggregate_variants(
    work_service: ServiceThread, view: str
) -> None:
    query = f"metric=cpu_per_event_s&by=variant&panels=site&color=axis_root&{ALL}{view}"
    found = work_service.load_document(f"/explore?{query}")
    assert "variant" not in found["about"]["aggregated_max"]
    rows = [row for row in found["tables"]["figure"] if row["site"] == "A"]
    values = {row["variant"]: row["mean"] for row in rows}
    assert values == pytest.approx({WHOLE: 80e-6, CACHED: 10e-6, PART: 8e-6})
    text = work_service.load_page(f"/explore?{query}")
    assert f'<p class="quiet">All variants: {SHARED}</p>' in text
    assert all(f">{name}</" in text for name in NAMES)
    assert '"title": "share of branches \\u00b7 cache size"' in text


def test_links_use_variants_instead_of_labels(work_service: ServiceThread) -> None:
    addresses = [f"/explore?{ALL}", "/sites/A", f"/days/{DAY}?site=A", "/jobs/0", "/campaigns/part"]
    for address in addresses:
        found = [
            unescape(one) for one in re.findall(r'href="([^"]*)"', work_service.load_page(address))
        ]
        explored = [one for one in found if "/explore?" in one]
        assert explored, address
        assert not [one for one in explored if "variant_label" in one], address
        for one in explored:
            assert work_service.client.get(one).status_code == 200, one


def test_day_page_separates_variants_with_same_label(work_service: ServiceThread) -> None:
    address = f"/days/{DAY}"
    rows = work_service.load_document(address, site="A")["tables"]["measured"]
    means = {row["variant"]: row["cpu_per_event_s_mean"] for row in rows}
    assert means == pytest.approx({WHOLE: 80e-6, PART: 8e-6, CACHED: 10e-6})
    text = work_service.load_page(f"{address}?site=A")
    assert all(f">{name}</a>" in text for name in NAMES)
    assert f"All variants: {SHARED}" in text


def test_job_link_by_day_selects_same_variant(work_service: ServiceThread) -> None:
    """Three executions share the job's label, but only one its variant."""
    links = re.findall(
        r'href="([^"]*/explore\?[^"]*by=day[^"]*)"', work_service.load_page("/jobs/0")
    )
    (query,) = {unescape(one).split("?", 1)[1] for one in links}
    found = work_service.client.get(f"/explore?{query}&format=json").json()
    (row,) = found["tables"]["figure"]
    assert (row["number"], row["mean"]) == (1, pytest.approx(80e-6))
    text = work_service.load_page(f"/explore?{query}")
    assert "; variant access=direct branches=100% cache_mb=0 root=6.40.00; " in text
    assert 'class="aggregated"' not in text


def test_json_has_label_of_uniquely_labeled_variants(tmp_path: Path) -> None:
    called = [(PART, "cache_mb=0"), (WHOLE, "branches=100%"), (WHOLE, "cache_mb=0")]
    with Store.open(f"sqlite:///{tmp_path / 'results.db'}") as store:
        jobs = [make_job_row(f"{n}", site="A") for n in range(len(called))]
        store.add_campaign(make_campaign_row(), jobs)
        shared: dict[str, Any] = {
            "site": "A",
            "day": display_formats.day_number(DAY),
            "plausible": False,
        }
        store.add(
            make_measurement(f"{n}", variant=axes, variant_label=label, **shared)
            for n, (axes, label) in enumerate(called)
        )
    with run_service(tmp_path, reading_open=True) as work_service:
        day = work_service.load_document(f"/days/{DAY}", site="A")["tables"]
        work = work_service.load_document("/sites/A")["tables"]["work"]
    for rows in (day["measured"], work):
        labels = [(row["variant"], row["variant_label"]) for row in rows]
        assert sorted(labels) == sorted([(PART, "cache_mb=0"), (WHOLE, "")])
    failing = [(row["variant"], row["variant_label"]) for row in day["failing"]]
    assert sorted(failing) == sorted(called)


def test_job_links_include_all_releases(tmp_path: Path) -> None:
    done = [("a", 1, "6.38.00", 0), ("b", 1, "6.40.00", 0), ("b", 2, "6.40.00", 30)]
    with Store.open(f"sqlite:///{tmp_path / 'results.db'}") as store:
        jobs = [make_job_row(name, campaign_id="both", site="A") for name in ("a", "b")]
        store.add_campaign(make_campaign_row("both"), jobs)
        shared: dict[str, Any] = {"campaign_id": "both", "site": "A", "plausible": True}
        shared |= {"day": display_formats.day_number(DAY), "cpu_per_event_s": 1e-6}
        store.add(
            make_measurement(
                job, round_, variant=variant(1.0, cache_mb, root), axis_root=root, **shared
            )
            for job, round_, root, cache_mb in done
        )
    with run_service(tmp_path, reading_open=True) as work_service:
        for by in ("day", "site"):
            text = unescape(work_service.load_page("/jobs/a"))
            (query,) = re.findall(rf'"/explore\?([^"]*by={by}[^"]*)"', text)
            rows = work_service.client.get(f"/explore?{query}&format=json").json()["tables"][
                "figure"
            ]
            numbers = {row["axis_root"]: row["number"] for row in rows}
            assert numbers == {"6.38.00": 1, "6.40.00": 1}, by


def test_site_page_lists_each_variant_once(work_service: ServiceThread) -> None:
    text = work_service.load_page("/sites/A")
    found = re.search(r'<select name="variant">(.*?)</select>', text)
    assert found
    assert re.findall(r">([^<]+)</option>", found[1]) == ["all", *NAMES]
    values = [unescape(one) for one in re.findall(r'value="([^"]+)"', found[1])]
    (row,) = work_service.load_document("/sites/A", variant=values[-1], metric="cpu_per_event_s")[
        "tables"
    ]["series"]
    assert (row["mean"], row["median"]) == (pytest.approx(80e-6), None)
