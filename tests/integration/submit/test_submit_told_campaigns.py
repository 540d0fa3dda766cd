"""Submitters with databases of their own: the service learns of their campaigns, jobs and attempts."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from served import Served, whole_rows
from submit_desk import Desk

from treehammer.sql.rows import ELSEWHERE, AttemptRow, CampaignRow, JobRow
from treehammer.sql.store import Store


def remembered(
    database: str,
) -> tuple[list[CampaignRow], list[JobRow], list[AttemptRow]]:
    """Campaigns, jobs and attempts of a database, wherever they are followed."""
    with Store.open(database) as store:
        campaigns = store.campaigns()
        jobs = [job for one in campaigns for job in store.jobs(one.id)]
        attempts = store.attempts(job.id for job in jobs)
    plain = [replace(j, batch_system=j.batch_system.removeprefix(ELSEWHERE)) for j in jobs]
    return campaigns, plain, attempts


def central(served: Served, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A verb that is typed where the service is."""
    command = [sys.executable, "-m", "treehammer", "--database", served.database]
    command += ["--data-dir", str(served.folder / "data"), *arguments]
    return subprocess.run(command, check=False, capture_output=True, text=True, cwd="/")


def until(true: Callable[[], object], what: str) -> None:
    end = time.monotonic() + 60
    while not true():
        assert time.monotonic() < end, what
        time.sleep(0.2)


def test_the_service_knows_what_the_submitter_knows(desk: Desk, served: Served) -> None:
    own = desk.settings
    desk.settings = served.known_to(own)
    (desk.test / "run.sh").write_text("#!/bin/sh\nkill -9 $PPID\n")
    said = desk.types("submit", str(desk.test), "-S", "repeats=1", "--name", "bad")
    assert said.exception is None, said.output
    (bad,), (job,), _ = remembered(served.database)
    assert (bad.name, job.state, job.batch_system) == ("bad", "queued", "local"), "told at once"
    assert desk.types("status", "bad", "--follow").exception is None
    desk.payload(0)
    said = desk.types("submit", str(desk.test), "--name", "good", "--wait")
    assert said.exception is None, said.output
    there = remembered(served.database)
    assert there == remembered(own.database)
    assert [campaign.name for campaign in there[0]] == ["good", "bad"]
    assert {job.state for job in there[1]} == {"done", "lost"}
    assert {attempt.failure_class for attempt in there[2]} == {"", "lost"}, "without any record"
    assert whole_rows(own.database) == served.rows()
    # Its administrator can look, and nothing is asked of a queue that the service has not.
    good = json.loads(central(served, "status", "good", "--json").stdout)
    assert [(site["done"], site["lost"], site["failures"]) for site in good] == [(2, 0, {})]
    (listed, _) = json.loads(central(served, "status", "--json").stdout)
    assert (listed["name"], listed["jobs"], listed["collected"]) == ("good", {"done": 2}, 4)
    file, page = str(served.folder / "good.parquet"), str(served.folder / "good.html")
    assert central(served, "export", file, "--campaign", "good").returncode == 0
    assert central(served, "report", "--campaign", "good", "-o", page).returncode == 0
    assert remembered(served.database) == there


def test_jobs_that_run_are_left_to_who_follows_them(desk: Desk, served: Served) -> None:
    desk.payload(30)
    desk.settings = served.known_to(desk.settings)
    assert desk.types("submit", str(desk.test), "-S", "repeats=1").exception is None

    def runs() -> bool:
        desk.types("status", "last")
        return [job.state for job in remembered(served.database)[1]] == ["running"]

    until(runs, "the job runs, and the service knows")
    before = remembered(served.database)
    (site,) = json.loads(central(served, "status", "last", "--json").stdout)
    assert (site["running"], site["lost"]) == (1, 0)
    refused = central(served, "cancel", "last")
    assert (refused.returncode, "where they were submitted" in refused.stderr) == (2, True)
    assert remembered(served.database) == before
    assert desk.types("cancel", "last").exception is None
    assert remembered(served.database) == remembered(desk.settings.database)
    assert [job.state for job in remembered(served.database)[1]] == ["cancelled"]


def test_what_could_not_be_told_is_told_later(desk: Desk, served: Served) -> None:
    desk.settings = served.known_to(desk.settings)
    served.end()
    said = desk.types("submit", str(desk.test), "--service-wait", "1s", "--wait")
    assert said.exception is None, said.output
    assert said.output.count("has not been told of all of") == 1
    assert "treehammer collect" in said.output
    served.start()
    assert remembered(served.database) == ([], [], [])
    assert "has not been told" not in desk.types("collect", "last").output
    assert remembered(served.database) == remembered(desk.settings.database)
    # A service that has lost its database is told everything again.
    served.end()
    for path in Path(served.folder).glob("central.db*"):
        path.unlink()
    served.start()
    served.key.unlink()
    served.known_to(desk.settings)
    assert desk.types("status", "last").exception is None
    assert remembered(served.database) == ([], [], []), "it had acknowledged everything"
    assert "has not been told" not in desk.types("collect", "last").output
    assert remembered(served.database) == remembered(desk.settings.database)


def test_a_campaign_without_the_service_stays_at_home(desk: Desk, served: Served) -> None:
    desk.settings = served.known_to(desk.settings)
    assert desk.types("submit", str(desk.test), "--no-service", "--wait").exception is None
    assert desk.types("collect", "last").exception is None
    assert remembered(served.database) == ([], [], [])


def test_a_database_that_both_share_is_followed_by_who_submitted(
    desk: Desk, tmp_path: Path
) -> None:
    served = Served(tmp_path / "central", database=desk.settings.database)
    served.start()
    try:
        desk.settings = served.known_to(desk.settings)
        assert desk.types("submit", str(desk.test), "--wait").exception is None
        assert "has not been told" not in desk.types("collect", "last").output
        with Store.open(served.database) as store:
            jobs = store.jobs(store.campaign("last").id)
        assert {(job.state, job.batch_system) for job in jobs} == {("done", "local")}
    finally:
        served.end()
