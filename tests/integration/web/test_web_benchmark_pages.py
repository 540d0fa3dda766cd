"""The page benchmark requests pages that show data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType

import pytest
from quick_databases import quick_databases  # noqa: F401 - a fixture
from repository_code import SHORT_ROWS, import_short_benchmarks
from service_thread import ServiceThread, StartService, start_service  # noqa: F401 - a fixture

from treehammer.errors import NothingToDoError
from treehammer.sql.write.store import Store


@pytest.fixture(scope="module")
def import_benchmark() -> Iterator[Callable[[str], ModuleType]]:
    """Import function for the benchmarks' modules."""
    with import_short_benchmarks() as import_function:
        yield import_function


def port(service: ServiceThread) -> int:
    """Port of the service."""
    number = service.client.base_url.port
    assert number
    return number


def test_benchmarked_pages_show_rows(
    import_benchmark: Callable[[str], ModuleType],
    tmp_path: Path,
    start_service: StartService,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    databases, pages, records = (
        import_benchmark("harness.filled_databases"),
        import_benchmark("scenarios.page_cost"),
        import_benchmark("harness.synthetic_jobs"),
    )
    for name in ("CAMPAIGN_COUNT", "COMPARISON_COUNT", "JOBS_PER_COMPARISON"):
        monkeypatch.setattr(records, name, 1)
    with databases.filled_database(SHORT_ROWS, tmp_path / "databases") as file:
        url = f"sqlite:///{file}"
        with Store.open(url, create=False) as store:
            records.add_missing_records(store, databases.seed_campaigns(SHORT_ROWS))
        with start_service(url=url, reading_open=True) as service:
            for page in pages.build_page_requests():
                count = pages.count_shown_rows(port(service), page)
                assert (count > 0) == bool(page.row_marker), page.name


def test_empty_page_is_refused(
    import_benchmark: Callable[[str], ModuleType],
    start_service: StartService,  # noqa: F811
) -> None:
    pages, world = (
        import_benchmark("scenarios.page_cost"),
        import_benchmark("harness.synthetic_measurements"),
    )
    long_ago = int(f"{datetime.now(UTC).date() - timedelta(days=50):%Y%m%d}")
    with start_service(reading_open=True) as service:
        with Store.open(service.url) as store:
            first, *_ = world.SyntheticCampaigns(1, 4)
            store.add([type(first)({**first.values, "day": long_ago}, first.extras)])
        requests = {page.name: page for page in pages.build_page_requests()}
        for name in ("sites", "a site, 30 days", "overview"):
            with pytest.raises(NothingToDoError, match="the page shows nothing"):
                pages.count_shown_rows(port(service), requests[name])
