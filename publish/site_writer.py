"""Writer of a published site: follows the links of the first page, and writes each page with its data.

The badge of a question is a small SVG of two words and a verdict.
"""

from __future__ import annotations

import csv
import io
import json
import lzma
import posixpath
import re
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urljoin, urlsplit
from xml.etree import ElementTree

from treehammer.analysis.comparison.conclusion import SCOPE_WORDS
from treehammer.analysis.comparison.verdict_text import word_verdict
from treehammer.analysis.statistics.verdict import ABSENT_VERDICTS, Verdict
from treehammer.collectors.record.day_numbers import current_us
from treehammer.publish.page_reader import PageReader
from treehammer.publish.static_html import StaticPage, list_links
from treehammer.text_formatting import ProgressFactory
from treehammer.version import __version__
from treehammer.web.page_service import FeedEntry, write_feed
from treehammer.web.service.app import STATIC_DIR

_ATOM = "http://www.w3.org/2005/Atom"


def read_feed(content: bytes) -> Iterator[FeedEntry]:
    """Read the entries of the service's feed, whose paths are addresses there."""
    names = {"atom": _ATOM}
    # The service wrote it.
    for entry in ElementTree.fromstring(content).iterfind("atom:entry", names):  # noqa: S314
        link = entry.find("atom:link", names)
        texts = [
            entry.findtext(f"atom:{name}", "", names) for name in ("title", "updated", "summary")
        ]
        address = "" if link is None else link.get("href", "")
        updated_us = round(datetime.fromisoformat(texts[1]).timestamp() * 1e6)
        yield FeedEntry(texts[0], address, updated_us, texts[2])


#: Names of the pages that are published, if they say anything.
OVERVIEW, COMPARISON, CHANGE = "verdicts", "comparison", "change"
PAGES = (OVERVIEW, "compare", COMPARISON, "changes", CHANGE, "bisection", "release", "published")
#: Pages that are published although the others may not link them.
_SEEDS = ("/verdicts", "/compare", "/changes", "/published")
_ALIASES = {"/changes.atom": "feed"}
_ASSETS = ("base.css", "page.css", "figure.css", "icon.svg", "page.js", "figure.js",
           "vendor/vega.min.mjs", "vendor/vega.min.mjs.LICENSE")  # fmt: skip
FEED, MANIFEST = "feed.atom", "site.json"
#: Table that no page shows, and bytes of others in JSON; larger ones have a file of their own.
PAIRS, MAX_TABLE_BYTES = "pairs", 40_000
#: Digits of numbers: intervals have three.
_DIGITS = ".6g"


@dataclass(frozen=True)
class SitePage:
    """A page to publish.

    Attributes:
        address: at the service.
        kind: name of the page.
        file: of the site.
        markup: HTML of the service.
        document: its title, tables and values.
    """

    address: str
    kind: str
    file: str
    markup: str
    document: Mapping[str, Any]

    @property
    def data(self) -> str:
        """File of its data."""
        return f"{self.file.removesuffix('.html')}.json"

    @property
    def badge(self) -> str:
        """File of its badge; '' for a page without a question."""
        return f"{self.file.removesuffix('.html')}.svg" if self.kind == COMPARISON else ""


