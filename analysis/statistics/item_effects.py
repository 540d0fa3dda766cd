"""Effects of days or places on values of several items, by least squares."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def adjust_for_items(
    items: npt.NDArray[np.int64], days: npt.NDArray[np.int64], values: npt.NDArray[np.float64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """Fit value = item + day by least squares; return the days and their effects.

    Args:
        items: number of the item, such as a series, of each value.
        days: day ordinal of each value.
        values: the values.
    """
    distinct_days, columns = np.unique(days, return_inverse=True)
    count = int(np.max(items)) + 1
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
