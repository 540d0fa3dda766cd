"""Sections of a page: the kinds of content that one set of templates renders.

``templates/sections.html.j2`` has a branch for each class; tables are sections, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeVar

from markupsafe import Markup, escape

from treehammer.tables import DataTable
from treehammer.text_formatting import format_cell
from treehammer.web.addresses import link_to_same_page
from treehammer.web.page_query import FormInput


def _render(tag: str, content: object, attributes: Mapping[str, str | bool] | None = None) -> str:
    """Render an element with those of its attributes that have a value."""
    parts = [
        Markup(" {}").format(name) if value is True else Markup(' {}="{}"').format(name, value)
        for name, value in (attributes or {}).items()
        if value
    ]
    return Markup("<{0}{1}>{2}</{0}>").format(tag, Markup("").join(parts), content)


@dataclass(frozen=True)
class Link:
    """A linked text.

    Attributes:
        label: read by screen readers in place of the text.
        is_current: it leads to what is shown.
        is_file: browsers save it instead of opening it.
    """

    text: str | Badge | Code
    address: str
    label: str = ""
    is_current: bool = False
    is_file: bool = False
    tooltip: str = ""

    def __html__(self) -> str:
        """Render the link."""
        attributes = {
            "href": self.address,
            "aria-label": self.label,
            "aria-current": "true" if self.is_current else "",
            "download": self.is_file,
            "title": self.tooltip,
        }
        return _render("a", self.text, attributes)


@dataclass(frozen=True)
class Badge:
    """A state in its color; ``css_class`` is by default that of the state."""

    state: str
    css_class: str = ""

    def __html__(self) -> str:
        """Render the badge."""
        css_class = self.css_class or self.state.replace(" ", "-")
        return _render("span", self.state, {"class": f"badge {css_class}"})


@dataclass(frozen=True)
class Styled:
    """A text with CSS classes, such as the state of a job."""

    text: str
    css_class: str = ""
    tooltip: str = ""

    def __html__(self) -> str:
        """Render the text."""
        return _render("span", self.text, {"class": self.css_class, "title": self.tooltip})


@dataclass(frozen=True)
class Strong:
    """An emphasized text."""

    text: str
    tag: ClassVar[str] = "strong"

    def __html__(self) -> str:
        """Render the text."""
        return _render(self.tag, self.text)


class Code(Strong):
    """A name as programs write it."""

    tag = "code"


@dataclass(frozen=True)
class Downloads:
    """Links to a table as CSV and JSON."""

    table: DataTable

    def __html__(self) -> str:
        """Render the links."""
        name, caption = self.table.name, self.table.caption
        csv, json = (
            Link(
                title, link_to_same_page(format=title.lower(), table=name), f"{caption} as {title}"
            )
            for title in ("CSV", "JSON")
        )
        return _render("span", Paragraph(csv, " ", json), {"class": "downloads"})


Inline = str | Link | Badge | Styled | Code | Strong | Downloads
Part = TypeVar("Part", bound=Inline)


def end_sentence(text: str) -> str:
    """Begin an error with a capital, unless that is a name, and end it with a full stop."""
    text = text.strip()
    first = text[:1].upper() if text.split(" ")[0].isalpha() else text[:1]
    return f"{first}{text[1:]}{'' if text.endswith(('.', '?')) else '.'}"


def separate(parts: Iterable[Part], separator: str) -> list[Part | str]:
    """Put a separator between parts of a text."""
    return [piece for part in parts for piece in (separator, part)][1:]


class Paragraph:
    """A paragraph of parts, with a CSS class such as ``quiet``, and a role for screen readers."""

    def __init__(self, *parts: Inline, look: str = "", role: str = "") -> None:
        self.parts, self.look, self.role = parts, look, role

    def __html__(self) -> str:
        """Render the parts."""
        return Markup("").join(map(escape, self.parts))

    def __bool__(self) -> bool:
        return any(self.parts)


def headline(*parts: Inline) -> Paragraph:
    """Build a sentence that answers the page's question."""
    return Paragraph(*parts, look="headline")


def quiet(*parts: Inline) -> Paragraph:
    """Build a remark."""
    return Paragraph(*parts, look="quiet")


def service_note(*parts: Inline) -> Paragraph:
    """Build a remark that needs the service; published sites leave it out."""
    return Paragraph(*parts, look="quiet service")


class _Listing:
    """A section that is left out if its first attribute is empty."""

    def __bool__(self) -> bool:
        return bool(next(iter(vars(self).values())))


#: Items of a list that are folded: a page stays readable whatever names it lists.
MAX_FOLDED_ITEMS = 200


@dataclass(frozen=True)
class Bullets(_Listing):
    """A list of texts.

    Attributes:
        limit: items shown before as many as :data:`MAX_FOLDED_ITEMS` others are folded; None for all.
        first: number of the first item of a numbered list; None for one without numbers.
    """

    items: Sequence[Paragraph | str]
    look: str = "changes"
    limit: int | None = None
    first: int | None = None

    @property
    def folded(self) -> Sequence[Paragraph | str]:
        """Items that are folded."""
        return [] if self.limit is None else self.items[self.limit :][:MAX_FOLDED_ITEMS]


@dataclass(frozen=True)
class Facts(_Listing):
    """Names with their values."""

    pairs: Sequence[tuple[str, Any]]

    @property
    def texts(self) -> Iterator[tuple[str, str]]:
        """Names with the texts of their values."""
        return ((name, format_cell(value)) for name, value in self.pairs)


