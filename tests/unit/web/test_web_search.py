"""Search for names on every page."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import quote

import pytest
from measurement_factory import make_campaign_row, make_job_row, make_measurement
from page_database import HOSTILE_TEXTS
from service_thread import ServiceThread, run_service

from treehammer.sql.read.reader import MAX_HITS
from treehammer.sql.write.store import Store

PEOPLE = {"Accept": "text/html"}


@pytest.fixture(scope="module")
def search_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceThread]:
    folder = tmp_path_factory.mktemp("search")
    with Store.open(f"sqlite:///{folder / 'results.db'}") as store:
        store.add(
            make_measurement(
                f"job-{number}",
                site=site,
                host=f"wn{number}.example.org",
                axis_root="6.40.00",
                test_name="ttree-read",
            )
            for number, site in enumerate(("CERN-PROD", "CERN", "UKI_100%", HOSTILE_TEXTS[0]))
        )
        campaigns = [("abc123", "nightly CERN"), ("abd999", "weekly")]
        for number, (identity, name) in enumerate(campaigns):
            row = make_campaign_row(identity, name=name)
            store.add_campaign(row, [make_job_row(f"Job{number}", campaign_id=identity)])
        many = make_campaign_row("many", name="many")
        jobs = [make_job_row(f"many-{n}", campaign_id="many") for n in range(MAX_HITS + 5)]
        store.add_campaign(many, jobs)
    with run_service(folder, reading_open=True) as running:
        yield running


@pytest.mark.parametrize(
    "text, expected",
    [
        (
            "cern",
            [("site", "CERN"), ("site", "CERN-PROD"), ("campaign", "nightly CERN")],
        ),
        ("abc", [("campaign", "nightly CERN")]),
        ("Job1", [("job", "Job1")]),
        ("wn2", [("host", "wn2.example.org")]),
        ("6.40", [("ROOT release", "6.40.00")]),
        ("TTREE", [("test", "ttree-read")]),
        ("100%", [("site", "UKI_100%")]),
        ("K%_1", []),
        (" ", []),
        (HOSTILE_TEXTS[0], [("site", HOSTILE_TEXTS[0])]),
        (HOSTILE_TEXTS[1], []),
    ],
)
def test_names_are_found(
    search_service: ServiceThread, text: str, expected: list[tuple[str, str]]
) -> None:
    told = search_service.client.get("/api/v1/search", params={"q": text}).json()["tables"]["hits"]
    assert [(hit["kind"], hit["name"]) for hit in told] == expected


def test_hits_of_a_kind_are_limited(search_service: ServiceThread) -> None:
    hits = search_service.load_tables("/search?q=many")["hits"]
    assert [hit["kind"] for hit in hits] == ["campaign", *["job"] * MAX_HITS]


@pytest.mark.parametrize("text", ["nightly", "Job1", "wn2", "6.40.00", "ttree-read", "CERN-PROD"])
def test_single_hit_leads_to_its_page(search_service: ServiceThread, text: str) -> None:
    led = search_service.client.get(
        f"/search?q={quote(text)}", headers=PEOPLE, follow_redirects=False
    )
    assert led.status_code == 307
    assert led.headers["location"].startswith("/")
    page = search_service.client.get(led.headers["location"], headers=PEOPLE)
    assert page.status_code == 200
    assert text in page.text


def test_every_page_has_the_search(search_service: ServiceThread) -> None:
    for path in ("/", "/sites", "/search", "/search?q=cern", "/nowhere"):
        page = search_service.client.get(path, headers=PEOPLE).text
        assert page.count('role="search" action="/search"') == 1
    assert 'name="q" value="cern"' in search_service.load_page("/search?q=cern")
    assert "Nothing found." in search_service.load_page("/search?q=nothing-of-this")
