"""Properties of all pages: access, formats, headers, errors, monitoring."""

from __future__ import annotations

import asyncio
import re
from html import unescape
from pathlib import Path
from typing import Any
from urllib.robotparser import RobotFileParser

import httpx
import pytest
from measurement_factory import make_campaign_row, make_job_row, make_measurement
from page_contents import list_marks, list_names, load_charts
from page_database import HOSTILE_TEXTS
from prometheus_client.parser import text_string_to_metric_families
from service_thread import BROWSER, ServiceThread, StartService, run_service
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from treehammer.collectors.job_spec import API_PREFIX
from treehammer.collectors.record.day_numbers import current_us
from treehammer.config import load_settings
from treehammer.sql.read import overview_queries
from treehammer.sql.write.store import Store
from treehammer.web import display_formats
from treehammer.web.api.page_data import OPERATIONS
from treehammer.web.display_formats import day_number, today
from treehammer.web.service import app
from treehammer.web.service.middleware import ProxyHeaders
from treehammer.web.service.proxy_setup import SECRET_HEADER

#: Paths that require read access, except those of the API.
READ_PATHS = (
    "/",
    "/explore",
    "/explore/figure.png",
    "/figures/s0",
    "/figures/s0/figure.pdf",
    "/compare",
    "/compare/x",
    "/campaigns",
    "/campaigns/x",
    "/campaigns/x/load",
    "/jobs/x",
    "/sites",
    "/sites/x",
    "/days/2026-03-01",
    "/root-file",
    "/metrics",
)


def test_pages_link_their_documentation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "DOCS_DIR", tmp_path / "docs")
    with run_service(tmp_path, reading_open=True) as service:
        assert service.read("/sites").list_links(".*/site-status/$") == []
    (tmp_path / "docs" / "site-status").mkdir(parents=True)
    for folder in ("docs", "docs/site-status"):
        (tmp_path / folder / "index.html").write_text("<h1>Alarms</h1>", "utf-8")
    with run_service(tmp_path, reading_open=True) as service:
        (address,) = service.read("/sites").list_links("/docs/")
        assert service.client.get(address).text == "<h1>Alarms</h1>"
    settings = load_settings({"serve_docs": "https://docs.example.org/th/"})
    with run_service(tmp_path, reading_open=True, settings=settings) as service:
        links = service.read("/").list_links("https:")
        assert links == ["https://docs.example.org/th/pages/"]


def test_page_forbids_foreign_and_inline_content(filled_service: ServiceThread) -> None:
    answer = filled_service.client.get("/", headers=BROWSER)
    policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'self'" in policy
    assert "unsafe" not in policy
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    for word in ("<script>", "style=", "onclick", "http://", "https://"):
        assert word not in answer.text.lower()


def test_overview_has_its_tables(filled_service: ServiceThread) -> None:
    tables = filled_service.load_tables("/?days=7")
    assert tables.keys() >= {"site_days", "running", "verdicts"}
    (running,) = tables["running"]
    assert running["campaign"] == HOSTILE_TEXTS[1]
    assert (running["queued"], running["running"], running["planned"]) == (1, 2, 400)
    answer = filled_service.client.get("/?format=csv&days=7")
    assert answer.headers["Content-Type"] == "text/csv; charset=utf-8"
    assert filled_service.load_tables("/?table=verdicts").keys() == {"verdicts"}


@pytest.mark.parametrize(
    "address, status, message",
    [
        ("/?format=xml", 400, "format"),
        ("/?format=csv&table=none", 404, "none"),
        ("/?days=%00", 400, "NUL"),
        ("/?to=9999-12-31", 200, ""),
        ("/?to=0001-01-01&days=60", 200, ""),
        ("/sites/%00", 400, "NUL"),
        ("/campaigns/%00", 400, "NUL"),
        ("/explore?where=site%3Da%00b", 400, "NUL"),
        ("/explore?where=site%3Da%2500b", 200, ""),
        ("/days/2026-02-30?site=SITE_A", 400, ""),
        ("/days/0001-01-01?site=SITE_A", 200, ""),
        ("/days/9999-12-31?site=SITE_A", 200, ""),
        ("/days/2026-03-01", 400, "site is missing"),
        ("/days/2026-03-01?site=SITE_", 404, "Did you mean 'SITE_"),
        ("/days/2026-03-01?site=", 404, "no site ''"),
        ("/nothing", 404, "there is nothing at this address"),
        ("/static/nothing", 404, ""),
        ("/static/../answers.py", 404, ""),
    ],
)
def test_invalid_address_gets_an_error_in_the_form_that_is_asked_for(
    filled_service: ServiceThread, address: str, status: int, message: str
) -> None:
    answer = filled_service.client.get(address)
    assert answer.status_code == status
    page = filled_service.client.get(address, headers=BROWSER)
    assert page.status_code == status
    if status != 200 and not address.startswith("/static"):
        assert message in answer.json()["error"]
        assert ("<main" in page.text) == ("csv" not in address)
    assert filled_service.client.post("/", headers=BROWSER).status_code == 405


