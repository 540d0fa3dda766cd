"""Histograms of read latency, merged over what is selected: the figure and its tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from treehammer.web.pages import captions
from treehammer.web.pages.asked import Asked
from treehammer.web.pages.histogram import bin_s, edge, seconds
from treehammer.web.pages.links import Links
from treehammer.web.pages.picture import MOST_PANELS, Mark, Names, Panel, Picture, Spot, laid_out
from treehammer.web.pages.points import Point, Points
from treehammer.web.pages.spreads import group_columns, mixed_column
from treehammer.web.pages.tables import Column, Row, Table

_SHARES = {"p50_s": 0.5, "p95_s": 0.95, "p99_s": 0.99}


def picture(asked: Asked, found: Points, title: str) -> Picture | None:
    """Lay out the histograms, a panel for each place; None when there are no reads."""
    drawn = [point for point in found.points if sum(point.reads)]
    if not drawn:
        return None
    first, last = _reach(drawn)
    outer, inner = (Names(found, drawn, column) for column in (asked.panels, asked.by))
    names = Names(found, drawn, "" if asked.colour == asked.by else asked.colour, asked.apart)
    titles = {id(point): _title(outer[point], inner[point]) for point in drawn}
    edges = {bin_: edge(bin_) for bin_ in range(first, last + 1)}
    empty = Picture(
        title=title,
        x_title="read latency",
        y_title="reads (%)",
        dates=False,
        bins=True,
        log=asked.scale == "log",
        places=tuple(edges.values()),
        series=tuple(names.series()),
        panels=tuple(Panel(text, ()) for text in _panels(outer, inner, set(titles.values()))),
        bars=captions.bars(asked),
        shared=found.variants.shared,
        caption=captions.caption(asked),
        selection=captions.selection(asked, found.points),
        mixed=found.mix.words(asked.groups),
    )
    ends = {bin_: seconds(bin_s(bin_ + 1)) for bin_ in edges}
    # One at a time: there may be ten thousands, most of which are not drawn.
    marks = (
        (
            Spot(titles[id(point)], text, name),
            partial(
                _mark,
                f"{asked.colour}: {name}\n" if name else "",
                f"{text} to {ends[bin_]}",
                100 * point.reads[bin_] / whole,
            ),
        )
        for point in drawn
        for name, whole in ((names[point], sum(point.reads)),)
        for bin_, text in edges.items()
        if point.reads[bin_] or asked.scale != "log"
    )
    return laid_out(empty, marks)


def _title(outer: str, inner: str) -> str:
    return " – ".join(text for text in (outer, inner) if text)


def _panels(outer: Names, inner: Names, known: set[str]) -> list[str]:
    """As many panels as can be drawn: of times the newest, of each outer name as many as of another."""
    each = max(1, MOST_PANELS // len(outer.all))
    kept = inner.kept(each) if inner.are_time else inner.all
    titles = [_title(one, other) for one in outer.kept(MOST_PANELS) for other in kept]
    return [title for title in titles if title in known][:MOST_PANELS]


def _reach(points: Sequence[Point]) -> tuple[int, int]:
    """The first and the last bin that has reads."""
    filled = [place for point in points for place, reads in enumerate(point.reads) if reads > 0]
    return min(filled), max(filled)


def _mark(of: str, latencies: str, share: float, series: int, place: int) -> Mark:
    text = f"{of}{latencies}: {share:.3g} % of the reads"
    return Mark(series, place, share, None, None, (), text)


def table(asked: Asked, found: Points, links: Links) -> Table:
    """The reads of every group by bin."""
    columns = (
        *group_columns(asked, found, links),
        Column("from_s", "from", seconds, number=True),
        Column("to_s", "to", seconds, number=True),
        Column("reads", "reads", number=True),
        Column("share", "share", lambda share: f"{100 * share:.2f} %", number=True),
    )
    rows = [row for point in found.points for row in _bins(asked, point)]
    return Table("figure", f"{captions.heading(asked)}, bin by bin", columns, rows)


def _bins(asked: Asked, point: Point) -> Iterator[Row]:
    whole = sum(point.reads)
    for place, reads in enumerate(point.reads):
        if reads:
            yield {
                **{name: point.key[name] for name in asked.groups},
                "from_s": bin_s(place) if place else 0.0,
                "to_s": bin_s(place + 1),
                "reads": reads,
                "share": reads / whole,
            }


def quantiles(asked: Asked, found: Points, links: Links) -> Table:
    """The latencies below which shares of the reads of a group lie."""
    columns: tuple[Column, ...] = (
        *group_columns(asked, found, links),
        Column("good", "executions", number=True, link=links.jobs),
        Column("reads", "reads", number=True),
        *(
            Column(key, f"{share:.0%} below", seconds, number=True)
            for key, share in _SHARES.items()
        ),
    )
    rows = [
        {
            **{name: point.key[name] for name in asked.groups},
            "good": point.good,
            "reads": sum(point.reads),
            **{key: point.latency_s(share) for key, share in _SHARES.items()},
            "mixes": found.mix.of(point.key),
        }
        for point in found.points
        if sum(point.reads)
    ]
    columns += tuple(mixed_column(asked, rows))
    note = "A quantile is off by less than a factor of two: within a bin reads are taken as evenly spread."
    return Table("quantiles", f"{captions.heading(asked)}", columns, rows, note=note)