@dataclass
class SiteWriter:
    """Writes the site of a database.

    Attributes:
        reader: of the pages.
        folder: to write, which is empty.
        address: of the site, ending with a slash; '' if unknown.
        about: what the list of published files says beside them.
    """

    reader: PageReader
    folder: Path
    address: str = ""
    about: Mapping[str, Any] = field(default_factory=dict)
    _pages: dict[str, SitePage] = field(default_factory=dict)

    def write(self, releases: list[str], bars: ProgressFactory) -> list[SitePage]:
        """Write all files.

        Args:
            releases: ROOT releases that were measured.
            bars: opens the bar that moves with the pages.
        """
        self._pages = {page.address: page for page in self._collect_pages(releases)}
        for name in _ASSETS:
            self._write(f"static/{name}", (STATIC_DIR / name).read_bytes())
        with bars("Publishing", len(self._pages)) as step:
            for number, page in enumerate(self._pages.values(), 1):
                self._write_page(page)
                step(number, page.file)
        comparisons = self._list_comparisons()
        for page in self._pages.values():
            if row := comparisons.get(page.address):
                subject = row["compared"].partition(",")[0]
                message, color = describe_verdicts(row["verdicts"])
                self._write(page.badge, draw_badge(subject, message, color).encode())
        entries = [*self._list_entries(comparisons)]
        title = "Treehammer: comparisons and changes"
        self._write(FEED, write_feed(title, FEED, self.address, entries))
        self._write_manifest()
        return [*self._pages.values()]

    def _collect_pages(self, releases: list[str]) -> Iterator[SitePage]:
        """Yield the pages with content that links reach from the seeds."""
        seeds = [*_SEEDS, *(f"/releases/{quote(release, safe='')}" for release in releases)]
        queue = deque(seed for seed in seeds if self.reader.find_page(seed))
        addresses = set(queue)
        while queue:
            address = queue.popleft()
            page = self._load_page(address)
            if page is None:
                continue
            yield page
            for link in list_links(page.markup):
                target = _normalize(urljoin(address, link))
                kind = self.reader.find_page(target)
                if target not in addresses and kind in PAGES and _is_permanent(target, kind):
                    addresses.add(target)
                    queue.append(target)

    def _load_page(self, address: str) -> SitePage | None:
        """Load a page and its data; None for one that says nothing."""
        kind = self.reader.find_page(address)
        document = self.reader.read_document(address)
        if not _HAS_CONTENT.get(kind, bool)(document["tables"]):
            return None
        markup = self.reader.read(address).decode()
        return SitePage(address, kind, name_file(address), markup, document)

    def _resolve(self, page: SitePage, link: str) -> str:
        """Find the address of a file for one of the service, relative to a page."""
        address, _, fragment = urljoin(page.address, link).partition("#")
        target = _normalize(address)
        if target == "feed":
            file = FEED
        elif target.startswith("/static/"):
            name = urlsplit(target).path.removeprefix("/static/")
            file = target.removeprefix("/") if name in _ASSETS else ""
        else:
            file = self._pages[target].file if target in self._pages else ""
        if not file:
            return ""
        return _relate(page.file, file) + (f"#{fragment}" if fragment else "")

    def _write_page(self, page: SitePage) -> None:
        tables: dict[str, Any] = {}
        files: dict[str, str] = {}
        further = {"Badge": _relate(page.file, page.badge)} if page.badge else {}
        for name, rows in page.document["tables"].items():
            tables[name] = [] if name == PAIRS else select_fitting_rows(rows)
            if len(tables[name]) < len(rows):
                file = f"{page.file.removesuffix('.html')}-{name}.csv.xz"
                self._write(file, compress_rows(rows))
                files[name] = _relate(page.file, file)
                further[f"All {len(rows):,} {name.replace('_', ' ')} (CSV)"] = files[name]
        static = StaticPage(
            page.markup,
            lambda link: self._resolve(page, link),
            _relate(page.file, page.data),
            further,
            _relate(page.file, FEED),
        )
        self._write(page.file, static.render().encode())
        document = {**page.document, "tables": tables, "files": files}
        self._write(page.data, json.dumps(document, separators=(",", ":")).encode())

    def _list_comparisons(self) -> dict[str, dict[str, Any]]:
        """Return the rows of the list of comparisons, by the addresses of their pages."""
        return {
            f"/compare/{quote(row['comparison_id'], safe='')}": row
            for page in self._pages.values()
            if page.kind == "compare"
            for row in page.document["tables"]["comparisons"]
        }

    def _list_entries(self, comparisons: Mapping[str, dict[str, Any]]) -> Iterator[FeedEntry]:
        for address, row in comparisons.items():
            if page := self._pages.get(address):
                summary = page.document["about"]["conclusion"]
                yield FeedEntry(row["compared"], page.file, row["judged_us"], summary)
        if self.reader.find_page("/changes.atom"):
            for entry in read_feed(self.reader.read("/changes.atom")):
                if page := self._pages.get(_normalize(urlsplit(entry.path).path)):
                    yield entry._replace(path=page.file)

    def _write_manifest(self) -> None:
        """Write the list of what is published."""
        pages = [
            {"file": page.file, "kind": page.kind, "title": page.document["title"]}
            for page in self._pages.values()
        ]
        files = sorted(
            path.relative_to(self.folder).as_posix()
            for path in self.folder.rglob("*")
            if path.is_file()
        )
        document = {
            "treehammer": __version__,
            "published_us": current_us(),
            **self.about,
            "pages": pages,
            "files": files,
        }
        self._write(MANIFEST, json.dumps(document, indent=1).encode())

    def _write(self, name: str, content: bytes) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def compress_rows(rows: Sequence[Mapping[str, Any]]) -> bytes:
    """Write rows as compressed CSV; lists and documents in them are JSON."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(rows[0])
    for row in rows:
        writer.writerow(
            json.dumps(value) if isinstance(value, list | dict) else _round(value)
            for value in row.values()
        )
    return lzma.compress(text.getvalue().encode())


def select_fitting_rows(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Select the first rows of a table that fit into a page's JSON, without their empty values."""
    selected, size = [], 0
    for row in rows:
        values = {
            name: _round(value) for name, value in row.items() if value not in (None, "", [], {})
        }
        size += len(json.dumps(values))
        if size > MAX_TABLE_BYTES:
            break
        selected.append(values)
    return selected


