"""Recording of verified replicas; measurements that read bad ones are flagged."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable

from treehammer.config import Settings
from treehammer.datasets.model.manifest import Manifest
from treehammer.sql.core.rows import ReplicaRow
from treehammer.sql.write.store import Store
from treehammer.submit.replicas.replica_verification import ReplicaCheck


def record_findings(manifest: Manifest, checks: Iterable[ReplicaCheck], settings: Settings) -> int:
    """Store the results of full reads, good and bad, and flag affected measurements.

    Args:
        manifest: manifest of the dataset.
        checks: results of the verification.
        settings: settings with the results database.

    Returns:
        Number of newly flagged measurements.
    """
    now_us = int(time.time() * 1e6)
    rows = [
        ReplicaRow(
            id=str(uuid.uuid4()),
            found_us=now_us,
            dataset=manifest.name,
            dataset_hash=manifest.hash,
            site=check.expected.site,
            door=check.expected.door,
            file=check.expected.file.name,
            url=check.expected.url,
            good=check.is_good,
            message=check.message,
        )
        for check in checks
        if check.is_proof
    ]
    if not rows:
        return 0
    with Store.open(settings.database) as store:
        store.add_replicas(rows)
        return store.mark_bad_replicas()
