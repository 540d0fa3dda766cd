"""What all pages have in common: who may read, in which forms, with which headers."""

from __future__ import annotations

import asyncio
import csv
import html
import io
import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path

import httpx
import pytest
from measurement_factory import make_campaign_row, make_job_row, make_measurement
from page_database import HOSTILE_TEXTS, fill_database
from prometheus_client.parser import text_string_to_metric_families
from service_thread import ServiceThread, StartService, run_service
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from treehammer.collectors.service_spec import API_PREFIX
from treehammer.sql.read import overview_queries
from treehammer.sql.write.store import Store
from treehammer.web.api.operations import OPERATIONS
from treehammer.web.service.proxy_headers import TrustedProxyMiddleware
from treehammer.web.views.shared.page_context import link_to_same_page

PEOPLE = {"Accept": "text/html,*/*"}
#: Everything that can be read but for the interface's addresses.
READ = (
    "/",
    "/explore",
    "/explore/figure.png",
    "/figures/s0",
    "/figures/s0/figure.root",
    "/compare",
    "/compare/x",
    "/campaigns",
    "/campaigns/x",
    "/jobs/x",
    "/sites",
    "/sites/x",
    "/days/2026-03-01",
    "/root-file",
    "/metrics",
)


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceThread]:
    folder = tmp_path_factory.mktemp("filled")
    fill_database(f"sqlite:///{folder / 'results.db'}")
    with run_service(folder, reading_open=True) as service:
        yield service


def test_a_page_may_load_nothing_of_others_and_no_script_inside(filled: ServiceThread) -> None:
    answer = filled.client.get("/", headers=PEOPLE)
    policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'self'" in policy
    assert "unsafe" not in policy
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    for word in ("<script>", "style=", "onclick", "http://", "https://"):
        assert word not in answer.text.lower()


@pytest.mark.parametrize(
    "address",
    ["/sites/%00", "/sites/a%00b", "/explore?where=site%3Da%00b", "/campaigns/%00", "/?days=%00"],
)
def test_an_address_that_means_no_text_is_refused(filled: ServiceThread, address: str) -> None:
    answer = filled.client.get(address)
    assert answer.status_code == 400
    assert "NUL" in answer.text


def test_every_table_is_there_for_programs(filled: ServiceThread) -> None:
    document = filled.client.get("/?format=json&days=7").json()
    assert set(document["tables"]) == {"site_days", "running", "verdicts"}
    (running,) = document["tables"]["running"]
    assert running["campaign"] == HOSTILE_TEXTS[1]
    assert (running["queued"], running["running"], running["planned"]) == (1, 2, 400)
    answer = filled.client.get("/?format=csv&days=7")
    assert answer.headers["Content-Type"] == "text/csv; charset=utf-8"
    rows = [*csv.DictReader(io.StringIO(answer.text))]
    assert len(rows) == len(document["tables"]["site_days"])
    assert {row["site"] for row in rows} >= set(HOSTILE_TEXTS)
    one = filled.client.get("/?format=json&table=verdicts").json()
    assert set(one["tables"]) == {"verdicts"}


@pytest.mark.parametrize(
    "path", ["/", "/campaigns", "/campaigns/running", "/sites", "/sites/SITE_A"]
)
def test_every_table_leads_to_itself(filled: ServiceThread, path: str) -> None:
    page = html.unescape(filled.client.get(path, headers=PEOPLE).text)
    found = re.findall(r'href="(\?[^"]*format=(?:csv|json)[^"]*)"', page)
    assert found
    for query in found:
        assert filled.client.get(path + query).status_code == 200, query


def test_the_measurements_of_each_attempt_are_told_alone(start_service: StartService) -> None:
    with start_service(reading_open=True) as service:
        with Store.open(service.url) as store:
            store.add_campaign(make_campaign_row(), [make_job_row()])
            store.add([make_measurement(attempt=number) for number in (1, 2)])
        page = service.client.get("/jobs/job", headers=PEOPLE).text
        assert "table=attempt_2" in page
        (row,) = service.client.get("/jobs/job?format=json&table=attempt_2").json()["tables"][
            "attempt_2"
        ]
        assert row["attempt"] == 2
        whole = service.client.get("/jobs/job?format=json").json()["tables"]
        assert set(whole) == {"measurements", "attempts"}
        assert len(whole["measurements"]) == 2


