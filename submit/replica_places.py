"""Which replicas ``--sites`` means: at doors of the sites file, and at storage that Rucio knows."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from treehammer.config import Settings
from treehammer.datasets.catalogue import FolderCatalogue
from treehammer.datasets.catalogues import Replica
from treehammer.datasets.manifest import Manifest
from treehammer.datasets.rucio import DISK, Rucio, is_configured
from treehammer.datasets.rucio_answers import NoStorage, Quota, Rse
from treehammer.datasets.rucio_catalogue import RucioCatalogue
from treehammer.errors import ConfigError, DatasetError
from treehammer.submit.replica_checks import Place
from treehammer.submit.site import Door, Site
from treehammer.submit.sites import choose_sites

#: What only an RSE expression has.
_OPERATORS = re.compile(r"[=&|\\()<>*]")
#: By which protocol a replica is looked at that no door leads to, the first that there is.
_PROTOCOLS = ("root", "https", "http")


def manifest_of(name: str, settings: Settings, catalogue: RucioCatalogue | None) -> Manifest:
    """What a dataset is, from the folder catalogue or else from Rucio.

    Raises:
        DatasetError: neither knows it.
        CatalogueError: Rucio does not answer.
    """
    folder = FolderCatalogue(settings.datasets_dir)
    if folder.has(name) or catalogue is None:
        return folder.manifest(name)
    return catalogue.manifest(name)


def rucio_catalogue(settings: Settings) -> RucioCatalogue | None:
    """Rucio's catalogue, None where nobody has said which Rucio to ask."""
    return RucioCatalogue(settings) if is_configured(settings) else None


def chosen(expression: str, settings: Settings, rucio: Rucio | None) -> tuple[Site | Rse, ...]:
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
        return rucio.rses(expression)
    words = [word.strip() for word in expression.split(",") if word.strip()]
    found = [one for word in words for one in _of_word(word, settings, rucio)]
    return tuple({one.name: one for one in found}.values())


def _of_word(word: str, settings: Settings, rucio: Rucio | None) -> Sequence[Site | Rse]:
    try:
        return choose_sites([word], settings)
    except ConfigError as error:
        if rucio is None or ":" in word:
            raise
        try:
            return _of_site(word, rucio)
        except NoStorage:
            raise error from None


def chosen_rses(expression: str, settings: Settings, rucio: Rucio) -> tuple[Rse, ...]:
    """The storage on disk that ``--sites`` means: of a site, the RSEs that its doors lead to.

    Raises:
        ConfigError: it means no site, or no storage on disk.
        CatalogueError: Rucio does not answer.
    """
    found: list[Rse] = []
    for one in chosen(expression, settings, rucio):
        if isinstance(one, Rse):
            found.append(one)
            continue
        named = [rucio.rse(name) for name in dict.fromkeys(door.rse for door in one.doors) if name]
        found += named or _of_site(one.name, rucio)
    on_disk = {rse.name: rse for rse in found if _is_disk(rse)}
    if not on_disk:
        others = ", ".join(f"{rse.name} ({rse.kind})" for rse in found)
        raise ConfigError(f"no storage on disk is meant: {others}", where=f"--sites {expression}")
    return tuple(on_disk.values())


def _is_disk(rse: Rse) -> bool:
    return rse.kind == DISK and not rse.staging


def _of_site(site: str, rucio: Rucio) -> Sequence[Rse]:
    """The storage of a site that we may use; of several, the one with most room for us."""
    try:
        found = rucio.rses(f"site={site}")
    except NoStorage as error:
        raise NoStorage(f"Rucio knows no storage with site={site}", where="--sites") from error
    on_disk = [rse for rse in found if _is_disk(rse)]
    if len(on_disk) < 2:
        return on_disk or found
    quotas = rucio.quotas()
    return [max(on_disk, key=lambda rse: quotas.get(rse.name, Quota(0, 0)).free)]


def places(
    manifest: Manifest,
    sites: Sequence[Site | Rse],
    doors: Sequence[str],
    catalogue: RucioCatalogue | None,
) -> list[Place]:
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
    known = _Replicas(manifest, catalogue)
    found: list[Place] = []
    for one in sites:
        if isinstance(one, Rse):
            if _is_disk(one):
                found += known.at_rse(one.name, one.site)
            continue
        for door in one.doors:
            if not doors or door.name in doors:
                found += known.at_door(one, door)
        if not doors:
            led_to = {door.rse for door in one.doors}
            for rse in known.of_site(one.name) - led_to:
                found += known.at_rse(rse, one.name)
    if not found:
        what = f"no site has a door {' or '.join(doors)}" if doors else "no storage is on disk"
        raise ConfigError(what, where="--door" if doors else "--sites")
    return found


class _Replicas:
    """The replicas of a dataset that Rucio has, by protocol."""

    def __init__(self, manifest: Manifest, catalogue: RucioCatalogue | None) -> None:
        self._manifest = manifest
        self._catalogue = catalogue
        self._by_protocol: dict[str, Sequence[Replica]] = {}

    def _all(self, protocol: str) -> Sequence[Replica]:
        if self._catalogue is None:
            return ()
        if protocol not in self._by_protocol:
            try:
                found = self._catalogue.replicas(self._manifest.name, protocol)
            except DatasetError:  # Rucio knows no such dataset
                found = ()
            self._by_protocol[protocol] = found
        return self._by_protocol[protocol]

    def of_site(self, site: str) -> set[str]:
        """The RSEs of a site that have a replica."""
        return {one.rse for name in _PROTOCOLS for one in self._all(name) if one.site == site}

    def at_rse(self, rse: str, site: str) -> Iterator[Place]:
        """Where files are at an RSE that no door leads to."""
        urls = {
            one.file: one.url
            for name in reversed(_PROTOCOLS)
            for one in reversed(self._all(name))
            if one.rse == rse
        }
        for file in self._manifest.files:
            yield Place(site, rse, file, urls.get(file.name, ""), rse)

    def at_door(self, site: Site, door: Door) -> Iterator[Place]:
        """Where files are at a door of a site."""
        here = site.batch_kind == "local"
        urls: dict[str, str] = {}
        for one in reversed(self._all(door.protocol) if door.rse else ()):
            if one.rse == door.rse:
                urls[one.file] = one.behind(door.prefix) if door.prefix else one.url
        for file in self._manifest.files:
            url = urls.get(file.name, "") if door.rse else door.url(self._manifest.name, file.name)
            yield Place(site.name, door.name, file, url, door.rse, here)
