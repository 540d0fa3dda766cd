"""Jobs that report to the real service: live results, two ways home, and neither loses or doubles."""

from __future__ import annotations

import json
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from served import Served, whole_rows
from spool_bench import Bench
from submit_desk import Desk

from treehammer.collectors.record import Measurement
from treehammer.collectors.service import TOKEN_NAME
from treehammer.errors import ConfigError
from treehammer.sql.store import Store
from treehammer.submit.following import tracker_for


def until(true: Callable[[], object], what: str, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, what
        time.sleep(0.1)


def finish(desk: Desk) -> None:
    """Wait for the jobs without taking anything in."""
    with Store.open(desk.settings.database) as store:
        tracker, campaign = tracker_for(store, desk.settings), store.campaign("last")
        until(lambda: all(job.state == "done" for job in tracker.refresh(campaign)), "all are done")


def sandboxes(desk: Desk) -> list[Path]:
    return sorted(desk.settings.spool_dir.glob("jobs/*/*/attempt-*/"))


def test_both_ways_home_bring_the_same_rows(desk: Desk, served: Served) -> None:
    own = desk.settings
    desk.settings = served.known_to(own)
    said = desk.types("submit", str(desk.test))
    assert said.exception is None, said.output
    finish(desk)
    assert desk.rows() == [], "nothing was collected yet"
    reported = served.rows()
    assert len(reported) == 4
    served.end()
    collected = desk.types("collect", "last")
    assert "4 new measurements, 0 known" in collected.output
    assert whole_rows(own.database) == reported, "column by column"
    on_disk = [path for box in sandboxes(desk) for path in (box / "records").glob("*.json")]
    records = [Measurement.from_json(path.read_text()) for path in on_disk]
    assert {record.id for record in records} == {str(row["measurement_id"]) for row in reported}
    for record in records:
        row = next(row for row in reported if row["measurement_id"] == record.id)
        assert row["extras"] == record.extras == {"answer": 42.0}
        assert {name: row[name] for name in record.values} == dict(record.values)


def test_with_the_service_away_throughout_nothing_is_missing(desk: Desk, served: Served) -> None:
    served.end()
    own = desk.settings
    desk.settings = served.known_to(own)
    said = desk.types("submit", str(desk.test), "--service-wait", "1s", "--wait")
    assert said.exception is None, said.output
    assert "cannot be used now" in said.output
    assert "each waits 1 s for it" in said.output
    collected = whole_rows(own.database)
    assert len(collected) == 4
    assert {row["failure_class"] for row in collected} == {None}
    # What stayed behind is sent once the service is back: the very same rows.
    served.start()
    assert served.rows() == []
    worker = next(desk.settings.spool_dir.glob("jobs/*/1/inputs/worker.pyz"))
    command = [sys.executable, str(worker), "upload", "--token-file", str(served.key)]
    subprocess.run([*command, *map(str, sandboxes(desk))], check=True)
    assert served.rows() == collected, "column by column"


def test_one_database_for_service_and_submitter(desk: Desk, tmp_path: Path) -> None:
    served = Served(tmp_path / "central", database=desk.settings.database)
    served.start()
    try:
        desk.settings = served.known_to(desk.settings)
        assert desk.types("submit", str(desk.test)).exception is None
        finish(desk)
        assert len(desk.rows()) == 4, "they came by themselves"
        assert "0 new measurements, 4 known" in desk.types("collect", "last").output
        (lost, *_) = sandboxes(desk)
        shutil.rmtree(lost)
        (site,) = json.loads(desk.types("status", "last", "--json").stdout)
        assert (site["done"], site["lost"], site["failures"]) == (2, 0, {})
    finally:
        served.end()


def test_a_sandbox_that_is_lost_loses_nothing_that_was_reported(desk: Desk, tmp_path: Path) -> None:
    served = Served(tmp_path / "central", database=desk.settings.database)
    served.start()
    bench = Bench(desk.folder / "bench", spool=desk.settings.spool_dir)
    try:
        own = desk.settings
        desk.settings = served.known_to(own)
        assert desk.types("submit", str(desk.test)).exception is None
        until(lambda: len(desk.rows()) == 4, "all were reported")
        until(lambda: not bench.runner_pids(), "the runner has left")
        shutil.rmtree(desk.settings.spool_dir)
        (site,) = json.loads(desk.types("status", "last", "--json").stdout)
        assert (site["done"], site["lost"], site["failures"]) == (2, 0, {})
    finally:
        served.end()


def test_a_service_that_is_killed_under_a_campaign_loses_and_doubles_nothing(
    desk: Desk, served: Served
) -> None:
    desk.payload(0.4)
    desk.settings = replace(served.known_to(desk.settings), slots=2)
    said = desk.types("submit", str(desk.test), "-S", "repeats=8", "--service-wait", "20s")
    assert said.exception is None, said.output
    for _ in range(2):
        before = len(served.rows())
        until(lambda: len(served.rows()) > before, "another job has reported")  # noqa: B023
        served.end()
        time.sleep(2)
        served.start()
    finish(desk)
    reported = served.rows()
    assert len(reported) == 16, "each is there, once"
    desk.types("collect", "last")
    assert whole_rows(desk.settings.database) == reported
    accounts = [json.loads((box / "attempt.json").read_text()) for box in sandboxes(desk)]
    assert [account["upload"]["left"] for account in accounts] == [0] * 8


def test_the_token_is_nowhere_but_in_its_file(desk: Desk, served: Served) -> None:
    (desk.test / "run.sh").write_text(
        "#!/bin/sh\nenv\nls -la ../..\ncat ../../service-token\n"
        'echo \'{"format": 1, "extras": {"answer": 1}}\' > "$TREEHAMMER_RESULT"\n'
    )
    desk.settings = served.known_to(desk.settings)
    said = desk.types("submit", str(desk.test), "--wait")
    assert said.exception is None, said.output
    tokens = list(desk.settings.data_dir.rglob(TOKEN_NAME))
    assert len(tokens) == 2, "with the input of each job, and in no sandbox"
    assert {stat.S_IMODE(path.stat().st_mode) for path in tokens} == {0o600}
    secrets = [path.read_bytes().strip().rpartition(b".")[2] for path in tokens]
    secrets.append(served.key.read_bytes().strip().rpartition(b".")[2])
    searched = [*desk.folder.rglob("*")]
    holders = [
        path
        for path in searched
        if path.is_file() and path not in (*tokens, served.key) and _holds(path, secrets)
    ]
    assert holders == []
    shown = desk.types("render", str(desk.test), "--full")
    assert not [secret for secret in secrets if secret.decode() in shown.output + said.output]


def _holds(path: Path, secrets: list[bytes]) -> bool:
    content = path.read_bytes()
    return any(secret in content for secret in secrets)


def test_a_revoked_key_is_refused_before_anything_is_submitted(desk: Desk, served: Served) -> None:
    desk.settings = served.known_to(desk.settings)
    kid = served.key.read_text().split(".")[1]
    served.verb("token", "revoke", kid)
    refused: list[object] = []

    def known() -> bool:
        error = desk.types("submit", str(desk.test), "--dry-run").exception
        refused.append(error)
        return isinstance(error, ConfigError)

    until(known, "the service has heard of it")
    assert "was revoked" in str(refused[-1])
    assert "--no-service" in str(refused[-1])
    assert not desk.settings.spool_dir.exists()
    without = desk.types("submit", str(desk.test), "--no-service", "--wait")
    assert without.exception is None
    assert len(desk.rows()) == 4
    assert served.rows() == []


def test_a_service_that_is_restarted_in_order_is_waited_for(desk: Desk, served: Served) -> None:
    desk.settings = served.known_to(desk.settings)
    assert desk.types("submit", str(desk.test)).exception is None
    served.end(signal.SIGTERM)
    time.sleep(1)
    served.start()
    finish(desk)
    assert len(served.rows()) == 4
