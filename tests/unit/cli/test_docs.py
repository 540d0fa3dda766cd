"""Documentation: printed output and named tests."""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest
from console import agrees, commands
from repository_code import REPOSITORY

PAGE = """
```console
$ echo one &&
>
> echo 2
one
2
$ true
```
"""


def test_commands_and_output_are_separated() -> None:
    first, second = commands(PAGE)
    assert (first.text, first.expected, first.line) == ("echo one &&\n\necho 2", "one\n2\n", 3)
    assert (second.text, second.expected) == ("true", "")


@pytest.mark.parametrize(
    ("expected", "printed", "same"),
    [
        ("took 1.5 s", "took 12 s", True),
        ("commit 0ddbdb62df88", "commit ffffffffffff", True),
        ("a   b", "a b", True),
        ("Measuring: 1/4 1 running\nend", "end", True),
        ("end", "Fetching ROOT 6.40.00  waiting for ROOT 6.40.00\nend", True),
        ("1/4 of them", "", False),
        ("took 1.5 s", "took 1.5 min", False),
        ("ok", "failed", False),
        (
            "x  CPU  this host (4 launches)  0.1  +0.2 %  same\nOn this host, there is no difference",
            "x  CPU  this host (4 launches)  0.2  −4.2 %  undecided, 14 new jobs would\n  decide",
            True,
        ),
        ("x  this host (4 launches)  same", "y  this host (4 launches)  same", False),
        ("first\n...\nlast", "first\nwhat\never\nlast", True),
    ],
)
def test_words_are_compared_and_numbers_ignored(expected: str, printed: str, same: bool) -> None:
    assert agrees(expected, printed) is same


#: ``tests/FOLDER/test_FILE.py::test_NAME`` in a page.
_TEST_REFERENCE = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def test_documented_tests_exist() -> None:
    found = {
        page.name: _TEST_REFERENCE.findall(page.read_text(encoding="utf-8"))
        for page in (REPOSITORY / "docs").rglob("*.md")
    }
    missing = [
        f"{page}: {path}::{name}"
        for page, references in found.items()
        for path, name in references
        if name not in _list_tests(path)
    ]
    assert not missing
    assert len(found["attacks.md"]) > 50


def test_every_attack_names_a_test() -> None:
    page = (REPOSITORY / "docs" / "attacks.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| ")]
    lacking = [row for row in rows if not _TEST_REFERENCE.search(row) and "| before |" not in row]
    assert not lacking


@cache
def _list_tests(path: str) -> frozenset[str]:
    file = REPOSITORY / path
    if not file.is_file():
        return frozenset()
    tree = ast.parse(file.read_text(encoding="utf-8"))
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return frozenset(node.name for node in tree.body if isinstance(node, functions))
