"""Nagios, Prometheus, the page and ``check`` show the same states; killed senders lose nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from shutil import copy

import pytest
from command_forker import run_command
from local_servers import serve_http
from local_service import serve_folder
from measurement_factory import make_measurement
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

from treehammer.analysis.status.status_rules import load_shipped_rules
from treehammer.analysis.status.status_update import update_states
from treehammer.sql.core.watch_rows import DowntimeRow
from treehammer.sql.watch import site_exceptions
from treehammer.sql.watch.alarm_outbox import AlarmOutbox
from treehammer.sql.write.store import Store

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
    """Webhook of Alertmanager that keeps the notified alerts."""

    alerts: dict[tuple[str, str], str] = {}

    def do_POST(self) -> None:
        document = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        for one in document["alerts"]:
            labels = one["labels"]
            self.alerts[labels["alertname"], labels.get("name", "")] = one["status"]
        self.send_response(200)
        self.end_headers()


def fill_database(folder: Path) -> None:
    ended = datetime.now(UTC) - timedelta(minutes=20)
    ended_us = int(ended.timestamp() * 1e6)
    with Store.open(f"sqlite:///{folder / 'results.db'}") as store:
        store.add(
            make_measurement(
                f"{site}-{n}",
                site=site,
                day=int(f"{ended:%Y%m%d}"),
                started_us=ended_us,
                ended_us=ended_us,
                plausible=True,
                axis_root="6.40.00",
                failure_class="payload" if n >= good else "",
            )
            for site, (_, good, bad) in SITES.items()
            for n in range(good + bad)
        )
        now_us = time.time_ns() // 1000
        down = DowntimeRow(
            "d1", "test", "SITE_DOWN", "", ended_us - 3_600_000_000, now_us + 3_600_000_000,
            "outage", "power cut", "", now_us,
        )  # fmt: skip
        site_exceptions.replace_downtimes(store, "test", [down], now_us=now_us)
        assert update_states(store, now_us, load_shipped_rules()).recorded


@pytest.fixture(scope="module")
def monitored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    folder = tmp_path_factory.mktemp("monitored")
    fill_database(folder)
    with serve_folder(folder, "--read-access", "public") as url:
        yield folder, url


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
    done = subprocess.run(command, cwd=tmp_path, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_all_monitoring_shows_the_same_states(monitored: tuple[Path, str], tmp_path: Path) -> None:
    folder, url = monitored
    AlertReceiver.alerts.clear()
    services = "".join(_SERVICE.format(site=site) for site in SITES if site != "SITE_A")
    with ExitStack() as stack:
        hook = stack.enter_context(serve_http(AlertReceiver))
        alertmanager = stack.enter_context(
            run_alertmanager(tmp_path / "alertmanager", f"http://127.0.0.1:{hook}")
        )
        prometheus = stack.enter_context(
            run_prometheus(tmp_path / "prometheus", url.partition("//")[2], alertmanager)
        )
        status = stack.enter_context(run_nagios(tmp_path / "nagios", url, services))
        nagios = wait_for(
            lambda: (
                (found := read_nagios_states(status)).keys() >= {f"site {s}" for s in SITES}
                and "treehammer" in found
                and found
            ),
            tmp_path,
        )
        samples = wait_for(lambda: query_prometheus(prometheus, "treehammer_state_code"), tmp_path)
        metrics = {
            (one["metric"]["kind"], one["metric"]["name"]): int(one["value"][1]) for one in samples
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
        assert "daily_failed_per_good=25%;6" in nagios["site SITE_WARN"]["performance_data"]
        assert int(nagios["treehammer"]["current_state"]) == 0
        assert int(nagios["ROOT 6.40.00"]["current_state"]) == 3
        expected = {
            ("TreehammerSiteCritical", "SITE_A"): "firing",
            ("TreehammerSiteWarning", "SITE_WARN"): "firing",
            ("TreehammerSiteUnknown", "SITE_FEW"): "firing",
        }
        wait_for(lambda: AlertReceiver.alerts.items() >= expected.items(), tmp_path)
        named = {name for _, name in AlertReceiver.alerts}
        assert not named & {"SITE_OK", "SITE_DOWN"}


def test_killed_notify_neither_loses_nor_doubles_a_message(
    monitored: tuple[Path, str], tmp_path: Path
) -> None:
    folder, _ = monitored
    received: Counter[str] = Counter()

    class MessageReceiver(BaseHTTPRequestHandler):
        """Webhook whose sender dies at every second message, before or after the answer."""

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            received[self.headers["X-Treehammer-Delivery"]] += 1
            if sum(received.values()) % 2:
                running[-1].kill()
                running[-1].wait()
                return
            self.send_response(204)
            self.end_headers()

    running: list[subprocess.Popen[bytes]] = []
    words = ["--data-dir", str(folder), "notify"]
    with serve_http(MessageReceiver) as port:
        environment = {**os.environ, "TREEHAMMER_ALARM_WEBHOOK_URL": f"http://127.0.0.1:{port}/"}
        for _ in range(8):
            running.append(
                subprocess.Popen([sys.executable, "-m", "treehammer", *words], env=environment)
            )
            running[-1].wait()
            with Store.open(f"sqlite:///{folder / 'results.db'}") as store:
                # Instead of waiting for the lease of the killed process.
                with store.writing_connection() as connection:
                    connection.exec_driver_sql("UPDATE alarm_message SET leased_until_us = 0")
                events = AlarmOutbox(store).list_events(100)
                summary = AlarmOutbox(store).summarize()
            if not summary.waiting:
                break
    assert {one.subject for one in events} == {"SITE_A", "SITE_WARN"}
    assert (summary.sent, len(received)) == (len(events), len(events))