def test_a_job_shows_the_percentiles_that_were_measured_and_guesses_none(
    start_service: StartService,
) -> None:
    with start_service(reading_open=True) as service:
        with Store.open(service.url) as store:
            store.add_campaign(make_campaign_row(), [make_job_row()])
            bins = [0] * 13 + [
                951
            ]  # all from 8.2 to 16.4 ms: evenly spread, half are below 12.3 ms
            store.add([make_measurement(read_latency_hist=bins, read_latency_p50_s=8.69e-3)])
        page = service.client.get("/jobs/job", headers=PEOPLE).text
    assert "951 reads by latency" in page
    assert "8.69" in page
    assert "12.3" not in page


def test_counts_of_days_are_those_of_the_measurements(filled: ServiceThread) -> None:
    rows = filled.client.get("/?format=json&days=30").json()["tables"]["site_days"]
    found = sum(row["good"] + row["failed"] + row["implausible"] for row in rows)
    with Store.open(filled.url) as store:
        assert found == sum(
            sum(store.count_by_attempt(campaign).values()) for campaign in ("over", "running")
        )


@pytest.mark.parametrize(
    "address, status",
    [
        ("/?format=xml", 400),
        ("/sites/%00", 400),
        ("/explore?where=site%3Da%00b", 400),
        ("/explore?where=site%3Da%2500b", 200),
        ("/?format=csv&table=none", 404),
        ("/?days=8", 400),
        ("/?until=yesterday", 400),
        ("/?until=9999-12-31", 200),
        ("/?until=0001-01-01&days=60", 200),
        ("/nothing", 404),
        ("/static/nothing", 404),
        ("/static/../answers.py", 404),
    ],
)
def test_what_cannot_be_shown_is_said(filled: ServiceThread, address: str, status: int) -> None:
    page = filled.client.get(address, headers=PEOPLE)
    assert page.status_code == status
    if status != 200 and not address.startswith("/static"):
        assert ("<main" in page.text) == ("format=csv" not in address)
    assert (filled.client.get(address).status_code) == status


def test_programs_are_told_in_json(filled: ServiceThread) -> None:
    answer = filled.client.get("/nothing")
    assert answer.json() == {"error": "there is nothing at this address"}
    assert filled.client.post("/", headers=PEOPLE).status_code == 405


def test_files_are_kept_by_browsers(filled: ServiceThread) -> None:
    first = filled.client.get("/static/page.css?v=old")
    assert first.headers["Cache-Control"] == "no-cache"
    again = filled.client.get("/static/page.css", headers={"If-None-Match": first.headers["ETag"]})
    assert (again.status_code, again.content) == (304, b"")
    version = first.headers["ETag"].strip('"')
    kept = filled.client.get(f"/static/page.css?v={version}")
    assert "immutable" in kept.headers["Cache-Control"]
    plain = filled.client.get("/static/page.css", headers={"Accept-Encoding": "identity"})
    assert plain.content == kept.content
    assert "Content-Encoding" not in plain.headers


def test_reading_needs_a_key_unless_it_is_open(start_service: StartService) -> None:
    with start_service() as service:
        refused = service.client.get("/", headers=PEOPLE)
        assert refused.status_code == 401
        assert "SITE" not in refused.text
        assert refused.headers["WWW-Authenticate"].startswith("Bearer")
        assert service.client.get("/static/page.css").status_code == 200
        reader, submitter = service.make_key("read").text, service.make_key("submit").text
        assert service.get_path("/", reader).status_code == 200
        assert service.get_path("/", submitter).status_code == 403
        assert service.get_path("/", "wrong").status_code == 401


def test_a_browser_keeps_a_key_for_reading_alone(start_service: StartService) -> None:
    with start_service() as service:
        key = service.make_key("admin").text
        answer = service.client.post("/sign-in", data={"token": f" {key} ", "next": "/?days=7"})
        assert (answer.status_code, answer.headers["Location"]) == (303, "/?days=7")
        cookie = answer.headers["Set-Cookie"].lower()
        assert "httponly" in cookie
        assert "samesite=lax" in cookie
        assert service.client.get("/", headers=PEOPLE).status_code == 200
        assert service.client.get("/").headers["Cache-Control"] == "no-store"
        # What it may beyond reading, it may with a header alone.
        assert service.post_document({"measurements": []}, "").status_code == 401
        service.client.post("/sign-out")
        assert service.client.get("/", headers=PEOPLE).status_code == 401


