"""Replicas of datasets at the doors of sites: location by Rucio, and verification.

A catalogue entry proves nothing.  By default, the door's size and adler32 are compared with the
manifest; servers may have stored them when the file was written.  A full check reads and compares
every byte.
"""

from __future__ import annotations

import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count, product
from threading import Event, Lock

from treehammer.collectors.job_spec import InputFile
from treehammer.config import Settings
from treehammer.datasets import doors
from treehammer.datasets.doors.observations import (
    FAILED,
    MISSING,
    NO_RESPONSE,
    NOT_TRIED,
    REFUSED,
    FileObservation,
)
from treehammer.datasets.manifest import Manifest, ManifestFile, Replica
from treehammer.datasets.rucio.rucio_client import RucioClient
from treehammer.datasets.rucio.rucio_conversions import RucioDeniedError
from treehammer.datasets.rucio.rucio_datasets import RucioCatalogue
from treehammer.errors import CatalogueError, DatasetError
from treehammer.sql.core.rows import ReplicaRow
from treehammer.sql.write.store import Store
from treehammer.submit.sites.site_model import DoorAccess
from treehammer.text_formatting import ByteCallback, ProgressFactory, byte_progress, no_progress

GOOD_STATE, CORRUPT_STATE, SIZE_ONLY_STATE, ABSENT_STATE = (
    "good",
    "corrupt",
    "size only",
    "not in catalogue",
)
#: Others may be copied now, or have URLs of other protocols.
ABSENT_MESSAGE = "no available replica in the catalogue by its protocols"
#: States from worst to best.  A door takes the worst state of its files.
WORST_FIRST = (
    CORRUPT_STATE,
    MISSING,
    ABSENT_STATE,
    REFUSED,
    FAILED,
    NO_RESPONSE,
    NOT_TRIED,
    SIZE_ONLY_STATE,
    GOOD_STATE,
)

#: Sites that are checked at a time, one file of each.
MAX_PARALLEL_SITES = 4
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
class ExpectedReplica:
    """Expected location of a file at a site's door.

    Attributes:
        site: name of the site, '' for storage without a site.
        door: name of the door, or of the RSE if it has no door.
        file: file of the manifest.
        url: URL or path for ROOT, '' if the catalogue has no replica.
        rse: name of the storage in Rucio, '' if Rucio does not know it.
        is_local: whether a path refers to this machine.
    """

    site: str
    door: str
    file: ManifestFile
    url: str
    rse: str = ""
    is_local: bool = True


@dataclass(frozen=True)
class ReplicaCheck:
    """Result of checking a replica.

    Attributes:
        expected: the expected replica.
        state: ``good``, ``corrupt``, ``size only`` (the door provides no checksum), ``not in
            catalogue``, or a failure of :mod:`treehammer.datasets.doors.observations`.
        message: description of the problem, '' for a good replica.
        reads: number of full reads.
        wrong_reads: number of full reads whose content differed from the manifest.
    """

    expected: ExpectedReplica
    state: str
    message: str = ""
    reads: int = 0
    wrong_reads: int = 0

    @property
    def is_good(self) -> bool:
        """Whether the replica matches the manifest, as far as it was checked."""
        return self.state == GOOD_STATE

    @property
    def is_proof(self) -> bool:
        """Whether full reads prove the state: one that matched, or two that differed."""
        return bool(self.reads) and (self.is_good or self.wrong_reads > 1)


def check_replicas(
    manifest: Manifest,
    replicas: Sequence[ExpectedReplica],
    *,
    full: bool = False,
    bars: ProgressFactory = no_progress,
) -> list[ReplicaCheck]:
    """Compare replicas with the manifest, several sites in parallel.

    Args:
        manifest: manifest of the dataset.
        replicas: expected replicas.
        full: read every byte, and read corrupt files twice.
        bars: opens progress bars.

    Returns:
        Results in the order of ``replicas``.
    """
    indices_by_site: dict[str, list[int]] = defaultdict(list)
    for index, replica in enumerate(replicas):
        indices_by_site[replica.site or replica.rse].append(index)
    results: dict[int, ReplicaCheck] = {}
    with (
        _progress_bar(manifest, replicas, full, bars) as advance,
        ThreadPoolExecutor(MAX_PARALLEL_SITES) as executor,
    ):
        cancelled = Event()

        def advance_or_stop(count: int) -> None:
            if cancelled.is_set():
                raise KeyboardInterrupt
            advance(count)

        def check_site(indices: Sequence[int]) -> None:
            for index in indices:
                if full:
                    results[index] = _check_by_reading(replicas[index], advance_or_stop)
                else:
                    results[index] = check_by_stat(replicas[index])
                    advance_or_stop(1)

        tasks = [executor.submit(check_site, indices) for indices in indices_by_site.values()]
        try:
            for task in as_completed(tasks):
                task.result()
        except BaseException:
            cancelled.set()
            executor.shutdown(cancel_futures=True)
            raise
    return [results[index] for index in range(len(replicas))]


