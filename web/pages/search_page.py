"""Search for a site, campaign, job, host, ROOT release or test by its name."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field
from starlette.responses import RedirectResponse, Response

from treehammer.sql.read.reader import MAX_HITS, HitKind, SearchHit, search_names
from treehammer.tables import build_table
from treehammer.web.addresses import has_page, link_to, wants_html
from treehammer.web.columns import column, hidden
from treehammer.web.figure_links import make_figure_linker
from treehammer.web.page import PageContent, PageOperation, PageRequest, page
from treehammer.web.page_query import PageQuery, Text
from treehammer.web.sections import Link, Paragraph

#: Kind -> column of a figure by day; the others, and releases if a vertical brings it, have pages.
_COLUMNS = {HitKind.HOST: "host", HitKind.TEST: "test_name", HitKind.RELEASE: "axis_root"}


#: Words that are no names -> what the pages know of them, and the page and its title.
_TOPICS: Mapping[tuple[str, ...], tuple[str, str, str]] = {
    ("branch", "column", "field"): (
        "CPU time is measured for a whole read, not for its branches. 'treehammer read FILE' lists the "
        "branches by their bytes; a test with -P branches=PATTERN measures the chosen ones. Reads of "
        "few branches and of all: ",
        "doors",
        "Doors and protocols",
    ),
    ("cache", "format", "rntuple", "ttree", "thread", "server", "xrootd", "talk"): (
        "Settings and server versions with several measured values are compared, by site too, and for talks: ",
        "compare",
        "Compare",
    ),
    ("log", "output", "stdout", "stderr", "who", "running"): (
        "Who runs what is in the list; the output of each execution is on the page of its job: ",
        "campaigns",
        "Campaigns",
    ),
}


class SearchQuery(PageQuery):
    """Parameters of the search."""

    q: Text = Field("", description="Part of a name, or beginning of an identity.")


@page(
    "/search",
    "search",
    SearchQuery,
    position=11,
    is_crawled=False,
    api=PageOperation(
        "searchNames",
        "Sites, campaigns, jobs, hosts, ROOT releases and tests by name",
        {"hits": "names that were found, at most 20 of each kind"},
    ),
)
def search_page(request: PageRequest[SearchQuery]) -> PageContent | Response:
    """List the hits; browsers are led to the page of a single one, or of the only exact one."""
    text = request.query.q.strip()[:200]
    hits = search_names(request.store, text)
    exact_hits = [hit for hit in hits if text.casefold() in (hit.name.casefold(), hit.identity)]
    for only in (hits, exact_hits):
        if len(only) == 1 and wants_html(request.raw) and (address := _link_to_hit(only[0])):
            return RedirectResponse(address)
    table = build_table(
        "hits",
        f"At most {MAX_HITS} of each kind",
        (
            column("kind", value=lambda hit: hit.kind.value),
            column("name", is_long=True, link=lambda row: str(row["address"])),
            hidden("identity"),
            hidden("address", value=_link_to_hit),
        ),
        hits,
        empty_text="Nothing found. Sites, hosts, releases, tests and campaigns are found by any part of "
        "their names, jobs and campaigns by the beginning of their identity.",
    )
    title = f"Search: {text}" if text else "Search"
    ask = Paragraph("Find a site, campaign, job, host, ROOT release or test by its name.")
    sections = [_describe_topic(text), table if text else ask]
    return PageContent(title, sections, (table,), searched=text)


def _describe_topic(text: str) -> Paragraph | None:
    """Describe the page of a topic that a word names; None for other texts."""
    words = text.casefold().split()
    for beginnings, (answer, name, title) in _TOPICS.items():
        if any(word.startswith(beginnings) for word in words):
            return Paragraph(answer, Link(title, link_to(name)), ".", look="headline")
    return None


def _link_to_hit(hit: SearchHit) -> str:
    """Link to the page of a hit, or to a figure of it; '' without either."""
    match hit.kind:
        case HitKind.SITE:
            return link_to("site", site=hit.identity)
        case HitKind.CAMPAIGN:
            return link_to("campaign", campaign_id=hit.identity)
        case HitKind.JOB:
            return link_to("job", job_id=hit.identity)
        case HitKind.RELEASE if has_page("release"):
            return link_to("release", release=hit.identity)
    return make_figure_linker()(("day", "axis_root"), {_COLUMNS[hit.kind]: hit.identity})
