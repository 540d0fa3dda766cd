"""Campaigns whose checksum executions a new campaign need not repeat."""

from __future__ import annotations

import json
from collections import defaultdict

from treehammer.collectors.job_spec import CHECKSUM, ExecutionSpec
from treehammer.sql.read.measurement_selection import Selection
from treehammer.sql.write.store import Store
from treehammer.submit.planning.plan import Plan

#: Newest campaigns that are searched.
MAX_CAMPAIGNS = 50
#: Providers whose software never changes under one name, unlike a build tree.
_FIXED_PROVIDERS = ("wheel", "cvmfs")
_COLUMNS = (
    "campaign_id",
    "dataset_hash",
    "variant",
    "site",
    "storage_site",
    "door",
    "value_checksum",
    "failure_class",
)

#: Dataset hash, requested ROOT, site, storage site and door.
_Slot = tuple[str, str, str, str, str]


def find_proving_campaign(store: Store, plan: Plan) -> str:
    """Find the newest campaign with a good checksum of everything that a plan would check.

    Returns:
        its identity; '' without any, or if the plan checks nothing, or a ROOT that may change.
    """
    planned = [
        execution for job in plan.jobs if job.kind == CHECKSUM for execution in job.spec.executions
    ]
    if not planned or any(check.software.provider not in _FIXED_PROVIDERS for check in planned):
        return ""
    needed = {_slot_of_execution(execution) for execution in planned}
    newest = [campaign.id for campaign in store.campaigns()[:MAX_CAMPAIGNS]]
    if not newest:
        return ""
    proven: dict[str, set[_Slot]] = defaultdict(set)
    for row in store.measurements(Selection.parse(newest, [f"kind={CHECKSUM}"]), _COLUMNS):
        if row["value_checksum"] and not row["failure_class"]:
            root = json.loads(str(row["variant"]))["root"]
            place = (str(row["site"]), str(row["storage_site"]), str(row["door"]))
            proven[str(row["campaign_id"])].add((str(row["dataset_hash"]), str(root), *place))
    return next((id_ for id_ in newest if needed <= proven[id_]), "")


def _slot_of_execution(execution: ExecutionSpec) -> _Slot:
    identity = execution.identity
    place = (str(identity["site"]), str(identity["storage_site"]), str(identity["door"]))
    return str(identity["dataset_hash"]), str(execution.variant["root"]), *place
