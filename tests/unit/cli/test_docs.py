"""Tests that the documentation names, and the budgets of rooms."""

from __future__ import annotations

import ast
import importlib.util
import re
from collections import Counter
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest
from captured_runs import run_captured
from repository_code import REPOSITORY

from treehammer.verticals import VERTICALS

#: ``tests/FOLDER/test_FILE.py::test_NAME`` in a page.
_TEST_REFERENCE = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def test_documented_tests_exist() -> None:
    references_by_page = {
        page.name: _TEST_REFERENCE.findall(page.read_text(encoding="utf-8"))
        for page in (REPOSITORY / "docs").rglob("*.md")
    }
    missing = [
        f"{page}: {path}::{name}"
        for page, references in references_by_page.items()
        for path, name in references
        if not _is_deleted(path) and name not in _list_tests(path)
    ]
    assert not missing
    assert len(references_by_page["attacks.md"]) > 50


def test_every_attack_names_a_test() -> None:
    page = (REPOSITORY / "docs" / "reference" / "attacks.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| ")]
    lacking = [row for row in rows if not _TEST_REFERENCE.search(row) and "| test |" not in row]
    assert not lacking


def test_pictures_are_files_of_the_repository() -> None:
    """A forge shows the pages without building them."""
    paths = run_captured(["git", "ls-files"], cwd=REPOSITORY, check=True).stdout.splitlines()
    files = {REPOSITORY / path for path in paths}
    missing = [
        f"{page.name}: {link}"
        for page in (REPOSITORY / "docs").rglob("*.md")
        for link in re.findall(r"!\[[^]]*\]\(([^)]+)\)", page.read_text(encoding="utf-8"))
        if "://" not in link and (page.parent / link).resolve() not in files
    ]
    assert not missing


@pytest.mark.skipif(
    not all((REPOSITORY / vertical).exists() for vertical in VERTICALS),
    reason="a vertical is deleted",
)
def test_contributors_read_of_names_that_exist() -> None:
    """Names in capitals stand for the contributor's own: ``X_page.py``, ``CLIENT.title()``."""
    paths = run_captured(["git", "ls-files"], cwd=REPOSITORY, check=True).stdout.splitlines()
    code = "\n".join(
        (REPOSITORY / path).read_text(encoding="utf-8", errors="replace")
        for path in paths
        if path.endswith((".py", ".toml", ".cfg", ".sh")) and (REPOSITORY / path).is_file()
    )
    folders = {str(parent) for path in paths for parent in Path(path).parents}
    names = {
        *re.findall(r"\w+", code),
        *folders,
        *(part for path in folders for part in path.split("/")),
    }
    text = (REPOSITORY / "CONTRIBUTING.md").read_text(encoding="utf-8")
    missing = [
        word
        for word in re.findall(r"`([\w./]*[a-z_][\w./]*/?)`", text)
        if not re.search(r"\b(NAME|CLIENT|X|FOLDER|KIND|PACKAGE|vX)(_|\b)", word)
        and not (
            word.rstrip("/") in names
            or any(f"/{path}".endswith(f"/{word}") for path in paths)
            or all(part in names for part in word.split("."))
        )
    ]
    assert not missing


def _is_deleted(path: str) -> bool:
    """Whether a test was deleted with its vertical."""
    vertical = Path(path).parts[2]
    return vertical in VERTICALS and not (REPOSITORY / vertical).exists()


@cache
def _list_tests(path: str) -> frozenset[str]:
    file = REPOSITORY / path
    if not file.is_file():
        return frozenset()
    tree = ast.parse(file.read_text(encoding="utf-8"))
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return frozenset(node.name for node in tree.body if isinstance(node, functions))


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