def test_job_page_has_table_per_attempt(pages: ServiceThread) -> None:
    pages.store.add_campaign(make_campaign_row(), [make_job_row()])
    pages.store.add([make_measurement(attempt=number) for number in (1, 2)])
    page = pages.load_page("/jobs/job")
    assert "table=attempt_2" in page
    (row,) = pages.client.get("/jobs/job?format=json&table=attempt_2").json()["tables"]["attempt_2"]
    assert row["attempt"] == 2
    whole = pages.client.get("/jobs/job?format=json").json()["tables"]
    assert set(whole) == {"measurements", "attempts", "time", "latencies"}
    assert len(whole["measurements"]) == 2


def test_job_page_shows_measured_percentiles_only(pages: ServiceThread) -> None:
    pages.store.add_campaign(make_campaign_row(), [make_job_row()])
    # All reads in the bin from 8.2 to 16.4 ms, whose center is 12.3 ms.
    bins = [0] * 13 + [951]
    pages.store.add([make_measurement(read_latency_hist=bins, read_latency_p50_s=8.69e-3)])
    page = pages.load_page("/jobs/job")
    (chart,) = load_charts(page)
    assert [mark["y"] for mark in list_marks(chart)] == [0, 951, 0]
    assert list_names(chart, "places")[1] == "8.19 ms"
    assert "8.69" in page
    assert "12.3" not in page


#: 19 of 30 s in the run queue.
STARVED: dict[str, Any] = {
    "run_mode": "solo",
    "payload_wall_s": 30.0,
    "payload_user_s": 10.0,
    "payload_sys_s": 0.0,
    "pass_loop_wall_s": [29.0],
    "pass_loop_user_s": [9.5],
    "pass_loop_run_queue_s": [19.0],
}


@pytest.mark.parametrize("page, subject", [("/jobs/job", "The job"), ("/sites/SITE_X", "SITE_X")])
def test_pages_explain_where_the_time_went(pages: ServiceThread, page: str, subject: str) -> None:
    pages.store.add_campaign(make_campaign_row(), [make_job_row()])
    now: dict[str, Any] = {
        "site": "SITE_X",
        "day": display_formats.day_number(display_formats.today()),
    }
    pages.store.add(
        [
            make_measurement(**now, **STARVED),
            make_measurement(round=2, **now, **{**STARVED, "run_mode": "paired"}),
            make_measurement(round=3, **now, **STARVED, failure_class="read"),
        ]
    )
    page_text = pages.load_page(page)
    answer = pages.client.get(f"/api/v1{page}").json()
    sentence = f"{subject} waits for CPU, not for data: 19 of 30 s in the run queue."
    share = "CPU time is 33 % of the wall time of 1 measurement of 1 job."
    assert f"<strong>{sentence}</strong> {share}" in page_text
    assert answer["about"]["explanation"][0] == sentence
    assert sum(part["wall_s"] for part in answer["tables"]["time"]) == 30.0


def test_day_counts_equal_stored_measurements(filled_service: ServiceThread) -> None:
    rows = filled_service.client.get("/?format=json&days=30").json()["tables"]["site_days"]
    total = sum(row["good"] + row["failed"] + row["implausible"] for row in rows)
    assert total == sum(
        sum(filled_service.store.count_by_attempt(campaign).values())
        for campaign in ("over", "running")
    )


