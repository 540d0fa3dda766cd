"""Fixtures of submit's integration tests; local queues must leave no process behind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from grid_campaigns import GridUser
from grid_fixtures import Grid
from local_user import LocalUser
from service_process import ServiceProcess
from spool_harness import SpoolHarness

from treehammer.sql.write.store import Store
from treehammer.submit.campaigns import campaign_polling


@pytest.fixture(autouse=True)
def _quick_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Poll more often than in production, where polls must not disturb measurements."""
    monkeypatch.setattr(campaign_polling, "LOCAL_POLL_S", 0.2)
    monkeypatch.setattr(campaign_polling, "GRID_POLL_S", 0.5)


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[SpoolHarness]:
    bench = SpoolHarness(tmp_path)
    yield bench
    bench.kill_runner()
    left = bench.end_processes()
    assert not any(left.values()), f"processes remain: {left}"


@pytest.fixture
def local_user(tmp_path: Path) -> Iterator[LocalUser]:
    user = LocalUser(tmp_path)
    yield user
    user.end_processes()


@pytest.fixture
def service_process(tmp_path: Path) -> Iterator[ServiceProcess]:
    """A running results service with a separate database."""
    service = ServiceProcess(tmp_path / "served")
    service.start()
    yield service
    service.end_process()


@pytest.fixture
def user(pool: Grid, tmp_path: Path) -> Iterator[GridUser]:
    """A user of the testbed's pool, whose campaigns are cancelled at the end."""
    user = GridUser(tmp_path, pool)
    yield user
    with Store.open(user.settings.database) as store:
        tracker = campaign_polling.make_tracker(store, user.settings)
        for campaign in store.campaigns():
            tracker.cancel(campaign)
