"""Contents of benchmark databases."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType

import pytest
import sqlalchemy as sa
from repository_code import SHORT_ROWS, import_short_benchmarks

from treehammer.sql.core.schema import dimension_tables, measurement
from treehammer.sql.engine.database_setup import open_engine


@pytest.fixture(scope="module")
def import_benchmark() -> Iterator[Callable[[str], ModuleType]]:
    """Import modules of the benchmarks."""
    with import_short_benchmarks() as import_function:
        yield import_function


def test_copied_rows_equal_measured_rows(
    import_benchmark: Callable[[str], ModuleType], tmp_path: Path
) -> None:
    world, subject = import_benchmark("harness.synthetic_measurements"), dimension_tables["subject"]
    databases = import_benchmark("harness.filled_databases")
    assert databases.seed_campaigns(SHORT_ROWS).total_measurements == SHORT_ROWS // 10
    with databases.filled_database(SHORT_ROWS, tmp_path) as file:
        engine = open_engine(f"sqlite:///{file}", create=False)
        with engine.connect() as connection:
            rows = connection.execute(
                sa.select(measurement.c.day, subject.c.series).join(
                    subject, subject.c.id == measurement.c.subject_id
                )
            )
            stored = Counter(tuple(row) for row in rows)
        engine.dispose()
    measured = world.SyntheticCampaigns(world.DAYS, SHORT_ROWS)
    assert stored == Counter((row.values["day"], row.values["series"]) for row in measured)


def test_day_covers_all_variants_sites_and_releases(
    import_benchmark: Callable[[str], ModuleType],
) -> None:
    world = import_benchmark("harness.synthetic_measurements")
    jobs = range(len(world.SITE_NAMES) * world.VARIANTS_PER_DAY)
    assert len(
        {(job % len(world.SITE_NAMES), world.variant_of_job(0, job)) for job in jobs}
    ) == len(jobs)
    assert {world.repeat_of_job(job) for job in jobs} == {1}
    pairs = [world.releases_of_variant(variant) for variant in range(world.VARIANT_COUNT)]
    assert {release for pair in pairs for release in pair} == set(range(len(world.RELEASES)))


def test_last_day_is_yesterday(import_benchmark: Callable[[str], ModuleType]) -> None:
    world = import_benchmark("harness.synthetic_measurements")
    days = {
        datetime.now(UTC).date() - timedelta(days=back) for back in (1, 2)
    }  # it may be midnight
    assert world.day_number(world.DAYS - 1) in {int(f"{day:%Y%m%d}") for day in days}


def test_outdated_database_is_recreated(
    import_benchmark: Callable[[str], ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    databases, world = (
        import_benchmark("harness.filled_databases"),
        import_benchmark("harness.synthetic_measurements"),
    )
    filled: list[str] = []

    def fill(url: str, _: int) -> None:
        filled.append(url)
        Path(url.removeprefix("sqlite:///")).touch()

    monkeypatch.setattr(databases, "_fill_database", fill)
    for times, days in (1, 0), (1, 0), (2, 1):
        monkeypatch.setattr(world, "FIRST_DAY", world.FIRST_DAY + timedelta(days))
        with databases.filled_database(SHORT_ROWS, tmp_path) as file:
            assert [*tmp_path.iterdir()] == [file]
        assert len(filled) == times
