"""Sites: where jobs run, and the doors through which they read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import quote

from treehammer.config import Settings
from treehammer.errors import ConfigError, did_you_mean
from treehammer.submit.batch.base import BatchSystem
from treehammer.submit.batch.local import LocalBatch

#: The most jobs of a campaign on this machine: each has a folder of its own in the queue, and one
#: machine works at these for days.
LOCAL_JOBS = 10_000


@dataclass(frozen=True)
class Door:
    """A storage endpoint of a site.

    ``protocol`` is ``file``, ``root`` or ``https``; the files of a dataset lie at
    ``prefix/DATASET/FILE``.  ``middleware`` and its ``version`` are information, '' when unknown.
    """

    name: str
    protocol: str
    prefix: str
    middleware: str = ""
    version: str = ""

    def url(self, dataset: str, file: str) -> str:
        """What ROOT opens to read a file of a dataset through this door."""
        path = f"{dataset}/{file}"
        return f"{self.prefix}/{path if self.protocol == 'file' else quote(path)}"


@dataclass(frozen=True)
class Site:
    """A place where jobs run: the batch system that takes them and at least one door.

    The first door is used by tests that name none.  ``max_jobs`` is the ceiling for the jobs of one
    campaign; 0 means none.
    """

    name: str
    batch: str
    doors: tuple[Door, ...]
    max_jobs: int = 0

    def door(self, name: str) -> Door | None:
        """The door of that name, None when the site has none."""
        return next((door for door in self.doors if door.name == name), None)


def known_sites(settings: Settings) -> Mapping[str, Site]:
    """All sites by name; ``local``, this machine, is always one.

    Raises:
        ConfigError: the datasets' folder cannot be part of what ROOT opens.
    """
    prefix = str(settings.datasets_dir)
    if any(character in prefix for character in "?#\n"):
        raise ConfigError(
            "ROOT takes '?' and '#' in a path for options",
            where=f"cache_dir {settings.cache_dir}",
            hint="Choose a --cache-dir without these characters.",
        )
    local = Site("local", LocalBatch.name, (Door("file", "file", prefix),), LOCAL_JOBS)
    return {local.name: local}


def choose_sites(names: Sequence[str], settings: Settings) -> tuple[Site, ...]:
    """The sites of these names, each once.

    Raises:
        ConfigError: there is no such site.
    """
    sites = known_sites(settings)
    for name in names:
        if name not in sites:
            raise ConfigError(
                f"there is no site {name!r}",
                where="--sites",
                hint=f"{did_you_mean(name, sites)}Known sites: {', '.join(sites)}.",
            )
    return tuple(sites[name] for name in dict.fromkeys(names))


def batch_system(name: str, settings: Settings) -> BatchSystem:
    """The batch system of that name.

    Raises:
        ConfigError: a site or an old campaign names one that does not exist.
    """
    if name != LocalBatch.name:
        raise ConfigError(f"there is no batch system {name!r}", hint="Known: local.")
    return LocalBatch(settings.spool_dir, settings.slots)
