"""Declaration of a page: route, place in the menu, query, operations of the API, and its content."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, Any, Generic, TypeVar

import anyio
from pydantic import Field, create_model
from starlette.requests import Request
from starlette.responses import Response

from treehammer.config import Settings
from treehammer.sql.write.store import Store
from treehammer.tables import DataTable
from treehammer.verticals import import_parts
from treehammer.web import sections as ui
from treehammer.web.addresses import HTML, requested_format
from treehammer.web.core.live_database import LiveDatabase
from treehammer.web.page_query import OneOf, PageQuery

Query = TypeVar("Query", bound=PageQuery)
Resource = TypeVar("Resource")

#: Description of the table of times.
TIME_TABLE = "parts of the wall time of good timed measurements in solo mode"


def list_part_tables(module: str, attribute: str = "TABLES") -> dict[str, str]:
    """List the tables that verticals add to a page, with their descriptions."""
    parts: list[Mapping[str, str]] = [getattr(part, attribute) for part in import_parts(module)]
    return {name: text for tables in parts for name, text in tables.items()}


@dataclass(frozen=True)
class PageOperation:
    """An operation of the API that returns the tables of a page.

    Attributes:
        name: the operationId.
        summary: one line.
        tables: description of the rows by name of the table.
        about: names of the values that the response holds beside its tables.
        path: below :data:`~treehammer.collectors.job_spec.API_PREFIX`, by default that of the page.
        query: parameters, by default those of the page.
        always_about: whether any parameters lead to all of these values.
    """

    name: str
    summary: str
    tables: Mapping[str, str]
    about: tuple[str, ...] = ()
    path: str = ""
    query: type[PageQuery] = PageQuery
    always_about: bool = True

    @cached_property
    def full_query(self) -> type[PageQuery]:
        """Query of the page, with the table and the format to return."""
        parameters: dict[str, Any] = {
            "table": (
                Annotated[str, OneOf(tuple(self.tables))],
                Field("", description="Only this table."),
            ),
            "format": (
                Annotated[str, OneOf(("json", "csv"))],
                Field("json", description="CSV contains one table, by default the first."),
            ),
        }
        return create_model(self.name, __base__=self.query, **parameters)


@dataclass(frozen=True)
class QueryPool:
    """A separate limit of concurrency for slow queries; quick ones use the common limit."""

    limiter: anyio.CapacityLimiter
    is_quick: Callable[[Request], bool] = lambda _: False


@dataclass(frozen=True)
class PageResources:
    """What pages of a service use beside the store."""

    database: LiveDatabase
    settings: Settings
    _shared: dict[Any, Any] = field(default_factory=dict)

    def share(self, make: Callable[[PageResources], Resource]) -> Resource:
        """Return the object that a function made for all requests to this service."""
        if make not in self._shared:
            self._shared.setdefault(make, make(self))
        resource: Resource = self._shared[make]
        return resource


@dataclass(frozen=True)
class PageRequest(Generic[Query]):
    """A request for a page, whose query is parsed by a model."""

    store: Store
    model: type[Query]
    raw: Request
    resources: PageResources

    @cached_property
    def query(self) -> Query:
        """Parameters of the page; invalid ones are refused."""
        return self.model.parse(self.raw)

    @property
    def is_html(self) -> bool:
        """Whether the answer is the page, not its tables."""
        return requested_format(self.raw) == HTML


@dataclass(frozen=True)
class PageContent:
    """Content of a page.

    Attributes:
        sections: in order; None and empty ones are left out.
        tables: available as CSV and JSON, by default those of the sections; CSV without a table's name
            holds the first.
        about: values beside the tables, for JSON.
        crumbs: links to the pages above.
        heading: shown in place of the title.
        inline_styles: whether a library on the page sets inline styles, as JSROOT does.
        status: HTTP status; 204 leaves the shown page unchanged.
        is_part: only the sections are sent, to replace those of the shown page.
        feed: address of a feed with the page's news, '' for none.
        refresh_s: seconds after which the browser loads the page again, None for never.
        searched: text in the field of the search.
        drawings: further charts that can be had as files, by name.
    """

    title: str
    sections: Sequence[ui.Section | None] = ()
    tables: Sequence[DataTable] | None = None
    about: Mapping[str, Any] = field(default_factory=dict)
    crumbs: Sequence[ui.Link] = ()
    heading: ui.Paragraph | str = ""
    inline_styles: bool = False
    status: int = 200
    is_part: bool = False
    feed: str = ""
    refresh_s: int | None = None
    searched: str = ""
    drawings: Mapping[str, ui.DrawableChart] = field(default_factory=dict)

    @cached_property
    def shown_sections(self) -> list[ui.Section]:
        """Sections with content."""
        return [section for section in self.sections if section]

    @cached_property
    def exported_tables(self) -> Sequence[DataTable]:
        """Tables available as CSV and JSON."""
        sections = ui.walk_sections(self.shown_sections) if self.tables is None else self.tables
        tables = (getattr(section, "table", section) for section in sections)
        return [table for table in tables if isinstance(table, DataTable)]

    @property
    def charts(self) -> dict[str, ui.DrawableChart]:
        """Charts that can be had as files, by name."""
        charts = {name: figure.chart for name, figure in self.figures.items()}
        return {**self.drawings, **charts}

    @cached_property
    def figures(self) -> dict[str, ui.Figure]:
        """Figures by name."""
        sections = ui.walk_sections(self.shown_sections)
        return {section.name: section for section in sections if isinstance(section, ui.Figure)}


#: Returns the content of a page; raises for invalid requests.
PageBuilder = Callable[[PageRequest[Any]], PageContent | Response]


@dataclass(frozen=True)
class Page:
    """A page of the service.

    Attributes:
        path: in Starlette's notation; of parts that may be any text with ``:text``, or ``:some`` for at
            least one character.
        name: of the route, for links.
        menu: title in the menu, '' for none.
        position: place in the menu and in the description of the API.
        operations: the content for programs.
        compress: compress with gzip; not for files that support range requests.
        make_pool: makes a pool of its own for slow queries; None for the common one.
        help: page of the documentation.
        is_crawled: whether crawlers may follow its address, of which there are few.
        reads_measurements: False if it is answered from roll-ups and verdicts alone where it has no
            parameters: no column may come from measurements (``test_web_walk.py``).
    """

    path: str
    name: str
    build: PageBuilder
    query: type[PageQuery] = PageQuery
    menu: str = ""
    position: int = 100
    operations: tuple[PageOperation, ...] = ()
    compress: bool = True
    make_pool: Callable[[PageResources], QueryPool] | None = None
    help: str = "pages"
    is_crawled: bool = True
    reads_measurements: bool = True

    def answer(
        self, store: Store, request: Request, resources: PageResources
    ) -> PageContent | Response:
        """Build the content for a request."""
        return self.build(PageRequest(store, self.query, request, resources))


def page(
    path: str,
    name: str,
    query: type[PageQuery] = PageQuery,
    *,
    api: PageOperation | Sequence[PageOperation] = (),
    **options: Any,
) -> Callable[[PageBuilder], Page]:
    """Declare the page whose content a function builds; ``options`` are attributes of it."""
    operations = tuple(
        replace(
            operation,
            path=operation.path or re.sub(r":\w+}", "}", path),
            query=query if operation.query is PageQuery else operation.query,
        )
        for operation in ([api] if isinstance(api, PageOperation) else api)
    )
    return lambda build: Page(path, name, build, query, operations=operations, **options)
