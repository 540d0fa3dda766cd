"""Extraction and comparison of printed output in the documentation."""

from __future__ import annotations

import pytest
from console import agrees, commands

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
