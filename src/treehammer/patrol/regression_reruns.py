"""Reruns that confirm or refute suspected regressions, as occasions of the entries that raised them."""

from __future__ import annotations

from treehammer.analysis.alarms.regression_watch import (
    RerunRequest,
    record_rerun,
    requested_reruns,
)
from treehammer.patrol.campaign_starts import PatrolRequest
from treehammer.patrol.occasions import Occasion, name_occasion
from treehammer.sql.watch.patrol_starts import CLAIMED, FAILED, STORED, PatrolStarts
from treehammer.sql.write.store import Store

RERUN = "rerun:"


def find_reruns(store: Store, starts: PatrolStarts, entry: str, now_us: int) -> dict[str, Occasion]:
    """Find the requested reruns of the campaigns that an entry started, as occasions by name."""
    occasions: dict[str, Occasion] = {}
    for request in requested_reruns(store):
        start = starts.find_campaign(request.campaign_id)
        if start is not None and start.entry == entry:
            original = PatrolRequest.parse(start.request)
            name = _name_rerun(request)
            occasions[name] = Occasion(name, now_us, original.test_spec, original.axes)
    return occasions


def record_reruns(store: Store, starts: PatrolStarts, now_us: int) -> None:
    """Record which campaigns are reruns; repeated after an interruption."""
    for request in requested_reruns(store):
        origin = starts.find_campaign(request.campaign_id)
        start = origin and starts.find_start(origin.entry, _name_rerun(request))
        if start and start.campaign_id and start.state not in (CLAIMED, STORED, FAILED):
            record_rerun(store, request, start.campaign_id, now_us)


def _name_rerun(request: RerunRequest) -> str:
    return name_occasion(RERUN, f"{request.check_id}:{request.number}")
