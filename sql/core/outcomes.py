"""Outcome of a measurement in SQL; :mod:`treehammer.collectors.record.outcome` defines it."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from treehammer.collectors.record.failures import NOT_SUPPORTED
from treehammer.collectors.record.outcome import UNSUPPORTED_LABELS, Outcome
from treehammer.sql.core.schema import measurement

#: Kind in roll-ups of measurements without a kind.
UNKNOWN_KIND = "unknown"


def literal_text(text: str) -> sa.ColumnClause[str]:
    """Write a text out in SQL.

    Databases do not see that two parameters, of SELECT and GROUP BY, are equal.
    """
    return sa.literal_column(f"'{text}'")


def outcome_column(*, indexed_only: bool = False) -> sa.ColumnElement[str]:
    """Label of a measurement's outcome.

    With ``indexed_only`` unsupported measurements count as failures, because the index does not
    contain the failure's kind.
    """
    failure_class, kind = measurement.c.failure_class, measurement.c.failure_kind
    completed = sa.case(
        (measurement.c.plausible == sa.true(), literal_text(Outcome.GOOD.value)),
        else_=literal_text(Outcome.IMPLAUSIBLE.value),
    )
    label = sa.func.coalesce(failure_class, completed)
    if indexed_only:
        return label
    unsupported = kind == literal_text(NOT_SUPPORTED)
    return sa.case(
        *(
            (sa.and_(unsupported, failure_class == literal_text(name)), literal_text(label))
            for name, label in UNSUPPORTED_LABELS.items()
        ),
        else_=label,
    )


def failure_class_column(outcome: sa.ColumnElement[str]) -> sa.ColumnElement[Any]:
    """Return the failure class behind an outcome label; NULL if the execution completed."""
    completed = (Outcome.GOOD.value, Outcome.IMPLAUSIBLE.value)
    return sa.case(
        *(
            (outcome == literal_text(label), literal_text(name))
            for name, label in UNSUPPORTED_LABELS.items()
        ),
        else_=sa.func.nullif(sa.func.nullif(outcome, completed[0]), completed[1]),
    )


def has_outcome(label: str) -> sa.ColumnElement[bool]:
    """Return the condition that a measurement has an outcome, in terms of indexed columns."""
    failure_class, kind = measurement.c.failure_class, measurement.c.failure_kind
    if label == Outcome.GOOD:
        return sa.and_(measurement.c.plausible == sa.true(), failure_class.is_(None))
    if label == Outcome.IMPLAUSIBLE:
        return sa.and_(measurement.c.plausible == sa.false(), failure_class.is_(None))
    for name, unsupported_label in UNSUPPORTED_LABELS.items():
        if label == unsupported_label:
            return sa.and_(failure_class == name, kind == NOT_SUPPORTED)
        if label == name:
            return sa.and_(failure_class == name, sa.or_(kind.is_(None), kind != NOT_SUPPORTED))
    return failure_class == label


def is_superseded() -> sa.ColumnElement[bool]:
    """Return the condition that a later attempt of the job recorded the same execution."""
    later = measurement.alias("later")
    return sa.exists().where(*is_repeated_by(later)).correlate(measurement)


def is_repeated_by(later: sa.FromClause) -> tuple[sa.ColumnElement[bool], ...]:
    """Return the conditions that a row of ``later`` repeats a measurement in a later attempt."""
    columns = measurement.c
    key_columns = ("campaign_id", "job_id", "round", "position")
    return (
        *(later.c[name] == columns[name] for name in key_columns),
        later.c.attempt > columns.attempt,
    )


def is_counted() -> sa.ColumnElement[bool]:
    """Return the condition that a measurement is good, or no later attempt made up for it."""
    return sa.or_(has_outcome(Outcome.GOOD), sa.not_(is_superseded()))


def is_bad() -> sa.ColumnElement[bool]:
    """Return the condition that a measurement has any outcome but good."""
    return sa.or_(measurement.c.failure_class.is_not(None), measurement.c.plausible == sa.false())
