"""Line numbers of TOML keys."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest

from treehammer.hctests.definition.document_problems import KeyPath, find_line, locate_keys

DOCUMENT = """# a comment
top = 1

[test]
name = "a"
"quoted \\u00e9" = 2
a.b = 3
[matrix]
x = [
  1,  # one
  "two",

  [3, 4],
]
text = '''
[not.a.table]
k = 1
'''
[[exclude]]
y = 1
[[exclude]]
y = 2
z = {k = 1, l = [1, 2]}
[exclude.below]
q = 1
[metrics.m]
unit = "1"
"""


@pytest.mark.parametrize(
    ("path", "line"),
    [
        (("top",), 2),
        (("test",), 4),
        (("test", "name"), 5),
        (("test", "quoted é"), 6),
        (("test", "a", "b"), 7),
        (("matrix", "x"), 9),
        (("matrix", "x", 0), 10),
        (("matrix", "x", 1), 11),
        (("matrix", "x", 2, 1), 13),
        (("exclude", 0), 19),
        (("exclude", 0, "y"), 20),
        (("exclude", 1, "y"), 22),
        (("exclude", 1, "z", "l", 1), 23),
        (("exclude", 1, "below", "q"), 25),
        (("metrics",), 26),
        (("metrics", "m", "unit"), 27),
    ],
)
def test_line_of_every_key(path: KeyPath, line: int) -> None:
    assert find_line(locate_keys(DOCUMENT), path) == line


def test_missing_key_has_the_line_of_its_table() -> None:
    lines = locate_keys(DOCUMENT)
    assert find_line(lines, ("test", "payload")) == 4
    assert find_line(lines, ("nowhere", "at", "all")) == 1


def _paths(value: Any, path: KeyPath = ()) -> list[KeyPath]:
    if isinstance(value, dict):
        return [path, *(p for key, item in value.items() for p in _paths(item, (*path, key)))]
    if isinstance(value, list):
        return [path, *(p for n, item in enumerate(value) for p in _paths(item, (*path, n)))]
    return [path]


def test_every_path_of_tomllib_has_a_line() -> None:
    assert set(_paths(tomllib.loads(DOCUMENT))) <= set(locate_keys(DOCUMENT))