def test_nothing_is_read_without_a_key_and_who_makes_one_is_said(
    start_service: StartService,
) -> None:
    remedy = "treehammer token create"
    addresses = [f"{API_PREFIX}{one.path}" for one in OPERATIONS]
    with start_service() as service:
        key = service.make_key("submit").text
        for path in (*READ, *addresses, f"{API_PREFIX}/measurements/x"):
            told = service.client.get(path)
            assert (told.status_code, remedy in told.json()["error"]) == (401, True), path
            page = service.client.get(path, headers=PEOPLE)
            assert (page.status_code, remedy in page.text) == (401, True), path
            wrong = {"Authorization": f"Bearer {key}"}
            told = service.client.get(path, headers=wrong)
            assert (told.status_code, remedy in told.json()["error"]) == (403, True), path
            page = service.client.get(path, headers=PEOPLE | wrong)
            assert (page.status_code, page.text.count(remedy)) == (403, 1), path


@pytest.mark.parametrize("target", ["//evil.example/", "https://evil.example", "/\\evil", "", "x"])
def test_signing_in_leads_nowhere_else(start_service: StartService, target: str) -> None:
    with start_service() as service:
        key = service.make_key("read").text
        answer = service.client.post("/sign-in", data={"token": key, "next": target})
        assert answer.headers["Location"] == "/"


@pytest.mark.parametrize(
    "body, status",
    [
        (b"token=" + b"x" * 9000, 413),
        (b"\xff", 400),
        (b"token=%ff", 400),
        (b"token=no", 401),
        (b"", 401),
    ],
)
def test_a_wrong_key_is_no_way_in(start_service: StartService, body: bytes, status: int) -> None:
    with start_service() as service:
        kind = {"Content-Type": "application/x-www-form-urlencoded", **PEOPLE}
        answer = service.client.post("/sign-in", content=body, headers=kind)
        assert answer.status_code == status
        assert "Set-Cookie" not in answer.headers


def test_a_reader_whom_the_proxy_names(start_service: StartService) -> None:
    with start_service(user_header="X-Remote-User") as service:
        assert service.client.get("/", headers={"X-Remote-User": "me"}).status_code == 200
        assert service.client.get("/", headers={"X-Remote-User": ""}).status_code == 401


async def _get(transport: httpx.ASGITransport, headers: dict[str, str]) -> object:
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        return (await client.get("/", headers=headers)).json()


def test_only_a_proxy_is_believed() -> None:
    async def show(request: Request) -> JSONResponse:
        heard = request.headers.get("x-remote-user")
        return JSONResponse([heard, request.url.scheme, request.client and request.client.host])

    app = Starlette(routes=[Route("/", show)])
    sent = {"X-Remote-User": "me", "X-Forwarded-Proto": "https", "X-Forwarded-For": "10.9.9.9"}

    def asked(address: str, *proxies: str) -> object:
        behind = TrustedProxyMiddleware(app, proxies, "X-Remote-User")
        return asyncio.run(_get(httpx.ASGITransport(behind, client=(address, 1)), sent))

    assert asked("10.0.0.7", "127.0.0.1", "10.0.0.0/24") == ["me", "https", "10.9.9.9"]
    assert asked("10.0.1.7", "127.0.0.1", "10.0.0.0/24") == [None, "http", "10.0.1.7"]
    assert asked("127.0.0.1") == [None, "http", "127.0.0.1"]
    assert asked("nobody", "127.0.0.1") == [None, "http", "nobody"]


def test_addresses_of_the_same_page() -> None:
    scope = {"type": "http", "query_string": b"site=A%26B&site=C&days=7", "headers": []}
    assert (
        link_to_same_page(Request(scope), days=None, format="csv")
        == "?site=A%26B&site=C&format=csv"
    )


def test_a_page_while_the_database_is_away(start_service: StartService) -> None:
    with start_service(reading_open=True) as service:
        with Store.open(service.url) as store:
            store.add([make_measurement()])
        file = service.url.removeprefix("sqlite:///")
        Path(file).rename(f"{file}.away")
        answer = service.client.get("/", headers=PEOPLE)
        assert answer.status_code == 503
        assert "Retry-After" in answer.headers
        assert "Nothing is lost" in answer.text
        Path(f"{file}.away").rename(file)
        assert service.client.get("/", headers=PEOPLE).status_code == 200


