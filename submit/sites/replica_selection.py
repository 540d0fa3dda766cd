"""Selection of replicas by ``--sites``: at doors of the sites file and at Rucio's storage."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import chain, product, starmap

from treehammer.config import Settings
from treehammer.datasets.catalogues.folder_catalogue import FolderCatalogue
from treehammer.datasets.manifest import Manifest, Replica
from treehammer.datasets.rucio.rucio_client import DISK_STORAGE, RucioClient, is_configured
from treehammer.datasets.rucio.rucio_conversions import AccountQuota, Rse, RseExpressionError
from treehammer.datasets.rucio.rucio_datasets import RucioCatalogue
from treehammer.errors import ConfigError, DatasetError
from treehammer.submit.sites.replicas import LAN, WAN, ExpectedReplica
from treehammer.submit.sites.site_model import Door, Site
from treehammer.submit.sites.site_registry import select_sites
from treehammer.text_formatting import ProgressFactory, split_list

#: Characters that occur only in RSE expressions.
_OPERATORS = re.compile(r"[=&|\\()<>*]")
#: Protocols for replicas without a door, in order of preference.
_PROTOCOLS = ("root", "https", "http", "s3")


def find_manifest(name: str, settings: Settings, catalogue: RucioCatalogue | None) -> Manifest:
    """Load the manifest of a dataset from the folder catalogue, or else from Rucio.

    Raises:
        DatasetError: the dataset is unknown to both.
        CatalogueError: Rucio does not respond.
    """
    folder = FolderCatalogue(settings.datasets_dir)
    if folder.has(name) or catalogue is None:
        return folder.manifest(name)
    return catalogue.manifest(name)


def open_rucio_catalogue(settings: Settings, bars: ProgressFactory) -> RucioCatalogue | None:
    """Open Rucio's catalogue; return None if Rucio is not configured."""
    return (
        RucioCatalogue(settings, RucioClient(settings, bars)) if is_configured(settings) else None
    )


def select_storage(
    expression: str, settings: Settings, rucio: RucioClient | None
) -> tuple[Site | Rse, ...]:
    """Resolve ``--sites`` to sites of the sites file and storage in Rucio.

    Args:
        expression: names of sites, labels or ``all``, comma separated; or an RSE expression.
        settings: all settings.
        rucio: client for names missing from the sites file; None if Rucio is not configured.

    Raises:
        ConfigError: no site or storage matches.
        CatalogueError: Rucio does not respond.
    """
    if _OPERATORS.search(expression):
        if rucio is None:
            raise ConfigError(
                f"{expression!r} is an RSE expression, but Rucio is not configured",
                where="--sites",
                hint="Name the client's rucio.cfg: rucio_config or TREEHAMMER_RUCIO_CONFIG.",
            )
        return rucio.find_rses(expression)
    selected = [
        item for word in split_list(expression) for item in _select_word(word, settings, rucio)
    ]
    return tuple({item.name: item for item in selected}.values())


def _select_word(word: str, settings: Settings, rucio: RucioClient | None) -> Sequence[Site | Rse]:
    try:
        return select_sites([word], settings)
    except ConfigError as error:
        if rucio is None or ":" in word:
            raise
        try:
            return _select_site_rses(word, rucio)
        except RseExpressionError:
            raise error from None


def select_rses(expression: str, settings: Settings, rucio: RucioClient) -> tuple[Rse, ...]:
    """Resolve ``--sites`` to storage on disk; a site stands for the RSEs of its doors.

    Raises:
        ConfigError: no site, or no storage on disk, matches.
        CatalogueError: Rucio does not respond.
    """
    selected: list[Rse] = []
    for item in select_storage(expression, settings, rucio):
        if isinstance(item, Rse):
            selected.append(item)
            continue
        names = dict.fromkeys(door.rse for door in item.doors if door.rse)
        selected += map(rucio.fetch_rse, names) if names else _select_site_rses(item.name, rucio)
    on_disk = {rse.name: rse for rse in selected if _is_disk_rse(rse)}
    if not on_disk:
        rejected = ", ".join(f"{rse.name} ({rse.kind})" for rse in selected)
        raise ConfigError(f"no storage on disk: {rejected}", where=f"--sites {expression}")
    return tuple(on_disk.values())


def _is_disk_rse(rse: Rse) -> bool:
    return rse.kind == DISK_STORAGE and not rse.staging


