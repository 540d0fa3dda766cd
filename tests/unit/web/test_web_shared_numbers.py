"""One number for one question: pages, commands, API, digest and Prometheus agree.

Each is read from all of its doors in the world of :mod:`shared_world`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest
from service_thread import run_service
from shared_numbers import read_campaign, read_changes, read_comparison, read_running, read_states
from shared_world import BASE, SLOWER, SharedWorld
from world_doors import Doors, Numbers, Reading

from treehammer.sql.write.store import Store

READERS: tuple[Callable[[Doors], Numbers], ...] = (
    read_campaign,
    read_running,
    read_states,
    read_comparison,
    read_changes,
)


@pytest.fixture(scope="module")
def doors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Doors]:
    """The world through all doors."""
    folder = tmp_path_factory.mktemp("shared")
    with Store.open(f"sqlite:///{folder / 'results.db'}") as store:
        SharedWorld(store).fill()
    with run_service(folder, reading_open=True) as service:
        all_doors = Doors(service, folder)
        all_doors.run("compare", BASE, SLOWER)
        yield all_doors


@pytest.mark.parametrize("read", READERS, ids=lambda read: read.__name__)
def test_numbers_are_equal_over_all_doors(read: Callable[[Doors], Numbers], doors: Doors) -> None:
    different = {}
    for name, values in read(doors):
        assert len(values) > 1, name
        readings = [Reading.of(value) for value in values.values()]
        if not all(a.agrees_with(b) for a, b in itertools.combinations(readings, 2)):
            different[name] = values
    assert different == {}
