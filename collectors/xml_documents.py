"""XML of other programs, parsed without document types, entities and endless nesting.

Standard library only, Python 3.9 and later: this module is packed into the worker.
"""

from __future__ import annotations

import re
from typing import Dict, Optional
from xml.etree.ElementTree import Element, ParseError, TreeBuilder, XMLParser

_MAX_ELEMENTS, _MAX_DEPTH = 1_000_000, 50
#: Bytes that XML does not permit where a server writes names as they are.
BARE_AMPERSAND = re.compile(rb"&(?!(?:amp|lt|gt|quot|apos|#\w+);)")


class XmlError(Exception):
    """XML that cannot be used; the message is a clause after the name of the document."""


def parse_xml(content: bytes, *, is_cut: bool = False) -> Element:
    """Parse a document in any encoding; names are ``{namespace}name``.

    Document types are refused, and with them entities, which may expand without limit or name files.

    Args:
        content: the document.
        is_cut: whether its end is missing; elements that are not closed have only a part of their
            content.

    Raises:
        XmlError: it is no XML, has a document type, or too many elements.
    """
    builder = _BoundedBuilder()
    parser = XMLParser(target=builder)  # noqa: S314 - the builder refuses what is dangerous
    try:
        parser.feed(content.lstrip())  # some servers write an empty line before it
        if not is_cut:
            parser.close()
    except (ParseError, LookupError, ValueError) as error:
        is_page = re.match(rb"\s*<(!doctype )?html\b", content, re.IGNORECASE)
        raise XmlError("is a web page" if is_page else f"is not valid XML: {error}") from error
    if builder.root is None:
        raise XmlError("has no XML element")
    return builder.root


def local_name(element: Element) -> str:
    """Return the name of an element without its namespace."""
    return str(element.tag).rpartition("}")[2]


class _BoundedBuilder(TreeBuilder):
    """Builder of a tree of limited size and depth, without document types."""

    def __init__(self) -> None:
        super().__init__()
        self.root: Optional[Element] = None
        self._elements = self._depth = 0

    def doctype(self, name: str, *_identifiers: Optional[str]) -> None:
        raise XmlError("is a web page" if name.lower() == "html" else "has a document type")

    def start(self, tag: str, attributes: Dict[str, str], /) -> Element:
        self._elements += 1
        self._depth += 1
        if self._elements > _MAX_ELEMENTS or self._depth > _MAX_DEPTH:
            raise XmlError(
                f"has more than {_MAX_ELEMENTS:,} elements, or {_MAX_DEPTH} within each other"
            )
        element = super().start(tag, attributes)
        if self.root is None:
            self.root = element
        return element

    def end(self, tag: str, /) -> Element:
        self._depth -= 1
        return super().end(tag)
