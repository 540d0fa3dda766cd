"""Differences from the same work: another mix of work is no change."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

import pytest
from measurement_factory import make_measurement
from page_charts import list_marks, load_charts
from service_thread import StartService

from treehammer.collectors.record.measurement_record import Measurement
from treehammer.sql.write.store import Store

LIGHT, HEAVY = (json.dumps({"branches": share, "root": "6.40.00"}) for share in (0.02, 1.0))
#: Time of each variant at an ordinary site.
SECONDS = {LIGHT: 1e-6, HEAVY: 50e-6}
#: Site -> its factor for each variant.
FACTORS = {
    "A": {LIGHT: 1.10, HEAVY: 0.95},
    "B": {LIGHT: 1.0, HEAVY: 1.0},
    "C": {LIGHT: 1.0, HEAVY: 1.0},
}
STEP_DAYS = range(20260301, 20260309)
STEP_DAY = 20260305


def variants_of(day: int) -> tuple[str, ...]:
    """Both on every fourth day, else one of them in turn: a mean would be a sawtooth."""
    return (LIGHT, HEAVY) if day % 4 == 1 else (LIGHT,) if day % 2 else (HEAVY,)


def measure(metric: str = "cpu_per_event_s") -> Iterator[Measurement]:
    """All sites; A is 20 % slower from a day on."""
    for site, factors in FACTORS.items():
        for day in STEP_DAYS:
            for variant in variants_of(day):
                step = 1.2 if site == "A" and day >= STEP_DAY else 1.0
                values: dict[str, Any] = {metric: SECONDS[variant] * factors[variant] * step}
                yield make_measurement(
                    f"{site} {day} {variant}",
                    site=site,
                    day=day,
                    variant=variant,
                    axis_root="6.40.00",
                    door="near",
                    door_protocol="root",
                    plausible=True,
                    **values,
                )


def ask(start_service: StartService, query: str) -> tuple[dict[Any, float], str]:
    """Return the differences by site and day, and the page."""
    with start_service(reading_open=True) as service:
        with Store.open(service.url) as store:
            store.add(measure())
        address = f"/explore?metric=cpu_per_event_s&from=&to=&{query}"
        rows = service.client.get(f"{address}&format=json").json()["tables"]["figure"]
        page = service.load_page(address)
    return {(row.get("site"), row.get("day")): row.get("difference", 0.0) for row in rows}, page


def test_alternating_variants_are_no_change(start_service: StartService) -> None:
    found, page = ask(start_service, "by=day&color=site&view=relative")
    before = {found["A", day] for day in STEP_DAYS if day < STEP_DAY}
    after = {found["A", day] for day in STEP_DAYS if day >= STEP_DAY}
    assert max(before) - min(before) < 1e-6 > max(after) - min(after)
    assert math.log1p(max(after)) - math.log1p(max(before)) == pytest.approx(math.log(1.2))
    assert [found["B", day] for day in STEP_DAYS] == pytest.approx([0] * len(STEP_DAYS), abs=1e-9)
    (chart,) = load_charts(page)
    assert [layer["mark"]["type"] for layer in chart["layer"]] == ["rule", "line", "point"]
    per_cent = {mark["y"] for mark in list_marks(chart) if mark["s"] == 0}
    assert max(per_cent) == pytest.approx(100 * max(after), rel=1e-6)


def test_other_sites_are_the_reference_of_selected_ones(start_service: StartService) -> None:
    whole, _ = ask(start_service, "by=day&color=site&view=relative")
    alone, _ = ask(start_service, "by=day&color=site&view=relative&site=A")
    assert alone == {key: value for key, value in whole.items() if key[0] == "A"}


def test_mean_over_variants_is_not_joined(start_service: StartService) -> None:
    _, page = ask(
        start_service, "by=day&color=site&view=relative&where=day!%3D20260301&where=day!%3D20260305"
    )
    (apart,) = load_charts(page)
    _, page = ask(start_service, "by=day&color=site")
    (mixed,) = load_charts(page)
    _, page = ask(start_service, "by=day&color=site&panels=variant")
    (single,) = load_charts(page)
    for chart, joined in ((apart, False), (mixed, False), (single, True)):
        layers = chart.get("layer") or chart["spec"]["layer"]
        assert ("line" in {layer["mark"]["type"] for layer in layers}) is joined
    _, page = ask(start_service, "by=day&color=site")
    assert "view=relative" in page
