"""Concurrent writers in H2's Oracle mode."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from measurement_factory import make_measurement

from treehammer.sql.write.maintenance import check_database
from treehammer.sql.write.store import Store


def test_concurrent_creation_and_writes(
    url: str,
) -> None:
    """Threads stand in for processes, because a database in memory belongs to one process."""

    def add(_who: int) -> tuple[int, int]:
        new = known = 0
        with Store.open(url) as store:
            for start in range(0, 200, 5):
                added = store.add(
                    make_measurement(job=f"job {n}", extras={"n": n})
                    for n in range(start, start + 5)
                )
                new, known = new + added.new, known + added.known
        return new, known

    with ThreadPoolExecutor(2) as both:
        results = list(both.map(add, range(2)))
    assert sum(new for new, _ in results) == 200
    assert sum(known for _, known in results) == 200
    assert check_database(url)["extra"] == 200
