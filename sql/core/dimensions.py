"""Dimensions: what many measurements have in common is kept once, and named by a number.

A release, a node, a door and a variant are described by some hundred texts that hardly differ from
one measurement to the next.  Each group of them below has a table of its own; a measurement holds
the number of its row there.  The number follows from the content alone, so that it is the same in
every database and nobody has to hand numbers out.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any


@dataclass(frozen=True)
class Dimension:
    """A group of catalogue columns; ``name`` is its table, ``key`` the measurement's column."""

    name: str
    columns: tuple[str, ...]

    @property
    def key(self) -> str:
        """The column of a measurement that names a row here."""
        return f"{self.name}_id"

    def extract_row(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The row of a measurement with these values, as they come back from a database."""
        row = {name: values[name] for name in self.columns}
        return {"id": _hash_row(self.columns, tuple(row.values())), **row}


@lru_cache(maxsize=1 << 12)
def _hash_row(names: tuple[str, ...], values: tuple[Any, ...]) -> int:
    return hash_dimension_row(dict(zip(names, values, strict=True)))


def hash_dimension_row(row: Mapping[str, Any]) -> int:
    """63 bits of the SHA-256 of what is known of a row, names sorted.

    What is not known has no part in it: a column that comes later changes no number.
    """
    known = {name: value for name, value in sorted(row.items()) if value is not None}
    text = json.dumps(known, separators=(",", ":"), allow_nan=False)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


#: What was asked for: the series, where it runs and what it reads.
SUBJECT = Dimension(
    "subject",
    (
        "series",
        "test_name",
        "variant",
        "variant_label",
        "site",
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
    ),
)

#: In the order in which they are joined.
DIMENSIONS = (
    SUBJECT,
    # Where the test came from.
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
    # Which ROOT really ran.
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
        ),
    ),
    # All that was loaded beside it: some kilobytes, the same for all jobs of a campaign.
    Dimension("inventory", ("inventory",)),
    # What it ran on.
    Dimension(
        "node",
        (
            "host",
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
        ),
    ),
    # What answered.
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
#: Catalogue column -> the dimension that has it; all others are columns of the measurement.
DIMENSION_OF = {name: dimension for dimension in DIMENSIONS for name in dimension.columns}
