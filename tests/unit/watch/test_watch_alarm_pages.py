"""Tests of the pages of alarms, of the patrol and of states of sites."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from measurement_factory import (
    HOUR_US,
    make_campaign_row,
    make_job_row,
    make_recent_outcomes,
    make_recent_runs,
)
from prometheus_client.parser import text_string_to_metric_families
from service_thread import ServiceThread, run_service
from simulated_campaign import START_US, add_campaign

from treehammer import config
from treehammer.collectors.record.day_numbers import current_us
from treehammer.config import Settings
from treehammer.sql.core.watch_rows import OverrideRow, PatrolEntryRow, PatrolStartRow
from treehammer.sql.write.store import Store
from treehammer.watch.alarms.alarm_watch import record_events
from treehammer.watch.alarms.release_checks import watch_campaigns
from treehammer.watch.cli.watch_commands import check_command, notify_command
from treehammer.watch.states.site_status import update_states
from treehammer.watch.states.status_rules import load_shipped_rules, load_status_rules
from treehammer.watch.store.patrol_report import write_entries, write_limits
from treehammer.watch.store.patrol_starts import PatrolLease, PatrolStarts, SiteCharge, SiteLimits
from treehammer.watch.store.state_history import add_override

SITES = {
    "SITE_OK": ("OK", 20, 0),
    "SITE_WARN": ("WARNING", 20, 5),
    'SITE <b>"CRIT" |Ä': ("CRITICAL", 0, 12),
}
RELEASE = "6.40.00"
REGRESSION = (
    'a="6.38.00",b="6.40.00",comparison="[0-9a-f]+",metric="(\\w+)",server="",'
    'state="suspected",test="ttree-read"'
)
CODES = {"OK": 0, "WARNING": 1, "CRITICAL": 2, "UNKNOWN": 3}


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    folder = tmp_path_factory.mktemp("alarms")
    result = config.load_settings({"data_dir": folder}, environ={}, folder=folder)
    with Store.open(result.database) as store:
        store.add(make_recent_outcomes({site: counts for site, (_, *counts) in SITES.items()}))
        assert update_states(store, current_us(), load_shipped_rules()).recorded
        add_campaign(store, "nightly", 0.08)
        watch_campaigns(store, START_US)
    return result


@pytest.fixture(scope="module")
def service(settings: Settings) -> Iterator[ServiceThread]:
    with run_service(settings.data_dir, reading_open=True) as running:
        yield running


def check(settings: Settings, *words: str) -> Result:
    return CliRunner().invoke(
        check_command, [*words], obj=settings, catch_exceptions=False, standalone_mode=False
    )


def find_states(rows: list[dict[str, object]]) -> dict[tuple[str, str], str]:
    return {(str(row["kind"]), str(row["name"])): str(row["state"]) for row in rows}


def test_all_views_show_the_same_states(settings: Settings, service: ServiceThread) -> None:
    states = find_states(json.loads(check(settings, "--all", "--format", "json").output))
    assert (
        states.items()
        >= {
            ("service", "treehammer"): "OK",
            ("release", RELEASE): "WARNING",
            ("release", "6.38.00"): "UNKNOWN",
            **{("site", name): state for name, (state, _, _) in SITES.items()},
        }.items()
    )
    assert find_states(service.load_tables("/alarms")["states"]) == states
    page = service.load_page("/alarms")
    assert page.count('class="critical"') == list(states.values()).count("CRITICAL")
    assert "<b>" not in page
    metrics = service.client.get("/metrics").text
    for (kind, name), state in states.items():
        word = name.replace("\\", "\\\\").replace('"', '\\"')
        line = f'treehammer_state_code{{kind="{kind}",name="{word}"}} {float(CODES[state])}'
        assert line in metrics.splitlines()
        if kind == "site":
            line = f'treehammer_site_status{{site="{word}",status="{state.lower()}"}} 1.0'
            assert line in metrics.splitlines()
    assert 'treehammer_state_code{kind="jobs",name="SITE_WARN"} 1.0' in metrics
    assert 'treehammer_state_code{kind="storage",name="SITE_WARN"} 0.0' in metrics
    effects = dict(re.findall(rf"treehammer_regression_ratio{{{REGRESSION}}} ([\d.]+)", metrics))
    assert {metric: float(ratio) for metric, ratio in effects.items()} == {
        metric: pytest.approx(0.083, abs=0.02) for metric in ("cpu_per_event_s", "wall_per_event_s")
    }
    for (kind, name), state in states.items():
        words = ["--service"] if kind == "service" else [f"--{kind}", name]
        for where in ((), ("--url", str(service.client.base_url))):
            result = check(settings, *words, *where)
            assert result.return_value == CODES[state], result.output
            assert re.match(rf"{kind.upper()} .*\b{state}\b|SERVICE {state}", result.output)
            assert len(result.output.partition(" | ")[0]) <= 80


def test_site_has_figures_with_thresholds(settings: Settings, service: ServiceThread) -> None:
    for words in ((), ("--url", str(service.client.base_url))):
        assert "daily_bad_per_good=25%;6" in check(settings, "--site", "SITE_WARN", *words).output
    (row,) = service.load_tables("/alarms", kind="site", name="SITE_WARN")["states"]
    assert {item["name"]: item["value"] for item in row["figures"]}["daily_bad_per_good"] == 25


def test_service_is_checked_from_outside(settings: Settings, service: ServiceThread) -> None:
    result = check(settings, "--service", str(service.client.base_url), "-vv")
    assert result.return_value == 0
    assert re.search(r"\| answer=\d+(\.\d+)?s;5;20 ", result.output)
    result = check(settings, "--service", "http://127.0.0.1:1", "-v")
    assert result.return_value == 2
    assert result.output.count("the service does not answer: Connection refused") == 2
    result = check(settings, "--service", f"{service.client.base_url}/x")
    assert "no service is there" in result.output


@pytest.mark.parametrize(
    ("words", "output"),
    [
        (
            (),
            "TREEHAMMER UNKNOWN - give one of --site, --release, --service, --campaign and --all\n",
        ),
        (("--site", "SITE_OJ"), "SITE SITE_OJ UNKNOWN - there is no site 'SITE_OJ' that"),
        (("--site", "\udcff"), r"TREEHAMMER UNKNOWN - '\udcff' is not UTF-8 text"),
        (("--release", "5.34"), "RELEASE 5.34 UNKNOWN - ROOT '5.34' was never measured"),
        (("--all", "--url", "http://h"), "TREEHAMMER UNKNOWN - http://h: the address must begin"),
        (("--all", "--url", "https://u:pw@h"), "TREEHAMMER UNKNOWN - https://***@h: the address"),
    ],
)
def test_wrong_use_is_unknown(settings: Settings, words: tuple[str, ...], output: str) -> None:
    result = check(settings, *words)
    assert result.return_value == 3
    assert result.output.startswith(output)


def test_wrong_option_is_unknown(settings: Settings) -> None:
    result = CliRunner().invoke(check_command, ["--sites", "A"], obj=settings)
    assert result.exit_code == 3
    assert result.output.startswith("TREEHAMMER UNKNOWN - No such option")


def test_missing_database_is_unknown_and_a_broken_one_critical(
    settings: Settings, tmp_path: Path
) -> None:
    missing = replace(settings, database=f"sqlite:///{tmp_path / 'none.db'}")
    assert check(missing, "--site", "A").return_value == 3
    (tmp_path / "broken.db").write_text("no database" * 1000)
    broken = replace(settings, database=f"sqlite:///{tmp_path / 'broken.db'}")
    result = check(broken, "--service")
    assert (result.return_value, result.output[:19]) == (2, "SERVICE CRITICAL - ")


def test_reading_needs_a_key_where_it_is_not_public(
    start_service: Callable[..., object], settings: Settings, tmp_path: Path
) -> None:
    with run_service(tmp_path) as closed:
        url = str(closed.client.base_url)
        result = check(settings, "--all", "--url", url)
        assert (result.return_value, "requires a key" in result.output) == (3, True)
        key = tmp_path / "read.key"
        key.write_text(closed.make_key("read").text)
        with_key = replace(settings, service_token_file=key)
        assert check(with_key, "--service", url).return_value == 0


def test_events_are_listed_with_links_to_their_evidence(
    settings: Settings, service: ServiceThread
) -> None:
    with Store.open(settings.database) as store:
        now_us = current_us()
        rules = load_shipped_rules()
        events = record_events(store, rules, now_us)
        assert {event.subject for event in events} == {"SITE_WARN", 'SITE <b>"CRIT" |Ä'}
        assert record_events(store, rules, now_us + 1) == []
    rows = service.load_tables("/alarms", table="events")["events"]
    assert {row["id"] for row in rows} == {event.id for event in events}
    for row in rows:
        assert service.client.get(row["evidence"]).status_code == 200
    result = CliRunner().invoke(notify_command, ["--json"], obj=settings, standalone_mode=False)
    assert json.loads(result.stdout) == []


@pytest.fixture(scope="module")
def patrol_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceThread]:
    with run_service(tmp_path_factory.mktemp("patrol"), reading_open=True) as running:
        yield running


def fill_patrol(url: str) -> None:
    with Store.open(url) as store:
        lease = PatrolLease(store, "node1:/data")
        assert lease.acquire()
        write_limits(store, lease, {"SITE_A": SiteLimits(3600, 10**9), "SITE_B": SiteLimits()})
        daily = PatrolEntryRow("daily", 0, "<b>read", "", "all", 3600, 2, 2**50, "quiet hours", 1)
        idea = PatrolEntryRow("idea", 1, "client", "branch main", "all", None, 1, None, "", 1)
        write_entries(store, lease, [daily, idea])
        starts = PatrolStarts(store, lease)
        for number, occasion in enumerate(("time:1", "time:2")):
            row = PatrolStartRow("daily", occasion, f"c{number}", "", 1, 0, None, 0, "", "{}", "")
            charges = {"SITE_A": SiteCharge(600.0, 10**8), "SITE_B": SiteCharge(9.0, 0)}
            start = starts.claim(row, charges, {}, 9).start
            assert start
            if not number:
                starts.settle(start, {"SITE_A": SiteCharge(300.0, 10**7)})
        starts.note_existing("idea", {"tag:1": ""})
        now_us = current_us()
        override = OverrideRow(
            "", "SITE_A", "site", "critical", "ada", "50% <failed>", now_us, 2 * now_us
        )
        add_override(store, override)
        update_states(store, current_us(), load_shipped_rules())


def test_page_shows_entries_budgets_and_starts(patrol_service: ServiceThread) -> None:
    assert "No patrol has run" in patrol_service.load_page("/patrol")
    fill_patrol(patrol_service.url)
    page = patrol_service.load_page("/patrol")
    assert "Led by node1:/data" in page
    assert "<b>read" not in page
    document = patrol_service.load_document("/patrol")
    assert document["about"] == {"leader": "node1:/data"}
    tables = patrol_service.load_tables("/patrol")
    daily, idea = tables["entries"]
    assert (daily["campaign_id"], daily["occasion"]) == ("c1", "time:2")
    assert (daily["in_flight"], daily["in_flight_limit"]) == (1, 2)
    assert (idea["last_start_us"], idea["follows"]) == (None, "branch main")
    first, second = tables["budgets"]
    assert (first["cpu_used_s"], first["cpu_left_s"]) == (900.0, 2700.0)
    assert (first["bytes_used"], first["bytes_left"]) == (11 * 10**7, 89 * 10**7)
    assert first["use"] == "excluded"
    assert "excluded since" in first["reason"]
    assert first["reason"].endswith("critical by ada: 50% <failed>")
    assert (second["use"], second["reason"]) == ("usable", "")
    assert (second["cpu_used_s"], second["cpu_left_s"]) == (9.0, None)
    assert [(start["campaign_id"], start["state"]) for start in tables["starts"]] == [
        ("c1", "claimed"),
        ("c0", "finished"),
    ]


def fill_sites(store: Store, sites: dict[str, bool]) -> None:
    """Add runs of the last four hours, good or all failed, and evaluate the states."""
    now_us = current_us()
    jobs = [make_job_row(f"{site}{number}", site=site) for site in sites for number in range(16)]
    store.add_campaign(make_campaign_row(), jobs)
    store.add(make_recent_runs(sites, 16, 15))
    until_us = now_us + HOUR_US
    override = OverrideRow("", "D", "", "downtime", "ada", "moved", now_us - 9, until_us)
    add_override(store, override)
    update_states(store, now_us + 1, load_status_rules())


def test_pages_show_states_with_evidence(pages: ServiceThread) -> None:
    fill_sites(pages.store, {"A": True, "B": False, "C": True, "D": True})
    overview = pages.read("/")
    tiles = [text for text in overview.list_texts("li") if " of 4 sites" in text]
    assert tiles == [
        "1 of 4 sites critical",
        "0 of 4 sites with warnings",
        "1 of 4 sites in a downtime",
    ]
    assert overview.tables["days"].column("site") == [*"BDAC"]
    listed = [(row["site"], row["state"]) for row in pages.load_tables("/sites")["sites"]]
    assert listed == [("B", "critical"), ("D", "downtime"), ("A", "ok"), ("C", "ok")]
    assert "?sort-sites=difference" in pages.read("/sites").list_links()
    history = pages.load_tables("/sites/B")["state_changes"]
    assert [row["state"] for row in history if row["of"] == "jobs"] == ["critical", "warning"]
    states = pages.load_tables("/")["states"]
    change = next(row for row in states if row["site"] == "B" and row["of"] == "jobs")
    address = f"/state-changes/{change['id']}"
    assert address in pages.read("/sites/B").list_links()
    assert "open: " in pages.read(address).text
    results = pages.load_tables(address)["results"]
    assert {row["kind"] for row in results} == {"measurement", "job", "campaign"}
    assert not any(row["name"] == row["identity"] for row in results), "identities say nothing"
    (message,) = pages.read(address).tables["messages"].rows
    assert int(message["times"]) == sum(row["kind"] == "measurement" for row in results)
    for result in results:
        assert pages.client.get(result["address"]).status_code == 200, result
    assert pages.client.get("/state-changes/nothing").status_code == 404


def test_a_central_event_is_announced(pages: ServiceThread) -> None:
    fill_sites(pages.store, {"A": False, "B": False, "C": False, "D": True})
    states = {(row["site"], row["of"]): row for row in pages.load_tables("/")["states"]}
    assert "Central since" in pages.read("/").text
    assert (states["A", "jobs"]["state"], states["A", "jobs"]["cause"]) == ("warning", "central")
    assert states["", "all sites"]["state"] == "critical"


def test_use_follows_states_on_pages_and_in_metrics(pages: ServiceThread) -> None:
    """One site works, one fails, and the storage and a door of others are excluded."""
    now_us = current_us()
    pages.store.add(make_recent_runs({"SITE_A": True, "SITE_B": False, "SITE_C": True}))
    override = OverrideRow(
        "", "SITE_C", "storage_site", "critical", "ada", "disk burns", now_us, 2 * now_us
    )
    add_override(pages.store, override)
    add_override(pages.store, replace(override, site="SITE_A:https", subject_kind="door"))
    update_states(pages.store, current_us(), load_shipped_rules())
    uses = {
        ("SITE_A", "jobs"): "usable",
        ("SITE_A", "storage"): "usable",
        ("SITE_A", "door https"): "excluded",
        ("SITE_B", "jobs"): "probe only",
        ("SITE_B", "storage"): "probe only",
        ("SITE_C", "jobs"): "usable",
        ("SITE_C", "storage"): "excluded",
    }
    sites = ("SITE_A", "SITE_B", "SITE_C")
    states = [row for site in sites for row in pages.load_tables(f"/sites/{site}")["states"]]
    assert {(row["site"].partition(":")[0], row["of"]): row["use"] for row in states} == uses
    families = text_string_to_metric_families(pages.load_page("/metrics"))
    (family,) = (family for family in families if family.name == "treehammer_site_use")
    labels = [sample.labels for sample in family.samples if sample.value]
    assert {
        (of["site"], f"door {of['door']}" if of["door"] else of["of"]): of["use"] for of in labels
    } == uses
    rows = pages.load_tables("/sites")["sites"]
    assert {row["site"]: row["use"] for row in rows} == {
        "SITE_A": "usable", "SITE_B": "probe only", "SITE_C": "excluded",
    }  # fmt: skip
