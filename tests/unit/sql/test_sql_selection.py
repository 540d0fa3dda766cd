"""Conditions of a selection, and messages for wrong ones."""

from __future__ import annotations

import pytest

from treehammer.errors import ConfigError
from treehammer.sql.read.query_model import (
    Condition,
    Selection,
    intersect_conditions,
    parse_alternatives,
)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "not a condition"),
        ("host", "not a condition"),
        ("=x", "not a condition"),
        ("hots=x", "Did you mean 'host'"),
        ("retries=many", "a whole number"),
        ("retries=1.5", "a whole number"),
        ("retries=9223372036854775808", "a whole number"),
        ("eff_job=nan", "a number"),
        ("eff_job>", "missing"),
        ("dirty=perhaps", "true or false"),
        ("dirty>0", "not a number"),
        ("axis_root>6.38", "compares numbers"),
        ("eff_job~0.*", "compares text"),
        ("read_latency_hist=1", "list"),
        ("measurement.host=x", "not a condition"),
    ],
)
def test_wrong_conditions(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Condition.parse(text)


def test_selection_is_readable() -> None:
    assert str(Selection()) == "all measurements"
    selection = Selection.parse(["a", "b"], ["eff_job>0.5", "failure_class="])
    assert str(selection) == "campaign_id=a or b and eff_job>0.5 and failure_class="


ASKED = ("site=A", "day>1", "site=B", "site!=C", "site!=D", "site=A", "host=", "host=n", "day>2")


def test_values_of_one_column_are_alternatives() -> None:
    wheres = parse_alternatives(ASKED)
    assert [*map(str, wheres)] == [
        "site=A or B",
        "day>1",
        "site!=C",
        "site!=D",
        "host= or n",
        "day>2",
    ]
    assert parse_alternatives(text for where in wheres for text in where.texts) == wheres


def test_conditions_on_one_column_are_merged() -> None:
    some, others = parse_alternatives(ASKED), Condition("site", "=", ("B", "C"))
    found = intersect_conditions((*some, others, Condition.parse("host~n*")))
    assert [*map(str, found)] == [
        "site=B",
        "day>1",
        "site!=C",
        "site!=D",
        "host= or n",
        "day>2",
        "host~n*",
    ]
