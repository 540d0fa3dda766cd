"""Location of datasets at doors with an RSE, as Rucio reports it and the doors confirm it."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import repeat

from treehammer.collectors.job_spec import InputFile
from treehammer.config import Settings
from treehammer.datasets.doors.file_observation import NOT_TRIED
from treehammer.datasets.model.manifest import Manifest, ManifestFile
from treehammer.datasets.model.replica import Replica
from treehammer.datasets.rucio.rucio_catalogue import RucioCatalogue
from treehammer.errors import DatasetError
from treehammer.progress import ProgressFactory, no_progress
from treehammer.submit.replicas.replica_verification import (
    GOOD_STATE,
    SIZE_ONLY_STATE,
    ExpectedReplica,
    ReplicaCheck,
    check_by_stat,
)
from treehammer.submit.sites.site_model import Door, DoorAccess, Site

#: Doors that are checked at a time.
MAX_PARALLEL_DOORS = 8
#: Seconds between checks while waiting for replicas.
REPLICA_POLL_S = 20.0

#: Rucio's names for access from the site's own nodes and from anywhere.
LAN, WAN = "lan", "wan"
#: States of replicas that jobs may read; ``file`` doors can only be checked on the site's nodes.
READABLE_STATES = (GOOD_STATE, SIZE_ONLY_STATE, NOT_TRIED)

#: (RSE, file) -> replicas, the best URL first.
ReplicasByFile = defaultdict[tuple[str, str], list[Replica]]


@dataclass(frozen=True)
class RucioPlacement:
    """Files of datasets at doors with an RSE.

    Attributes:
        files: key of a :class:`DoorAccess` and dataset -> files, if every one has a good replica.
        lacking: key of a :class:`DoorAccess` and dataset -> reason why jobs cannot read it there.
    """

    files: Mapping[tuple[str, str, str], tuple[InputFile, ...]] = field(default_factory=dict)
    lacking: Mapping[tuple[str, str, str], str] = field(default_factory=dict)


#: Placement of a campaign without doors with an RSE.
NO_RUCIO_PLACEMENT = RucioPlacement()


@dataclass(frozen=True)
class PlacementFinder:
    """Finds the replicas of one dataset.

    Args:
        manifest: manifest of the dataset.
        catalogue: Rucio's catalogue.
        check: compares a replica at its door with the manifest.
    """

    manifest: Manifest
    catalogue: RucioCatalogue
    check: Callable[[ExpectedReplica], ReplicaCheck] = check_by_stat

    def find_files(self, accesses: Sequence[DoorAccess]) -> RucioPlacement:
        """Query the catalogue, then every door.

        Raises:
            DatasetError: the catalogue has no such dataset, or a different one of that name.
            CatalogueError: Rucio does not respond.
        """
        name = self.manifest.name
        if self.catalogue.manifest(name).hash != self.manifest.hash:
            raise DatasetError(
                f"{name!r} differs between Rucio and this machine",
                where=self.catalogue.rucio.scope,
                hint="Datasets are immutable: place the local one under another name, or use another "
                "--cache-dir.",
            )
        replicas = {
            (protocol, domain): self._replicas_by_file(protocol, domain)
            for protocol in dict.fromkeys(access.door.protocol for access in accesses)
            for domain in (LAN, WAN)
        }
        with ThreadPoolExecutor(MAX_PARALLEL_DOORS) as executor:
            results = [*executor.map(self._files_at_door, accesses, repeat(replicas))]
        files: dict[tuple[str, str, str], tuple[InputFile, ...]] = {}
        lacking: dict[tuple[str, str, str], str] = {}
        for access, (door_files, reason) in zip(accesses, results, strict=True):
            if reason:
                lacking[*access.key, name] = reason
            else:
                files[*access.key, name] = door_files
        return RucioPlacement(files, lacking)

    def _replicas_by_file(self, protocol: str, domain: str) -> ReplicasByFile:
        replicas: ReplicasByFile = defaultdict(list)
        for replica in self.catalogue.replicas(self.manifest.name, protocol, domain=domain):
            replicas[replica.rse, replica.file].append(replica)
        return replicas

    def _files_at_door(
        self, access: DoorAccess, replicas: Mapping[tuple[str, str], ReplicasByFile]
    ) -> tuple[tuple[InputFile, ...], str]:
        """Return the files as jobs read them through a door, or the reason why they cannot."""
        door, files = access.door, []
        for file in self.manifest.files:
            near, far = (
                replicas[door.protocol, domain].get((door.rse, file.name), ())
                for domain in (LAN, WAN)
            )
            url, reason = self._find_good_url(access.storage, door, file, far or near)
            if reason:
                return (), f"{file.name}: {reason}"
            if near and near[0].site == access.site.name and not door.prefix:
                url = near[0].url  # possibly reachable only from the site's own nodes
            files.append(InputFile(file.name, url, file.size, file.adler32))
        return tuple(files), ""

    def _find_good_url(
        self, site: Site, door: Door, file: ManifestFile, replicas: Sequence[Replica]
    ) -> tuple[str, str]:
        """Return the first URL with a good replica, or the problem of the best one."""
        reason = f"Rucio has no replica at {door.rse} for {door.protocol}"
        for number, replica in enumerate(replicas):
            url = replica.url_at_prefix(door.prefix) if door.prefix else replica.url
            expected = ExpectedReplica(site.name, door.name, file, url, door.rse, site.is_local)
            result = self.check(expected)
            if result.state in READABLE_STATES:
                return url, ""
            if number == 0:
                reason = f"{url}: {result.state}, {result.message}"
        return "", reason


def doors_with_rse(accesses: Iterable[DoorAccess]) -> tuple[DoorAccess, ...]:
    """Select the doors that have an RSE."""
    return tuple(access for access in accesses if access.door.rse)


def find_placement(
    manifests: Sequence[Manifest],
    accesses: Iterable[DoorAccess],
    settings: Settings,
    *,
    timeout_s: float = 0.0,
    bars: ProgressFactory = no_progress,
) -> RucioPlacement:
    """Find the files of datasets at the doors that have an RSE.

    Args:
        manifests: manifests of the datasets.
        accesses: doors that jobs read through.
        settings: all settings.
        timeout_s: seconds to wait for doors without a good replica.
        bars: opens progress bars.

    Raises:
        DatasetError: Rucio has no such dataset, or a different one of that name.
        CatalogueError: Rucio does not respond.
    """
    doors = doors_with_rse(accesses)
    if not (doors and manifests):
        return NO_RUCIO_PLACEMENT
    until = time.monotonic() + timeout_s
    placement = _find_once(manifests, doors, settings)
    if not (placement.lacking and timeout_s):
        return placement
    with bars("Waiting for replicas (doors)", len(doors)) as step:
        while placement.lacking and (left := until - time.monotonic()) > 0:
            pending = {(site, door) for site, door, _ in placement.lacking}
            names = ", ".join(sorted({site for site, _ in pending}))
            step(len(doors) - len(pending), f"not yet: {names}")
            time.sleep(min(REPLICA_POLL_S, left))
            placement = _find_once(manifests, doors, settings)
        step(len(doors) - len({key[:2] for key in placement.lacking}), "")
    return placement


def _find_once(
    manifests: Sequence[Manifest], doors: Sequence[DoorAccess], settings: Settings
) -> RucioPlacement:
    catalogue = RucioCatalogue(settings)
    placements = [PlacementFinder(manifest, catalogue).find_files(doors) for manifest in manifests]
    return RucioPlacement(
        {key: files for placement in placements for key, files in placement.files.items()},
        {key: reason for placement in placements for key, reason in placement.lacking.items()},
    )
