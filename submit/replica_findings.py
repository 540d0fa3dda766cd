"""What doors gave of files, remembered: measurements that read a bad replica are marked."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable

from treehammer.config import Settings
from treehammer.datasets.manifest import Manifest
from treehammer.sql.rows import ReplicaRow
from treehammer.sql.store import Store
from treehammer.submit.replica_checks import Checked


def record(manifest: Manifest, found: Iterable[Checked], settings: Settings) -> int:
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
            site=one.place.site,
            door=one.place.door,
            file=one.place.file.name,
            url=one.place.url,
            good=one.good,
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
