"""Quoting of values for the languages that templates are written in."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping


def quote_toml(value: object) -> str:
    """Quote any text as a TOML string.

    Raises:
        ValueError: it holds half of a surrogate pair, as names of files can that are not UTF-8.
    """
    # JSON's escapes are TOML's, but for DEL, which TOML wants escaped too.
    return json.dumps(_check_text(value), ensure_ascii=False).replace("\x7f", "\\u007f")


def quote_comment(value: object) -> str:
    """Any text on one line, fit for a comment."""
    return "".join(c if c.isprintable() else "?" for c in str(value))


def quote_submit_value(value: object) -> str:
    """Any text as the value of a submit command, on one line and without effect on what follows.

    Neither ``$(NAME)`` nor ``$$(NAME)`` in it is replaced by anything.  What no line can hold,
    control characters and space at the ends, is lost.

    Raises:
        ValueError: it holds half of a surrogate pair.
    """
    line = _join_lines(value).strip()
    # A backslash at the end of a line would take the next one in.
    return _escape_macros(line + "." if line.endswith("\\") else line)


def quote_classad(value: object) -> str:
    """Quote any text as a string of a ClassAd expression in a submit description.

    Raises:
        ValueError: it holds half of a surrogate pair, or a character that no ClassAd can hold.
    """
    text = _check_text(value)
    if "\x00" in text:
        raise ValueError(f"{text!r} holds a zero byte")
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    named = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
    escaped = "".join(
        named.get(c) or (c if c.isprintable() or not c.isascii() else f"\\{ord(c):03o}")
        for c in escaped
    )
    return f'"{_escape_macros(escaped)}"'


def quote_environment(variables: Mapping[str, str]) -> str:
    """The value of the submit command ``environment``, quotes included.

    Raises:
        ValueError: a name or value cannot be passed this way.
    """
    items = []
    for name, value in sorted(variables.items()):
        text = _check_text(value)
        if not name.isidentifier() or any(c in text for c in "\n\r\x00"):
            raise ValueError(f"the variable {name}={text!r} has no place in an environment")
        inner = f"{name}={text}".replace("'", "''").replace('"', '""')
        items.append(f"'{_escape_macros(inner)}'")
    return '"' + " ".join(items) + '"'


def quote_shell_word(value: object) -> str:
    """A word of a shell script that stands, in single quotes, in the submit command ``arguments``.

    Raises:
        ValueError: it holds half of a surrogate pair.
    """
    return _escape_macros(shlex.quote(_join_lines(value)).replace("'", "''").replace('"', '""'))


def flatten_expression(value: object) -> str:
    """A ClassAd expression that was written by hand, on one line."""
    return " ".join(_check_text(value).split())


def _escape_macros(text: str) -> str:
    """Text in which HTCondor replaces nothing, neither at submission nor at the match."""
    parts = (part.replace("$", "$(DOLLAR)") for part in text.split("$$("))
    return "$$(DOLLARDOLLAR)(".join(parts)


def _join_lines(value: object) -> str:
    return "".join(c if c.isprintable() else " " for c in _check_text(value))


def _check_text(value: object) -> str:
    text = str(value)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{text!r} is not valid text") from error
    return text
