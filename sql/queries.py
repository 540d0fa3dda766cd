"""What is asked of the measurements: one state of the database, read in streams."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from treehammer.collectors.metrics import BY_NAME, Value
from treehammer.collectors.record import is_storable
from treehammer.sql import wide
from treehammer.sql.figure_queries import answer
from treehammer.sql.figures import Answer, Figure
from treehammer.sql.packing import PACKED, unpack
from treehammer.sql.rows import CountRow, ExtraRow
from treehammer.sql.schema import extra, measurement
from treehammer.sql.selection import Selection, conditions
from treehammer.sql.wide import ALL_COLUMNS

#: Rows that are fetched at a time.
FETCH = 2000

ORDER = (
    measurement.c.campaign_id,
    measurement.c.job_id,
    measurement.c.attempt,
    measurement.c.round,
    measurement.c.position,
    measurement.c.measurement_id,
)


@dataclass(frozen=True)
class Questions:
    """The SELECTs behind a selection, for a dialect (``sqlite``, ``postgresql``, …).

    Everything is ordered by campaign, job, attempt, round and position.
    """

    selection: Selection
    dialect: str

    def count(self) -> sa.Select[Any]:
        """How many measurements are selected."""
        return self._selected(sa.select(sa.func.count()).select_from(measurement))

    def measurements(self, columns: Sequence[str] = ALL_COLUMNS) -> sa.Select[Any]:
        """These columns of the selected measurements, as :func:`treehammer.sql.wide.stored` says.

        Raises:
            KeyError: a column is not in the catalogue.
        """
        query = wide.select(BY_NAME[name].name for name in columns)
        return self._selected(query).order_by(*ORDER)

    def extra_names(self) -> sa.Select[Any]:
        """Names of the metrics that tests defined and the selected measurements have."""
        query = sa.select(extra.c.name).distinct().join(measurement).order_by(extra.c.name)
        return self._selected(query)

    def extras(self, names: Sequence[str] | None = None) -> sa.Select[Any]:
        """What the selected measurements recorded of metrics that tests defined: all, or these."""
        query = sa.select(extra.c.measurement_id, extra.c.name, extra.c.value).join(measurement)
        if names is not None:
            query = query.where(extra.c.name.in_(names))
        return self._selected(query).order_by(*ORDER, extra.c.name)

    def _selected(self, query: sa.Select[Any]) -> sa.Select[Any]:
        return query.where(*conditions(self.selection, self.dialect))


class Snapshot:
    """Questions to one state of the database, whatever is written meanwhile.

    Everything is in the order of :class:`Questions`.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def measurements(
        self, selection: Selection, columns: Sequence[str] = ALL_COLUMNS
    ) -> Iterator[dict[str, Value]]:
        """Stream the selected measurements as values by catalogue name; unknown ones are ``None``.

        Raises:
            KeyError: a column is not in the catalogue.
        """
        names = wide.stored(columns)
        packed = any(name in PACKED for name in columns)
        for row in self._streamed(self._ask(selection).measurements(columns)):
            values = dict(zip(names, row, strict=True))
            if packed:
                values.update(unpack(values.pop(names[-1])))
            yield {name: values[name] for name in columns} if packed else values

    def extras(self, selection: Selection) -> Iterator[ExtraRow]:
        """What the selected measurements recorded of metrics that tests defined."""
        for row in self._streamed(self._ask(selection).extras()):
            yield ExtraRow(*row)

    def extra_names(self, selection: Selection) -> list[str]:
        """Names of the metrics that tests defined and the selected measurements have, sorted."""
        return [*self._connection.scalars(self._ask(selection).extra_names())]

    def knows_extra(self, name: str) -> bool:
        """Whether any measurement has this metric that a test defined; one is looked for."""
        query = sa.select(extra.c.name).where(extra.c.name == name).limit(1)
        return is_storable(name) and self._connection.scalar(query) is not None

    def counts(self, campaign_id: str) -> list[CountRow]:
        """Measurements of a campaign by site, kind, class of failure and plausibility."""
        names = ("site", "kind", "failure_class", "plausible")
        by = [wide.column(name) for name in names]
        query = (
            wide.select(names)
            .add_columns(sa.func.count())
            .where(measurement.c.campaign_id == campaign_id)
            .group_by(*by)
            .order_by(*(column.nulls_first() for column in by))
        )
        return [
            CountRow(site or "", kind or "", failure or "", plausible, count)
            for site, kind, failure, plausible, count in self._connection.execute(query)
        ]

    def figure(self, figure: Figure, most: int | None = None) -> Answer:
        """Counts, means and spreads of metrics, in groups; refused when there are more than ``most``."""
        return answer(self._connection, figure, most)

    def recorded(self, campaign_id: str) -> dict[tuple[str, int], int]:
        """Job id and number of the attempt -> how many measurements of it are here."""
        by = (measurement.c.job_id, measurement.c.attempt)
        query = (
            sa.select(*by, sa.func.count())
            .where(measurement.c.campaign_id == campaign_id)
            .group_by(*by)
        )
        rows = self._connection.execute(query)
        return {(str(job_id), int(number)): int(count) for job_id, number, count in rows}

    def _ask(self, selection: Selection) -> Questions:
        return Questions(selection, self._connection.dialect.name)

    def _streamed(self, query: sa.Select[Any]) -> Iterator[Any]:
        # Who stops reading in the middle lets go of the server's cursor, too.
        with self._connection.execute(query.execution_options(yield_per=FETCH)) as rows:
            yield from rows
