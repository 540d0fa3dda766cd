"""TOML documents of bounded size and depth, which no parser or later step can fail on."""

from __future__ import annotations

import tomllib
from datetime import date, time
from typing import Any

from treehammer.collectors.json_documents import measure_depth

#: Characters of a document: ten thousand sites, or a test's definition many times over.
MAX_TOML_CHARACTERS = 4_000_000
#: Tables and lists within each other.
MAX_TOML_DEPTH = 30


def parse_toml(text: str) -> dict[str, Any]:
    """Parse TOML.

    Raises:
        ValueError: not TOML, too long, or nested too deeply.
    """
    if len(text) > MAX_TOML_CHARACTERS:
        raise ValueError(f"it has more than {MAX_TOML_CHARACTERS:,} characters")
    try:
        document = tomllib.loads(text.removeprefix("\ufeff"))  # the mark of Windows' editors
    except RecursionError:
        document = None
    if document is None or measure_depth(document) > MAX_TOML_DEPTH:
        raise ValueError(f"it has more than {MAX_TOML_DEPTH} tables and lists within each other")
    return document


def write_value(value: Any) -> str:
    """Write a value as TOML has it, for messages."""
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, list):
        return f"[{', '.join(map(write_value, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key} = {write_value(item)}' for key, item in value.items())}}}"
    return str(value).lower() if isinstance(value, bool) else repr(value)
