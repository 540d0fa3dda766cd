"""Campaigns at an ARC computing element, through HTCondor's grid universe."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from grid_fixtures import Grid, run_testbed
from grid_user import GridUser

from treehammer.sql.write.store import Store
from treehammer.submit.campaigns import campaign_polling
from treehammer.testbed.components.arc_element import ArcElement, proxy_file
from treehammer.testbed.components.site_list import build_pools
from treehammer.testbed.workspace import Component, Workspace

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="ARC's root folder needs root")


def _build(box: Workspace) -> list[Component]:
    # HTCondor starts last: it trusts the authorities of the computing element.
    return [*build_pools(box), ArcElement(box)]


@pytest.fixture(scope="module")
def arc_grid() -> Iterator[Grid]:
    """HTCondor with one site, and an ARC computing element."""
    with run_testbed("arc", _build, 1, second_pool=False, rucio=False) as grid:
        yield grid


@pytest.fixture
def arc_user(arc_grid: Grid, tmp_path: Path) -> Iterator[GridUser]:
    """User whose site ARC_SITE is behind the computing element."""
    (element,) = [part for part in arc_grid.parts if isinstance(part, ArcElement)]
    user = GridUser(tmp_path, arc_grid)
    submit = {"x509userproxy": str(proxy_file(arc_grid.box))}
    user.sites["ARC_SITE"] = user._site_table("ARC_SITE", grid_resource=element.grid_resource)
    user.write_sites_file(ARC_SITE={"submit": submit})
    yield user
    with Store.open(user.settings.database) as store:
        tracker = campaign_polling.make_tracker(store, user.settings)
        for campaign in store.campaigns():
            tracker.cancel(campaign)


def test_campaign_returns_measurements_from_arc(arc_user: GridUser) -> None:
    arc_user.set_payload("id -un")
    arc_user.submit_campaign("--sites", "ARC_SITE", "-S", "repeats=2", "--in-flight", "2")
    said = arc_user.follow_campaign("last")
    assert "4 of 4 measured" in said, said
    rows = arc_user.read_measurements()
    assert not [row for row in rows if row["failure_class"]]
