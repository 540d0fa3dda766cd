"""Daily series of a metric, and pools of several series."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from treehammer.analysis.changes.change_terms import NodeIdentity

Values = npt.NDArray[np.float64]
Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, order=True)
class SeriesPlace:
    """Properties of a series by which a change is attributed; ``release`` is '' for levels."""

    site: str
    storage_site: str
    door: str
    release: str = ""
    variant: str = ""


#: Component and attribute of the context -> value of a day.
Context = Mapping[str, str]


@dataclass(frozen=True)
class DailySeries:
    """Values of a series by day.

    Attributes:
        identity: identity of the series.
        place: its site, storage, door and release.
        days: day ordinals, rising.
        values: ln, one per day.
        contexts: context of each day; empty where none was recorded.
        nodes_by: property by which most nodes of a level were identified; None for ratios.
    """

    identity: str
    place: SeriesPlace
    days: npt.NDArray[np.int64]
    values: Values
    contexts: Sequence[Context] = field(default=(), repr=False)
    nodes_by: NodeIdentity | None = None

    @classmethod
    def from_days(
        cls,
        identity: str,
        place: SeriesPlace,
        values: Mapping[int, float],
        contexts: Mapping[int, Context] = MappingProxyType({}),
    ) -> DailySeries:
        """Build a series from values by day ordinal."""
        days = sorted(values)
        return cls(
            identity,
            place,
            np.array(days, dtype=np.int64),
            np.array([values[day] for day in days], dtype=float),
            [contexts.get(day, {}) for day in days],
        )

    def shift(self, day: int, size: float) -> DailySeries:
        """Return the series without a step of ``size`` from ``day`` on."""
        changed = self.values - np.where(self.days >= day, size, 0.0)
        return replace(self, values=changed)


def pool_series(members: Sequence[DailySeries]) -> tuple[npt.NDArray[np.int64], Values]:
    """Average series by day, each less its own level; return days and values.

    Levels and days are fitted together, so that a day on which some members are missing is not
    biased by their levels.
    """
    if len(members) == 1:
        return members[0].days, members[0].values
    return adjust_for_items(
        np.repeat(np.arange(len(members)), [len(member.days) for member in members]),
        np.concatenate([member.days for member in members]),
        np.concatenate([member.values for member in members]),
    )


def adjust_for_items(
    items: npt.NDArray[np.int64], days: npt.NDArray[np.int64], values: Values
) -> tuple[npt.NDArray[np.int64], Values]:
    """Fit value = item + day by least squares; return the days and their effects.

    Args:
        items: number of the item, such as a series, of each value.
        days: day ordinal of each value.
        values: the values.
    """
    distinct_days, columns = np.unique(days, return_inverse=True)
    count = int(items.max()) + 1
    whole = len(values) == count * len(distinct_days)
    if whole and len(np.unique(items * len(distinct_days) + columns)) == len(values):
        totals = np.bincount(columns, weights=values)
        return distinct_days, totals / count - values.mean()
    from scipy import sparse  # takes 0.2 s to load, and whole tables do not need it
    from scipy.sparse import linalg

    rows = np.arange(len(values))
    design = sparse.coo_array(
        (
            np.ones(2 * len(values)),
            (np.concatenate([rows, rows]), np.concatenate([items, count + columns])),
        ),
        shape=(len(values), count + len(distinct_days)),
    ).tocsr()
    solved = linalg.lsqr(design, values - values.mean(), atol=1e-10, btol=1e-10)[0]
    return distinct_days, np.asarray(solved[count:], dtype=float)
