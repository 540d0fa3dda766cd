"""Executions summed up by place, variant and release, as figures and tables show them."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from treehammer.analysis.samples import natural_order, read_variant, varying_axes
from treehammer.collectors.job import TIMED
from treehammer.hctests.definition import Scalar, Variant

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Spread:
    """Mean of repeated executions and their RMS deviation from it, in the metric's unit."""

    n: int
    mean: float
    rms: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Sum up at least one value; the RMS divides by n, as study S0's error bars do."""
        mean = math.fsum(values) / len(values)
        square = math.fsum((value - mean) ** 2 for value in values) / len(values)
        return cls(len(values), mean, math.sqrt(square))


#: What is averaged; only usable timed executions enter.
AVERAGED = (
    "eff_job",
    "eff_payload",
    "eff_loop",
    "cpu_per_event_s",
    "wall_per_event_s",
    "loop_wall_s",
    "bytes_read",
    "read_calls",
    "max_rss_bytes",
)


@dataclass(frozen=True)
class Cell:
    """All usable executions of one variant with one release at one place.

    ``place`` is the site, with the door where a site has several.  ``variant`` names the axes that
    vary, but ``root``, which is ``release``.
    """

    place: str
    variant: str
    release: str
    executions: int
    jobs: int
    hosts: int
    spreads: Mapping[str, Spread]


def usable(row: Row) -> bool:
    """Whether a row may be averaged: timed, not failed and plausible."""
    return row["kind"] == TIMED and not row["failure_class"] and bool(row["plausible"])


def summarise(rows: Iterable[Row]) -> list[Cell]:
    """Sum up the usable rows, in natural order of place, variant and release."""
    chosen = [(row, read_variant(row["variant"])) for row in rows if usable(row)]
    varying = varying_axes(variant for _, variant in chosen)
    axes = tuple(axis for axis in varying if axis != "root")
    doors = defaultdict(set)
    for row, _ in chosen:
        doors[row["site"]].add(row["door"])
    groups: dict[tuple[Any, ...], list[tuple[Row, Variant]]] = defaultdict(list)
    for row, variant in chosen:
        values = dict(variant.values)
        where = tuple(_order(values.get(axis)) for axis in axes)
        place = row["site"] if len(doors[row["site"]]) == 1 else f"{row['site']} · {row['door']}"
        release = str(values.get("root") or row["root_version"] or "")
        groups[natural_order(place), where, natural_order(release), place, release].append(
            (row, variant)
        )
    return [_cell(key[3], key[4], axes, group) for key, group in sorted(groups.items())]


def _order(value: Scalar | None) -> tuple[Any, ...]:
    return (2,) if value is None else natural_order(value)


def _cell(
    place: str, release: str, axes: Sequence[str], group: Sequence[tuple[Row, Variant]]
) -> Cell:
    rows = [row for row, _ in group]
    variant = group[0][1]
    named = tuple(axis for axis in axes if axis in dict(variant.values))
    values = {name: [row[name] for row in rows if row[name] is not None] for name in AVERAGED}
    return Cell(
        place=place,
        variant=variant.label(named) if named else rows[0]["test_name"],
        release=release,
        executions=len(rows),
        jobs=len({row["job_id"] for row in rows}),
        hosts=len({row["host"] for row in rows}),
        spreads={name: Spread.of(found) for name, found in values.items() if found},
    )
