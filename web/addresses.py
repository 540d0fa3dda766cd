"""Addresses whose parts may be any text, as names of sites are."""

from __future__ import annotations

import re

from starlette.convertors import PathConvertor, register_url_convertor


class TextConvertor(PathConvertor):
    """Any text, with slashes and line breaks; Starlette's own stops at one of them."""

    regex = "(?s:.*)"


class SomeTextConvertor(TextConvertor):
    """Any text but none at all."""

    regex = "(?s:.+)"


register_url_convertor("text", TextConvertor())
register_url_convertor("some", SomeTextConvertor())


def any_text(path: str) -> str:
    """A path for a route, in which every part in braces may be any text."""
    return re.sub(r"\{(\w+)\}", r"{\1:text}", path)


def some_text(path: str) -> str:
    """The same where a part may not be empty, so that without it the address is another one's."""
    return re.sub(r"\{(\w+)\}", r"{\1:some}", path)
