"""The table [environment]: its checks, and its replacement on the command line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from treehammer.errors import DefinitionError
from treehammer.hctests.definition.definition_loader import load_definition, override_definition

WriteTest = Callable[..., Path]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("A-B = '1'", "environment.A-B: is not the name of an environment variable"),
        ("PATH = '/bin'", "environment.PATH: is set by the worker or by the root axis"),
        ("TREEHAMMER_JOB = 'x'", "is set by the worker"),
        ("A = '{cahce_mb}'", "'cahce_mb' is not an axis of this test; did you mean 'cache_mb'?"),
        ('A = "1\\n2"', "holds a line break"),
        ("A = 4", "environment.A: 4 is wrong (expected"),
    ],
)
def test_wrong_variables_are_named(write_test: WriteTest, text: str, problem: str) -> None:
    with pytest.raises(DefinitionError) as caught:
        load_definition(write_test(f"[environment]\n{text}\n"))
    assert problem in "\n".join(caught.value.problems)


def test_variables_are_added_and_replaced(write_test: WriteTest) -> None:
    definition = load_definition(write_test("[environment]\nA = 'at {cache_mb} MB'\n"))
    assert definition.environment == {"A": "at {cache_mb} MB"}
    changed = override_definition(definition, {}, {"environment.B": "1", "record": "true"})
    assert changed.environment == {"A": "at {cache_mb} MB", "B": "1"}
    assert changed.record
    assert not definition.record
