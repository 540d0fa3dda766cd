"""Docstrings name the attributes and arguments that exist."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from demo_checkout import REPOSITORY

#: Folders with the code of the project, each once.
FOLDERS = (
    "analysis",
    "benchmarks",
    "collectors",
    "datasets",
    "hctests",
    "sql",
    "submit",
    "testbed",
    "web",
)

#: Parsing the other modules would take most of the time.
_SECTION_START = re.compile(r"^ *(?:Args|Attributes):$", re.MULTILINE)


def test_docstrings_name_existing_attributes_and_arguments() -> None:
    wrong = [
        f"{path.relative_to(REPOSITORY)}:{node.lineno}: {name}"
        for path in _list_modules()
        if _SECTION_START.search(text := path.read_text(encoding="utf-8"))
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        for name in _find_unknown_names(node)
    ]
    assert not wrong


def _list_modules() -> Iterator[Path]:
    yield from (REPOSITORY / "src" / "treehammer").glob("*.py")
    for folder in FOLDERS:
        yield from (REPOSITORY / folder).rglob("*.py")


def _find_unknown_names(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    documented = _documented_names(node)
    return documented - _known_names(node) if documented else set()


def _documented_names(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    """Read the names of the sections ``Args`` and ``Attributes``, each at the start of a line."""
    sections = re.findall(
        r"^(?:Args|Attributes):\n((?: {4}.*\n?|\n)*)", ast.get_docstring(node) or "", re.MULTILINE
    )
    if not all(sections):
        return {"a section without entries"}
    return set(re.findall(r"^ {4}\**(\w+):", "\n".join(sections), re.MULTILINE))


def _known_names(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    """Collect the arguments of a function; of a class all names that it defines."""
    if isinstance(node, ast.ClassDef):
        names = {one.arg for one in ast.walk(node) if isinstance(one, ast.arg)}
        names |= {one.attr for one in ast.walk(node) if isinstance(one, ast.Attribute)}
        names |= {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
        return names
    return {one.arg for one in ast.walk(node.args) if isinstance(one, ast.arg)}
