"""Variants where several stand beside each other: their axes, without what all of them have."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from treehammer.analysis.samples.sample import natural_sort_key
from treehammer.hctests.matrix import identity
from treehammer.hctests.matrix.definition import Scalar, Variant
from treehammer.sql.write.record_consistency import is_variant

#: The column of variants: the axes and their values, as JSON.
VARIANT_COLUMN = "variant"


@lru_cache(maxsize=4096)
def _parse_axes(variant: str) -> Mapping[str, Scalar]:
    """The axes in order and their values; nothing for what others wrote in another form."""
    return dict(sorted(identity.parse_axes(variant).items())) if is_variant(variant) else {}


def release_of_variant(variant: str) -> str:
    """The release of ROOT that a variant names; '' for none."""
    return str(_parse_axes(variant).get(identity.RELEASE_AXIS, ""))


def describe_variant(variant: str) -> str:
    """All axes of a variant and their values."""
    return _axes_text(variant, tuple(_parse_axes(variant)))


@dataclass(frozen=True)
class VariantLabels:
    """Some variants, told apart as shortly as can be.

    Attributes:
        names: variant, as it was recorded -> the axes that not all have alike, one work in two releases
            side by side.  Two have one name only if they are the same, but for a release that is
            told elsewhere.
        shared: the axes that all have alike, '' for none.
        axes: whose values every name has, in their order; empty where names differ in that, or where
            these values do not tell all apart.
        values: name -> these values alone, for a place along an axis that is called by :attr:`axes`.
            As names, two are the same only for the same.
    """

    names: Mapping[str, str] = field(default_factory=dict)
    shared_text: str = ""
    axes: tuple[str, ...] = ()
    values: Mapping[str, str] = field(default_factory=dict)

    def label(self, variant: str | None) -> str:
        """The name of one of them; a dash for none."""
        return self.names.get(variant or "") or variant or "–"

    @property
    def note(self) -> str:
        """What all have, as a sentence beside a table of them."""
        return f"All variants: {self.shared_text}" if self.shared_text else ""


def label_variants(variants: Iterable[str | None], *, release_told: bool = False) -> VariantLabels:
    """Tell variants apart.

    Args:
        variants: as they were recorded.
        release_told: whether the release stands elsewhere, so that it is left out.
    """
    known = sorted({variant for variant in variants if variant}, key=_sort_key)
    own = {
        variant: [
            axis
            for axis in _parse_axes(variant)
            if not (release_told and axis == identity.RELEASE_AXIS)
        ]
        for variant in known
    }
    # With their types: 1, 1.0 and true are equal, and yet other values.
    exact = {
        variant: frozenset((axis, repr(_parse_axes(variant)[axis])) for axis in axes)
        if _parse_axes(variant)
        else variant
        for variant, axes in own.items()
    }
    several = len({*exact.values()}) > 1
    items = [one for one in exact.values() if isinstance(one, frozenset)]
    common = frozenset.intersection(*items) if several and len(items) == len(known) else ()
    alike = {axis for axis, _ in common}
    left = {v: tuple(axis for axis in axes if axis not in alike) for v, axes in own.items()}
    names = {variant: _axes_text(variant, axes) for variant, axes in left.items()}
    same: dict[str, set[object]] = defaultdict(set)
    for variant, name in names.items():
        same[name].add(exact[variant])
    # Values may be equal as far as they are written.
    names = {v: name if len(same[name]) == 1 else v for v, name in names.items()}
    axes = {*left.values()}
    along = axes.pop() if several and len(axes) == 1 else ()
    values = {names[v]: " · ".join(_axis_text(v, axis) for axis in along) for v in known if along}
    if len({*values.values()}) < len(values):
        along, values = (), {}
    return VariantLabels(
        names,
        _axes_text(known[0], tuple(axis for axis in own[known[0]] if axis in alike))
        if alike
        else "",
        along,
        values,
    )


def _sort_key(variant: str) -> tuple[object, ...]:
    axes = _parse_axes(variant)
    others = tuple(axis for axis in axes if axis != identity.RELEASE_AXIS)
    return (
        natural_sort_key(_axes_text(variant, others)),
        natural_sort_key(release_of_variant(variant)),
        variant,
    )


def _axes_text(variant: str, axes: tuple[str, ...]) -> str:
    try:
        return (
            Variant(tuple(_parse_axes(variant).items())).label(axes)
            if _parse_axes(variant)
            else variant
        )
    except OverflowError:  # a whole number that no float holds
        return variant


def _axis_text(variant: str, axis: str) -> str:
    return _axes_text(variant, (axis,)).removeprefix(f"{axis}=")
