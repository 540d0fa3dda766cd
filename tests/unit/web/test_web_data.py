"""What programs are told is what pages show, at addresses that are described."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest
from page_makers import HOSTILE, fill
from web_service import Service, Start, running

from treehammer.web.api import OPERATIONS, PREFIX, Operation
from treehammer.web.bodies import Limits
from treehammer.web.openapi import description
from treehammer.web.pages.days import today

PARTS = {
    "day": today().isoformat(),
    "campaign_id": "running",
    "job_id": "r4",
    "site": quote(HOSTILE[1], safe=""),
    "comparison": "comparison",
}

#: Where the page that shows the same is.
PAGES = {
    "getOverview": "/",
    "getDay": "/days/{day}",
    "explore": "/explore",
    "getFigureS0": "/figures/s0",
    "listComparisons": "/compare",
    "getComparison": "/compare/{comparison}",
}


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("data")
    fill(f"sqlite:///{folder / 'results.db'}")
    with running(folder, reading_open=True) as service:
        yield service


@pytest.mark.parametrize(
    "operation", [one for one in OPERATIONS if one.name != "compare"], ids=lambda one: one.name
)
def test_it_is_what_the_page_shows(filled: Service, operation: Operation) -> None:
    address = f"{PREFIX}{operation.address.format(**PARTS)}"
    found = filled.client.get(address)
    assert found.status_code == 200, found.text
    told: dict[str, Any] = found.json()
    assert set(told["tables"]) == set(operation.tables)
    assert set(told["about"]) == set(operation.about)
    page = PAGES.get(operation.name, operation.address).format(**PARTS)
    shown = filled.client.get(page, params={"format": "json"}).json()
    assert (told["title"], told["tables"]) == (shown["title"], shown["tables"])
    first = next(iter(operation.tables))
    lines = filled.client.get(address, params={"format": "csv"})
    rows = [*csv.reader(io.StringIO(lines.text))]
    assert len(rows) == 1 + len(told["tables"][first])


def test_a_comparison_is_refused_as_on_the_page(filled: Service) -> None:
    query = {"a": "6.38.00", "b": "6.40.00", "where": "site=nowhere"}
    told = filled.client.get(f"{PREFIX}/compare", params=query)
    shown = filled.client.get("/compare", params={**query, "format": "json"})
    assert told.status_code == shown.status_code >= 400
    assert told.json() == shown.json()


def test_all_pages_with_tables_are_there(filled: Service) -> None:
    """Beside those that only lead elsewhere."""
    pages = filled.client.get("/api/v1/openapi.json").json()["paths"]
    assert {f"{PREFIX}{one.address}" for one in OPERATIONS} <= set(pages)
    assert pages == description(Limits())["paths"]


def test_exactly_what_runs_is_told(filled: Service) -> None:
    about = filled.client.get("/api/v1/campaigns/running").json()["about"]
    assert about["facts"]["campaign"] == "running"
    assert about["command_line"].startswith("treehammer submit")
    assert about["job_count"] == 6
    news = filled.client.get("/api/v1/overview").json()["about"]["news"]
    assert any("came in" in text for text in news)


@pytest.mark.parametrize(
    "address, status, said",
    [
        ("/sites/SITE_A?metrik=eff_job", 400, "Did you mean 'metric'"),
        ("/sites/SITE_A?metric=host", 400, "metric cannot be"),
        ("/sites/SITE_A?days=30&days=90", 400, "more than once"),
        ("/sites/SITE_A?table=none", 400, "table cannot be"),
        ("/sites/SITE_A?format=html", 400, "format cannot be"),
        ("/sites/SITE_A?until=today", 400, "until must be a day"),
        ("/sites/SITE_A?root=", 400, "root cannot be"),
        ("/campaigns?page=0", 400, "page cannot be"),
        ("/campaigns?page=1", 200, ""),
        ("/explore?where=site%3DSITE_A&where=host~*", 200, ""),
        ("/compare", 400, "nothing is compared"),
        ("/compare?a=6.38.00&b=6.40.00&delta=5", 400, "delta cannot be"),
        ("/compare?a=6.38.00&b=6.40.00&delta=x", 400, "delta cannot be"),
        ("/sites/nowhere", 404, "no site"),
        ("/jobs/none", 404, ""),
        ("/nothing", 404, ""),
    ],
)
def test_what_is_asked_for(filled: Service, address: str, status: int, said: str) -> None:
    answer = filled.client.get(f"{PREFIX}{address}")
    assert answer.status_code == status, answer.text
    assert said in answer.text
    assert status == 200 or set(answer.json()) == {"error"}


def test_reading_may_need_a_key(start: Start) -> None:
    with start() as service:
        assert service.get(f"{PREFIX}/sites").status_code == 401
        key = service.make_key("read").text
        assert service.get(f"{PREFIX}/sites", key).status_code == 200