@dataclass(frozen=True)
class Links(_Listing):
    """Links to related pages."""

    links: Sequence[Link]
    label: str = "Related pages"
    look: str = "look"


@dataclass(frozen=True)
class Pager(_Listing):
    """Links to the neighbors of a page of a list or of a day, and the place between them."""

    parts: Sequence[Link | str]
    label: str = "Pages of the list"


@dataclass(frozen=True)
class Progress:
    """A part of a whole, drawn as a bar; the label is read by screen readers."""

    value: float
    total: float
    label: str


@dataclass(frozen=True)
class Legend:
    """Colors with their meaning."""

    items: Sequence[tuple[Badge, str]]


@dataclass(frozen=True)
class Tile:
    """A number with its meaning and evidence.

    ``css_class`` is the status that colors it, '' for none; ``share_done`` draws a bar, None for none.
    """

    number: str
    text: str
    address: str
    css_class: str = ""
    share_done: float | None = None


@dataclass(frozen=True)
class Tiles(_Listing):
    """Numbers at the top of a page."""

    tiles: Sequence[Tile]


@dataclass(frozen=True)
class Form:
    """Choices of the page's parameters, as :meth:`.PageQuery.list_inputs` returns them.

    The answer begins at the section ``anchor``; parameters in ``hidden`` have no visible input.
    """

    inputs: Sequence[FormInput]
    button: str = "Show"
    anchor: str = ""
    hidden: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True)
class Command:
    """A command line to copy."""

    text: str


def suggest(text: str, command: str) -> tuple[Paragraph, Command]:
    """Suggest a command line."""
    return Paragraph(text), Command(command)


@dataclass(frozen=True)
class Log:
    """Output of a program."""

    text: str


class DrawableChart(Protocol):
    """A chart of a page."""

    @property
    def specification(self) -> Mapping[str, Any]:
        """The chart as Vega-Lite."""


@dataclass(frozen=True)
class Figure:
    """A chart with its caption.

    Attributes:
        name: unique on a page; ``drawing=NAME.svg`` returns the chart as a file.
        title: description for screen readers, by default the chart's own title.
        is_caption_first: the caption is above the chart, as a heading.
        remark: sentence that readers must not miss, below the chart.
        file: address of the chart as SVG, by default that of this page's drawing.
    """

    name: str
    chart: DrawableChart
    caption: Paragraph | str = ""
    heading: str = ""
    title: str = ""
    is_caption_first: bool = False
    remark: str = ""
    file: str = ""


class _Container:
    """Sections inside another one; empty ones are left out, and it too without any."""

    def __init__(self, sections: Iterable[Section | None]) -> None:
        # Tables without rows show their sentence.
        self.sections: list[Section] = [section for section in sections if section]

    def __bool__(self) -> bool:
        return bool(self.sections)


class Group(_Container):
    """Sections in a container with a look, such as charts beside each other."""

    def __init__(self, look: str, *sections: Section | None) -> None:
        super().__init__(sections)
        self.look = look


class Titled(_Container):
    """Sections under a heading, whose identity is the anchor."""

    def __init__(
        self, title: Paragraph | str, *sections: Section | None, anchor: str = "", level: int = 2
    ) -> None:
        super().__init__(sections)
        self.title, self.anchor, self.level = title, anchor, level


class Folded(_Container):
    """Sections that readers open."""

    def __init__(self, summary: str, *sections: Section | None, is_open: bool = False) -> None:
        super().__init__(sections)
        self.summary, self.is_open = summary, is_open


class Live(_Container):
    """Sections that the browser loads again from their address; '' if they no longer change."""

    def __init__(self, *sections: Section | None, address: str, every_s: int) -> None:
        super().__init__(sections)
        self.address, self.every_s = address, every_s


@dataclass(frozen=True)
class TableSection:
    """A table that is shown other than by default.

    Attributes:
        look: CSS class of its frame.
        exported: table with the same content that is exported instead.
        is_static: readers can neither sort, filter nor export it.
    """

    table: DataTable
    look: str = ""
    exported: DataTable | None = None
    is_static: bool = False


class Special:
    """Content with a template of its own, such as the browser of ROOT files."""

    def __init__(self, template: str, **values: Any) -> None:
        self.template, self.values = template, values


Section = (
    Paragraph
    | Bullets
    | Facts
    | Links
    | Pager
    | Progress
    | Legend
    | Tiles
    | Form
    | Command
    | Log
    | Figure
    | Group
    | Titled
    | Folded
    | Live
    | TableSection
    | Special
    | DataTable
)


def walk_sections(sections: Iterable[Section]) -> Iterator[Section]:
    """Yield sections and those inside them."""
    for section in sections:
        yield section
        yield from walk_sections(getattr(section, "sections", ()))


def if_filled(table: DataTable) -> DataTable | None:
    """Return a table that has rows; None in place of an empty one."""
    return table if table.rows else None


def table_of_values(table: DataTable) -> Folded:
    """Fold the table of a figure's values."""
    return Folded("Table of values", table)


def build_pager(page: int, pages: int, anchor: str = "") -> Pager | None:
    """Build the links to the neighbors of a page of a list; None for a single page."""
    if max(page, pages) == 1:
        return None
    steps = (
        (page > 1, Link("Previous", link_to_same_page(page=min(page - 1, pages)) + anchor)),
        (page <= pages, f"page {page} of {pages}"),
        (page < pages, Link("Next", link_to_same_page(page=page + 1) + anchor)),
    )
    return Pager([part for is_possible, part in steps if is_possible])
