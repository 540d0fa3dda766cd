"""Simulated campaigns with a planted regression, as their jobs reported them."""

from __future__ import annotations

import hashlib

from measurement_factory import make_campaign_row, make_job_row
from simulated_campaign import START_US, SimulatedCampaign

from treehammer.collectors.record.measurement_record import Measurement
from treehammer.sql.write.store import Store


def add_campaign(
    store: Store,
    name: str,
    effect: float,
    *,
    seed: int = 1,
    state: str = "done",
    hosts: int = 4,
    jobs: int = 8,
) -> str:
    """Add a campaign of two releases, the second slower by ``effect`` in ln; return its identity."""
    plan = SimulatedCampaign(
        seed=seed, name=name, effect=effect, sites=("T2_A",), hosts=hosts, jobs=jobs
    )
    identity = hashlib.sha256(name.encode()).hexdigest()[:12]
    job = make_job_row(f"{name}-job", campaign_id=identity, state=state)
    store.add_campaign(make_campaign_row(identity, name=name, created_us=START_US), [job])
    store.add([Measurement(row) for row in plan.rows()])
    return identity
