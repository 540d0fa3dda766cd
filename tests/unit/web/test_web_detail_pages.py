"""Tests of the pages of days, campaigns, jobs and measurements, and of whole logs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
from measurement_factory import make_campaign_row, make_job_row, make_measurement, variant_values
from page_database import HOSTILE_TEXTS
from service_thread import ServiceThread, run_service

from treehammer.config import Settings, load_settings
from treehammer.sql.core.rows import AttemptRow
from treehammer.sql.write.store import Store
from treehammer.submit.batch.htcondor.submit_description import Submission
from treehammer.web.core.live_database import LiveDatabase
from treehammer.web.page import PageResources
from treehammer.web.pages import execution_logs

DAY, SITE = "2026-03-01", "SITE/A"
TEMPLATE = "htcondor.sub.j2 sha256:0123456789ab"
COMMON: dict[str, Any] = {
    "campaign_id": "nightly",
    "site": SITE,
    "door": "near",
    "test_name": "ttree-read",
    "test_path": "hctests/ttree-read",
    "commit_id": "c" * 40,
    **variant_values("branches=2% cache_mb=30"),
    "dataset": "reference-small",
    "dataset_hash": "sha256:abc",
    "plausible": True,
    "cpu_per_event_s": 0.01,
    "axis_root": "6.40.00",
}
LACKING = {
    "failure_class": "software-setup",
    "failure_kind": "not-supported",
    "failure_message": "6.38.00 has no protocol davs",
    "axis_root": "6.38.00",
}
BROKEN = {"failure_class": "software-setup", "failure_kind": "exit", "failure_message": "no disk"}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceThread]:
    with run_service(tmp_path_factory.mktemp("drilling"), reading_open=True) as service:
        plan = {"definition": {"dataset": "reference-small"}, "templates": {SITE: TEMPLATE}}
        campaign = make_campaign_row(
            "nightly", name="every night", plan=json.dumps(plan), planned_measurements=9
        )
        jobs = [
            make_job_row(name, campaign_id="nightly", site=SITE, state=state)
            for name, state in (("whole", "done"), ("lacking", "done"), ("broken", "running"))
        ]
        service.store.add_campaign(campaign, jobs)
        service.store.set_attempts([AttemptRow("whole", 1, "done", 1, 2, 0, "", "")])
        service.store.add(
            [
                make_measurement("whole", 1, **COMMON),
                make_measurement("whole", 2, kind="checksum", **COMMON),
                make_measurement("lacking", 1, **{**COMMON, **LACKING}),
                make_measurement("lacking", 2, **{**COMMON, **LACKING}),
                make_measurement("broken", 1, **{**COMMON, **BROKEN}),
            ]
        )
        yield service


def query_of(address: str) -> dict[str, str]:
    return dict(parse_qsl(urlsplit(address).query))


def test_day_links_to_jobs_campaigns_and_measurements(service: ServiceThread) -> None:
    links = service.read(f"/days/{DAY}?site=SITE/A").list_links("/")
    assert {"/jobs/whole", "/campaigns/nightly", "/sites/SITE%2FA"} <= set(links)
    one_by_one = [query_of(link) for link in links if link.startswith("/explore?")]
    of_the_day = [query for query in one_by_one if (query["from"], query["to"]) == (DAY, DAY)]
    assert all(query["site"] == SITE for query in of_the_day)
    (checksum,) = [query for query in of_the_day if query.get("kind") == "checksum"]
    assert (checksum["test_name"], checksum["door"]) == ("ttree-read", "near")
    assert checksum["variant"] == COMMON["variant"]


def test_jobs_with_like_identities_are_told_apart(pages: ServiceThread) -> None:
    jobs = ["nightly-2026-a1", "nightly-2026-b2"]
    pages.store.add(make_measurement(job, **{**COMMON, **BROKEN}) for job in jobs)
    tables = pages.read(f"/days/{DAY}?site=SITE/A").tables
    for name in ("jobs", "failing"):
        assert sorted(tables[name].column("job_id")) == ["nightly-2026-a", "nightly-2026-b"]


def test_jobs_open_without_measurements_and_without_row(pages: ServiceThread) -> None:
    lost = make_job_row("lost", campaign_id="nightly", site=SITE, state="lost")
    cancelled = replace(lost, id="cancelled", state="cancelled")
    pages.store.add_campaign(make_campaign_row("nightly"), [lost, cancelled])
    pages.store.set_attempts([AttemptRow("lost", 1, "lost", 1, 2, None, "batch", "gone")])
    pages.store.add([make_measurement("received", **COMMON)])
    assert "batch: gone" in pages.read("/jobs/lost").text
    assert "The job ended without a recorded start." in pages.read("/jobs/cancelled").text
    assert "Only measurements of this job were received" in pages.read("/jobs/received").text
    assert "No job of this identity was uploaded" in pages.read("/jobs/neither", 404).text


def test_equal_messages_are_counted(service: ServiceThread) -> None:
    lacking = (LACKING["failure_message"], "2")
    for address, expected in (
        (f"/days/{DAY}?site=SITE/A", [lacking, (BROKEN["failure_message"], "1")]),
        ("/jobs/lacking", [lacking]),
    ):
        table = service.read(address).tables["messages"]
        assert [*zip(table.column("message"), table.column("times"), strict=True)] == expected


def test_day_lists_jobs_with_measurements(service: ServiceThread) -> None:
    document = service.load_document(f"/days/{DAY}?site=SITE/A")
    rows = {row["job_id"]: row for row in document["tables"]["jobs"]}
    counts = {name: (row["measurements"], row["good"]) for name, row in rows.items()}
    assert counts == {"whole": (2, 2), "lacking": (2, 0), "broken": (1, 0)}
    assert {row["campaign_name"] for row in rows.values()} == {"every night"}
    assert document["about"] == {
        "status": "partly bad",
        "counts": {"good": 2, "failed": 1, "implausible": 0, "not_supported": 2},
        "classes": {"software-setup": 1},
    }


def test_campaign_lists_unsupported_separately(service: ServiceThread) -> None:
    tables = service.load_document("/campaigns/nightly")["tables"]
    counts = {
        name: {row["failure"]: row["measurements"] for row in tables[name]}
        for name in ("failures", "unsupported")
    }
    apart = "software-setup: not supported"
    assert counts == {"failures": {"software-setup": 1}, "unsupported": {apart: 2}}
    page = service.load_page("/campaigns/nightly")
    assert "Not supported by the release or setup" in page
    messages = service.client.get("/campaigns/nightly?format=json&table=messages").json()
    assert {row["failure"]: row["message"] for row in messages["tables"]["messages"]} == {
        "software-setup": "no disk",
        apart: "6.38.00 has no protocol davs",
    }
    for failure, job in (("software-setup", "broken"), (apart, "lacking")):
        answer = service.client.get(
            "/api/v1/campaigns/nightly", params={"failure": failure, "table": "jobs"}
        )
        assert [row["job_id"] for row in answer.json()["tables"]["jobs"]] == [job]


def test_job_list_shows_failed_measurements(service: ServiceThread) -> None:
    (row,) = service.read("/campaigns/nightly?failure=software-setup").tables["jobs"].rows
    assert "1 software-setup" in row.values()
    assert BROKEN["failure_message"] in row.values()
    rows = service.load_document("/campaigns/nightly?table=jobs")["tables"]["jobs"]
    assert {row["job_id"]: (row["failure"], row["failed"], row["message"]) for row in rows} == {
        "whole": ("", {}, ""),
        "lacking": ("", {"software-setup: not supported": 2}, LACKING["failure_message"]),
        "broken": ("", {"software-setup": 1}, BROKEN["failure_message"]),
    }


def test_campaign_json_has_progress(service: ServiceThread) -> None:
    about = service.load_document("/campaigns/nightly")["about"]
    progress = about["progress"]
    assert (progress["recorded"], progress["planned"], progress["over"]) == (5, 9, False)
    assert progress["jobs"] == {"done": 2, "running": 1}
    assert progress["remaining_s"] is None, "the next measurement is overdue"


#: States of a campaign's jobs, number of recorded measurements, and the note on its page.
MISSING_NOTES: list[tuple[tuple[str, ...], int, str]] = [
    (("done", "running"), 1, "No failures so far."),
    (("done", "done"), 2, "No failures."),
    (("running",), 2, "No failures."),
    (
        ("cancelled", "done", "cancelled"),
        0,
        "No known failures, but 2 of 2 planned measurements are missing: 2 jobs were cancelled.",
    ),
    (("cancelled",), 1, "1 of 2 planned measurements are missing: 1 job was cancelled."),
    (("done",), 1, "No known failures, but 1 of 2 planned measurements are missing."),
]


def test_campaign_without_failures_names_missing_measurements(pages: ServiceThread) -> None:
    for number, (states, recorded, _) in enumerate(MISSING_NOTES):
        id_ = f"campaign {number}"
        names = [f"job {number}.{place}" for place in range(len(states))]
        jobs = [
            make_job_row(name, campaign_id=id_, state=state)
            for name, state in zip(names, states, strict=True)
        ]
        pages.store.add_campaign(make_campaign_row(id_), jobs)
        pages.store.add(
            make_measurement(names[0], round_, campaign_id=id_) for round_ in range(1, recorded + 1)
        )
    for number, (_, _, expected) in enumerate(MISSING_NOTES):
        assert expected in pages.load_page(f"/campaigns/campaign%20{number}")


def test_campaign_begins_with_largest_failures_and_ends_with_transient_ones(
    pages: ServiceThread,
) -> None:
    failures: list[dict[str, Any]] = [
        *[{"failure_class": "stage-in", "failure_transient": True}] * 4,
        *[{"failure_class": "read", "failure_transient": False}] * 2,
        *[{"failure_class": "open", "failure_transient": False}] * 3,
        {"failure_class": "open", "failure_transient": True},
        {"failure_class": "software-setup", "failure_kind": "not-supported"},
        {},
    ]
    jobs = [make_job_row(name, campaign_id="mixed") for name in ("one", "two")]
    pages.store.add_campaign(make_campaign_row("mixed"), jobs)
    pages.store.add(
        make_measurement("one", round_, campaign_id="mixed", **failure)
        for round_, failure in enumerate(failures, start=1)
    )
    held = AttemptRow("two", 1, "held", 1, 2, None, "held", "disk usage")
    pages.store.set_attempts([held, AttemptRow("two", 2, "done", 3, 4, 0, "", "")])
    tables = pages.load_document("/campaigns/mixed")["tables"]
    counts = [(row["failure"], row["measurements"], row["transient"]) for row in tables["failures"]]
    # The second attempt cured what had stopped the first.
    assert counts == [("open", 4, 1), ("read", 2, 0), ("stage-in", 4, 4), ("held", 0, 0)]
    tables = [*pages.read("/campaigns/mixed").tables]
    assert tables.index("failures") < tables.index("sites")
    (row,) = pages.load_document("/campaigns")["tables"]["campaigns"]
    outcomes = (row["good"], row["failed"], row["implausible"], row["not_supported"])
    assert outcomes == (1, 10, 0, 1)
    assert row["recorded"] == 12
    assert row["last_run_us"] > 0


@pytest.mark.parametrize("address", ["/campaigns/nightly", "/jobs/whole"])
def test_provenance_names_exact_versions(service: ServiceThread, address: str) -> None:
    facts = service.load_document(address)["about"]["facts"]
    text = " ".join(facts.values())
    for exact in (TEMPLATE, "reference-small", "sha256:abc", "hctests/ttree-read", "c" * 40):
        assert exact in text, exact
    for text in (TEMPLATE, f" · {Path(address).name} – Treehammer</title>"):
        assert text in service.load_page(address)


def test_job_links_to_site_day_and_same_work(service: ServiceThread) -> None:
    links = service.read("/jobs/whole").list_links("/")
    expected = {"/campaigns/nightly", "/sites/SITE%2FA", f"/days/{DAY}?site=SITE%2FA"}
    assert expected <= set(links)
    explored = [query_of(link) for link in links if link.startswith("/explore?")]
    assert len(explored) == 2
    for query in explored:
        assert query["test_name"] == "ttree-read"
        assert query["variant"] == COMMON["variant"]
    assert explored[0]["campaign"] == "nightly"
    assert (explored[1]["site"], explored[1]["door"]) == (SITE, "near")


def test_reason_column_is_shown_for_failures_only(service: ServiceThread) -> None:
    headings = {
        name: [*service.read(f"/jobs/{name}").tables["attempt_1"].columns.values()]
        for name in ("whole", "broken")
    }
    assert "reason" not in headings["whole"]
    places = [headings["broken"].index(name) for name in ("reason", "details", "CPU, ms/event")]
    assert places == sorted(places)


def test_requested_release_is_shown_without_root_version(pages: ServiceThread) -> None:
    build = {"axis_root": "path:/opt/root", "root_version": "6.41.01"}
    jobs = [make_job_row(name, campaign_id="nightly", site=SITE) for name in ("lacking", "built")]
    pages.store.add_campaign(make_campaign_row("nightly"), jobs)
    lacking: dict[str, Any] = {**COMMON, **LACKING, "root_version": None}
    ran = {**COMMON, "root_version": COMMON["axis_root"]}
    pages.store.add(
        make_measurement("lacking", round_, **values)
        for round_, values in enumerate((lacking, ran), 1)
    )
    pages.store.add([make_measurement("built", 1, **{**COMMON, **build})])
    tables = {
        name: pages.read(f"/jobs/{name}").tables["attempt_1"] for name in ("lacking", "built")
    }
    assert tables["lacking"].column("axis_root") == ["6.38.00", "6.40.00"]
    assert "root_version" not in tables["lacking"].columns
    (built,) = tables["built"].rows
    assert (built["axis_root"], built["root_version"]) == ("path:/opt/root", "6.41.01")


@pytest.mark.parametrize(
    "address, leads_to", [("/sites/", "/sites"), ("/campaigns/", "/campaigns"), ("/jobs", "")]
)
def test_incomplete_url_redirects_to_list(
    service: ServiceThread, address: str, leads_to: str
) -> None:
    answer = service.client.get(address, headers={"Accept": "text/html"})
    assert answer.status_code == (307 if leads_to else 404)
    assert answer.headers.get("Location", "") == leads_to
    assert service.client.get("/api/v1/sites/").status_code == 404


@pytest.mark.parametrize("address", ["/campaigns", "/campaigns/nightly"])
def test_page_number_beyond_last_is_reported(service: ServiceThread, address: str) -> None:
    page = service.read(f"{address}?page=99")
    assert "Page 99 does not exist; the last page is 1." in page.text
    assert page.list_links(r"\?page=1")
    assert "page 99 of" not in page.text


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServiceThread, list[str]]]:
    """A service with a good measurement and a failed one on another node."""
    folder = tmp_path_factory.mktemp("measurement")
    failure: dict[str, Any] = {
        "failure_class": "read",
        "log_excerpt": HOSTILE_TEXTS[0],
        "os_name": "EL9",
    }
    rows = [
        make_measurement(
            "job",
            1,
            position,
            site="SITE_A",
            host=f"node{position}",
            kernel="6.1.0",
            root_version="6.40.00",
            cpu_per_event_s=0.02 * position,
            bytes_read=2_000_000,
            plausible=True,
            **values,
        )
        for position, values in ((1, {}), (2, failure))
    ]
    with Store.open(f"sqlite:///{folder / 'results.db'}") as store:
        store.add(rows)
        command = '{"definition": {"payload": "any"}}'
        campaign = make_campaign_row(str(rows[0].values["campaign_id"]), plan=command)
        store.add_campaign(campaign, [make_job_row("job", campaign_id=campaign.id)])
    with run_service(folder, reading_open=True) as service:
        yield service, [str(row.values["measurement_id"]) for row in rows]


def test_values_are_grouped_with_units_and_meaning(pair: tuple[ServiceThread, list[str]]) -> None:
    service, (good, _) = pair
    tables = service.load_tables(f"/measurements/{good}")
    rows_by_name = {row["name"]: row for rows in tables.values() for row in rows}
    names = ("cpu_per_event_s", "host", "root_version", "site")
    groups = [rows_by_name[name]["group"] for name in names]
    assert groups == ["Times", "Node", "Software", "Plan"]
    assert all(row["meaning"] for row in rows_by_name.values())
    page = service.read(f"/measurements/{good}")
    assert "20.0 ms/run" in page.text
    assert "CPU, ms/run" in service.read("/jobs/job").tables["attempt_1"].columns.values()
    assert f"/api/v1/measurements/{good}" in page.list_links()
    assert "What differs" not in page.text


def test_differences_of_the_environment_come_first(pair: tuple[ServiceThread, list[str]]) -> None:
    service, (good, failed) = pair
    tables = service.load_tables(f"/measurements/{good}?with={failed}")
    differences = {
        row["name"]: (row["a"], row["b"]) for row in tables["differences_of_the_environment"]
    }
    assert differences["host"] == ("node1", "node2")
    assert differences["os_name"] == (None, "EL9")
    assert "kernel" not in differences
    (time,) = [row for row in tables["times"] if row["name"] == "cpu_per_event_s"]
    assert time["change"] == pytest.approx(1.0)
    page = service.read(f"/measurements/{good}?with={failed}")
    assert {*page.fields["with"]} == {failed}, "chosen among the measurements of the job"
    headings = page.list_texts("h2")
    assert "What differs" in headings[0]
    assert headings.index("Times") > 0
    assert "+100.0 %" in page.text


@pytest.mark.parametrize("path", ["/measurements/none", "/measurements/{}?with=none"])
def test_unknown_measurement_is_not_found(pair: tuple[ServiceThread, list[str]], path: str) -> None:
    service, (good, _) = pair
    assert "There is no measurement 'none'" in service.read(path.format(good), 404).text


OUTPUT = "Fatal in <TBranch>\n" + "a line <of> many\n" * 1000


@pytest.fixture
def sandbox(tmp_path: Path) -> Path:
    folder = tmp_path / "attempt-1"
    (folder / "logs").mkdir(parents=True)
    (folder / "logs" / "2-1.out").write_text(OUTPUT)
    (folder / "logs" / "2-1.err").touch()
    return folder


@pytest.fixture
def logs_service(
    settings: Settings, tmp_path: Path, sandbox: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ServiceThread]:
    settings.spool_dir.mkdir()
    folders = {"here.0": {1: sandbox}}
    batch = SimpleNamespace(sandboxes=lambda batch_id: folders.get(batch_id, {}))
    monkeypatch.setattr(execution_logs, "open_batch_system", lambda *_: batch)
    failed: dict[str, Any] = {
        "failure_class": "payload",
        "log_excerpt": OUTPUT[-50:],
        "round": 2,
        "position": 1,
    }
    with Store.open(f"sqlite:///{tmp_path / 'results.db'}") as store:
        jobs = [
            make_job_row(name, campaign_id="c", batch_system="local", batch_id=f"{name}.0")
            for name in ("here", "elsewhere")
        ]
        store.add_campaign(make_campaign_row("c"), jobs)
        store.add(
            make_measurement(job.id, campaign_id="c", job_id=job.id, attempt=1, **failed)
            for job in jobs
        )
    with run_service(tmp_path, reading_open=True, settings=settings) as running:
        yield running


def test_job_page_leads_to_the_whole_log(logs_service: ServiceThread) -> None:
    page = logs_service.read("/jobs/here")
    assert page.list_links(r"\?log") == ["?log=1%2F2-1.out"], "an empty log has no link"
    assert "2-1.out (17.0 kB)" in page.text
    log = logs_service.client.get("/jobs/here?log=1/2-1.out")
    assert log.text == OUTPUT
    assert log.headers["content-type"] == "text/plain; charset=utf-8"
    assert log.headers["x-content-type-options"] == "nosniff"


def test_good_job_shows_its_output(logs_service: ServiceThread, sandbox: Path) -> None:
    (sandbox / "logs" / "1-1.out").write_text("read 42 events\n")
    (sandbox / "worker.out").write_text("branches=100% ok\n")
    values: dict[str, Any] = {"campaign_id": "c", "job_id": "here", "attempt": 1}
    logs_service.store.add([make_measurement("good", **values, plausible=True)])
    page = logs_service.read("/jobs/here")
    assert "read 42 events" in page.text
    assert "branches=100% ok" in page.text
    assert {"?log=1%2F1-1.out", "?log=1%2Fworker.out"} <= set(page.list_links(r"\?log"))
    assert logs_service.client.get("/jobs/here?log=1/worker.out").text == "branches=100% ok\n"


def test_job_of_another_installation_has_no_whole_log(logs_service: ServiceThread) -> None:
    page = logs_service.load_page("/jobs/elsewhere")
    assert "The whole output is not on this machine" in page
    assert logs_service.client.get("/jobs/elsewhere?log=1/2-1.out").status_code == 404


def test_only_logs_of_the_job_are_sent(
    logs_service: ServiceThread, sandbox: Path, tmp_path: Path
) -> None:
    (tmp_path / "secret").write_text("secret")
    (sandbox / "logs" / "9-9.out").symlink_to(tmp_path / "secret")
    for log in (
        *("2/2-1.out", "1/3-1.out", "1/../../secret", "1/2-1.out/..", "1/link", "x", "1/9-9.out"),
    ):
        refused = logs_service.client.get(f"/jobs/here?log={log}")
        assert refused.status_code == 404, log
        assert "secret" not in refused.text.replace("../../secret", "")


def test_unknown_batch_system_has_no_folders(settings: Settings, tmp_path: Path) -> None:
    resources = PageResources(LiveDatabase("sqlite:///none.db"), settings)
    find = execution_logs.find_output_folders(resources)
    logs: list[Mapping[int, Path]] = [
        find(make_job_row("job", batch_system=name))
        for name in ("local", "htcondor@nowhere", "external:local", "unknown")
    ]
    assert logs == [{}] * 4
    assert not any(tmp_path.iterdir())


def test_jobs_of_a_pool_have_folders_below_its_submit_dir(tmp_path: Path) -> None:
    """The pool's own folder, in place of one below data_dir."""
    submission = Submission.for_jobs(tmp_path / "pool", "c", "", ["job"])
    folder = submission.path / "jobs/job/output/attempt-1"
    folder.mkdir(parents=True)
    (submission.path / "submission.json").write_text('{"jobs": ["job"], "text": ""}')
    sites_file = tmp_path / "sites.toml"
    sites_file.write_text(f'[pools.p]\nsubmit_dir = "{tmp_path}/pool"\n')
    flags = {"data_dir": tmp_path / "data", "sites_file": sites_file}
    settings = load_settings(flags, environ={}, folder=tmp_path)
    resources = PageResources(LiveDatabase("sqlite:///none.db"), settings)
    job = make_job_row("job", batch_system="htcondor@p", batch_id=submission.batch_id(7, 0))
    assert execution_logs.find_output_folders(resources)(job) == {1: folder}
    assert not (tmp_path / "data").exists()
