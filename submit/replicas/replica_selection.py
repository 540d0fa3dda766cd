"""Which replicas ``--sites`` means: at doors of the sites file, and at storage that Rucio knows."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from treehammer.collectors.batch_names import LOCAL_BATCH
from treehammer.config import Settings
from treehammer.datasets.catalogues.folder_catalogue import FolderCatalogue
from treehammer.datasets.model.manifest import Manifest
from treehammer.datasets.model.replica import Replica
from treehammer.datasets.rucio.rucio_catalogue import RucioCatalogue
from treehammer.datasets.rucio.rucio_client import DISK_STORAGE, RucioClient, is_configured
from treehammer.datasets.rucio.rucio_conversions import AccountQuota, Rse, RseExpressionError
from treehammer.errors import ConfigError, DatasetError
from treehammer.submit.replicas.replica_verification import ExpectedReplica
from treehammer.submit.sites.site_model import Door, Site
from treehammer.submit.sites.site_registry import select_sites

#: What only an RSE expression has.
_OPERATORS = re.compile(r"[=&|\\()<>*]")
#: By which protocol a replica is looked at that no door leads to, the first that there is.
_PROTOCOLS = ("root", "https", "http")


def find_manifest(name: str, settings: Settings, catalogue: RucioCatalogue | None) -> Manifest:
    """What a dataset is, from the folder catalogue or else from Rucio.

    Raises:
        DatasetError: neither knows it.
        CatalogueError: Rucio does not answer.
    """
    folder = FolderCatalogue(settings.datasets_dir)
    if folder.has(name) or catalogue is None:
        return folder.manifest(name)
    return catalogue.manifest(name)


def open_rucio_catalogue(settings: Settings) -> RucioCatalogue | None:
    """Rucio's catalogue, None where nobody has said which Rucio to ask."""
    return RucioCatalogue(settings) if is_configured(settings) else None


def select_storage(
    expression: str, settings: Settings, rucio: RucioClient | None
) -> tuple[Site | Rse, ...]:
    """What ``--sites`` means: sites of the sites file, and storage that Rucio knows.

    Args:
        expression: names of sites, labels or ``all``, comma separated; or an RSE expression.
        settings: all settings.
        rucio: whom to ask for what is not in the sites file, None for nobody.

    Raises:
        ConfigError: it means no site and no storage.
        CatalogueError: Rucio does not answer.
    """
    if _OPERATORS.search(expression):
        if rucio is None:
            raise ConfigError(
                f"{expression!r} is an RSE expression, and no Rucio is known",
                where="--sites",
                hint="Name the client's rucio.cfg: rucio_config or TREEHAMMER_RUCIO_CONFIG.",
            )
        return rucio.find_rses(expression)
    words = [word.strip() for word in expression.split(",") if word.strip()]
    found = [one for word in words for one in _select_word(word, settings, rucio)]
    return tuple({one.name: one for one in found}.values())


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
    """The storage on disk that ``--sites`` means: of a site, the RSEs that its doors lead to.

    Raises:
        ConfigError: it means no site, or no storage on disk.
        CatalogueError: Rucio does not answer.
    """
    found: list[Rse] = []
    for one in select_storage(expression, settings, rucio):
        if isinstance(one, Rse):
            found.append(one)
            continue
        named = [
            rucio.fetch_rse(name) for name in dict.fromkeys(door.rse for door in one.doors) if name
        ]
        found += named or _select_site_rses(one.name, rucio)
    on_disk = {rse.name: rse for rse in found if _is_disk_rse(rse)}
    if not on_disk:
        others = ", ".join(f"{rse.name} ({rse.kind})" for rse in found)
        raise ConfigError(f"no storage on disk is meant: {others}", where=f"--sites {expression}")
    return tuple(on_disk.values())


def _is_disk_rse(rse: Rse) -> bool:
    return rse.kind == DISK_STORAGE and not rse.staging


