"""Outcome of a measurement, in Python and in SQL."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import sqlalchemy as sa
from measurement_factory import make_measurement

from treehammer.collectors.record.outcome import (
    BAD_OUTCOME_LABELS,
    FAILURE_CLASSES,
    NOT_SUPPORTED,
    OUTCOME_COLUMNS,
    Outcome,
    classify_outcome,
    label_outcome,
    sum_outcomes,
)
from treehammer.sql.core.measurement_sql import has_outcome, is_bad, outcome_column
from treehammer.sql.core.schema import measurement
from treehammer.sql.write.store import Store


@pytest.mark.parametrize(
    "failure_class, failure_kind, plausible, outcome, label",
    [
        (None, None, True, Outcome.GOOD, "good"),
        (None, None, False, Outcome.IMPLAUSIBLE, "implausible"),
        ("read", "timeout", True, Outcome.FAILED, "read"),
        ("read", "timeout", False, Outcome.FAILED, "read"),
        ("read", NOT_SUPPORTED, True, Outcome.FAILED, "read"),
        ("stage-in", "copy", True, Outcome.FAILED, "stage-in"),
        ("stage-in", NOT_SUPPORTED, True, Outcome.NOT_SUPPORTED, "stage-in: not supported"),
    ],
)
def test_outcome_follows_from_failure_and_plausibility(
    failure_class: str | None,
    failure_kind: str | None,
    plausible: bool,
    outcome: Outcome,
    label: str,
) -> None:
    row = dict(zip(OUTCOME_COLUMNS, (failure_class, failure_kind, plausible), strict=True))
    assert classify_outcome(row) is outcome
    assert label_outcome(row) == label
    assert sum_outcomes({label: 3}) == {**dict.fromkeys(Outcome, 0), outcome: 3}


def test_sql_gives_the_same_outcome_as_python() -> None:
    combinations = product((None, *FAILURE_CLASSES), (None, "exit", NOT_SUPPORTED), (True, False))
    rows: list[dict[str, Any]] = [
        dict(zip(OUTCOME_COLUMNS, values, strict=True)) for values in combinations
    ]
    measurements = [make_measurement(position=n + 1, **row) for n, row in enumerate(rows)]
    expected = {one.id: label_outcome(row) for one, row in zip(measurements, rows, strict=True)}
    id_ = measurement.c.measurement_id
    with Store.open("sqlite://") as store:
        store.add(measurements)
        with store.connection() as connection:
            rows_found = connection.execute(sa.select(id_, outcome_column())).all()
            labels = {row[0]: row[1] for row in rows_found}
            bad = set(connection.scalars(sa.select(id_).where(is_bad())))
            by_condition = {
                found: label
                for label in ("good", *BAD_OUTCOME_LABELS)
                for found in connection.scalars(sa.select(id_).where(has_outcome(label)))
            }
    assert labels == by_condition == expected
    assert bad == {found for found, label in expected.items() if label != "good"}
