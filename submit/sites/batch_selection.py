"""Batch systems by name: this machine, HTCondor pools and other installations."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from treehammer.collectors.batch_names import EXTERNAL_PREFIX, HTCONDOR_PREFIX, LOCAL_BATCH
from treehammer.config import Settings
from treehammer.errors import ConfigError, suggest_word
from treehammer.submit.batch.external_batch import ExternalBatch
from treehammer.submit.batch.interface import BatchSystem, UnknownBatchSystemError
from treehammer.submit.sites.site_registry import load_pools

if TYPE_CHECKING:
    from treehammer.submit.batch.htcondor.htcondor_batch import HTCondorBatch
    from treehammer.submit.batch.htcondor.pool import HTCondorPool

# Each batch system is imported where it is opened: most commands use one of them or none.


def open_batch_system(name: str, settings: Settings) -> BatchSystem:
    """Open a batch system: ``local``, ``htcondor@POOL``, or one of another installation.

    Raises:
        UnknownBatchSystemError: a site or an old campaign names an unknown batch system.
        SitesError: the sites file cannot be read or has mistakes.
    """
    if name == LOCAL_BATCH:
        from treehammer.submit.batch.local.local_batch import LocalBatch

        return LocalBatch(settings.spool_dir, settings.local_slots)
    if name.startswith(EXTERNAL_PREFIX):
        return ExternalBatch(name)
    if not name.startswith(HTCONDOR_PREFIX):
        raise UnknownBatchSystemError(
            f"unknown batch system {name!r}", hint="Known: local, htcondor@POOL."
        )
    return open_htcondor_pool(name.removeprefix(HTCONDOR_PREFIX), settings)


def open_htcondor_pool(name: str, settings: Settings) -> HTCondorBatch:
    """Open the batch system of an HTCondor pool.

    Raises:
        UnknownBatchSystemError: the sites file has no such pool.
        ConfigError: files named in the pool's table do not exist.
        SitesError: the sites file cannot be read or has mistakes.
    """
    from treehammer.submit.batch.htcondor.htcondor_batch import HTCondorBatch

    return HTCondorBatch(_find_pool(name, settings), settings.htcondor_dir / name)


def _find_pool(name: str, settings: Settings) -> HTCondorPool:
    pools = load_pools(settings)
    where = str(settings.sites_file or "")
    if name not in pools:
        pool_names = ", ".join(pools) or "none"
        raise UnknownBatchSystemError(
            f"unknown pool {name!r}" if where else f"no sites file defines pool {name!r}",
            where=where,
            hint=f"{suggest_word(name, pools)}Known pools: {pool_names}. Its jobs are left unchanged; "
            f"name a sites file with [pools.{name}]: --sites-file FILE.",
        )
    pool = pools[name]
    _check_path(pool.config, Path.is_file, "config", pool, where)
    _check_path(pool.token_dir, Path.is_dir, "token_dir", pool, where)
    _check_path(pool.scitoken_file, Path.is_file, "scitoken_file", pool, where)
    return pool


def _check_path(
    path: Path | None, is_present: Callable[[Path], bool], key: str, pool: HTCondorPool, where: str
) -> None:
    """Raise an error if a pool's file or folder is missing, which HTCondor would ignore silently."""
    if path is not None and not is_present(path):
        raise ConfigError(
            f"pools.{pool.name}.{key}: {path} does not exist",
            where=where,
            hint="Correct the path. A testbed's files exist only while the testbed is up.",
        )
