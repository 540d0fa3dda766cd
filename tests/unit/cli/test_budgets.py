"""Budgets of lines: a room above its number fails, and a number rises only with a record."""

from __future__ import annotations

import importlib.util
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[3] / "scripts" / "check_budgets.py"
RECORD = {"record": "For maps by ROOT"}


@pytest.fixture(scope="module")
def budgets() -> ModuleType:
    spec = importlib.util.spec_from_file_location("check_budgets", SCRIPT)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("room", "now", "before", "problem"),
    [
        ("sql", {"lines": 100}, {}, ""),
        ("sql", {"lines": 99}, {}, "sql: 100 lines, 99 in the budget"),
        ("web", {"lines": 100}, {}, "sql: 100 lines without a budget"),
        ("sql", {"lines": 150}, {"lines": 150}, ""),
        ("sql", {"lines": 150}, {"lines": 200}, ""),
        ("sql", {"lines": 150}, {"lines": 100}, "sql: raised without a new section"),
        ("sql", {"lines": 150, "record": "No section"}, {"lines": 100}, "sql: raised without"),
        ("sql", {"lines": 150, **RECORD}, {"lines": 100}, ""),
        ("sql", {"lines": 150, **RECORD}, {"lines": 100, **RECORD}, "sql: raised without"),
    ],
)
def test_rooms_keep_their_budgets(
    budgets: ModuleType,
    room: str,
    now: dict[str, int | str],
    before: dict[str, int | str],
    problem: str,
) -> None:
    earlier = {room: before} if before else {}
    problems = budgets.find_problems(Counter(sql=100), {room: now}, earlier)
    assert bool(problems) == bool(problem)
    assert "".join(problems).startswith(problem)
