"""Sites by name: those of the sites file and this machine, and the batch systems they name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from treehammer.collectors.batch_names import EXTERNAL_PREFIX, LOCAL_BATCH
from treehammer.config import Settings
from treehammer.errors import ConfigError, suggest_word
from treehammer.submit.batch.external_batch import ExternalBatch
from treehammer.submit.batch.htcondor import HTCondorBatch
from treehammer.submit.batch.interface import BatchSystem, UnknownBatchSystemError
from treehammer.submit.batch.local.local_batch import LocalBatch
from treehammer.submit.sites import sites_file
from treehammer.submit.sites.site_model import Ceilings, Door, HTCondorPool, Site

#: The most jobs of a campaign on this machine: each has a folder of its own in the queue, and one
#: machine works at these for days.
MAX_LOCAL_JOBS = 10_000

#: What stands for every site of the sites file, and what begins a label.
ALL_SITES, LABEL_PREFIX = "all", "label:"


def load_sites(settings: Settings) -> Mapping[str, Site]:
    """All sites by name; ``local``, this machine, is always one.

    Raises:
        ConfigError: the datasets' folder cannot be part of what ROOT opens.
        SitesError: the sites file cannot be read or has mistakes.
    """
    prefix = str(settings.datasets_dir)
    if any(character in prefix for character in "?#\n"):
        raise ConfigError(
            "ROOT takes '?' and '#' in a path for options",
            where=f"cache_dir {settings.cache_dir}",
            hint="Choose a --cache-dir without these characters.",
        )
    local = Site(
        LOCAL_BATCH, LOCAL_BATCH, (Door("file", "file", prefix),), Ceilings(jobs=MAX_LOCAL_JOBS)
    )
    return {local.name: local, **_load_sites_file(settings).sites}


def load_pools(settings: Settings) -> Mapping[str, HTCondorPool]:
    """All HTCondor pools by name.

    Raises:
        SitesError: the sites file cannot be read or has mistakes.
    """
    return _load_sites_file(settings).pools


def _load_sites_file(settings: Settings) -> sites_file.SitesFileContent:
    if settings.sites_file is None:
        return sites_file.SitesFileContent({}, {})
    return sites_file.read_sites_file(settings.sites_file)


def select_sites(names: Sequence[str], settings: Settings) -> tuple[Site, ...]:
    """The sites of these names, each once; ``label:WORD`` and ``all`` stand for several.

    ``all`` are those of the sites file; without one it is this machine.

    Raises:
        ConfigError: there is no such site or label.
        SitesError: the sites file cannot be read or has mistakes.
    """
    sites = load_sites(settings)
    found = (site for name in names for site in _select_by_name(name, sites, settings))
    return tuple({site.name: site for site in found}.values())


def _select_by_name(name: str, sites: Mapping[str, Site], settings: Settings) -> Sequence[Site]:
    if name in sites:
        return [sites[name]]
    if name == ALL_SITES:
        others = [site for site in sites.values() if site.name != LOCAL_BATCH]
        return others or list(sites.values())
    labels = dict.fromkeys(LABEL_PREFIX + label for site in sites.values() for label in site.labels)
    if name in labels:
        return [site for site in sites.values() if name.removeprefix(LABEL_PREFIX) in site.labels]
    what = "label" if name.startswith(LABEL_PREFIX) else "site"
    known = ", ".join((*sites, *labels))
    hint = f"{suggest_word(name, (*sites, *labels, ALL_SITES))}Known: {known}, {ALL_SITES}."
    if settings.sites_file is None:
        hint += " Sites beside this machine come from a sites file: --sites-file."
    raise ConfigError(
        f"there is no {what} {name.removeprefix(LABEL_PREFIX)!r}", where="--sites", hint=hint
    )


def open_batch_system(name: str, settings: Settings) -> BatchSystem:
    """The batch system of that name: ``local``, ``htcondor@POOL``, or one of another installation.

    Raises:
        UnknownBatchSystem: a site or an old campaign names one that does not exist.
        SitesError: the sites file cannot be read or has mistakes.
    """
    kind, _, pool = name.partition("@")
    if name == LOCAL_BATCH:
        return LocalBatch(settings.spool_dir, settings.slots)
    if name.startswith(EXTERNAL_PREFIX):
        return ExternalBatch(name)
    if kind != "htcondor":
        raise UnknownBatchSystemError(
            f"there is no batch system {name!r}", hint="Known: local, htcondor@POOL."
        )
    return open_htcondor_pool(pool, settings)


def open_htcondor_pool(name: str, settings: Settings) -> HTCondorBatch:
    """The batch system of an HTCondor pool.

    Raises:
        UnknownBatchSystem: there is no such pool.
        ConfigError: files that it names are gone.
        SitesError: the sites file cannot be read or has mistakes.
    """
    return HTCondorBatch(_find_pool(name, settings), settings.htcondor_dir / name)


def _find_pool(name: str, settings: Settings) -> HTCondorPool:
    pools = load_pools(settings)
    where = str(settings.sites_file or "")
    if name not in pools:
        known = ", ".join(pools) or "none"
        raise UnknownBatchSystemError(
            f"there is no pool {name!r}" if where else f"no sites file says what pool {name!r} is",
            where=where,
            hint=f"{suggest_word(name, pools)}Known pools: {known}. The jobs there are left as they "
            f"are; name the sites file that has [pools.{name}]: --sites-file FILE.",
        )
    pool = pools[name]
    _check_path(pool.config, Path.is_file, "config", pool, where)
    _check_path(pool.token_dir, Path.is_dir, "token_dir", pool, where)
    _check_path(pool.scitoken_file, Path.is_file, "scitoken_file", pool, where)
    return pool


def _check_path(
    path: Path | None, there: Callable[[Path], bool], key: str, pool: HTCondorPool, where: str
) -> None:
    """Refuse a pool whose file or folder is gone; HTCondor would go on without saying so."""
    if path is not None and not there(path):
        raise ConfigError(
            f"pools.{pool.name}.{key}: there is no {path}",
            where=where,
            hint="Correct the path; a testbed's files are there while it is up.",
        )