def _round(value: object) -> object:
    is_exact = not isinstance(value, float) or value.is_integer()  # such as exact counters
    return value if is_exact else float(f"{value:{_DIGITS}}")


def name_file(address: str) -> str:
    """Name the file of a page: that of its path, with the number of a page of a list."""
    parts = urlsplit(address)
    names = [
        re.sub(r"[^\w.+-]", lambda letter: f"_{ord(letter[0]):x}", unquote(name))
        for name in parts.path.strip("/").split("/")
    ]
    number = parts.query.removeprefix("page=")
    path = "/".join(names) + (f"-{number}" if number else "")
    return "index.html" if path == OVERVIEW else f"{path}.html"


def _normalize(address: str) -> str:
    """Return an address without its fragment, and the one that stands for it."""
    address = address.partition("#")[0].removesuffix("?")  # Python 3.14 keeps an empty query
    return _ALIASES.get(address, address)


def _is_permanent(address: str, kind: str) -> bool:
    """Return whether a page is published: as it is without parameters, or a page of a list."""
    query = urlsplit(address).query
    return not query or (kind == "compare" and bool(re.fullmatch(r"page=\d+", query)))


def _relate(page: str, file: str) -> str:
    return posixpath.relpath(file, posixpath.dirname(page) or ".")


#: Page -> whether its tables say anything.
_HAS_CONTENT: Mapping[str, Callable[[Mapping[str, list[dict[str, Any]]]], bool]] = {
    "changes": lambda tables: any(tables.values()),
    "release": lambda tables: bool(tables.get("ratios") or tables.get("checks")),
    "published": lambda tables: any(row["measured"] is not None for row in tables["results"]),
}


#: Verdicts by their colors on which white text is readable.
_COLORS = {Verdict.SLOWER: "#a8380b", Verdict.FASTER: "#0b6b4a", Verdict.SAME: "#0b5a94"}
_OPEN_COLOR = "#5a646e"
_LETTER_WIDTH, _PADDING, _HEIGHT = 6.6, 8, 20


def describe_verdicts(counts: Mapping[str, Mapping[str, Mapping[str, int]]]) -> tuple[str, str]:
    """Describe the verdicts on the first metric in a few words, with their color.

    Args:
        counts: metric -> scope -> verdict -> how many variants.
    """
    metric, scopes = next(iter(counts.items()), ("", {}))
    # Of the widest scope with an answer: on one host, none is known over sites.
    counts_by_scope = [scopes[scope] for scope in SCOPE_WORDS if scope in scopes]
    counts_by_scope.sort(key=lambda verdicts: set(verdicts) == {Verdict.NOT_ENOUGH})
    verdicts = Counter(next(iter(counts_by_scope), {}))
    compared = {name: count for name, count in verdicts.items() if name not in ABSENT_VERDICTS}
    verdicts = Counter(compared) or verdicts
    total = verdicts.total()
    certain = [verdict for verdict in (Verdict.SLOWER, Verdict.FASTER) if verdicts[verdict]]
    if certain:
        words = ", ".join(f"{verdicts[name]} {word_verdict(metric, name)}" for name in certain)
        return (words if total == 1 else f"{words} of {total}"), _COLORS[certain[0]]
    verdict = max(verdicts, key=verdicts.__getitem__, default=Verdict.NOT_ENOUGH)
    words = str(verdict) if len(verdicts) < 2 else f"{verdicts[verdict]} {verdict} of {total}"
    return words, _COLORS.get(Verdict(verdict), _OPEN_COLOR)


def draw_badge(subject: str, message: str, color: str) -> str:
    """Draw a badge."""
    left, right = (2 * _PADDING + _LETTER_WIDTH * len(text) for text in (subject, message))
    width = left + right
    texts = "".join(
        f'<text x="{place:.0f}" y="14">{escape(text)}</text>'
        for place, text in ((left / 2, subject), (left + right / 2, message))
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{_HEIGHT}" role="img" '
        f'aria-label="{escape(subject)}: {escape(message)}">'
        f'<rect width="{left:.0f}" height="{_HEIGHT}" fill="#1d2329"/>'
        f'<rect x="{left:.0f}" width="{right:.0f}" height="{_HEIGHT}" fill="{color}"/>'
        '<g fill="#fff" text-anchor="middle" font-family="DejaVu Sans,Verdana,sans-serif" '
        f'font-size="11">{texts}</g></svg>\n'
    )
