"""What revisions 0003 to 0005 share.  It is history, and never changes."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import oracle

from treehammer.sql.core.migrations.oracle_text import oracle_text

REAL: sa.types.TypeEngine[float] = sa.Double().with_variant(oracle.BINARY_DOUBLE(), "oracle")

#: Dimension -> column -> type (a number: text of so many characters), and whether it may be NULL.
DIMENSIONS: dict[str, dict[str, tuple[int | str, bool]]] = {
    "subject": {
        "series": (128, False),
        "test_name": (4000, True),
        "variant": (4000, True),
        "variant_label": (4000, True),
        "site": (4000, True),
        "door": (4000, True),
        "door_protocol": (4000, True),
        "dataset": (4000, True),
        "dataset_hash": (4000, True),
        "content_hash": (4000, True),
        "axis_root": (4000, True),
        "axis_branches": (4000, True),
        "axis_cache_mb": ("real", True),
        "axis_events": ("real", True),
        "axis_access": (4000, True),
        "axis_cache": (4000, True),
        "passes_planned": ("int", False),
    },
    "origin": {
        "record_version": ("int", False),
        "instrument_version": ("int", False),
        "campaign_name": (4000, True),
        "repository": (4000, True),
        "ref": (4000, True),
        "commit_id": (4000, True),
        "dirty": ("bool", False),
        "test_path": (4000, True),
        "test_hash": (4000, True),
        "payload_hash": (4000, True),
        "treehammer_version": (4000, True),
    },
    "software": {
        "root_provider": (4000, True),
        "root_version": (4000, True),
        "root_commit": (4000, True),
        "root_platform": (4000, True),
        "root_compiler": (4000, True),
        "root_flags": (4000, True),
        "root_cxx_standard": (4000, True),
        "root_features": ("long", True),
        "zlib_version": (4000, True),
        "lzma_version": (4000, True),
        "lz4_version": (4000, True),
        "zstd_version": (4000, True),
        "libcore_sha256": (4000, True),
    },
    "inventory": {
        "inventory": ("long", True),
    },
    "node": {
        "host": (4000, True),
        "cpu_model": (4000, True),
        "cores_online": ("int", True),
        "cores_allowed": ("int", True),
        "cgroup_cpu_limit": ("real", True),
        "cgroup_memory_limit_bytes": ("int", True),
        "mem_total_bytes": ("int", True),
        "kernel": (4000, True),
        "os_name": (4000, True),
        "container": (4000, True),
        "worker_python": (4000, True),
    },
    "storage": {
        "file_name": (4000, True),
        "file_url": (4000, True),
        "file_size_bytes": ("int", True),
        "file_class": (4000, True),
        "data_server": (4000, True),
        "address_family": (4000, True),
        "server_version": (4000, True),
        "client_cache_state": (4000, True),
        "client_cache_method": (4000, True),
        "server_cache_state": (4000, True),
        "server_cache_method": (4000, True),
    },
}

#: The lists that share one packed column, in their order there.
PACKED = (
    "pass_open_wall_s",
    "pass_open_user_s",
    "pass_open_sys_s",
    "pass_get_tree_wall_s",
    "pass_get_tree_user_s",
    "pass_get_tree_sys_s",
    "pass_prepare_wall_s",
    "pass_prepare_user_s",
    "pass_prepare_sys_s",
    "pass_loop_wall_s",
    "pass_loop_user_s",
    "pass_loop_sys_s",
    "pass_close_wall_s",
    "pass_close_user_s",
    "pass_close_sys_s",
    "pass_loop_run_queue_s",
)


def text(length: int) -> sa.types.TypeEngine[str]:
    """Text that sorts by code points everywhere, whatever language a PostgreSQL database is in."""
    kind = sa.String(length).with_variant(sa.String(length, collation="C"), "postgresql")
    return kind.with_variant(oracle_text(length), "oracle")


def type_of(kind: int | str) -> sa.types.TypeEngine[Any]:
    """The type behind a word of :data:`DIMENSIONS`."""
    if isinstance(kind, int):
        return text(kind)
    types: dict[str, sa.types.TypeEngine[Any]] = {
        "long": sa.Text(),
        "int": sa.BigInteger(),
        "bool": sa.Boolean(),
        "real": REAL,
    }
    return types[kind]
