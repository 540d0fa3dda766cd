"""Sites by name: those of the sites file and this machine, and the batch systems they name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from treehammer.config import Settings
from treehammer.errors import ConfigError, did_you_mean
from treehammer.sql.rows import ELSEWHERE
from treehammer.submit import sites_file
from treehammer.submit.batch.base import BatchSystem, UnknownBatchSystem
from treehammer.submit.batch.elsewhere import ElsewhereBatch
from treehammer.submit.batch.htcondor import HTCondorBatch
from treehammer.submit.batch.local import LocalBatch
from treehammer.submit.site import Ceilings, Door, Pool, Site

__all__ = [
    "LOCAL_JOBS",
    "Ceilings",
    "Door",
    "Pool",
    "Site",
    "batch_system",
    "choose_sites",
    "htcondor_pool",
    "known_pools",
    "known_sites",
]

#: The most jobs of a campaign on this machine: each has a folder of its own in the queue, and one
#: machine works at these for days.
LOCAL_JOBS = 10_000

#: What stands for every site of the sites file, and what begins a label.
ALL, LABEL = "all", "label:"


def known_sites(settings: Settings) -> Mapping[str, Site]:
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
        "local", LocalBatch.name, (Door("file", "file", prefix),), Ceilings(jobs=LOCAL_JOBS)
    )
    return {local.name: local, **_file(settings).sites}


def known_pools(settings: Settings) -> Mapping[str, Pool]:
    """All HTCondor pools by name.

    Raises:
        SitesError: the sites file cannot be read or has mistakes.
    """
    return _file(settings).pools


def _file(settings: Settings) -> sites_file.SitesFile:
    if settings.sites_file is None:
        return sites_file.SitesFile({}, {})
    return sites_file.read(settings.sites_file)


def choose_sites(names: Sequence[str], settings: Settings) -> tuple[Site, ...]:
    """The sites of these names, each once; ``label:WORD`` and ``all`` stand for several.

    ``all`` are those of the sites file; without one it is this machine.

    Raises:
        ConfigError: there is no such site or label.
        SitesError: the sites file cannot be read or has mistakes.
    """
    sites = known_sites(settings)
    found = (site for name in names for site in _chosen(name, sites, settings))
    return tuple({site.name: site for site in found}.values())


def _chosen(name: str, sites: Mapping[str, Site], settings: Settings) -> Sequence[Site]:
    if name in sites:
        return [sites[name]]
    if name == ALL:
        others = [site for site in sites.values() if site.name != LocalBatch.name]
        return others or list(sites.values())
    labels = dict.fromkeys(LABEL + label for site in sites.values() for label in site.labels)
    if name in labels:
        return [site for site in sites.values() if name.removeprefix(LABEL) in site.labels]
    what = "label" if name.startswith(LABEL) else "site"
    known = ", ".join((*sites, *labels))
    hint = f"{did_you_mean(name, (*sites, *labels, ALL))}Known: {known}, {ALL}."
    if settings.sites_file is None:
        hint += " Sites beside this machine come from a sites file: --sites-file."
    raise ConfigError(
        f"there is no {what} {name.removeprefix(LABEL)!r}", where="--sites", hint=hint
    )


def batch_system(name: str, settings: Settings) -> BatchSystem:
    """The batch system of that name: ``local``, ``htcondor@POOL``, or one of another installation.

    Raises:
        UnknownBatchSystem: a site or an old campaign names one that does not exist.
        SitesError: the sites file cannot be read or has mistakes.
    """
    kind, _, pool = name.partition("@")
    if name == LocalBatch.name:
        return LocalBatch(settings.spool_dir, settings.slots)
    if name.startswith(ELSEWHERE):
        return ElsewhereBatch(name)
    if kind != "htcondor":
        raise UnknownBatchSystem(
            f"there is no batch system {name!r}", hint="Known: local, htcondor@POOL."
        )
    return htcondor_pool(pool, settings)


def htcondor_pool(name: str, settings: Settings) -> HTCondorBatch:
    """The batch system of an HTCondor pool.

    Raises:
        UnknownBatchSystem: there is no such pool.
        ConfigError: files that it names are gone.
        SitesError: the sites file cannot be read or has mistakes.
    """
    return HTCondorBatch(_pool(name, settings), settings.htcondor_dir / name)


def _pool(name: str, settings: Settings) -> Pool:
    pools = known_pools(settings)
    where = str(settings.sites_file or "")
    if name not in pools:
        known = ", ".join(pools) or "none"
        raise UnknownBatchSystem(
            f"there is no pool {name!r}" if where else f"no sites file says what pool {name!r} is",
            where=where,
            hint=f"{did_you_mean(name, pools)}Known pools: {known}. The jobs there are left as they "
            f"are; name the sites file that has [pools.{name}]: --sites-file FILE.",
        )
    pool = pools[name]
    _require(pool.config, Path.is_file, "config", pool, where)
    _require(pool.token_dir, Path.is_dir, "token_dir", pool, where)
    _require(pool.scitoken_file, Path.is_file, "scitoken_file", pool, where)
    return pool


def _require(
    path: Path | None, there: Callable[[Path], bool], key: str, pool: Pool, where: str
) -> None:
    """Refuse a pool whose file or folder is gone; HTCondor would go on without saying so."""
    if path is not None and not there(path):
        raise ConfigError(
            f"pools.{pool.name}.{key}: there is no {path}",
            where=where,
            hint="Correct the path; a testbed's files are there while it is up.",
        )
