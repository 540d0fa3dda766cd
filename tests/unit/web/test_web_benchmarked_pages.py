"""The benchmark of pages asks for pages that show something."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType

import pytest
from benchmark_modules import ROWS, short_benchmarks
from web_service import Service, Start

from treehammer.errors import NothingToDo
from treehammer.sql.store import Store


@pytest.fixture(scope="module")
def named() -> Iterator[Callable[[str], ModuleType]]:
    """Modules of the benchmarks."""
    with short_benchmarks() as found:
        yield found


def port(service: Service) -> int:
    """Where it listens."""
    found = service.client.base_url.port
    assert found
    return found


def test_every_page_shows_something(
    named: Callable[[str], ModuleType],
    tmp_path: Path,
    start: Start,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    databases, pages, records = named("databases"), named("pages"), named("records")
    for name in ("CAMPAIGNS", "COMPARISONS", "JOBS"):
        monkeypatch.setattr(records, name, 1)
    with databases.filled("sqlite", ROWS, tmp_path / "kept") as found:
        with Store.open(found.url, create=False) as store:
            records.complete(store, databases.seed_of(ROWS))
        with start(url=found.url, reading_open=True) as service:
            for page in pages.pages():
                shown = pages._shown(port(service), page)
                assert (shown > 0) == (page.reads != pages.NOTHING), page.name


def test_a_page_that_shows_nothing_is_refused(
    named: Callable[[str], ModuleType], start: Start
) -> None:
    pages, world = named("pages"), named("world")
    long_ago = int(f"{datetime.now(UTC).date() - timedelta(days=50):%Y%m%d}")
    with start(reading_open=True) as service:
        with Store.open(service.url) as store:
            first, *_ = world.World(1, 4)
            store.add([type(first)({**first.values, "day": long_ago}, first.extras)])
        known = {page.name: page for page in pages.pages()}
        for name in ("sites", "a site, 30 days", "metrics for Prometheus", "API: overview"):
            with pytest.raises(NothingToDo, match="the page shows nothing"):
                pages._shown(port(service), known[name])
