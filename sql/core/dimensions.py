"""Dimensions: values that many measurements share, stored once and referenced by number.

A release, a node, a door and a variant are described by about a hundred texts that hardly differ
between measurements. Each group below has its own table; a measurement stores the number of its
row. The number is a hash of the content: it is the same in every database and needs no allocation.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from operator import itemgetter
from typing import Any


@dataclass(frozen=True)
class Dimension:
    """Group of catalogue columns; ``name`` is its table, ``key`` the measurement's column."""

    name: str
    columns: tuple[str, ...]

    @cached_property
    def key(self) -> str:
        """Return the column of a measurement that references this table."""
        return f"{self.name}_id"

    def extract_row(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Extract this dimension's row from a measurement's values, as a database returns them."""
        return {"id": self.find_id(values)} | {name: values[name] for name in self.columns}

    @cached_property
    def find_id(self) -> Callable[[Mapping[str, Any]], int]:
        """Function from a measurement's values to the number of this dimension's row.

        It remembers the latest numbers.
        """
        names = self.columns

        @lru_cache(maxsize=1 << 12)
        def hash_row(*row: Any) -> int:
            return hash_dimension_row(dict(zip(names, row, strict=True)))

        if len(names) == 1:
            return lambda values: hash_row(values[names[0]])
        pick = itemgetter(*names)
        return lambda values: hash_row(*pick(values))


def hash_dimension_row(row: Mapping[str, Any]) -> int:
    """Hash the known values of a row, names sorted, to 63 bits of their SHA-256.

    Unknown values are left out, so that columns added later change no number.
    """
    known_values = {name: value for name, value in sorted(row.items()) if value is not None}
    text = json.dumps(known_values, separators=(",", ":"), allow_nan=False)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


#: Requested configuration: the series, its sites and its input.
SUBJECT = Dimension(
    "subject",
    (
        "series",
        "test_name",
        "variant",
        "variant_label",
        "site",
        "storage_site",
        "door",
        "door_protocol",
        "dataset",
        "dataset_hash",
        "content_hash",
        "axis_root",
        "axis_branches",
        "axis_cache_mb",
        "axis_events",
        "axis_access",
        "axis_cache",
        "passes_planned",
        "run_mode",
        "launch_order",
    ),
)

#: Dimensions in the order of their joins.
DIMENSIONS = (
    SUBJECT,
    # Origin of the test.
    Dimension(
        "origin",
        (
            "record_version",
            "instrument_version",
            "campaign_name",
            "repository",
            "ref",
            "commit_id",
            "dirty",
            "test_path",
            "test_hash",
            "payload_hash",
            "treehammer_version",
        ),
    ),
    # ROOT release as found at run time.
    Dimension(
        "software",
        (
            "root_provider",
            "root_version",
            "root_commit",
            "root_platform",
            "root_compiler",
            "root_flags",
            "root_cxx_standard",
            "root_features",
            "zlib_version",
            "lzma_version",
            "lz4_version",
            "zstd_version",
            "libcore_sha256",
            "loop_compiler",
        ),
    ),
    # Other loaded software: some kilobytes, equal for all jobs of a campaign.
    Dimension("inventory", ("inventory",)),
    # Worker node.
    Dimension(
        "node",
        (
            "host",
            "machine",
            "cpu_model",
            "cores_online",
            "cores_allowed",
            "cgroup_cpu_limit",
            "cgroup_memory_limit_bytes",
            "mem_total_bytes",
            "kernel",
            "os_name",
            "container",
            "worker_python",
            "hw_counters_missing",
        ),
    ),
    # Storage that served the data.
    Dimension(
        "storage",
        (
            "file_name",
            "file_url",
            "file_size_bytes",
            "file_class",
            "data_server",
            "address_family",
            "server_version",
            "client_cache_state",
            "client_cache_method",
            "server_cache_state",
            "server_cache_method",
        ),
    ),
)
#: Catalogue column -> its dimension. All other columns belong to the measurement table.
DIMENSION_OF = {name: dimension for dimension in DIMENSIONS for name in dimension.columns}
