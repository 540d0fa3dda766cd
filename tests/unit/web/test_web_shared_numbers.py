"""One number for one question: pages, commands, API, digest, Prometheus and report agree.

:data:`NAMES` lists what they share. Each is read from all of its doors in the world of
:mod:`shared_world`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest
from service_thread import run_service
from shared_counts import read_campaign, read_days, read_running, read_states
from shared_figures import (
    read_changes,
    read_comparison,
    read_efficiency,
    read_latencies,
    read_means,
)
from shared_world import BASE, SLOWER, SharedWorld
from world_doors import Doors, Numbers, Reading

from treehammer.sql.write.store import Store

READERS: tuple[Callable[[Doors], Numbers], ...] = (
    read_campaign,
    read_running,
    read_states,
    read_days,
    read_efficiency,
    read_comparison,
    read_means,
    read_changes,
    read_latencies,
)


#: The shared numbers.
NAMES = (
    "campaign: measured",
    "campaign: planned",
    "campaign: failed",
    "campaign: implausible",
    "campaign: not supported",
    "campaign: failed with open",
    "campaign: missing",
    "campaign: repeated by later attempts",
    "campaign: jobs done",
    "campaigns running",
    "measured by running campaigns",
    "planned by running campaigns",
    "unfinished jobs",
    "state of SITE_D",
    "since of SITE_D",
    "measurements bad in the window of SITE_D",
    "measurements judged in the window of SITE_D",
    "use of SITE_D",
    "state of SITE_B",
    "since of SITE_B",
    "measurements bad in the window of SITE_B",
    "measurements judged in the window of SITE_B",
    "use of SITE_B",
    "sites critical",
    "sites with warnings",
    "sites",
    "failed at a site on a day",
    "good at a site on a day",
    "grade of a day",
    "last day of a site",
    "good at SITE_D",
    "failed at SITE_D",
    "failed at SITE_A",
    "implausible at SITE_C",
    "not_supported at SITE_C",
    "bad on the last day",
    "assessed on the last day",
    "efficiency of a site",
    "median of similar sites",
    "difference from similar sites",
    "place among all sites",
    "wall time per event against similar sites",
    "time of a site: wall time of the main part",
    "time of a site: share of the main part",
    "time of a site: waiting in the main part",
    "time of a site: all",
    "time of a site: measurements",
    "time of a site: jobs",
    "time of a site: efficiency",
    "time of a job",
    "time of a campaign at a site",
    "comparison: change",
    "comparison: lower end of the interval",
    "comparison: upper end of the interval",
    "comparison: jobs",
    "comparison: hosts",
    "comparison: slower over sites",
    "comparison: variants",
    "time per event of side a",
    "time per event of side b",
    "mean of a campaign: CPU time per event",
    "mean of a campaign: wall time per event",
    "mean of a campaign: CPU efficiency",
    "mean of a campaign: bytes read",
    "mean of a campaign: time of the loop",
    "mean of a campaign: executions",
    "mean of a campaign: jobs",
    "size of a change over time",
    "day of a change over time",
    "slowdowns",
    "new failures",
    "cost of the week: slot hours",
    "cost of the week: CPU hours",
    "cost of the week: GB read",
    "cost of a campaign: measurements",
    "latency of reads: p50_s",
    "latency of reads in a week: p50_s",
    "latency of reads: p99_s",
    "latency of reads in a week: p99_s",
    "load: attempted rate",
    "load: observed rate",
    "load: median latency",
    "load: 99 % latency",
    "load: failed share",
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


def test_shared_numbers_are_listed(doors: Doors) -> None:
    names = [name for read in READERS for name, _ in read(doors)]
    assert names == list(NAMES)
    assert len({*names}) >= 60
