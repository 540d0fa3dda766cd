"""Names of the columns of measurements, without SQLAlchemy, whose import takes a third of a second."""

from __future__ import annotations

from collections.abc import Iterable

from treehammer.collectors.record.metric_catalogue import CATALOGUE
from treehammer.sql.core.packing import PACKED_COLUMNS

#: Prefix of test-defined metrics where they appear beside catalogue columns.
EXTRA_PREFIX = "extra_"
ALL_COLUMNS = tuple(metric.name for metric in CATALOGUE)
#: Column of the packed lists.
PASSES_COLUMN = "passes"


def stored_columns(names: Iterable[str]) -> tuple[str, ...]:
    """List the columns to fetch for catalogue names; ``passes``, last, covers all packed lists."""
    requested = list(names)
    plain = tuple(name for name in requested if name not in PACKED_COLUMNS)
    return plain if len(plain) == len(requested) else (*plain, PASSES_COLUMN)
