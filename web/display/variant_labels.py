"""Short labels for variants, without the axes they have in common."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

from treehammer.analysis.samples.sample import natural_sort_key
from treehammer.collectors.record.value_checks import is_variant
from treehammer.hctests.matrix import identity
from treehammer.hctests.matrix.definition import Scalar, Variant

#: Name of the column that holds a variant: axes and values as JSON.
VARIANT_COLUMN = "variant"

#: Identity of the work of a variant: its axes and values, or the text of one that is not JSON.
WorkKey = frozenset[tuple[str, str]] | str


@lru_cache(maxsize=4096)
def _parse_axes(variant: str) -> Mapping[str, Scalar]:
    """Return the axes and values of a variant; empty if it is not a JSON object."""
    return dict(sorted(identity.parse_axes(variant).items())) if is_variant(variant) else {}


def release_of_variant(variant: str) -> str:
    """Return the ROOT release named by a variant, '' for none."""
    return str(_parse_axes(variant).get(identity.RELEASE_AXIS, ""))


def describe_variant(variant: str) -> str:
    """Describe all axes and values of a variant."""
    return _axes_text(variant, tuple(_parse_axes(variant)))


@dataclass(frozen=True)
class VariantLabels:
    """Shortest distinguishing labels for several variants.

    Attributes:
        names: recorded variant -> label of the axes that differ, releases of the same work adjacent.
            Equal labels mean the same work, apart from a release shown elsewhere.
        shared_text: axes that all variants have in common, '' for none.
        axes: the axes of every label, in order; empty if labels differ in their axes, or if the
            values alone do not distinguish them.
        values: label -> the values of :attr:`axes`, for places along a plot's axis.
    """

    names: Mapping[str, str] = field(default_factory=dict)
    shared_text: str = ""
    axes: tuple[str, ...] = ()
    values: Mapping[str, str] = field(default_factory=dict)

    def label(self, variant: str | None) -> str:
        """Label of one variant; a dash for none."""
        return self.names.get(variant or "") or variant or "–"

    def place(self, variant: str | None) -> int:
        """Place of one variant among all in natural order of their values; unknown ones come last."""
        return self._places.get(variant or "", len(self._places))

    @cached_property
    def _places(self) -> Mapping[str, int]:
        return {variant: place for place, variant in enumerate(self.names)}

    @property
    def note(self) -> str:
        """Sentence on the common axes, shown beside a table."""
        return f"All variants: {self.shared_text}" if self.shared_text else ""


def label_variants(variants: Iterable[str | None], *, hide_release: bool = False) -> VariantLabels:
    """Find the shortest labels that distinguish variants.

    Args:
        variants: as recorded.
        hide_release: leave the release out, because it is shown elsewhere.
    """
    return _label_distinct(frozenset(filter(None, variants)), hide_release)


@lru_cache(maxsize=64)
def _label_distinct(variants: frozenset[str], hide_release: bool) -> VariantLabels:
    hidden = {identity.RELEASE_AXIS} if hide_release else set()
    recorded = sorted(variants, key=_sort_key)
    keys = {variant: _work_key(variant, hidden) for variant in recorded}
    shared = _shared_axes({*keys.values()})
    distinct_axes = {variant: _axes_without(variant, hidden | shared) for variant in recorded}
    labels = {variant: _axes_text(variant, axes) for variant, axes in distinct_axes.items()}
    names = _disambiguate(labels, keys)
    axes, values = _axis_values(names, distinct_axes) if len({*keys.values()}) > 1 else ((), {})
    return VariantLabels(names, _shared_text(recorded, shared), axes, values)


def _axes_without(variant: str, left_out: Collection[str]) -> tuple[str, ...]:
    return tuple(axis for axis in _parse_axes(variant) if axis not in left_out)


def _work_key(variant: str, hidden: Collection[str]) -> WorkKey:
    """Return axes with values and types, because 1, 1.0 and true are equal in Python."""
    axes = _parse_axes(variant)
    if not axes:
        return variant
    return frozenset((axis, repr(axes[axis])) for axis in _axes_without(variant, hidden))


def _shared_axes(keys: Collection[WorkKey]) -> set[str]:
    """Return the axes that have the same value in all of several variants."""
    parsed = [key for key in keys if isinstance(key, frozenset)]
    if len(keys) < 2 or len(parsed) < len(keys):
        return set()
    return {axis for axis, _ in frozenset.intersection(*parsed)}


def _shared_text(recorded: Sequence[str], shared: Collection[str]) -> str:
    if not shared:
        return ""
    return _axes_text(
        recorded[0], tuple(axis for axis in _parse_axes(recorded[0]) if axis in shared)
    )


def _disambiguate(labels: Mapping[str, str], keys: Mapping[str, WorkKey]) -> dict[str, str]:
    """Replace labels that different variants share by the recorded variants."""
    keys_by_label: dict[str, set[WorkKey]] = defaultdict(set)
    for variant, label in labels.items():
        keys_by_label[label].add(keys[variant])
    return {
        variant: label if len(keys_by_label[label]) == 1 else variant
        for variant, label in labels.items()
    }


def _axis_values(
    names: Mapping[str, str], distinct_axes: Mapping[str, tuple[str, ...]]
) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the axes of all names with each name's values; empty if they do not distinguish the names."""
    if len({*distinct_axes.values()}) != 1:
        return (), {}
    axes = next(iter(distinct_axes.values()))
    values = {
        name: " · ".join(_axis_text(variant, axis) for axis in axes)
        for variant, name in names.items()
    }
    distinct = axes and len({*values.values()}) == len(values)
    return (axes, values) if distinct else ((), {})


def _sort_key(variant: str) -> tuple[object, ...]:
    axes = _parse_axes(variant)
    if not axes:
        return 1, natural_sort_key(variant)
    other_axes = [(axis, value) for axis, value in axes.items() if axis != identity.RELEASE_AXIS]
    return (
        0,
        tuple((axis, natural_sort_key(value)) for axis, value in other_axes),
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
    except OverflowError:  # an integer beyond the range of floats
        return variant


def _axis_text(variant: str, axis: str) -> str:
    return _axes_text(variant, (axis,)).removeprefix(f"{axis}=")
