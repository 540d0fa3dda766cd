"""Where jobs find the files of a dataset at doors that leave it to Rucio: as it says, and the door confirms."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import repeat

from treehammer.collectors.batch_names import LOCAL_BATCH
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
from treehammer.submit.sites.site_model import Door, Site

#: Doors that are asked at a time.
MAX_PARALLEL_DOORS = 8
#: Seconds between two looks for replicas that are waited for.
REPLICA_POLL_S = 20.0

#: Near the site's nodes, and from anywhere, as Rucio calls it.
LAN, WAN = "lan", "wan"
#: What is found of a replica that jobs may read: of ``file`` doors, only the site's nodes know more.
READABLE_STATES = (GOOD_STATE, SIZE_ONLY_STATE, NOT_TRIED)

#: RSE and file -> its replicas there, the best URL first.
ReplicasByFile = dict[tuple[str, str], list[Replica]]


@dataclass(frozen=True)
class RucioPlacement:
    """What is known of the doors that leave it to Rucio where files lie.

    Attributes:
        files: site, door and dataset -> the files, where there is a good replica of every one.
        lacking: site and door -> why jobs cannot read there.
    """

    files: Mapping[tuple[str, str, str], tuple[InputFile, ...]] = field(default_factory=dict)
    lacking: Mapping[tuple[str, str], str] = field(default_factory=dict)


#: Of a campaign whose doors all say themselves where files lie.
NO_RUCIO_PLACEMENT = RucioPlacement()


@dataclass(frozen=True)
class PlacementFinder:
    """Finds the replicas of one dataset.

    Args:
        manifest: what the dataset is.
        catalogue: whom to ask.
        ask: compares what a door tells of a file with the manifest.
    """

    manifest: Manifest
    catalogue: RucioCatalogue
    check: Callable[[ExpectedReplica], ReplicaCheck] = check_by_stat

    def find_files(self, wanted: Sequence[tuple[Site, Door]]) -> RucioPlacement:
        """Ask the catalogue, then every door.

        Raises:
            DatasetError: the catalogue has no such dataset, or another one of that name.
            CatalogueError: Rucio does not answer.
        """
        name = self.manifest.name
        if self.catalogue.manifest(name).hash != self.manifest.hash:
            raise DatasetError(
                f"{name!r} is another dataset in Rucio than on this machine",
                where=self.catalogue.rucio.scope,
                hint="A dataset never changes: place the one of this machine under another name, or "
                "use another --cache-dir.",
            )
        known = {
            (protocol, domain): self._replicas_by_file(protocol, domain)
            for protocol in dict.fromkeys(door.protocol for _, door in wanted)
            for domain in (LAN, WAN)
        }
        with ThreadPoolExecutor(MAX_PARALLEL_DOORS) as executor:
            tried = [*executor.map(self._files_at_door, wanted, repeat(known))]
        found: dict[tuple[str, str, str], tuple[InputFile, ...]] = {}
        lacking: dict[tuple[str, str], str] = {}
        for (site, door), (files, why) in zip(wanted, tried, strict=True):
            if why:
                lacking[site.name, door.name] = why
            else:
                found[site.name, door.name, name] = files
        return RucioPlacement(found, lacking)

    def _replicas_by_file(self, protocol: str, domain: str) -> ReplicasByFile:
        found: ReplicasByFile = {}
        for one in self.catalogue.replicas(self.manifest.name, protocol, domain=domain):
            found.setdefault((one.rse, one.file), []).append(one)
        return found

    def _files_at_door(
        self, pair: tuple[Site, Door], known: Mapping[tuple[str, str], ReplicasByFile]
    ) -> tuple[tuple[InputFile, ...], str]:
        """The files as jobs read them through a door, or why they cannot."""
        site, door = pair
        files = []
        for file in self.manifest.files:
            near, far = (
                known[door.protocol, domain].get((door.rse, file.name), ()) for domain in (LAN, WAN)
            )
            url, why = self._find_good_url(site, door, file, far or near)
            if why:
                return (), f"{file.name}: {why}"
            if near and near[0].site == site.name and not door.prefix:
                url = near[0].url  # what only the site's own nodes may reach
            files.append(InputFile(file.name, url, file.size, file.adler32))
        return tuple(files), ""

    def _find_good_url(
        self, site: Site, door: Door, file: ManifestFile, replicas: Sequence[Replica]
    ) -> tuple[str, str]:
        """The first URL at which the door has this very file, or what is wrong with the best one."""
        why = f"Rucio has no replica at {door.rse} for {door.protocol}"
        for number, replica in enumerate(replicas):
            url = replica.url_at_prefix(door.prefix) if door.prefix else replica.url
            here = site.batch_kind == LOCAL_BATCH
            found = self.check(ExpectedReplica(site.name, door.name, file, url, door.rse, here))
            if found.state in READABLE_STATES:
                return url, ""
            why = f"{url}: {found.state}, {found.message}" if number == 0 else why
        return "", why


def doors_with_rse(wanted: Iterable[tuple[Site, Door]]) -> tuple[tuple[Site, Door], ...]:
    """Those of the doors that have an RSE."""
    return tuple((site, door) for site, door in wanted if door.rse)


def find_placement(
    manifests: Sequence[Manifest],
    wanted: Iterable[tuple[Site, Door]],
    settings: Settings,
    *,
    wait_s: float = 0.0,
    bars: ProgressFactory = no_progress,
) -> RucioPlacement:
    """Find the files of datasets at those of the doors that leave it to Rucio.

    Args:
        manifests: what the datasets are; a door needs all of them.
        wanted: sites with the doors that their jobs read through.
        settings: which Rucio.
        wait_s: how long to wait for doors that lack a good replica, in seconds.
        bars: opens progress bars.

    Raises:
        DatasetError: Rucio has no such dataset, or another one of that name.
        CatalogueError: Rucio does not answer.
    """
    doors = doors_with_rse(wanted)
    if not (doors and manifests):
        return NO_RUCIO_PLACEMENT
    until = time.monotonic() + wait_s
    found = _find_once(manifests, doors, settings)
    if not (found.lacking and wait_s):
        return found
    with bars("Waiting for replicas (doors)", len(doors)) as step:
        while found.lacking and (left := until - time.monotonic()) > 0:
            names = ", ".join(sorted({site for site, _ in found.lacking}))
            step(len(doors) - len(found.lacking), f"not yet: {names}")
            time.sleep(min(REPLICA_POLL_S, left))
            found = _find_once(manifests, doors, settings)
        step(len(doors) - len(found.lacking), "")
    return found


def _find_once(
    manifests: Sequence[Manifest], doors: Sequence[tuple[Site, Door]], settings: Settings
) -> RucioPlacement:
    catalogue = RucioCatalogue(settings)
    looks = [PlacementFinder(manifest, catalogue).find_files(doors) for manifest in manifests]
    return RucioPlacement(
        {where: files for look in looks for where, files in look.files.items()},
        {where: why for look in looks for where, why in look.lacking.items()},
    )