@contextmanager
def _progress_bar(
    manifest: Manifest, replicas: Sequence[ExpectedReplica], full: bool, bars: ProgressFactory
) -> Iterator[ByteCallback]:
    """Open a progress bar of bytes or files that several threads can advance."""
    lock, checked = Lock(), count(1)
    bar: AbstractContextManager[ByteCallback] = bars(f"Checking {manifest.name}", len(replicas))
    if full:
        total = sum(replica.file.size for replica in replicas if replica.url)
        bar = byte_progress(bars, f"Reading {manifest.name}", total)
    with bar as move:

        def advance(size: int) -> None:
            with lock:
                move(size if full else next(checked))

        yield advance


def check_by_stat(replica: ExpectedReplica) -> ReplicaCheck:
    """Compare size and checksum from the door with the manifest."""
    if not replica.url:
        return ReplicaCheck(replica, ABSENT_STATE, ABSENT_MESSAGE)
    observed = doors.stat_file(replica.url, is_local=replica.is_local)
    if observed.failure:
        return ReplicaCheck(replica, observed.failure, observed.explanation)
    if difference := _describe_difference(replica.file, observed):
        return ReplicaCheck(replica, CORRUPT_STATE, difference)
    if not (observed.adler32 or observed.sha256):
        message = observed.message or "the door provides no checksum"
        return ReplicaCheck(replica, SIZE_ONLY_STATE, message)
    return ReplicaCheck(replica, GOOD_STATE)


def _check_by_reading(replica: ExpectedReplica, advance: ByteCallback) -> ReplicaCheck:
    """Read a file and compare its content with the manifest; repeat the read if it differs."""
    if not replica.url:
        return ReplicaCheck(replica, ABSENT_STATE, ABSENT_MESSAGE)
    observed = doors.read_file(replica.url, replica.file.size, advance, is_local=replica.is_local)
    if observed.failure:
        return ReplicaCheck(replica, observed.failure, observed.explanation)
    first = _describe_difference(replica.file, observed)
    if not first:
        return ReplicaCheck(replica, GOOD_STATE, reads=1)
    repeated = doors.read_file(replica.url, replica.file.size, is_local=replica.is_local)
    if repeated.failure:
        message = f"{first}; the second read failed: {repeated.message}"
        return ReplicaCheck(replica, CORRUPT_STATE, message, reads=1, wrong_reads=1)
    if second := _describe_difference(replica.file, repeated):
        return ReplicaCheck(replica, CORRUPT_STATE, f"{second}, twice", reads=2, wrong_reads=2)
    message = f"{first}; the second read was correct"
    return ReplicaCheck(replica, CORRUPT_STATE, message, reads=2, wrong_reads=1)


def _describe_difference(file: ManifestFile, observed: FileObservation) -> str:
    """Describe how an observed file differs from the manifest's; '' if it does not."""
    if observed.size != file.size:
        return f"{observed.size} bytes instead of {file.size}"
    for kind in ("adler32", "sha256"):
        value, expected = getattr(observed, kind), getattr(file, kind)
        if value and value != expected:
            return f"{kind} {value} instead of {expected}"
    return ""


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


def find_files(
    manifest: Manifest,
    catalogue: RucioCatalogue,
    accesses: Sequence[DoorAccess],
    check: Callable[[ExpectedReplica], ReplicaCheck] = check_by_stat,
    bars: ProgressFactory = no_progress,
) -> RucioPlacement:
    """Query the catalogue for the replicas of a dataset, then compare them at every door.

    Raises:
        DatasetError: the catalogue has no such dataset, or a different one of that name.
        CatalogueError: Rucio does not respond.
    """
    name = manifest.name
    if catalogue.manifest(name).hash != manifest.hash:
        raise DatasetError(
            f"{name!r} differs between Rucio and this machine",
            where=catalogue.rucio.scope,
            hint="Datasets are immutable: place the local one under another name, or use another "
            "--cache-dir.",
        )
    replicas: dict[tuple[str, str], ReplicasByFile] = {}
    protocols = dict.fromkeys(access.door.protocol for access in accesses)
    for protocol, domain in product(protocols, (LAN, WAN)):
        by_file = replicas[protocol, domain] = defaultdict(list)
        for replica in catalogue.replicas(name, protocol, domain=domain):
            by_file[replica.rse, replica.file].append(replica)
    checked = count(1)
    with (
        bars(f"Checking {name} at doors (files)", len(accesses) * len(manifest.files)) as step,
        ThreadPoolExecutor(MAX_PARALLEL_DOORS) as executor,
    ):

        def check_next(replica: ExpectedReplica) -> ReplicaCheck:
            step(next(checked))
            return check(replica)

        find = partial(_find_files_at_door, manifest, replicas, check_next)
        results = [*executor.map(find, accesses)]
    keys = [(*access.key, name) for access in accesses]
    return RucioPlacement(
        {key: files for key, (files, reason) in zip(keys, results, strict=True) if not reason},
        {key: reason for key, (_, reason) in zip(keys, results, strict=True) if reason},
    )