def _select_site_rses(site: str, rucio: RucioClient) -> Sequence[Rse]:
    """Return the RSE of that name, or the writable one of a site with the largest quota."""
    try:
        rses = rucio.find_rses(f"site={site}|rse={site}")
    except RseExpressionError as error:
        raise RseExpressionError(
            f"Rucio has no storage with site={site}", where="--sites"
        ) from error
    on_disk = [rse for rse in rses if _is_disk_rse(rse)]
    if len(on_disk) < 2:
        return on_disk or rses
    quotas = rucio.list_quotas()
    # Not by what is left of it: the same command would choose another one the next time.
    limits = {rse: quotas.get(rse.name, AccountQuota(0, 0)).limit for rse in on_disk}
    return [max(on_disk, key=lambda rse: (rse.writable, limits[rse]))]


def list_expected_replicas(
    manifest: Manifest,
    sites: Sequence[Site | Rse],
    doors: Sequence[str],
    catalogue: RucioCatalogue | None,
) -> list[ExpectedReplica]:
    """List the expected replicas of a dataset at doors of sites and at Rucio's storage.

    Includes storage of a site that has a replica but no door.

    Args:
        manifest: manifest of the dataset.
        sites: sites and storage from :func:`select_storage`.
        doors: names of the doors to include; empty for all.
        catalogue: Rucio's catalogue, None if Rucio is not configured.

    Raises:
        ConfigError: no site has such a door, or no storage is on disk.
        CatalogueError: Rucio does not respond.
    """
    replicas = _RucioReplicas(manifest, catalogue)
    expected: list[ExpectedReplica] = []
    for item in sites:
        if isinstance(item, Site):
            expected += replicas.expected_at_site(item, doors)
        elif _is_disk_rse(item):
            expected += replicas.expected_at_rse(item.name, item.site)
    if not expected:
        if doors:
            raise ConfigError(f"no site has a door {' or '.join(doors)}", where="--door")
        raise ConfigError("no storage is on disk", where="--sites")
    return expected


class _RucioReplicas:
    """Replicas of a dataset in Rucio, by protocol and domain."""

    def __init__(self, manifest: Manifest, catalogue: RucioCatalogue | None) -> None:
        self._manifest = manifest
        self._catalogue = catalogue
        self._replicas: dict[tuple[str, str], Sequence[Replica]] = {}

    def _load_replicas(self, protocol: str, domain: str) -> Sequence[Replica]:
        if self._catalogue is None:
            return ()
        if (protocol, domain) not in self._replicas:
            self._replicas[protocol, domain] = ()
            with suppress(DatasetError):  # Rucio does not know the dataset.
                self._replicas[protocol, domain] = self._catalogue.replicas(
                    self._manifest.name, protocol, domain=domain
                )
        return self._replicas[protocol, domain]

    def expected_at_site(self, site: Site, doors: Sequence[str]) -> Iterator[ExpectedReplica]:
        """Yield the expected replicas at the named doors, or at all doors and storage of a site."""
        for door in site.doors:
            if not doors or door.name in doors:
                yield from self._expected_at_door(site, door)
        if not doors:
            accesses = product(_PROTOCOLS, (WAN, LAN))
            replicas = chain.from_iterable(starmap(self._load_replicas, accesses))
            rses = {replica.rse for replica in replicas if replica.site == site.name}
            for rse in rses - {door.rse for door in site.doors}:
                yield from self.expected_at_rse(rse, site.name)

    def expected_at_rse(self, rse: str, site: str) -> Iterator[ExpectedReplica]:
        """Yield the expected replicas at an RSE without a door."""
        urls: dict[str, str] = {}
        # Storage for its own nodes alone has no URLs for others, by any protocol.
        for domain, protocol in product((WAN, LAN), _PROTOCOLS):
            if len(urls) < len(self._manifest.files):  # Rucio takes seconds for each protocol
                replicas = reversed(self._load_replicas(protocol, domain))  # the best is the last
                urls = {item.file: item.url for item in replicas if item.rse == rse} | urls
        for file in self._manifest.files:
            yield ExpectedReplica(site, rse, file, urls.get(file.name, ""), rse)

    def _expected_at_door(self, site: Site, door: Door) -> Iterator[ExpectedReplica]:
        if door.rse:
            near, far = (self._load_replicas(door.protocol, domain) for domain in (LAN, WAN))
            urls = {
                replica.file: replica.url_at_prefix(door.prefix) if door.prefix else replica.url
                for replica in [*reversed(near), *reversed(far)]
                if replica.rse == door.rse
            }
        else:
            name = self._manifest.name
            urls = {file.name: door.file_url(name, file.name) for file in self._manifest.files}
        for file in self._manifest.files:
            url = urls.get(file.name, "")
            yield ExpectedReplica(site.name, door.name, file, url, door.rse, site.is_local)
