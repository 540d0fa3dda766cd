"""What doors gave of files, remembered: measurements that read a bad replica are marked."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable

from treehammer.config import Settings
from treehammer.datasets.model.manifest import Manifest
from treehammer.sql.core.rows import ReplicaRow
from treehammer.sql.write.store import Store
from treehammer.submit.replicas.replica_verification import ReplicaCheck


def record_findings(manifest: Manifest, found: Iterable[ReplicaCheck], settings: Settings) -> int:
    """Remember replicas that were read in full, good ones and bad ones.

    Args:
        manifest: of the dataset.
        found: what was found at doors.
        settings: with the results database.

    Returns:
        How many measurements are marked that were not before.
    """
    now_us = int(time.time() * 1e6)
    rows = [
        ReplicaRow(
            id=str(uuid.uuid4()),
            found_us=now_us,
            dataset=manifest.name,
            dataset_hash=manifest.hash,
            site=one.expected.site,
            door=one.expected.door,
            file=one.expected.file.name,
            url=one.expected.url,
            good=one.is_good,
            message=one.message,
        )
        for one in found
        if one.is_proof
    ]
    if not rows:
        return 0
    with Store.open(settings.database) as store:
        store.add_replicas(rows)
        return store.mark_bad_replicas()
