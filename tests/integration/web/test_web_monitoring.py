"""Nagios, Prometheus, the page and ``check`` show the same states, and Alertmanager sends them."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from shutil import copy

import pytest
from captured_runs import run_captured
from command_forker import run_command
from local_servers import MailSink, parse_mails, send_answer, serve_http, serve_mail
from measurement_factory import make_recent_outcomes
from monitoring_servers import (
    DEPLOYMENT,
    fetch_json,
    find_prometheus,
    query_prometheus,
    read_nagios_states,
    run_alertmanager,
    run_nagios,
    run_prometheus,
    wait_for,
)
from service_process import serve_folder
from simulated_campaign import START_US, add_campaign

from treehammer.collectors.record.day_numbers import current_us
from treehammer.sql.core.watch_rows import DowntimeRow, OverrideRow
from treehammer.sql.write.store import Store
from treehammer.watch.alarms.release_checks import record_rerun, requested_reruns, watch_campaigns
from treehammer.watch.states.site_status import update_states
from treehammer.watch.states.status_rules import load_shipped_rules
from treehammer.watch.store import state_history

pytestmark = pytest.mark.xdist_group("monitoring")

RULES_TEST = Path(__file__).with_name("treehammer_rules_test.yml")
#: State of each site, with its good and failed measurements.
SITES = {
    "SITE_A": ("CRITICAL", 0, 12),
    "SITE_OK": ("OK", 20, 0),
    "SITE_WARN": ("WARNING", 20, 5),
    "SITE_FEW": ("UNKNOWN", 2, 0),
    "SITE_DOWN": ("DOWNTIME", 0, 12),
}
CODES = {"OK": 0, "DOWNTIME": 0, "WARNING": 1, "CRITICAL": 2, "UNKNOWN": 3}
_SERVICE = """
define service {{
    use                  treehammer-service
    host_name            results.example.org
    service_description  site {site}
    check_command        check_treehammer_site!URL!{site}
}}
"""


class AlertReceiver(BaseHTTPRequestHandler):
    """Webhook of Alertmanager that counts notifications by status and summary."""

    notified: Counter[str] = Counter()

    def do_POST(self) -> None:
        document = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.notified.update(
            f"{alert['status'].upper()}: {alert['annotations']['summary']}"
            for alert in document["alerts"]
        )
        send_answer(self, 200)


def count_subjects(sink: MailSink) -> Counter[str]:
    """Count the received mails by subject."""
    return Counter(mail["Subject"].removeprefix("[treehammer] ") for mail in parse_mails(sink))


def fill_database(folder: Path) -> None:
    with Store.open(f"sqlite:///{folder / 'results.db'}") as store:
        outcomes = {site: counts for site, (_, *counts) in SITES.items()}
        store.add(make_recent_outcomes(outcomes, axis_root="6.40.00"))
        now_us = current_us()
        down = DowntimeRow(
            "d1", "test", "SITE_DOWN", "", now_us - 4_800_000_000, now_us + 3_600_000_000,
            "outage", "power cut", "", now_us,
        )  # fmt: skip
        state_history.replace_downtimes(store, "test", [down], now_us=now_us)
        assert update_states(store, now_us, load_shipped_rules()).recorded
        add_campaign(store, "nightly", 0.08)
        watch_campaigns(store, START_US)
        (request,) = requested_reruns(store)
        assert record_rerun(store, request, add_campaign(store, "rerun", 0.08, seed=2), START_US)
        watch_campaigns(store, START_US + 1)


@pytest.fixture(scope="module")
def monitored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    folder = tmp_path_factory.mktemp("monitored")
    fill_database(folder)
    with serve_folder(folder, "--read-access", "public") as url:
        yield folder, url


def repair_site(store: Store, site: str) -> None:
    now_us = current_us()
    override = OverrideRow(
        "o1", site, "", "ok", "tester", "repaired", now_us, now_us + 3_600_000_000
    )
    state_history.add_override(store, override)
    assert update_states(store, now_us, load_shipped_rules()).recorded


def list_states(folder: Path) -> dict[tuple[str, str], str]:
    """List the states that ``check`` prints, by kind and name."""
    words = ("--data-dir", str(folder), "check", "--all", "--format", "json")
    done = run_command(words)
    done.check_returncode()
    return {(row["kind"], row["name"]): row["state"] for row in json.loads(done.stdout)}


def test_rules_of_prometheus_pass_their_tests(tmp_path: Path) -> None:
    copy(DEPLOYMENT / "treehammer.rules.yml", tmp_path)
    copy(RULES_TEST, tmp_path)
    command = [str(find_prometheus("promtool")), "test", "rules", RULES_TEST.name]
    done = run_captured(command, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_all_monitoring_shows_the_same_states(monitored: tuple[Path, str], tmp_path: Path) -> None:
    folder, url = monitored
    AlertReceiver.notified.clear()
    sink = MailSink()
    services = "".join(_SERVICE.format(site=site) for site in SITES if site != "SITE_A")
    with ExitStack() as stack:
        hook = stack.enter_context(serve_http(AlertReceiver))
        alertmanager = stack.enter_context(
            run_alertmanager(
                tmp_path / "alertmanager",
                f"http://127.0.0.1:{hook}",
                stack.enter_context(serve_mail(sink)),
            )
        )
        prometheus = stack.enter_context(
            run_prometheus(tmp_path / "prometheus", url.partition("//")[2], alertmanager)
        )
        status = stack.enter_context(run_nagios(tmp_path / "nagios", url, services))
        nagios = wait_for(
            lambda: (
                (states := read_nagios_states(status)).keys() >= {f"site {s}" for s in SITES}
                and "treehammer" in states
                and states
            ),
            tmp_path,
        )
        samples = wait_for(lambda: query_prometheus(prometheus, "treehammer_state_code"), tmp_path)
        metrics = {
            (series["metric"]["kind"], series["metric"]["name"]): int(series["value"][1])
            for series in samples
        }
        page = {
            (row["kind"], row["name"]): row["state"]
            for row in fetch_json(f"{url}/alarms?format=json")["tables"]["states"]
        }
        printed = list_states(folder)
        for site, (state, _, _) in SITES.items():
            seen = nagios[f"site {site}"]
            assert page["site", site] == state
            assert metrics["site", site] == int(seen["current_state"]) == CODES[state]
            assert printed["site", site] == state
            assert f" {state} - " in seen["plugin_output"]
        assert "daily_bad_per_good=25%;6" in nagios["site SITE_WARN"]["performance_data"]
        assert int(nagios["treehammer"]["current_state"]) == 0
        assert int(nagios["ROOT 6.40.00"]["current_state"]) == 2
        assert metrics["jobs", "SITE_WARN"] == 1
        assert metrics["storage", "SITE_WARN"] == 0
        (regression,) = {
            tuple(sample["metric"][name] for name in ("test", "a", "b", "state"))
            for sample in query_prometheus(prometheus, "treehammer_regression_ratio")
        }
        assert regression == ("ttree-read", "6.38.00", "6.40.00", "confirmed")
        begun = {
            "FIRING: Site SITE_A is critical",
            "FIRING: Site SITE_WARN has had warnings for an hour",
            "FIRING: Site SITE_FEW has not reported enough for a day",
            "FIRING: Site T2_A has not reported enough for a day",
        }
        slower = "FIRING: ttree-read is slower with ROOT 6.40.00 than with 6.38.00"
        wait_for(lambda: len(count_subjects(sink)) > len(begun), tmp_path)
        with Store.open(f"sqlite:///{folder / 'results.db'}") as store:
            repair_site(store, "SITE_WARN")
        ended = "RESOLVED: Site SITE_WARN has had warnings for an hour"
        wait_for(
            lambda: ended in AlertReceiver.notified and ended in count_subjects(sink), tmp_path
        )
        # Several rounds of Alertmanager later, each event was one mail and one post.
        time.sleep(5)
        for notified in (AlertReceiver.notified, count_subjects(sink)):
            assert set(notified.values()) == {1}, notified
            (event,) = notified.keys() - {*begun, ended}
            assert event.startswith(slower)
            assert notified.keys() >= {*begun, ended}
        bodies = {
            mail["Subject"].partition("] ")[2]: body.get_content()
            for mail in parse_mails(sink)
            if (body := mail.get_body(("plain",)))
        }
        regression_mail = next(text for title, text in bodies.items() if slower in title)
        assert "https://results.example.org/compare/" in regression_mail
        lines = "\n".join(bodies["FIRING: Site SITE_A is critical"].splitlines()).split("\n\n")
        assert lines[0] == "Site SITE_A is critical"
        assert "12 of 12 measurements in 24h" in lines[1]
        assert "12 of 12 failed here" in lines[1]
        assert lines[2].startswith("Cause: software. Check that the site's nodes")
        assert lines[3].strip() == "https://results.example.org/sites/SITE_A"
