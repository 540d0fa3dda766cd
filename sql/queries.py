"""What is asked of the measurements: one state of the database, read in streams."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from treehammer.collectors.metrics import BY_NAME, CATALOGUE, Value
from treehammer.sql.rows import CountRow, ExtraRow
from treehammer.sql.schema import extra, measurement
from treehammer.sql.selection import Selection, conditions

#: Rows that are fetched at a time where the caller does not say.
FETCH = 2000

ALL_COLUMNS = tuple(metric.name for metric in CATALOGUE)

ORDER = (
    measurement.c.campaign_id,
    measurement.c.site,
    measurement.c.job_id,
    measurement.c.attempt,
    measurement.c.round,
    measurement.c.position,
    measurement.c.measurement_id,
)


class Snapshot:
    """Questions to one state of the database, whatever is written meanwhile.

    Everything is ordered by campaign, site, job, attempt, round and position.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def count(self, selection: Selection) -> int:
        """How many measurements are selected."""
        query = self._selected(sa.select(sa.func.count()).select_from(measurement), selection)
        return int(self._connection.execute(query).scalar_one())

    def batches(
        self, selection: Selection, columns: Sequence[str] = ALL_COLUMNS, size: int = FETCH
    ) -> Iterator[Sequence[Sequence[Value]]]:
        """The selected measurements, ``size`` at a time, each a sequence in the order of ``columns``.

        Raises:
            KeyError: a column is not in the catalogue.
        """
        query = sa.select(*(measurement.c[BY_NAME[name].name] for name in columns))
        query = self._selected(query, selection).order_by(*ORDER)
        result = self._connection.execute(query.execution_options(yield_per=size))
        yield from result.partitions()

    def measurements(
        self, selection: Selection, columns: Sequence[str] = ALL_COLUMNS
    ) -> Iterator[dict[str, Value]]:
        """The selected measurements as values by catalogue name; what is not known is ``None``.

        Raises:
            KeyError: a column is not in the catalogue.
        """
        for batch in self.batches(selection, columns):
            for row in batch:
                yield dict(zip(columns, row, strict=True))

    def extra_names(self, selection: Selection) -> list[str]:
        """Names of the metrics that tests defined and the selected measurements have."""
        query = sa.select(extra.c.name).distinct().join(measurement).order_by(extra.c.name)
        return list(self._connection.execute(self._selected(query, selection)).scalars())

    def extras(self, selection: Selection) -> Iterator[ExtraRow]:
        """What the selected measurements recorded of metrics that tests defined."""
        query = sa.select(extra.c.measurement_id, extra.c.name, extra.c.value).join(measurement)
        query = self._selected(query, selection).order_by(*ORDER, extra.c.name)
        for row in self._connection.execute(query.execution_options(yield_per=FETCH)):
            yield ExtraRow(*row)

    def counts(self, campaign_id: str) -> list[CountRow]:
        """Measurements of a campaign by site, kind, class of failure and plausibility."""
        by = (
            measurement.c.site,
            measurement.c.kind,
            measurement.c.failure_class,
            measurement.c.plausible,
        )
        query = (
            sa.select(*by, sa.func.count())
            .where(measurement.c.campaign_id == campaign_id)
            .group_by(*by)
            .order_by(*by)
        )
        return [
            CountRow(site or "", kind or "", failure or "", plausible, count)
            for site, kind, failure, plausible, count in self._connection.execute(query)
        ]

    def _selected(self, query: sa.Select[Any], selection: Selection) -> sa.Select[Any]:
        return query.where(*conditions(selection, self._connection.dialect.name))
