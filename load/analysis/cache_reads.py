"""Executions of the test cache-read: parsing, and the setups in which they were measured."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

#: Test whose measurements are compared.
TEST = "cache-read"
#: States of a cache before an execution; any other state is that of a door without a cache.
STATES = ("warm", "half", "cold")
#: Axes of the test that the comparison shows apart; others form the setup.
PATTERN, FRACTION, BLOCK, LATENCY = "pattern", "fraction", "block_kib", "latency_ms"
SERVER_CACHE = "server_cache"
_SHOWN_AXES = (PATTERN, FRACTION, BLOCK, LATENCY, SERVER_CACHE)
#: Metrics of the test: seconds and rate.
SECONDS, RATE = "extra_total_s", "extra_achieved_mb_per_s"
#: The cache's counts: bytes fetched from the origin for each byte asked, the share of bytes that it
#: calls hits, which may be on their way, and the share that it held before.
COUNTS = ("extra_fetch_ratio", "extra_hit_share", "extra_stored_share")
METRICS = (SECONDS, RATE, *COUNTS)
#: Columns that tell executions apart.
COLUMNS = (
    *("job_id", "round", "position", "site", "storage_site", "dataset"),
    *(
        "door",
        "server_version",
        "server_cache_state",
        "origin_version",
        "cache_block_kib",
        "variant",
    ),
)
#: Reads of whole files by the protocol's copy program.
WHOLE_COPY = "whole copy"


class CacheRead(NamedTuple):
    """One execution.

    Attributes:
        job: identity of the job.
        round: round in the job, whose executions differ by the door alone.
        setup: site, dataset and the axes that the comparison does not show apart.
        door: name of the door.
        release: version of the door's server.
        origin: version of the cache's origin, '' if unknown.
        state: one of :data:`STATES`, '' without a cache.
        planned_state: state that the job was to prepare, also of its direct reads; '' without one.
        latency_ms: round trip added on the way to the origin.
        read: share of the file that was asked, in per cent, or :data:`WHOLE_COPY`.
        block_kib: block of the client.
        metrics: those of :data:`METRICS` that were recorded.
        cache_block_kib: block of the cache, ``pfc.blocksize``; None if unknown.
    """

    job: str
    round: int
    setup: str
    door: str
    release: str
    origin: str
    state: str
    planned_state: str
    latency_ms: float
    read: str
    block_kib: float
    metrics: Mapping[str, float]
    cache_block_kib: int | None = None

    @property
    def pair_key(self) -> tuple[Any, ...]:
        """What a read and the direct read that it is compared with have in common."""
        condition = (self.planned_state, self.latency_ms, self.read, self.block_kib)
        return self.job, self.round, self.setup, *condition


def parse_read(columns: Mapping[str, Any], metrics: Mapping[str, float | None]) -> CacheRead | None:
    """Parse an execution; None for one that is no read with a block size.

    Args:
        columns: values of :data:`COLUMNS`.
        metrics: values of :data:`METRICS`.
    """
    try:
        variant = json.loads(columns["variant"])
        block, latency, read = _parse_axes(variant)
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
    recorded = {name: value for name, value in metrics.items() if value is not None}
    if recorded.get(SECONDS, 0.0) <= 0:
        return None
    state = columns["server_cache_state"]
    return CacheRead(
        columns["job_id"],
        columns["round"],
        _describe_setup(columns, variant),
        columns["door"],
        columns["server_version"] or "unknown release",
        columns["origin_version"] or "",
        state if state in STATES else "",
        str(variant.get(SERVER_CACHE) or ""),
        latency,
        read,
        block,
        recorded,
        columns["cache_block_kib"],
    )


def _parse_axes(variant: Mapping[str, Any]) -> tuple[float, float, str]:
    """Parse block, latency and kind of read from the axes of the test."""
    is_copy = variant.get(PATTERN) == "copy"
    read = WHOLE_COPY if is_copy else f"{100 * float(variant[FRACTION]):g} %"
    return float(variant[BLOCK]), float(variant.get(LATENCY) or 0), read


def _describe_setup(columns: Mapping[str, Any], variant: Mapping[str, Any]) -> str:
    """Describe site, dataset and the axes that the comparison does not show apart."""
    site, storage_site = columns["site"], columns["storage_site"]
    axes = (f"{name}={variant[name]}" for name in sorted({*variant} - {*_SHOWN_AXES}))
    jobs = f"jobs at {site}" if storage_site != site else ""
    return "; ".join(filter(None, (storage_site, jobs, columns["dataset"], *axes)))


def list_setups(reads: Iterable[CacheRead]) -> list[str]:
    """List the setups, the one with most reads through a cache first."""
    counts = Counter(read.setup for read in reads if read.state)
    return [setup for setup, _ in counts.most_common()]


def shorten_setups(setups: Sequence[str]) -> dict[str, str]:
    """Shorten setups to site, dataset and the parts that differ."""
    parts = [setup.split("; ") for setup in setups]
    common = set.intersection(*map(set, parts)) if parts else set()
    return {
        setup: "; ".join(part for part in texts if "=" not in part or part not in common)
        for setup, texts in zip(setups, parts, strict=True)
    }
