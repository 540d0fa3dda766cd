"""Sums of metrics and latency histograms, in SQL and in Python, without impossible values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import sqlalchemy as sa

from treehammer.collectors.record.metric_catalogue import LATENCY_BINS
from treehammer.sql.core.column_types import REAL
from treehammer.sql.core.packing import decode_numbers

#: Larger values are not credible; their squares might be infinite.
MAX_CREDIBLE = 1e120
#: Squares of smaller values count as 0; PostgreSQL refuses results that underflow.
MIN_SQUARABLE = 1e-150
#: More reads in one bin are not credible; their sum might overflow.
MAX_BIN_READS = 2**36
#: Limit for bins of roll-ups, which are sums already.
UNLIMITED_READS = 2**63

#: Latency histogram, of measurements and of roll-ups.
HISTOGRAM_COLUMN = "read_latency_hist"


def credible_value(column: sa.ColumnElement[Any]) -> sa.ColumnElement[float]:
    """Cast a metric to a real number; NULL where it is too large to be true."""
    real = sa.cast(column, REAL)
    return sa.case((real.between(-MAX_CREDIBLE, MAX_CREDIBLE), real), else_=None)


def moment_sums(value: sa.ColumnElement[float]) -> tuple[sa.ColumnElement[Any], ...]:
    """Count, sum and sum of squares of a :func:`credible_value`."""
    square = sa.case((value.between(-MIN_SQUARABLE, MIN_SQUARABLE), None), else_=value * value)
    return (
        sa.func.count(value),
        sa.func.coalesce(sa.func.sum(value), 0),
        sa.func.coalesce(sa.func.sum(square), 0),
    )


@lru_cache(maxsize=1 << 16)
def parse_bins(text: str, max_reads: int = MAX_BIN_READS) -> tuple[tuple[int, int], ...]:
    """Parse a stored histogram to the index and reads of its filled bins.

    Args:
        text: histogram as stored.
        max_reads: largest credible number of reads in a bin; :data:`UNLIMITED_READS` for sums.
    """
    return tuple(filled_bins(decode_numbers(text), max_reads))


def filled_bins(
    histogram: Sequence[int], max_reads: int = MAX_BIN_READS
) -> Iterator[tuple[int, int]]:
    """Yield index and reads of the bins that hold a credible number of reads."""
    for index, reads in enumerate(histogram[:LATENCY_BINS]):
        if 0 < reads <= max_reads:
            yield index, reads