def test_static_files_are_cacheable(filled_service: ServiceThread) -> None:
    first = filled_service.client.get("/static/page.css?v=old")
    assert first.headers["Cache-Control"] == "no-cache"
    cached = filled_service.client.get(
        "/static/page.css", headers={"If-None-Match": first.headers["ETag"]}
    )
    assert (cached.status_code, cached.content) == (304, b"")
    (address,) = re.findall(r'href="(/static/page.css\?v=\w+)"', filled_service.load_page("/"))
    versioned = filled_service.client.get(address)
    assert "immutable" in versioned.headers["Cache-Control"]
    assert versioned.headers["Content-Encoding"] == "gzip"
    plain = filled_service.client.get("/static/page.css", headers={"Accept-Encoding": "identity"})
    assert plain.content == versioned.content
    assert "Content-Encoding" not in plain.headers


def test_sign_in_cookie_permits_reading_only(start_service: StartService) -> None:
    with start_service() as service:
        key = service.make_key("admin").text
        answer = service.client.post("/sign-in", data={"token": f" {key} ", "next": "/?days=7"})
        assert (answer.status_code, answer.headers["Location"]) == (303, "/?days=7")
        cookie = answer.headers["Set-Cookie"].lower()
        assert "httponly" in cookie
        assert "samesite=lax" in cookie
        assert service.client.get("/", headers=BROWSER).status_code == 200
        assert service.client.get("/").headers["Cache-Control"] == "no-store"
        # Anything but reading requires the header.
        assert service.post_document({"measurements": []}, "").status_code == 401
        service.client.post("/sign-out")
        assert service.client.get("/", headers=BROWSER).status_code == 401


def test_refused_reading_names_remedy(start_service: StartService) -> None:
    remedy = " --name NAME"
    operations = (operation.path for operation in OPERATIONS)
    paths = (*operations, "/measurements/x", "/campaigns/x/operations")
    with start_service() as service:
        key = service.make_key("submit").text
        for path in (*READ_PATHS, *(f"{API_PREFIX}{path}" for path in paths)):
            answer = service.client.get(path)
            assert (answer.status_code, remedy in answer.json()["error"]) == (401, True), path
            page = service.client.get(path, headers=BROWSER)
            assert (page.status_code, remedy in page.text) == (401, True), path
            wrong = {"Authorization": f"Bearer {key}"}
            answer = service.client.get(path, headers=wrong)
            assert (answer.status_code, remedy in answer.json()["error"]) == (403, True), path
            page = service.client.get(path, headers=BROWSER | wrong)
            assert (page.status_code, page.text.count(remedy)) == (403, 1), path


@pytest.mark.parametrize("target", ["//evil.example/", "https://evil.example", "/\\evil", "", "x"])
def test_sign_in_redirects_within_service(
    shared_service: ServiceThread, reader_key: str, target: str
) -> None:
    answer = shared_service.client.post("/sign-in", data={"token": reader_key, "next": target})
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
def test_sign_in_refuses_invalid_form(
    shared_service: ServiceThread, body: bytes, status: int
) -> None:
    kind = {"Content-Type": "application/x-www-form-urlencoded", **BROWSER}
    answer = shared_service.client.post("/sign-in", content=body, headers=kind)
    assert answer.status_code == status
    assert "Set-Cookie" not in answer.headers


def test_user_header_of_proxy_permits_reading(start_service: StartService) -> None:
    with start_service(user_header="X-Remote-User") as service:
        assert service.client.get("/", headers={"X-Remote-User": "me"}).status_code == 200
        assert service.client.get("/", headers={"X-Remote-User": ""}).status_code == 401


async def _get(transport: httpx.ASGITransport, headers: dict[str, str]) -> object:
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        return (await client.get("/", headers=headers)).json()


def test_forwarded_headers_require_the_secret_of_the_proxy() -> None:
    async def show(request: Request) -> JSONResponse:
        names = ("x-remote-user", SECRET_HEADER)
        values = [request.headers.get(name) for name in names]
        return JSONResponse([*values, request.url.scheme, request.client and request.client.host])

    app = ProxyHeaders(Starlette(routes=[Route("/", show)]), "s3cret", "X-Remote-User")
    sent = {
        "X-Remote-User": "me",
        "X-Forwarded-Proto": "https",
        "X-Forwarded-For": "192.0.2.66, 10.9.9.9",
    }

    def receive(**headers: str) -> object:
        transport = httpx.ASGITransport(app, client=("127.0.0.1", 1))
        return asyncio.run(_get(transport, sent | headers))

    assert receive(**{SECRET_HEADER: "s3cret"}) == ["me", None, "https", "10.9.9.9"]
    for forged in ({}, {SECRET_HEADER: ""}, {SECRET_HEADER: "S3cret"}):
        assert receive(**forged) == [None, None, "http", "127.0.0.1"]


