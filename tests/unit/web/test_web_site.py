"""The page of a site says what the measurements say."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from datetime import date, timedelta
from typing import Any
from urllib.parse import quote

import pytest
from page_makers import HOSTILE, SITES, fill
from sql_makers import make_measurement
from web_service import Service, Start, running

from treehammer.sql.selection import Selection, Where
from treehammer.sql.store import Store
from treehammer.web.pages.chart import _ticks

PEOPLE = {"Accept": "text/html"}


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("sites")
    fill(f"sqlite:///{folder / 'results.db'}")
    with running(folder, reading_open=True) as service:
        yield service


def tables(service: Service, address: str) -> dict[str, list[dict[str, Any]]]:
    answer = service.client.get(address, params={"format": "json"})
    assert answer.status_code == 200, answer.text
    found: dict[str, list[dict[str, Any]]] = answer.json()["tables"]
    return found


def test_the_series_is_that_of_the_measurements(filled: Service) -> None:
    rows = tables(filled, "/sites/SITE_B")["series"]
    good = Selection(wheres=(Where("site", "=", "SITE_B"), Where("plausible", "=", True)))
    with Store.open(filled.url) as store:
        found = [row for row in store.measurements(good) if row["eff_job"] is not None]
    assert sum(row["measurements"] for row in rows) == len(found)
    for row in rows:
        own = [one["eff_job"] for one in found if str(one["day"]) == row["day"].replace("-", "")]
        assert row["mean"] == pytest.approx(statistics.fmean(own))  # type: ignore[arg-type]
        assert row["sites"] > 0


def test_servers_that_were_renewed_are_marked(filled: Service) -> None:
    found = tables(filled, "/sites/SITE_A")
    (change,) = found["changes"]
    assert change["thing"] == "door near (root)"
    assert (change["before"], change["after"]) == (["XRootD v5.6.9"], ["XRootD v5.8.1"])
    (now,) = [row for row in found["state"] if row["what"] == "server version"]
    assert (now["value"], now["since"]) == (["XRootD v5.8.1"], change["day"])
    page = filled.client.get("/sites/SITE_A", headers=PEOPLE).text
    assert '<g class="mark"><title>door near (root): server version XRootD v5.8.1</title>' in page


@pytest.mark.parametrize("place", range(len(SITES)))
def test_every_site_of_the_list_has_its_page(filled: Service, place: int) -> None:
    site = sorted(SITES)[place]
    rows = tables(filled, "/sites")["sites"]
    assert rows[place]["site"] == site
    page = filled.client.get(f"/sites/{quote(site, safe='')}", headers=PEOPLE)
    assert page.status_code == 200
    assert all(text not in page.text for text in HOSTILE[:2])


@pytest.mark.parametrize(
    "address, status, said",
    [
        ("/sites/SITE_X", 404, "Did you mean"),
        ("/sites/SITE_A?metric=host", 400, "no daily"),
        ("/sites/SITE_A?days=31", 400, "Days must be one of"),
        ("/sites/SITE_A?until=never", 400, "Until must be a day"),
        ("/sites/SITE_A?until=2020-01-01", 200, "Widen the days"),
        ("/sites/SITE_A?until=0001-01-01&days=180", 200, "Widen the days"),
        ("/sites/SITE_A?until=9999-12-31", 200, "Widen the days"),
        ("/sites/SITE_A?variant=none", 200, "choose “all”"),
        ("/sites/SITE_A?days=180&root=6.40.00&test=ttree-read", 200, "by week"),
    ],
)
def test_what_is_asked_for(filled: Service, address: str, status: int, said: str) -> None:
    answer = filled.client.get(address, headers=PEOPLE)
    assert answer.status_code == status
    assert said in answer.text


def test_a_site_that_is_alone_is_told_so(start: Start) -> None:
    with start(reading_open=True) as service:
        assert "treehammer demo" in service.client.get("/sites", headers=PEOPLE).text
        day = date.today() - timedelta(days=1)
        number = day.year * 10000 + day.month * 100 + day.day
        with Store.open(service.url) as store:
            store.add([make_measurement("one", day=number, site="ONLY/HE\nRE", eff_job=0.5)])
        address = "/sites/ONLY%2FHE%0ARE"
        page = service.client.get(address, headers=PEOPLE).text
        assert "No other site did the same work" in page
        assert f'<a href="{address}">' in service.client.get("/sites").text
        assert service.client.get(f"/api/v1{address}").status_code == 200


@pytest.mark.parametrize("low, high", [(0.61, 0.83), (0, 0), (-3e9, 5e9), (1e-9, 1.1e-9), (7, 7)])
def test_ticks_enclose_what_is_drawn(low: float, high: float) -> None:
    ticks = _ticks(low, high)
    assert ticks[0] <= low <= high <= ticks[-1]
    assert 3 <= len(ticks) <= 9
