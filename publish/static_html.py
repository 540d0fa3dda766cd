"""A page of the service as a static page: relative links, drawn figures, no forms and fewer rows."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from html.parser import HTMLParser
from itertools import chain
from xml.etree.ElementTree import Element, SubElement, TreeBuilder, tostring

from treehammer.web.report_figures import draw_inline

#: Bytes of a page, with its drawings.
MAX_PAGE_BYTES = 100_000
#: Rows of a table, and of a matrix, that are tried in turn until the page is small enough.
_ROW_LIMITS = ((100, 100), (40, 100), (15, 100), (5, 100), (5, 20), (5, 8), (2, 4))
_VOID = ("br", "col", "hr", "img", "input", "link", "meta")
_DROPPED_TAGS = ("form", "noscript")
#: Classes of elements that need a server.
_DROPPED_CLASSES = frozenset(("files", "find", "service"))
_DROPPED_META = ("htmx-config", "robots")
_SEPARATOR = " · "
#: Identity of the list of a page's files.
_DATA_FILES = "data-files"
#: Elements that say nothing without their content.
_CONTAINERS = ("details", "li", "nav", "ul")
#: Digits of a drawing that nobody sees, and attributes that the page's style sets or that are usual.
_NEEDLESS = re.compile(r'(?<=\d\.\d\d)\d+| font-family="[^"]*"| opacity="1"')

#: Style and width of a drawing, and the scale up to which it fills a page.
_OWN_WIDTH = re.compile(r'(?<=style=")(?=[^"]*" viewBox="0 0 (\d+))')
_MAX_SCALE = 1.4
#: Note on the rows that the service shows, of all.
_MISSING_ROWS = re.compile(r"(?:First|Last) (\d+) of ([\d,]+) rows")

#: Returns the address of a file of the site for one of the service; '' if it is not published.
Resolve = Callable[[str], str]


@dataclass(frozen=True)
class StaticPage:
    """A page of the service to be rewritten.

    Attributes:
        markup: HTML of the service.
        resolve: finds addresses of the site.
        data: address of the page's tables as JSON.
        further: titles and addresses of further files in the footer.
        feed: address of the feed.
    """

    markup: str
    resolve: Resolve
    data: str
    further: dict[str, str] = field(default_factory=dict)
    feed: str = ""

    def render(self) -> str:
        """Render the page with as many rows of its tables as fit; its data files have them all."""
        rewriting = _Rewriting(self)
        for limits in _ROW_LIMITS:
            text = rewriting.render(*limits)
            if len(text.encode()) <= MAX_PAGE_BYTES:
                break
        return text


def list_links(markup: str) -> list[str]:
    """List the addresses of links in a page."""
    return [link.get("href", "") for link in _parse(markup).iter("a")]


class _TreeParser(HTMLParser):
    """Parses the service's HTML, which closes all of its elements."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.builder = TreeBuilder()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.builder.start(tag, {name: value or "" for name, value in attrs})
        if tag in _VOID:
            self.builder.end(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.builder.start(tag, {name: value or "" for name, value in attrs})
        self.builder.end(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in _VOID:
            self.builder.end(tag)

    def handle_data(self, data: str) -> None:
        self.builder.data(data)


def _parse(markup: str) -> Element:
    parser = _TreeParser()
    # Nothing may stand before the root element.
    parser.feed(markup[markup.index("<html") :].rstrip())
    return parser.builder.close()


class _Rewriting:
    """The tree of a page that becomes static."""

    def __init__(self, page: StaticPage) -> None:
        self._page = page
        self._drawings: list[str] = []
        self._root = _parse(page.markup)
        self._clean(self._root)
        for table in filter(_is_matrix, self._root.iter("table")):
            _shorten_cells(table)
        head = self._root.find("head")
        assert head is not None
        for link in [link for link in head.iter("link") if link.get("rel") == "alternate"]:
            head.remove(link)
        kinds = {page.feed: "application/atom+xml", page.data: "application/json"}
        for address, kind in kinds.items():
            SubElement(head, "link", rel="alternate", type=kind, href=address)
        self._complete_footer()

    def render(self, max_rows: int, max_matrix_rows: int) -> str:
        """Render the tree with so many rows of each table, and of each matrix."""
        root = deepcopy(self._root)
        parents = {child: parent for parent in root.iter() for child in parent}
        for table in root.iter("table"):
            limit = max_matrix_rows if _is_matrix(table) else max_rows
            _shorten_table(table, parents[parents[table]], limit)
        for items in [*root.iter("ul"), *root.iter("ol")]:
            _shorten(items, "li", max_rows)
        text = tostring(root, encoding="unicode", method="html")
        for number, drawing in enumerate(self._drawings):
            text = text.replace(_placeholder(number), drawing)
        return f"<!DOCTYPE html>\n{text}\n"

    def _clean(self, parent: Element) -> None:
        """Remove, rewrite and unlink the elements below another one."""
        for child in [*parent]:
            if _needs_server(child):
                _remove(parent, child)
                continue
            for name in [name for name in child.attrib if name.startswith("hx-")]:
                del child.attrib[name]
            self._rewrite(parent, child)

    def _rewrite(self, parent: Element, child: Element) -> None:
        """Rewrite an element by its kind, and those below it."""
        if child.tag == "div" and child.get("class") == "plot":
            self._draw(child)
        elif child.tag in ("script", "link"):
            self._rewrite_resource(parent, child)
        elif child.tag == "span" and child.get("class") == "downloads":
            # Replace the files of a table by those of the page.
            tail = child.tail
            child.clear()
            child.tail = tail
            child.set("class", "downloads")
            SubElement(child, "a", href=f"#{_DATA_FILES}").text = "data"
        else:
            self._clean(child)
            if child.tag == "a":
                self._rewrite_link(parent, child)
            elif child.tag in _CONTAINERS and _is_empty(child):
                _remove(parent, child)

    def _rewrite_resource(self, parent: Element, child: Element) -> None:
        name = "href" if child.tag == "link" else "src"
        if address := self._page.resolve(child.get(name, "")):
            child.set(name, address)
        else:
            _remove(parent, child)

    def _rewrite_link(self, parent: Element, link: Element) -> None:
        """Lead a link to a file of the site."""
        address = link.get("href", "")
        target = address if address.startswith("#") else self._page.resolve(address)
        # Filters without their choices lead nowhere.
        is_choice = parent.tag == "li" and link.get("aria-current") == "true"
        if target and not is_choice:
            link.set("href", target)
        else:
            _unlink(parent, link)

    def _draw(self, plot: Element) -> None:
        """Draw a chart, which scripts replace when a reader wants to zoom."""
        canvas, script = plot.find("div"), plot.find("script")
        assert canvas is not None
        assert script is not None
        specification = json.loads(script.text or "{}")
        _unlink_marks(specification, self._page.resolve)
        number = len(self._drawings)
        drawing = draw_inline(specification, f"figure{number}", "")
        # The canvas has the label; pages of many points would double in size.
        drawing = drawing.replace(' role="img" aria-label=""', ' aria-hidden="true"', 1)
        drawing = _OWN_WIDTH.sub(
            lambda match: f"max-width: {_MAX_SCALE * float(match[1]):.0f}px; ",
            _NEEDLESS.sub("", drawing),
            count=1,
        )
        self._drawings.append(drawing)
        canvas.text = _placeholder(number)
        canvas.set("tabindex", "0")  # Narrow screens scroll it.
        canvas.set("data-library", self._page.resolve(canvas.get("data-library", "")))
        script.text = json.dumps(specification, separators=(",", ":")).replace("</", "<\\/")
        for child in [*plot]:
            if child.tag == "noscript":
                _remove(plot, child)

    def _complete_footer(self) -> None:
        """Add the files of the page to its footer."""
        paragraph = self._root.find("body/footer/p")
        assert paragraph is not None
        paragraph.set("id", _DATA_FILES)
        files = {"JSON": self._page.data, **self._page.further, "Feed": self._page.feed}
        for title, address in files.items():
            if len(paragraph):
                paragraph[-1].tail = (paragraph[-1].tail or "") + _SEPARATOR
            else:
                paragraph.text = (paragraph.text or "") + _SEPARATOR
            SubElement(paragraph, "a", href=address).text = title


def _unlink(parent: Element, link: Element) -> None:
    """Remove a link with its separator or brackets; the text of another one stays."""
    before, after = _text_before(parent, link), link.tail or ""
    if _is_link_item(parent):
        _remove(parent, link)
    elif after.startswith(_SEPARATOR):
        link.tail = after.removeprefix(_SEPARATOR)
        _remove(parent, link)
    elif before.endswith(_SEPARATOR):
        _set_text_before(parent, link, before.removesuffix(_SEPARATOR))
        _remove(parent, link)
    elif before.endswith(" (") and after.startswith(")"):
        _set_text_before(parent, link, before.removesuffix(" ("))
        link.tail = after.removeprefix(")")
        _remove(parent, link)
    else:
        link.tag = "span"
        link.attrib = {key: value for key, value in link.attrib.items() if key == "class"}


def _is_link_item(element: Element) -> bool:
    """Return whether an element is a list item that starts with its only child."""
    return element.tag == "li" and not (element.text or "").strip() and len(element) == 1


def _needs_server(element: Element) -> bool:
    classes = {*element.get("class", "").split()}
    if element.tag in _DROPPED_TAGS or classes & _DROPPED_CLASSES:
        return True
    if element.tag == "link":
        return element.get("rel") == "modulepreload"
    is_meta = element.tag == "meta"
    return is_meta and (element.get("name") in _DROPPED_META or "http-equiv" in element.attrib)


def _unlink_marks(specification: dict[str, object], resolve: Resolve) -> None:
    """Remove the links of marks that lead to unpublished pages."""
    meta = specification.get("usermeta")
    if isinstance(meta, dict):
        meta["links"] = None
    datasets = specification.get("datasets")
    for row in chain.from_iterable(datasets.values() if isinstance(datasets, dict) else ()):
        if "u" in row:
            row["u"] = resolve(str(row["u"]))


def _is_matrix(table: Element) -> bool:
    """Return whether a table is a matrix, which has short cells and more rows."""
    return "matrix" in table.get("class", "").split()


def _shorten_table(table: Element, section: Element, limit: int) -> None:
    """Leave out rows beyond the limit.

    Args:
        section: contains the table, and the note on rows that the service does not show.
    """
    for body in table.iter("tbody"):
        note = section.find("p")
        missing = _MISSING_ROWS.search("".join(note.itertext())) if note is not None else None
        hidden = int(missing[2].replace(",", "")) - int(missing[1]) if missing else 0
        row = _shorten(body, "tr", limit, hidden)
        if row is not None:
            row.tag = "td"
            row.set("colspan", str(len(body[0])))
            body[-1] = Element("tr")
            body[-1].append(row)
            if missing and note is not None:
                section.remove(note)


def _shorten(parent: Element, tag: str, limit: int, hidden: int = 0) -> Element | None:
    """Leave out elements beyond the limit; return the one that says how many, with those hidden before."""
    rest = [*parent][limit:]
    if not rest:
        return None
    for child in rest:
        parent.remove(child)
    remainder = SubElement(parent, tag)
    remainder.text = f"{len(rest) + hidden:,} more in the "
    SubElement(remainder, "a", href=f"#{_DATA_FILES}").text = "data"
    return remainder


def _shorten_cells(table: Element) -> None:
    """Remove the descriptions of a matrix's cells, which its table by site repeats."""
    for cell in [*table.iter("td"), *table.iter("th")]:
        cell.attrib.pop("title", None)
        for parent in [*cell.iter()]:
            for child in [*parent]:
                if child.get("class") == "unseen":
                    _remove(parent, child)
        if len(cell) == 1 and cell[0].attrib in ({}, {"class": "letter"}) and not len(cell[0]):
            cell.text = cell[0].text
            del cell[0]


def _is_empty(element: Element) -> bool:
    """Return whether an element has no text outside its summary and no picture."""
    if any(child.tag in ("img", "svg", "table", "div") for child in element.iter()):
        return False
    summary = element.find("summary")
    texts = "".join(element.itertext()).strip()
    return texts == ("".join(summary.itertext()).strip() if summary is not None else "")


def _text_before(parent: Element, child: Element) -> str:
    place = [*parent].index(child)
    return (parent[place - 1].tail if place else parent.text) or ""


def _set_text_before(parent: Element, child: Element, text: str) -> None:
    place = [*parent].index(child)
    if place:
        parent[place - 1].tail = text
    else:
        parent.text = text


def _remove(parent: Element, child: Element) -> None:
    """Remove an element, but not the text behind it."""
    _set_text_before(parent, child, _text_before(parent, child) + (child.tail or ""))
    parent.remove(child)


def _placeholder(number: int) -> str:
    return f"@drawing-{number}@"
