"""Atom feed of a published site: comparisons and changes, newest first."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from xml.etree import ElementTree

_ATOM = "http://www.w3.org/2005/Atom"
#: Entries of the feed.
MAX_ENTRIES = 50


@dataclass(frozen=True)
class FeedEntry:
    """A result.

    Attributes:
        file: of its page.
        updated: time in ISO format.
    """

    title: str
    file: str
    updated: str
    summary: str


def write_feed(entries: Iterable[FeedEntry], address: str, file: str) -> bytes:
    """Write the feed.

    Args:
        entries: of the site.
        address: of the site, ending with a slash; '' if it is unknown: links are relative then.
        file: name of the feed's file.
    """
    newest = sorted(entries, key=lambda entry: entry.updated, reverse=True)[:MAX_ENTRIES]
    feed = ElementTree.Element("feed", xmlns=_ATOM)
    _add(feed, "title", "Treehammer: comparisons and changes")
    _add(feed, "id", _identify(address, file))
    _add(feed, "link", rel="self", href=f"{address}{file}")
    _add(feed, "updated", newest[0].updated if newest else format_time(0))
    _add(_add(feed, "author"), "name", "Treehammer")
    for result in newest:
        entry = _add(feed, "entry")
        _add(entry, "title", result.title)
        _add(entry, "id", _identify(address, result.file))
        _add(entry, "link", href=f"{address}{result.file}")
        _add(entry, "updated", result.updated)
        _add(entry, "summary", result.summary)
    body: bytes = ElementTree.tostring(feed, encoding="utf-8", xml_declaration=True)
    return body


def format_time(time_us: int) -> str:
    """Format microseconds since 1970 UTC in ISO format."""
    return datetime.fromtimestamp(time_us / 1e6, UTC).isoformat(timespec="seconds")


def read_feed(content: bytes) -> Iterable[tuple[str, str, str, str]]:
    """Read title, link, time and summary of the entries of the service's feed."""
    names = {"atom": _ATOM}
    # The service wrote it.
    for entry in ElementTree.fromstring(content).iterfind("atom:entry", names):  # noqa: S314
        link = entry.find("atom:link", names)
        texts = [
            entry.findtext(f"atom:{name}", "", names) for name in ("title", "updated", "summary")
        ]
        yield texts[0], "" if link is None else link.get("href", ""), texts[1], texts[2]


def _identify(address: str, file: str) -> str:
    return f"{address}{file}" if address else f"urn:treehammer:{file}"


def _add(
    parent: ElementTree.Element, name: str, text: str = "", **attributes: str
) -> ElementTree.Element:
    element = ElementTree.SubElement(parent, name, attributes)
    element.text = "".join(letter if letter >= " " else " " for letter in text) or None
    return element
