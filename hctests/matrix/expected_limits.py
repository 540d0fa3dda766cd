"""Limits of metrics that a test states, absolute or as a multiple of a base."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from treehammer.hctests.matrix.axes import parse_axis_text

if TYPE_CHECKING:
    from treehammer.hctests.matrix.definition import Scalar

#: Base of a limit: the first value of the bundled axis, also if the command line replaces the values.
FIRST_VALUE: Final = "first"
#: Both kinds of bounds.
BOUNDS = AT_MOST, AT_LEAST = "at_most", "at_least"


@dataclass(frozen=True)
class LimitBounds:
    """An upper and a lower bound; None for none."""

    at_most: float | None = None
    at_least: float | None = None


@dataclass(frozen=True)
class ExpectedLimit:
    """An entry of [[expect]].

    Attributes:
        metric: name of a metric of the catalogue, of the test's own, or of a figure of operations.
        at_most, at_least: bounds in the metric's unit; with a base multiples of the base's value.
        base: ROOT release, ``AXIS=VALUE`` or :data:`FIRST_VALUE`; '' for absolute bounds.
        where: axis -> value of the variants that it holds for; empty for all.
        sites: site -> bounds that replace those above there.
    """

    metric: str
    at_most: float | None = None
    at_least: float | None = None
    base: str = ""
    where: Mapping[str, Scalar] = field(default_factory=dict)
    sites: Mapping[str, LimitBounds] = field(default_factory=dict)

    def list_bounds(self, site: str) -> Iterator[tuple[str, float]]:
        """Yield the bounds at a site, each with its kind of :data:`BOUNDS`."""
        at_site = self.sites.get(site, LimitBounds())
        for kind in BOUNDS:
            replaced = getattr(at_site, kind)
            bound = getattr(self, kind) if replaced is None else replaced
            if bound is not None:
                yield kind, bound

    def describe(self, unit: str) -> str:
        """Describe the limit, e.g. ``max_rss_bytes at most 2e+09 B where root=6.40.00``."""
        unit = "" if unit == "1" else f" {unit}"
        unit = f" × {self.base}" if self.base else unit
        parts = [
            f"{name.replace('_', ' ')} {bound:g}{unit}{scope}"
            for scope, table in (
                ("", self),
                *((f" at {s}", at_site) for s, at_site in self.sites.items()),
            )
            for name in BOUNDS
            if (bound := getattr(table, name)) is not None
        ]
        where = " ".join(f"{axis}={value}" for axis, value in self.where.items())
        return f"{self.metric} {', '.join(parts)}" + (f" where {where}" if where else "")

    def resolve_base(
        self, axes: Mapping[str, Sequence[Scalar]], bundle: Sequence[str]
    ) -> tuple[str, Scalar]:
        """Return axis and value of the base; '' twice for absolute bounds.

        The value need not be among those of the axis.
        """
        if not self.base:
            return "", ""
        if self.base == FIRST_VALUE:
            candidates = (name for name in bundle if len(axes.get(name, ())) > 1)
            axis = next(candidates, bundle[0] if bundle else "root")
            return axis, next(iter(axes.get(axis, ())), "")
        name, _, text = self.base.partition("=")
        if name not in axes:
            name, text = "root", self.base
        return name, parse_axis_text(name, text, axes.get(name, ()))


def parse_stored_limits(documents: Iterable[Any]) -> list[ExpectedLimit]:
    """Parse the limits of a stored definition; invalid ones, of other versions, are left out."""
    limits = []
    for document in documents:
        try:
            limits.append(_parse_limit(document))
        except (AttributeError, KeyError, TypeError, ValueError):
            continue
    return limits


def _parse_limit(document: Mapping[str, Any]) -> ExpectedLimit:
    sites = document.get("sites", {})
    return ExpectedLimit(
        metric=str(document["metric"]),
        **_parse_bounds(document),
        base=str(document.get("base", "")),
        where=dict(document.get("where", {})),
        sites={str(site): LimitBounds(**_parse_bounds(sites[site])) for site in sites},
    )


def _parse_bounds(document: Mapping[str, Any]) -> dict[str, float | None]:
    bounds = {kind: document.get(kind) for kind in BOUNDS}
    parsed = {kind: None if bound is None else float(bound) for kind, bound in bounds.items()}
    if not all(bound is None or math.isfinite(bound) for bound in parsed.values()):
        raise ValueError("a bound is not a finite number")
    return parsed