def _find_files_at_door(
    manifest: Manifest,
    replicas: Mapping[tuple[str, str], ReplicasByFile],
    check: Callable[[ExpectedReplica], ReplicaCheck],
    access: DoorAccess,
) -> tuple[tuple[InputFile, ...], str]:
    """Return the files as jobs read them through a door, or the reason why they cannot."""
    door, files = access.door, []
    for file in manifest.files:
        near, far = (
            replicas[door.protocol, domain].get((door.rse, file.name), ()) for domain in (LAN, WAN)
        )
        url, reason = _find_good_url(access, file, far or near, check)
        if reason:
            return (), f"{file.name}: {reason}"
        if near and near[0].site == access.site.name and not door.prefix:
            url = near[0].url  # possibly reachable only from the site's own nodes
        files.append(InputFile(file.name, url, file.size, file.adler32))
    return tuple(files), ""


def _find_good_url(
    access: DoorAccess,
    file: ManifestFile,
    replicas: Sequence[Replica],
    check: Callable[[ExpectedReplica], ReplicaCheck],
) -> tuple[str, str]:
    """Return the first URL with a good replica, or the problem of the best one."""
    site, door = access.storage, access.door
    reason = f"Rucio has no replica at {door.rse} for {door.protocol}"
    for number, replica in enumerate(replicas):
        url = replica.url_at_prefix(door.prefix) if door.prefix else replica.url
        result = check(ExpectedReplica(site.name, door.name, file, url, door.rse, site.is_local))
        if result.state in READABLE_STATES:
            return url, ""
        if number == 0:
            reason = f"{url or replica.url}: {result.state}, {result.message}"
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
    rse_accesses = doors_with_rse(accesses)
    if not (rse_accesses and manifests):
        return NO_RUCIO_PLACEMENT
    until = time.monotonic() + timeout_s
    placement = _find_once(manifests, rse_accesses, settings, bars)
    if not (placement.lacking and timeout_s):
        return placement
    with bars("Waiting for replicas (doors)", len(rse_accesses)) as step:
        while placement.lacking and (remaining_s := until - time.monotonic()) > 0:
            pending = {(site, door) for site, door, _ in placement.lacking}
            names = ", ".join(sorted({site for site, _ in pending}))
            step(len(rse_accesses) - len(pending), f"not yet: {names}")
            time.sleep(min(REPLICA_POLL_S, remaining_s))
            with suppress(CatalogueError):  # the next check is later, the timeout the same
                placement = _find_once(manifests, rse_accesses, settings)
        step(len(rse_accesses) - len({key[:2] for key in placement.lacking}), "")
    return placement


def _find_once(
    manifests: Sequence[Manifest],
    rse_accesses: Sequence[DoorAccess],
    settings: Settings,
    bars: ProgressFactory = no_progress,
) -> RucioPlacement:
    catalogue = RucioCatalogue(settings, RucioClient(settings, bars))
    placements = [
        find_files(manifest, catalogue, rse_accesses, bars=bars) for manifest in manifests
    ]
    return RucioPlacement(
        {key: files for placement in placements for key, files in placement.files.items()},
        {key: reason for placement in placements for key, reason in placement.lacking.items()},
    )


def declare_bad_replicas(
    manifest: Manifest, checks: Sequence[ReplicaCheck], catalogue: RucioCatalogue | None
) -> dict[ReplicaCheck, str]:
    """Declare replicas that failed twice bad in Rucio; return the result of each declaration."""
    declared: dict[ReplicaCheck, str] = {}
    if catalogue is None:
        return declared
    for check in checks:
        if check.expected.rse and check.is_proof and not check.is_good:
            did = catalogue.rucio.names.file(manifest.name, check.expected.file.name)
            declared[check] = _declare_bad_replica(check, did, catalogue.rucio)
    return declared


def _declare_bad_replica(check: ReplicaCheck, did: str, rucio: RucioClient) -> str:
    reason = f"read in full twice by treehammer: {check.message}"
    try:
        remedy = "only an administrator can have it replaced"
        locations = rucio.list_locations([did], domain="all")
        if {location.rse for location in locations} <= {check.expected.rse}:
            # Of a bad one, Rucio would drop the file from the dataset, which is closed.
            remedy = "it is the only replica: remove the dataset, and place it once it is gone"
        else:
            with suppress(RucioDeniedError):
                rucio.declare_bad_replica(check.expected.rse, did, reason)
                return "declared bad: Rucio replaces it"
        rucio.declare_suspicious_replica(check.expected.rse, did, reason)
        return f"declared suspicious: {remedy}"
    except (CatalogueError, DatasetError) as error:
        return f"not declared: {error.message}"


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