def _select_site_rses(site: str, rucio: RucioClient) -> Sequence[Rse]:
    """The storage of a site that we may use; of several, the one with most room for us."""
    try:
        found = rucio.find_rses(f"site={site}")
    except RseExpressionError as error:
        raise RseExpressionError(
            f"Rucio knows no storage with site={site}", where="--sites"
        ) from error
    on_disk = [rse for rse in found if _is_disk_rse(rse)]
    if len(on_disk) < 2:
        return on_disk or found
    quotas = rucio.list_quotas()
    return [max(on_disk, key=lambda rse: quotas.get(rse.name, AccountQuota(0, 0)).free)]


def list_expected_replicas(
    manifest: Manifest,
    sites: Sequence[Site | Rse],
    doors: Sequence[str],
    catalogue: RucioCatalogue | None,
) -> list[ExpectedReplica]:
    """Where the files of a dataset are to be: at each door of sites, and at storage of Rucio's.

    Storage of a site that has a replica, and no door, is looked at as well.

    Args:
        manifest: of the dataset.
        sites: from :func:`chosen`.
        doors: names of those to look at; none for all.
        catalogue: Rucio's, None where there is none.

    Raises:
        ConfigError: there is no such door.
        CatalogueError: Rucio does not answer.
    """
    known = _RucioReplicas(manifest, catalogue)
    found: list[ExpectedReplica] = []
    for one in sites:
        if isinstance(one, Rse):
            if _is_disk_rse(one):
                found += known.expected_at_rse(one.name, one.site)
            continue
        for door in one.doors:
            if not doors or door.name in doors:
                found += known.expected_at_door(one, door)
        if not doors:
            led_to = {door.rse for door in one.doors}
            for rse in known.rses_of_site(one.name) - led_to:
                found += known.expected_at_rse(rse, one.name)
    if not found:
        what = f"no site has a door {' or '.join(doors)}" if doors else "no storage is on disk"
        raise ConfigError(what, where="--door" if doors else "--sites")
    return found


class _RucioReplicas:
    """The replicas of a dataset that Rucio has, by protocol."""

    def __init__(self, manifest: Manifest, catalogue: RucioCatalogue | None) -> None:
        self._manifest = manifest
        self._catalogue = catalogue
        self._by_protocol: dict[str, Sequence[Replica]] = {}

    def _load_replicas(self, protocol: str) -> Sequence[Replica]:
        if self._catalogue is None:
            return ()
        if protocol not in self._by_protocol:
            try:
                found = self._catalogue.replicas(self._manifest.name, protocol)
            except DatasetError:  # Rucio knows no such dataset
                found = ()
            self._by_protocol[protocol] = found
        return self._by_protocol[protocol]

    def rses_of_site(self, site: str) -> set[str]:
        """The RSEs of a site that have a replica."""
        return {
            one.rse for name in _PROTOCOLS for one in self._load_replicas(name) if one.site == site
        }

    def expected_at_rse(self, rse: str, site: str) -> Iterator[ExpectedReplica]:
        """Where files are at an RSE that no door leads to."""
        urls = {
            one.file: one.url
            for name in reversed(_PROTOCOLS)
            for one in reversed(self._load_replicas(name))
            if one.rse == rse
        }
        for file in self._manifest.files:
            yield ExpectedReplica(site, rse, file, urls.get(file.name, ""), rse)

    def expected_at_door(self, site: Site, door: Door) -> Iterator[ExpectedReplica]:
        """Where files are at a door of a site."""
        here = site.batch_kind == LOCAL_BATCH
        urls: dict[str, str] = {}
        for one in reversed(self._load_replicas(door.protocol) if door.rse else ()):
            if one.rse == door.rse:
                urls[one.file] = one.url_at_prefix(door.prefix) if door.prefix else one.url
        for file in self._manifest.files:
            url = (
                urls.get(file.name, "")
                if door.rse
                else door.file_url(self._manifest.name, file.name)
            )
            yield ExpectedReplica(site.name, door.name, file, url, door.rse, here)