def test_page_responds_503_until_database_returns(start_service: StartService) -> None:
    # A service of its own: others of this process must not meet the missing file.
    with start_service(reading_open=True) as service:
        with Store.open(service.url) as store:
            store.add([make_measurement()])
        file = service.url.removeprefix("sqlite:///")
        Path(file).rename(f"{file}.away")
        answer = service.client.get("/", headers=BROWSER)
        assert answer.status_code == 503
        assert "Retry-After" in answer.headers
        assert "No data is lost" in answer.text
        Path(f"{file}.away").rename(file)
        assert service.client.get("/", headers=BROWSER).status_code == 200


def test_pages_stay_small_with_many_hostile_names(pages: ServiceThread) -> None:
    """Attack: a submitter invents sites with long names that grow when they are escaped."""
    day = display_formats.today()
    names = [f"{number:04}" + '<&"' * 40 for number in range(510)]
    values: dict[str, Any] = {
        "day": display_formats.day_number(day),
        "started_us": display_formats.midnight_us(day),
    }
    pages.store.add(
        [make_measurement(f"j{name[:4]}", site=name, storage_site=name, **values) for name in names]
    )
    for address, table in (("/", "site_days"), ("/sites", "sites")):
        text = pages.load_page(address)
        assert "First 500 of 510 rows; CSV and JSON hold all." in text
        assert len(text) < 2_000_000
        assert {row["site"] for row in pages.load_tables(address)[table]} == {*names}


def test_day_pages_agree_with_overview(filled_service: ServiceThread) -> None:
    cells = filled_service.load_tables("/?days=7")["site_days"]
    for cell in cells[::5]:
        query = {"format": "json", "site": cell["site"]}
        tables = filled_service.client.get(f"/days/{cell['day']}", params=query).json()["tables"]
        for name in ("good", "failed", "implausible"):
            assert sum(row[name] for row in tables["measured"]) == cell[name]
        assert len(tables["failing"]) == cell["failed"] + cell["implausible"]


def test_day_page_accepts_empty_site(pages: ServiceThread) -> None:
    pages.store.add([make_measurement(site="", day=20260301)])
    counts = pages.client.get("/api/v1/days/2026-03-01?site=").json()["about"]["counts"]
    assert counts["good"] + counts["implausible"] == 1


def test_prometheus_metrics_equal_database(filled_service: ServiceThread) -> None:
    answer = filled_service.client.get("/metrics")
    assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    families = {family.name: family for family in text_string_to_metric_families(answer.text)}
    measured = families["treehammer_measurements"].samples
    assert sum(row.value for row in measured) == sum(
        sum(filled_service.store.count_by_attempt(campaign).values())
        for campaign in ("over", "running")
    )
    assert {row.labels["site"] for row in measured} >= set(HOSTILE_TEXTS)
    jobs = {row.labels["state"]: row.value for row in families["treehammer_jobs"].samples}
    assert jobs == {"queued": 1, "running": 2, "held": 1}
    assert families["treehammer_last_measured_day_seconds"].samples
    # As `promtool check metrics` demands of a label `quantile`.
    assert families["treehammer_site_read_latency_seconds"].type == "unknown"


def test_campaign_page_shows_time_of_states(filled_service: ServiceThread) -> None:
    assert "their latest event is from 20" in filled_service.load_page("/campaigns/running")


def test_unchanged_progress_is_not_sent_again(filled_service: ServiceThread) -> None:
    (address,) = re.findall(r'hx-get="(.*?)"', filled_service.load_page("/campaigns/running"))
    answer = filled_service.client.get(f"/campaigns/running{unescape(address)}", headers=BROWSER)
    assert (answer.status_code, answer.content) == (204, b"")
    other = filled_service.client.get("/campaigns/running?part=progress&shown=0", headers=BROWSER)
    assert other.status_code == 200


