"""Columns of measurements: their names, dimensions that share values, and packed lists.

A release, a node, a door and a variant are described by about a hundred texts that hardly differ
between measurements. Each :class:`Dimension` has its own table; a measurement stores the number of its
row. The number is a hash of the content: it is the same in every database and needs no allocation.

All lists of a measurement, by pass and by turn, share one binary column. Format: a version byte, then
in zlib's format: the number of lists (int32), the length of each list (int32, -1 if unknown), and the
numbers of all lists (float64), little-endian. A list is identified by its position in
:data:`PACKED_COLUMNS`.
"""

from __future__ import annotations

import hashlib
import json
import struct
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any

from treehammer.collectors.record.latency_histograms import LatencyHistogram
from treehammer.collectors.record.metric_catalogue import CATALOGUE, Metric, Value

#: First byte of every packed value.
FORMAT_VERSION = b"\x01"
#: Packed lists in order. The order is frozen: append new lists and never remove one.
PACKED_COLUMNS = (
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
    "segment_cpu_ns",
    "segment_wall_ns",
)
_UNKNOWN_LENGTH = -1
#: Beginning of the message about a stored value that Treehammer cannot have written.
DAMAGED_VALUE = "damaged value"
_DAMAGED_PASSES = "no packed passes"
#: Prefix of test-defined metrics where they appear beside catalogue columns.
EXTRA_PREFIX = "extra_"
ALL_COLUMNS = tuple(metric.name for metric in CATALOGUE)
#: Column of the packed lists.
PASSES_COLUMN = "passes"


#: Type of a metric -> conversion of its known values to those that a database returns.
_CONVERTERS: Mapping[str, Callable[[Any], Value]] = {
    "text": lambda text: text or None,
    "float": float,
    "floats": lambda numbers: list(map(float, numbers)),
}


def normalize_values(values: Mapping[str, Any], metrics: Sequence[Metric]) -> dict[str, Any]:
    """Return the values of all metrics as a database does.

    Absent values and '' are None, and whole numbers are floats in columns of floats.
    """
    row = {metric.name: values.get(metric.name) for metric in metrics}
    for metric in metrics:
        if row[metric.name] is not None and (convert := _CONVERTERS.get(metric.type)):
            row[metric.name] = convert(row[metric.name])
    return row


class DamagedValueError(ValueError):
    """Stored value that Treehammer cannot have written; the message describes it."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{DAMAGED_VALUE}: {what}")


def pack_lists(lists: Mapping[str, Any]) -> bytes | None:
    """Pack the lists among these values; None if there are none."""
    ordered_lists = list(map(lists.get, PACKED_COLUMNS))
    lengths = [_UNKNOWN_LENGTH if values is None else len(values) for values in ordered_lists]
    if max(lengths) == _UNKNOWN_LENGTH:
        return None
    numbers = list(chain.from_iterable(filter(None, ordered_lists)))
    layout = f"<{1 + len(lengths)}i{len(numbers)}d"
    return FORMAT_VERSION + zlib.compress(struct.pack(layout, len(lengths), *lengths, *numbers))


def unpack_lists(packed: bytes | None) -> dict[str, list[float] | None]:
    """Unpack all lists by name; unknown lists are None.

    Raises:
        DamagedValueError: the value is damaged, or was packed by a later version of Treehammer.
    """
    lists: dict[str, list[float] | None] = dict.fromkeys(PACKED_COLUMNS)
    if packed is None:
        return lists
    head, body = _split_header(packed)
    lengths = struct.unpack(f"<{len(head) // 4}i", head)
    if len(body) != 8 * sum(length for length in lengths if length > 0):
        raise DamagedValueError(_DAMAGED_PASSES)
    numbers = struct.unpack(f"<{len(body) // 8}d", body)
    start = 0
    for name, length in zip(
        PACKED_COLUMNS, lengths, strict=False
    ):  # lists added after this value was packed are unknown
        end = start + max(length, 0)
        lists[name] = None if length < 0 else list(numbers[start:end])
        start = end
    return lists


def _split_header(packed: bytes) -> tuple[bytes, bytes]:
    """Split a packed value into its lengths and numbers."""
    if packed[:1] != FORMAT_VERSION:
        raise DamagedValueError("passes packed in a way that this version does not know")
    try:
        body = zlib.decompress(packed[1:])
    except zlib.error as error:
        raise DamagedValueError(_DAMAGED_PASSES) from error
    count = int.from_bytes(body[:4], "little")
    if count > len(PACKED_COLUMNS):
        raise DamagedValueError("passes with lists that this version does not know")
    end = 4 * (1 + count)
    if len(body) < end:
        raise DamagedValueError(_DAMAGED_PASSES)
    return body[4:end], body[end:]


def encode_numbers(numbers: Sequence[float] | None) -> str | None:
    """Encode a list as JSON, which preserves every bit of a float."""
    return None if numbers is None else json.dumps(numbers, separators=(",", ":"), allow_nan=False)


def decode_numbers(text: str) -> list[Any]:
    """Decode a list of numbers from JSON.

    Raises:
        DamagedValueError: the text is not a list of numbers.
    """
    try:
        numbers = json.loads(text)
    except (TypeError, ValueError) as error:
        raise DamagedValueError("no list of numbers") from error
    if not isinstance(numbers, list) or not all(type(number) in (int, float) for number in numbers):
        raise DamagedValueError("no list of numbers")
    return numbers


def decode_latency(text: str | None) -> LatencyHistogram:
    """Decode a histogram of latencies; an unknown one is empty.

    Raises:
        DamagedValueError: the text is not a histogram.
    """
    try:
        return LatencyHistogram.decode(text) if text else LatencyHistogram()
    except (TypeError, ValueError) as error:
        raise DamagedValueError("no histogram of latencies") from error


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
        row = {name: values[name] for name in self.columns}
        return {"id": hash_dimension_row(row), **row}


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
            "loop_fallback",
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
            "architecture",
            "energy_missing",
            "node_lacks",
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
            "origin_version",
            "distance_method",
            "client_cache_state",
            "client_cache_method",
            "server_cache_state",
            "server_cache_method",
            "cache_block_kib",
        ),
    ),
)

#: Catalogue column -> its dimension. All other columns belong to the measurement table.
DIMENSION_OF = {name: dimension for dimension in DIMENSIONS for name in dimension.columns}


def stored_columns(names: Iterable[str]) -> tuple[str, ...]:
    """List the columns to fetch for catalogue names; ``passes``, last, covers all packed lists."""
    requested = list(names)
    plain = tuple(name for name in requested if name not in PACKED_COLUMNS)
    return plain if len(plain) == len(requested) else (*plain, PASSES_COLUMN)
