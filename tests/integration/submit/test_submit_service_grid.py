"""Jobs of a real pool that report to the real service while they run."""

from __future__ import annotations

import json
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from grid import Grid
from grid_desk import GridDesk
from served import Served

from treehammer.collectors.service import TOKEN_NAME
from treehammer.sql.store import Store
from treehammer.submit.following import tracker_for

#: Longer than the worker waits from one sending to the next.
NAP_S = 11


@pytest.fixture
def user(pool: Grid, tmp_path: Path) -> Iterator[GridDesk]:
    made = GridDesk(tmp_path, pool)
    yield made
    with Store.open(made.settings.database) as store:
        tracker = tracker_for(store, made.settings)
        for campaign in store.campaigns():
            tracker.cancel(campaign)


@pytest.fixture
def service(user: GridDesk, tmp_path: Path) -> Iterator[Served]:
    """One that shares the user's database."""
    made = Served(tmp_path / "served", database=user.settings.database)
    made.start()
    yield made
    made.end()


def test_a_killed_service_and_lost_sandboxes_lose_and_double_nothing(
    user: GridDesk, service: Served
) -> None:
    site = user.grid.box.sites[0]
    user.settings = service.known_to(user.settings)
    top = "../../../.."
    user.payload_is(
        f"test -e {top}/job.json -a ! -e {top}/{TOKEN_NAME} || exit 9\nsleep {NAP_S}; env"
    )
    campaign = user.submits("--sites", f"{site},FAR", "-S", "repeats=1")
    user.grid.until(user.rows, "the first result is there")
    sites = json.loads(user.types("status", campaign, "--json").stdout)
    assert sum(one["running"] for one in sites) >= 1, "it came before its job had ended"
    with Store.open(user.settings.database) as store:
        done = tracker_for(store, user.settings).progress(store.campaign(campaign)).done
    assert 1 <= done < 4
    service.end()
    held = list(user.grid.submit_dir.rglob(TOKEN_NAME))
    assert len(held) == 2
    assert {stat.S_IMODE(path.stat().st_mode) for path in held} == {0o600}
    secrets = [path.read_text().strip().rpartition(".")[2] for path in held]
    secrets.append(service.key.read_text().strip().rpartition(".")[2])
    service.start()
    user.grid.until(lambda: len(user.rows()) == 4, "all have been reported")
    user.grid.until(lambda: not _queue(user, campaign), "the jobs have left the queue")

    told = user.grid.condor("condor_history", "-name", user.grid.pool.schedd, "-l")
    assert not [secret for secret in secrets if secret in told]
    outputs = list(user.grid.submit_dir.glob(f"{campaign}/*/jobs/*/output/*"))
    assert outputs
    for folder in (user.grid.box.folder, user.settings.data_dir):
        holders = {path.name for path in folder.rglob("*") if _holds(path, secrets)}
        assert holders <= {TOKEN_NAME}
    for output in outputs:
        shutil.rmtree(output)
    sites = json.loads(user.types("status", campaign, "--json").stdout)
    assert [(one["done"], one["lost"], one["failures"]) for one in sites] == [(1, 0, {})] * 2
    assert "0 new measurements" in user.types("collect", campaign).output
    rows = user.rows()
    assert len({row["measurement_id"] for row in rows}) == len(rows) == 4
    assert {row["failure_class"] for row in rows} == {None}


def test_jobs_that_are_queued_anew_report_with_tokens_of_their_own(
    user: GridDesk, service: Served
) -> None:
    site = user.grid.box.sites[0]
    user.settings = service.known_to(user.settings)
    user.payload_is('test -e "$HOME" || exit 3')
    campaign = user.submits("--sites", site, "-S", "repeats=1", "--wait")
    first = {path.read_text() for path in user.grid.submit_dir.rglob(TOKEN_NAME)}
    before = len(user.rows())
    assert user.types("resume", campaign, "--failed").exception is None
    user.grid.until(lambda: len(user.rows()) == 2 * before, "the second attempt has reported")
    tokens = {path.read_text() for path in user.grid.submit_dir.rglob(TOKEN_NAME)}
    assert len(tokens - first) == 1


def _queue(user: GridDesk, campaign: str) -> str:
    constraint = f'TreehammerCampaign == "{campaign}"'
    return user.grid.condor(
        "condor_q", "-name", user.grid.pool.schedd, "-constraint", constraint, "-af", "ClusterId"
    ).strip()


def _holds(path: Path, secrets: list[str]) -> bool:
    if not path.is_file():
        return False
    content = path.read_bytes()
    return any(secret.encode() in content for secret in secrets)