def test_unexpected_error_is_hidden(
    filled_service: ServiceThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_store: Store) -> None:
        raise RuntimeError("an internal secret")

    monkeypatch.setattr(overview_queries, "list_sites", fail)
    page = filled_service.client.get("/sites", headers=BROWSER)
    assert page.status_code == 500
    assert "Internal error; see the log of the service." in page.text
    assert "Report the time and the address" in page.text
    assert "secret" not in page.text
    assert set(filled_service.client.get("/sites").json()) == {"error"}


def test_crawlers_are_kept_from_generated_views(filled_service: ServiceThread) -> None:
    answer = filled_service.client.get("/robots.txt")
    assert answer.headers["Content-Type"].startswith("text/plain")
    rules = RobotFileParser()
    rules.parse(answer.text.splitlines())
    assert rules.can_fetch("crawler", "/sites/SITE_A")
    assert not any(rules.can_fetch("crawler", path) for path in ("/jobs/a", "/api/v1/sites"))
    mark = '<meta name="robots" content="noindex, nofollow">'
    assert mark not in filled_service.load_page("/sites")
    assert mark in filled_service.load_page("/sites?sort-sites=site")


@pytest.mark.parametrize(
    "word, answer, address",
    [
        (
            "branches",
            "CPU time is measured for a whole read, not for its branches.",
            "/figures/doors",
        ),
        ("bigger cache", "compared, by site too", "/compare"),
        ("new XRootD", "server versions", "/compare"),
        ("who runs what", "Who runs what is in the list", "/campaigns"),
        ("log", "on the page of its job", "/campaigns"),
    ],
)
def test_search_answers_words_that_are_no_names(
    filled_service: ServiceThread, word: str, answer: str, address: str
) -> None:
    page = filled_service.read(f"/search?q={word}")
    assert answer in page.text
    assert address in page.list_links(address)


def test_search_opens_the_only_exact_match(filled_service: ServiceThread) -> None:
    # "SITE" is part of several names, "site_a" is one of them.
    answer = filled_service.client.get("/search?q=SITE", headers=BROWSER, follow_redirects=False)
    assert answer.status_code == 200
    answer = filled_service.client.get("/search?q=site_a", headers=BROWSER, follow_redirects=False)
    assert answer.headers["Location"].endswith("/sites/SITE_A")


def read_samples(pages: ServiceThread, name: str, *labels: str) -> dict[tuple[str, ...], float]:
    """Scrape a metric, by the values of these labels."""
    for family in text_string_to_metric_families(pages.load_page("/metrics")):
        if family.name == name:
            return {
                tuple(sample.labels[label] for label in labels): sample.value
                for sample in family.samples
            }
    raise AssertionError(f"{name} is missing")


def test_sites_are_compared_on_the_work_of_similar_ones(pages: ServiceThread) -> None:
    now_us, day = current_us(), day_number(today())
    performances = {
        "SITE_A": (0.4, 0.006, 14),
        "SITE_B": (0.8, 0.003, 10),
        "SITE_C": (0.9, 0.004, 10),
    }
    pages.store.add(
        make_measurement(
            site, site=site, day=day, started_us=now_us, eff_job=efficiency,
            wall_per_event_s=event_s, read_latency_hist=[0] * latency_bin + [100],
        )
        for site, (efficiency, event_s, latency_bin) in performances.items()
    )  # fmt: skip
    pages.store.add(
        [
            make_measurement(
                "own", site="SITE_A", day=day, started_us=now_us, test_name="own", eff_job=0.1
            )
        ]
    )
    assert read_samples(pages, "treehammer_site_cpu_efficiency", "site") == {
        ("SITE_A",): 0.4, ("SITE_B",): 0.8, ("SITE_C",): 0.9,
    }  # fmt: skip
    medians = read_samples(pages, "treehammer_site_cpu_efficiency_median", "site")
    assert medians[("SITE_A",)] == pytest.approx(0.85)
    ratios = read_samples(pages, "treehammer_site_event_time_ratio", "site")
    assert ratios[("SITE_A",)] == pytest.approx(0.006 / 0.0035)
    latencies = read_samples(pages, "treehammer_site_read_latency_seconds", "site", "quantile")
    assert latencies[("SITE_A", "0.5")] == pytest.approx(1e-6 * 1.5 * 2**14)
    assert latencies[("SITE_B", "0.99")] == pytest.approx(1e-6 * 1.99 * 2**10)
