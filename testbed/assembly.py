"""Which parts a testbed has."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from treehammer.testbed import condor, database, rucio, sitesfile
from treehammer.testbed.cvmfs import CvmfsPart
from treehammer.testbed.parts import Box, Part, View
from treehammer.testbed.storage import StoragePart


def assemble(box: Box) -> list[Part]:
    """All parts of a testbed, in the order in which their daemons are started."""
    storage = StoragePart(box)
    parts: list[Part] = [CvmfsPart(box), storage]
    if box.rucio or box.database:
        parts.append(server := database.DatabasePart(box, lambda: storage.all_ports))
        if box.rucio:
            parts.append(rucio.RucioPart(box, storage, server))
    seen = [view for part in parts for view in part.views()]
    return [*parts, *pools(box, seen), sitesfile.SitesFilePart(box, storage)]


def pools(box: Box, views: Sequence[View] = ()) -> list[Part]:
    """HTCondor alone, whose jobs see ``views`` beside what it needs itself."""
    second = condor.second_pool(box, views) if box.second_pool else None
    first = condor.CondorPool(condor.first_pool(box, views), sends_to=second)
    return [first] if second is None else [first, condor.CondorPool(second)]


def sites_file(box: Box) -> Path:
    """The sites file of a testbed that is up."""
    return sitesfile.path_of(box)


def client_configs(box: Box) -> dict[str, Path]:
    """Account of users -> what they set RUCIO_CONFIG to, in a testbed with Rucio."""
    return {name: rucio.client_config(box, name) for name in rucio.USERS} if box.rucio else {}


def database_url(box: Box) -> str:
    """URL of the results database of a testbed that is up, '' where it has none."""
    return database.url_file(box).read_text(encoding="utf-8").strip() if box.database else ""
