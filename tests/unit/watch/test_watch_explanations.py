"""The sentence that explains failures, equal everywhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from failure_story import explain, run, run_everywhere
from measurement_factory import (
    HOUR_US,
    STORY_US,
    make_campaign_row,
    make_job_row,
    make_measurement,
    make_run,
)
from service_thread import ServiceThread, run_service

from treehammer.cli import cli
from treehammer.collectors.record import node_needs
from treehammer.collectors.record.day_numbers import day_to_number
from treehammer.collectors.record.measurement_record import Measurement
from treehammer.sql.core.rows import AttemptRow
from treehammer.sql.write.store import Store
from treehammer.watch.alarms.alarm_watch import record_events
from treehammer.watch.states.site_status import update_states
from treehammer.watch.states.status_rules import load_shipped_rules, load_status_rules
from treehammer.watch.store import state_history
from treehammer.watch.store.state_history import list_current_states

TODAY = datetime.now(UTC).date()
YESTERDAY = TODAY - timedelta(days=1)


MIDNIGHT_US = int(datetime(*YESTERDAY.timetuple()[:3], tzinfo=UTC).timestamp()) * 1_000_000


MINUTE_US = 60_000_000


SITES = tuple("ABCDE")


WHO = (
    f"12 of 24 failed here, 0 of 96 elsewhere: the site, since {YESTERDAY} 06:00 UTC. Cause: network. "
    "Check the route from the site's nodes to the door, and that the door answers."
)


def run_hourly(site: str, hour: int) -> Iterator[Measurement]:
    """Make a run of both tests; site A fails from six o'clock on."""
    for test in ("read", "load"):
        started = MIDNIGHT_US + hour * 60 * MINUTE_US
        fails: dict[str, Any] = {
            "failure_class": "open",
            "failure_message": "cannot open a (TNetXNGFile::Open: [ERROR] connection refused)",
        }
        yield make_measurement(
            f"{site}{hour}{test}",
            campaign_id=test,
            site=site,
            storage_site=site,
            test_name=test,
            started_us=started,
            ended_us=started + MINUTE_US,
            day=day_to_number(YESTERDAY),
            plausible=True,
            **(fails if site == "A" and hour >= 6 else {}),
        )


def fill(store: Store) -> None:
    for test in ("read", "load"):
        jobs = [
            make_job_row(
                f"{site}{hour}{test}", site=site, campaign_id=test, state="done", door="near"
            )
            for site in SITES
            for hour in range(12)
        ]
        row = make_campaign_row(test, test_name=test, created_us=MIDNIGHT_US - MINUTE_US)
        store.add_campaign(row, jobs)
        store.set_attempts(
            AttemptRow(job.id, 1, "done", MIDNIGHT_US, MIDNIGHT_US + MINUTE_US, 1, "", "")
            for job in jobs
        )
    store.add(run for site in SITES for hour in range(12) for run in run_hourly(site, hour))


#: Only the share of 24 hours, so that the state changes after the last run.
RULES = """
step = "5m"
[rules.daily]
kind = "share"
sites = ["site"]
window = "24h"
min_measurements = 24
max_failed_per_success = 0.06
clear_below = 0.04
"""


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a database in which site A broke yesterday; its state was evaluated at noon."""
    folder = tmp_path_factory.mktemp("story")
    rules = folder / "rules.toml"
    rules.write_text(RULES)
    with Store.open(f"sqlite:///{folder / 'results.db'}") as store:
        fill(store)
        now_us = MIDNIGHT_US + 12 * 60 * MINUTE_US
        events = record_events(store, load_status_rules(rules), now_us)
    (folder / "event.txt").write_text(next(event.text for event in events if event.subject == "A"))
    return folder


@pytest.fixture(scope="module")
def service(story: Path) -> Iterator[ServiceThread]:
    with run_service(story, reading_open=True) as running:
        yield running


def command(*words: str) -> Callable[[Path, ServiceThread], str]:
    """Return a function that runs a command on the database and returns what it prints."""

    def invoke(folder: Path, _service: ServiceThread) -> str:
        options = ["--database", f"sqlite:///{folder / 'results.db'}"]
        return CliRunner().invoke(cli, [*options, *words], catch_exceptions=False).output

    return invoke


def page(address: str) -> Callable[[Path, ServiceThread], str]:
    """Return a function that loads a page."""
    return lambda _folder, service: unescape(service.load_page(address))


def change_page(folder: Path, service: ServiceThread) -> str:
    with Store.open(f"sqlite:///{folder / 'results.db'}") as store:
        (row,) = state_history.list_current_states(store, site="A")
    return page(f"/state-changes/{row.id}")(folder, service)


@pytest.mark.parametrize(
    "show",
    [
        page("/"),
        page("/sites/A"),
        page(f"/days/{YESTERDAY}?site=A"),
        page("/jobs/A7read"),
        change_page,
        page(f"/digest?week={'{}-W{:02}'.format(*YESTERDAY.isocalendar())}"),
        command("status", "read"),
        command("check", "--site", "A", "-v"),
        command("digest", "--week", "{}-W{:02}".format(*YESTERDAY.isocalendar())),
        lambda folder, _: (folder / "event.txt").read_text(),
    ],
    ids=[
        "overview",
        "site",
        "day",
        "job",
        "change",
        "digest-page",
        "status",
        "check",
        "digest",
        "webhook",
    ],
)
def test_the_sentence_is_equal_everywhere(
    show: Callable[[Path, ServiceThread], str], story: Path, service: ServiceThread
) -> None:
    text = show(story, service)
    assert WHO in " ".join(text.split())


@pytest.mark.parametrize(("failure", "state"), [("software-setup", "critical"), ("payload", "ok")])
def test_site_whose_nodes_lack_something_turns_critical(
    store: Store, failure: str, state: str
) -> None:
    lack = node_needs.describe_lack(node_needs.HEADERS, "<new> is not found", "A")
    values = {"failure_kind": node_needs.HEADERS, "failure_message": lack}
    for test in ("read", "load"):
        store.add(run_everywhere(16, test_name=test))
        store.add(run(True, 12 + n / 4, failure, test_name=test, **values) for n in range(16))
    update_states(store, STORY_US + 17 * HOUR_US, load_shipped_rules())
    (row,) = [row for row in list_current_states(store, site="A") if row.subject_kind == "site"]
    assert row.state == state
    if state == "critical":
        assert explain(store).action.startswith("Cause: node: headers. Install gcc-c++")


def test_a_change_after_a_good_day_is_explained_by_what_has_begun(store: Store) -> None:
    for site in "ABCDE":
        store.add(
            make_run(
                f"{site}{number}{test}",
                number / 4,
                good=number < 57 if site == "A" else number % 15 != 3,
                site=site,
                test=test,
            )
            for number in range(60)
            for test in ("read", "load")
        )
    update_states(store, STORY_US + 15 * HOUR_US, load_shipped_rules())
    (row, *_) = list_current_states(store, site="A")
    explanation = row.evidence.explanation
    assert row.state == "critical"
    assert explanation is not None
    assert explanation.culprit == "the site"
    assert explanation.sentence.startswith("6 of ")
