"""Quoting of values in HTCondor's submit descriptions."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from treehammer.text_formatting import check_text


def quote_submit_value(value: object) -> str:
    """Quote any text as the value of a submit command, on one line.

    HTCondor expands neither ``$(NAME)`` nor ``$$(NAME)`` in it.  Control characters and surrounding
    space, which a line cannot hold, are lost.

    Raises:
        ValueError: it contains a lone surrogate.
    """
    line = _join_lines(value).strip()
    # A trailing backslash would continue the line.
    return _escape_macros(line + "." if line.endswith("\\") else line)


def quote_classad(value: object) -> str:
    """Quote any text as a string of a ClassAd expression in a submit description.

    Raises:
        ValueError: it contains a lone surrogate, or a zero byte, which ClassAds cannot hold.
    """
    text = check_text(value)
    if "\x00" in text:
        raise ValueError(f"{text!r} contains a zero byte")
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    escapes = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
    escaped = "".join(
        escapes.get(c) or (c if c.isprintable() or not c.isascii() else f"\\{ord(c):03o}")
        for c in escaped
    )
    return f'"{_escape_macros(escaped)}"'


def quote_environment(variables: Mapping[str, str]) -> str:
    """Quote variables as the value of the submit command ``environment``, quotes included.

    Raises:
        ValueError: a name or value cannot be passed this way.
    """
    items = []
    for name, value in sorted(variables.items()):
        text = check_text(value)
        if not name.isidentifier() or any(c in text for c in "\n\r\x00"):
            raise ValueError(f"the variable {name}={text!r} cannot be set in a job's environment")
        inner = f"{name}={text}".replace("'", "''").replace('"', '""')
        items.append(f"'{_escape_macros(inner)}'")
    return '"' + " ".join(items) + '"'


def quote_shell_word(value: object) -> str:
    """Quote a word of a shell script within single quotes in the submit command ``arguments``.

    Raises:
        ValueError: it contains a lone surrogate.
    """
    return _escape_macros(shlex.quote(_join_lines(value)).replace("'", "''").replace('"', '""'))


def flatten_expression(value: object) -> str:
    """Put a hand-written ClassAd expression on one line.

    Raises:
        ValueError: it ends with a backslash, which would continue the line.
    """
    line = " ".join(check_text(value).split())
    if line.endswith("\\"):
        raise ValueError(f"{line!r} ends with a backslash, which would continue the line")
    return line


def _escape_macros(text: str) -> str:
    """Escape text so that HTCondor expands nothing, neither at submission nor at the match."""
    parts = (part.replace("$", "$(DOLLAR)") for part in text.split("$$("))
    return "$$(DOLLARDOLLAR)(".join(parts)


def _join_lines(value: object) -> str:
    return "".join(c if c.isprintable() else " " for c in check_text(value))


#: Filters of templates.
FILTERS = {
    "text": quote_submit_value,
    "classad": quote_classad,
    "expression": flatten_expression,
    "environment": quote_environment,
    "shell_word": quote_shell_word,
}