def test_the_evidence_of_every_day_agrees_with_its_cell(filled: ServiceThread) -> None:
    cells = filled.client.get("/?format=json&days=7").json()["tables"]["site_days"]
    for cell in cells:
        query = {"format": "json", "site": cell["site"]}
        tables = filled.client.get(f"/days/{cell['day']}", params=query).json()["tables"]
        for name in ("good", "failed", "implausible"):
            assert sum(row[name] for row in tables["measured"]) == cell[name]
        assert len(tables["failing"]) == cell["failed"] + cell["implausible"]


@pytest.mark.parametrize(
    "day, status", [("2026-02-30", 400), ("0001-01-01", 200), ("9999-12-31", 200)]
)
def test_days_that_are_none(filled: ServiceThread, day: str, status: int) -> None:
    assert filled.client.get(f"/days/{day}?site=SITE_A", headers=PEOPLE).status_code == status


@pytest.mark.parametrize("prefix", ["", "/api/v1"])
@pytest.mark.parametrize(
    "query, status, said",
    [
        ("", 400, "site is missing"),
        ("?site=SITE_", 404, "Did you mean 'SITE_"),
        ("?site=", 404, "no site ''"),
        ("?site=SITE_A", 200, ""),
    ],
)
def test_a_day_is_one_of_a_site(
    filled: ServiceThread, prefix: str, query: str, status: int, said: str
) -> None:
    answer = filled.client.get(f"{prefix}/days/2026-03-01{query}")
    assert answer.status_code == status, answer.text
    assert said in answer.text


def test_what_was_measured_nowhere_has_days(tmp_path: Path) -> None:
    with Store.open(f"sqlite:///{tmp_path / 'results.db'}") as store:
        store.add([make_measurement(site="", day=20260301)])
    with run_service(tmp_path, reading_open=True) as service:
        told = service.client.get("/api/v1/days/2026-03-01?site=").json()
    assert told["about"]["counts"]["good"] + told["about"]["counts"]["implausible"] == 1


def test_metrics_for_prometheus(filled: ServiceThread) -> None:
    answer = filled.client.get("/metrics")
    assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    families = {family.name: family for family in text_string_to_metric_families(answer.text)}
    measured = families["treehammer_measurements"].samples
    with Store.open(filled.url) as store:
        assert sum(one.value for one in measured) == sum(
            sum(store.count_by_attempt(campaign).values()) for campaign in ("over", "running")
        )
    assert {one.labels["site"] for one in measured} >= set(HOSTILE_TEXTS)
    jobs = {one.labels["state"]: one.value for one in families["treehammer_jobs"].samples}
    assert jobs == {"queued": 1, "running": 2, "held": 1}
    statuses = families["treehammer_site_status"].samples
    assert sum(one.value for one in statuses) == len({one.labels["site"] for one in statuses})
    assert families["treehammer_last_measured_day_seconds"].samples


def test_metrics_are_for_readers(start_service: StartService) -> None:
    with start_service() as service:
        assert service.client.get("/metrics").status_code == 401
        assert service.get_path("/metrics", service.make_key("read").text).status_code == 200


@pytest.mark.parametrize("page", ["/campaigns/over", "/sites/SITE_A"])
def test_a_page_leads_to_its_figures(filled: ServiceThread, page: str) -> None:
    html = filled.client.get(page, headers=PEOPLE).text
    listed = html.split('class="look"', 1)[1].split("</nav>", 1)[0]
    links = [part.split('"', 1)[0] for part in listed.split('href="')[1:]]
    addresses = [unescape(link) for link in links if not link.startswith("#")]
    assert len(addresses) >= 3
    for address in addresses:
        answer = filled.client.get(address, headers=PEOPLE)
        assert answer.status_code == 200, answer.text


def test_states_are_told_as_of_when(filled: ServiceThread) -> None:
    html = filled.client.get("/campaigns/running", headers=PEOPLE).text
    assert "which told of what happened until 20" in html


def test_a_mistake_of_ours_is_admitted(
    filled: ServiceThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_store: Store) -> None:
        raise RuntimeError("a secret of the inside")

    monkeypatch.setattr(overview_queries, "list_sites", broken)
    page = filled.client.get("/sites", headers=PEOPLE)
    assert page.status_code == 500
    assert "Internal error; see the log of the service." in page.text
    assert "Tell who runs this service" in page.text
    assert "secret" not in page.text
    assert set(filled.client.get("/sites").json()) == {"error"}
