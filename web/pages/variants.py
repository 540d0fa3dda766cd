"""Labels of variants where several stand beside each other: without what all of them have."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from treehammer.analysis.samples import natural_order

#: The column of labels.
VARIANT = "variant_label"
_RELEASE = "root="


def terms(label: str) -> list[str]:
    """The parts of a label, ``axis=value`` each; a value may have blanks."""
    return re.split(r"\s+(?=[^\s=]+=)", label.strip())


@lru_cache(maxsize=4096)
def unreleased(label: str) -> str:
    """A label without the release; '' when it says nothing else."""
    return " ".join(term for term in terms(label) if not term.startswith(_RELEASE))


def without_release(label: str | None) -> str:
    """A label beside a column that has the release."""
    return unreleased(label or "") or label or "–"


def release_of(label: str) -> str:
    """The term of the label that names the release; '' without one."""
    return next((term for term in terms(label) if term.startswith(_RELEASE)), "")


@dataclass(frozen=True)
class Variants:
    """Some variants, told apart as shortly as can be.

    Attributes:
        names: label -> its terms that not all have, the same variant of two releases side by side.
        shared: the terms that all have, '' for none.
        axes: what the terms of every name are values of, in their order; empty where names differ
            in that.
    """

    names: Mapping[str, str]
    shared: str
    axes: tuple[str, ...]

    def values(self, name: str) -> str:
        """The values of a name alone, for a place along an axis that is called by :attr:`axes`."""
        return " · ".join(term.partition("=")[2] for term in terms(name))


def told_apart(labels: Iterable[str], *, release_told: bool = False) -> Variants:
    """Tell variants apart.

    Args:
        labels: of all of them, once each.
        release_told: whether the release stands elsewhere, so that it is left out.
    """
    ordered = sorted(labels, key=lambda one: (natural_order(without_release(one)), one))
    found = {label: terms(without_release(label) if release_told else label) for label in ordered}
    common = set.intersection(*map(set, found.values())) if len(found) > 1 else set()
    left = {
        label: [term for term in own if term not in common] or own for label, own in found.items()
    }
    axes = {tuple(term.partition("=")[0] for term in own) for own in left.values()}
    told = all("=" in term for own in left.values() for term in own)
    first = next(iter(found.values()), [])
    return Variants(
        {label: " ".join(own) for label, own in left.items()},
        " ".join(term for term in first if term in common),
        next(iter(axes)) if told and len(axes) == 1 else (),
    )
