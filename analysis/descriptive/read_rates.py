"""Rates of a read: events and bytes per second, CPU efficiency and the bottleneck of the loop."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from treehammer.analysis.descriptive.time_breakdown import (
    BREAKDOWN_COLUMNS,
    TimePart,
    split_loop_time,
)
from treehammer.text_formatting import MEGABYTE, format_share

#: Columns from which the rates are computed.
RATE_COLUMNS = (
    "axis_root",
    "events_read",
    "branches_selected",
    "selected_zip_bytes",
    "loop_unzipped_bytes",
    "ntuple_unzipped_bytes",
    "event_rate_hz",
    "wall_per_event_s",
    "cpu_per_event_s",
    "eff_loop",
    "passes_counted",
    "open_wall_s",
    "get_tree_wall_s",
    "prepare_wall_s",
    *BREAKDOWN_COLUMNS,
)

#: Part of the loop -> kind of bottleneck where it takes the most time, and its name in a list.
_BOTTLENECKS: Mapping[TimePart, tuple[str, str]] = {
    TimePart.READS: ("I/O bound", "waiting for reads"),
    TimePart.DECOMPRESSION: ("CPU bound", "decompression"),
    TimePart.DESERIALIZATION: ("CPU bound", "deserialization and the loop"),
    TimePart.RUN_QUEUE: ("short of CPU", "waiting for a CPU that other work uses"),
    TimePart.OTHER: ("waiting", "waiting outside of reads, or idle threads"),
}
#: Smallest share of the loop that is named.
_NAMED_SHARE = 0.05


@dataclass(frozen=True)
class ReadRates:
    """Rates of one release, of the loop over the events in the median pass.

    Attributes:
        root: value of the root axis.
        events: events read in a pass.
        branches: branches read.
        zipped_bytes: compressed bytes of these branches in the files.
        unzipped_bytes: their bytes after decompression, as ROOT counts them; None with RDataFrame,
            which does not.
        wall_s: wall time of the loop.
        cpu_s: CPU time of the loop.
        open_s: wall time of opening the files and reading metadata.
        cpu_efficiency: CPU time / wall time.
        passes: counted passes.
        shares: part of the loop's wall time in all passes -> its share.
    """

    root: str
    events: int
    branches: int
    zipped_bytes: int
    unzipped_bytes: int | None
    wall_s: float
    cpu_s: float
    open_s: float
    cpu_efficiency: float
    passes: int
    shares: Mapping[TimePart, float]

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> ReadRates:
        """Compute the rates of one successful execution from a row with :data:`RATE_COLUMNS`."""
        seconds = split_loop_time(row)
        total = sum(seconds.values())
        events = int(row["events_read"])
        unzipped = row["loop_unzipped_bytes"] or row["ntuple_unzipped_bytes"]
        return cls(
            root=str(row["axis_root"]),
            events=events,
            branches=int(row["branches_selected"]),
            zipped_bytes=int(row["selected_zip_bytes"] or 0),
            unzipped_bytes=unzipped and int(unzipped),
            wall_s=row["wall_per_event_s"] * events,
            cpu_s=row["cpu_per_event_s"] * events,
            open_s=sum(row[f"{name}_wall_s"] or 0.0 for name in ("open", "get_tree", "prepare")),
            cpu_efficiency=row["eff_loop"],
            passes=int(row["passes_counted"]),
            shares={part: value / total if total else 0.0 for part, value in seconds.items()},
        )

    @property
    def events_per_s(self) -> float:
        """Events per second of wall time."""
        return self.events / self.wall_s

    @property
    def zipped_mb_per_s(self) -> float:
        """Compressed bytes per second of wall time, in 10^6."""
        return self.zipped_bytes / self.wall_s / MEGABYTE

    @property
    def unzipped_mb_per_s(self) -> float | None:
        """Decompressed bytes per second of wall time, in 10^6."""
        if self.unzipped_bytes is None:
            return None
        return self.unzipped_bytes / self.wall_s / MEGABYTE

    @property
    def bottleneck(self) -> TimePart:
        """The part of the loop that takes the most time."""
        return max(self.shares, key=lambda part: self.shares[part])

    def describe_bottleneck(self) -> str:
        """Name the bottleneck and the parts, e.g. ``CPU bound: 61 % decompression, 37 % …``."""
        parts = sorted(self.shares, key=lambda part: self.shares[part], reverse=True)
        shares = [
            f"{format_share(self.shares[part])} {_BOTTLENECKS[part][1]}"
            for part in parts
            if self.shares[part] >= _NAMED_SHARE
        ]
        return f"{_BOTTLENECKS[self.bottleneck][0]}: {', '.join(shares)}"

    def flatten(self) -> dict[str, Any]:
        """Return all figures at one level of keys, for programs."""
        return {
            "root": self.root,
            "events": self.events,
            "branches": self.branches,
            "compressed_bytes": self.zipped_bytes,
            "uncompressed_bytes": self.unzipped_bytes,
            "wall_s": self.wall_s,
            "cpu_s": self.cpu_s,
            "open_s": self.open_s,
            "passes": self.passes,
            "events_per_s": self.events_per_s,
            "compressed_mb_per_s": self.zipped_mb_per_s,
            "uncompressed_mb_per_s": self.unzipped_mb_per_s,
            "cpu_efficiency": self.cpu_efficiency,
            "bottleneck": self.bottleneck.value,
            **{f"share_{part.name.lower()}": share for part, share in self.shares.items()},
        }
