"""Sites, pools and batch systems by name: those of the sites file, and this machine."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from treehammer.collectors.job_spec import EXTERNAL_PREFIX, LOCAL_BATCH
from treehammer.collectors.worker.probes.credential_checks import (
    PROXY_VARIABLE,
    TOKEN_FILE_VARIABLE,
)
from treehammer.config import Settings
from treehammer.errors import ConfigError, suggest_word
from treehammer.submit.batch.interface import BatchSystem, ExternalBatch, find_batch

if TYPE_CHECKING:
    from treehammer.submit.batch.htcondor.pool import HTCondorPool
    from treehammer.submit.sites.site_model import Site, SitesDocument


#: Maximum number of local jobs in one campaign.  Each has a folder in the queue, and one machine
#: needs days for this many.
MAX_LOCAL_JOBS = 10_000

#: Variable of a credential -> submit command by which HTCondor forwards one.
_SUBMIT_COMMANDS = {PROXY_VARIABLE: "x509userproxy", TOKEN_FILE_VARIABLE: "scitokens_file"}
#: Stands for every site of the sites file.
ALL_SITES = "all"
#: Marks a word of ``--sites`` as a label.
LABEL_PREFIX = "label:"


def load_sites(settings: Settings) -> Mapping[str, Site]:
    """Load all sites by name, this machine (``local``) included.

    Raises:
        ConfigError: ROOT could not open files in the datasets' folder.
        SitesError: the sites file cannot be read or has mistakes.
    """
    from treehammer.collectors.http_requests import TOKEN_POOLS_VARIABLE
    from treehammer.submit.sites.site_model import token_pool_environment

    prefix = str(settings.datasets_dir)
    if {"?", "#", "\n"} & {*prefix}:
        raise ConfigError(
            "ROOT interprets '?' and '#' in a path as options",
            where=f"cache_dir {settings.cache_dir}",
            hint="Choose a --cache-dir without these characters.",
        )
    local = _make_local_site(prefix, str(settings.cache_dir / "load"))
    content = _load_sites_file(settings)
    sites = {local.name: local, **(content.sites if content else {})}
    # This process's HTTP clients get the pools of doors as they get credentials.
    doors = (door for site in sites.values() for door in site.doors)
    os.environ.pop(TOKEN_POOLS_VARIABLE, None)
    os.environ.update(token_pool_environment(doors))
    return sites


@functools.cache
def _make_local_site(prefix: str, writable: str) -> Site:
    """Make the site of this machine, whose paths follow no rules of the sites file."""
    # Pydantic and tree-sitter take a tenth of a second to load.
    from treehammer.submit.sites.site_model import Ceilings, Door, LoadPermission, Site

    # The disk of this machine is its user's own.
    load = LoadPermission.model_construct(
        opens_per_s=1e6, clients=100_000, mb_per_s=1e6, writable=writable
    )
    door = Door.model_construct(name="file", protocol="file", prefix=prefix, load=load)
    return Site.model_construct(
        name=LOCAL_BATCH, doors=(door,), ceilings=Ceilings(jobs=MAX_LOCAL_JOBS)
    )


def load_pools(settings: Settings) -> Mapping[str, HTCondorPool]:
    """Load all HTCondor pools by name.

    Raises:
        SitesError: the sites file cannot be read or has mistakes.
    """
    content = _load_sites_file(settings)
    return content.pools if content else {}


def _load_sites_file(settings: Settings) -> SitesDocument | None:
    if settings.sites_file is None:
        return None
    from treehammer.submit.sites.sites_file import read_sites_file

    return read_sites_file(settings.sites_file)


def select_sites(
    names: Sequence[str], settings: Settings, *, option: str = "--sites"
) -> tuple[Site, ...]:
    """Select sites by name, ``label:WORD`` or ``all``, without duplicates.

    ``all`` means every site of the sites file, or this machine if there is no sites file.

    Raises:
        ConfigError: a site or label is unknown.
        SitesError: the sites file cannot be read or has mistakes.
    """
    sites_by_word = _group_sites_by_word([*load_sites(settings).values()])
    for name in names:
        if name not in sites_by_word:
            hint = f"{suggest_word(name, sites_by_word)}Known: {', '.join(sites_by_word)}."
            if settings.sites_file is None:
                hint += " Other sites than this machine are defined in a sites file: --sites-file."
            kind = "label" if name.startswith(LABEL_PREFIX) else "site"
            word = name.removeprefix(LABEL_PREFIX)
            raise ConfigError(f"unknown {kind} {word!r}", where=option, hint=hint)
    return tuple({site.name: site for name in names for site in sites_by_word[name]}.values())


def _group_sites_by_word(sites: list[Site]) -> dict[str, list[Site]]:
    """Return the sites that each word of ``--sites`` selects."""
    sites_by_word = {site.name: [site] for site in sites}
    for site in sites:
        for label in site.labels:
            sites_by_word.setdefault(LABEL_PREFIX + label, []).append(site)
    sites_by_word[ALL_SITES] = [site for site in sites if site.name != LOCAL_BATCH] or sites
    return sites_by_word


def open_batch_system(name: str, settings: Settings) -> BatchSystem:
    """Open a batch system by its name, or a placeholder for one of another installation.

    Raises:
        UnknownBatchSystemError: a site or an old campaign names an unknown batch system.
        SitesError: the sites file cannot be read or has mistakes.
    """
    if name.startswith(EXTERNAL_PREFIX):
        return ExternalBatch(name)
    return find_batch(name).open(name.partition("@")[2], settings, lambda: load_pools(settings))


def find_site_credentials(commands: Mapping[str, str]) -> dict[str, Path]:
    """Find the credentials that HTCondor forwards: environment variable -> file.

    Args:
        commands: submit commands of a site.
    """
    plain = {key.lower(): value for key, value in commands.items()}
    return {
        name: Path(plain[command])
        for name, command in _SUBMIT_COMMANDS.items()
        if plain.get(command)
    }
