"""Page of doors: which one is best for sparse reads."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from measurement_factory import make_measurement
from page_contents import list_marks, load_charts
from service_thread import ServiceThread

from treehammer.analysis.descriptive.door_comparison import is_kind_of_read
from treehammer.collectors.record.measurement_record import Measurement

ALL = "from=&to="
SPARSE, FULL = '{"branches":0.02}', '{"branches":1.0}'


def make_day(door: str, site: str, day: int, seconds: float, variant: str = SPARSE) -> Measurement:
    return make_measurement(
        f"{door}-{site}-{day}-{len(variant)}",
        site=site,
        day=20260301 + day,
        door=door,
        door_protocol=door,
        variant=variant,
        wall_per_event_s=seconds,
        plausible=True,
    )


def make_days(sparse: dict[str, float]) -> Iterator[Measurement]:
    for site in ("A", "B"):
        for day in range(5):
            for number, (door, seconds) in enumerate(sparse.items()):
                wobble = 1 + 0.01 * ((day + number) % 3)
                yield make_day(door, site, day, seconds * wobble)
                # Full reads rank the doors the other way round.
                yield make_day(door, site, day, wobble / seconds, FULL)


def test_answer_names_the_door_with_its_certainty(pages: ServiceThread) -> None:
    pages.store.add(make_days({"xrootd": 1.0, "https": 1.25}))
    page = pages.read(f"/figures/doors?{ALL}")
    assert "xrootd is the best door for reads of few branches: https is 25." in page.text
    assert "n = 10 days with both at 2 sites" in page.text
    (row,) = page.tables["doors"].cells
    assert (row["door"].text, row["days"].text, row["certain"].text) == ("https", "10", "yes")
    (chart,) = load_charts(pages.load_page(f"/figures/doors?{ALL}"))
    (dot,) = list_marks(chart)
    assert dot["l"] < 25 < dot["h"]
    full = pages.read(f"/figures/doors?reads=all&by=door_protocol&{ALL}").text
    assert "https is the best protocol for reads of all branches" in full


def test_equal_doors_have_no_best(pages: ServiceThread) -> None:
    pages.store.add(make_days({"xrootd": 1.0, "https": 1.001}))
    page = pages.read(f"/figures/doors?{ALL}").text
    assert "No door is certainly the best for reads of few branches" in page


def test_tied_doors_are_not_compared(pages: ServiceThread) -> None:
    pages.store.add(
        make_day(door, "A", day, 1.0, f'{{"branches":{share}}}')
        for door, share in (("xrootd", 0.02), ("https", 0.04))
        for day in range(3)
    )
    page = pages.read(f"/figures/doors?{ALL}")
    assert "No door can be named: no site did the same reads" in page.text
    assert "Each variant has one door only" in page.text
    assert not page.tables


def test_explore_links_the_answer(pages: ServiceThread) -> None:
    pages.store.add(make_days({"xrootd": 1.0}))
    links = pages.read(f"/explore?site=A&{ALL}").list_links("/figures/doors")
    assert len(links) == 2
    assert "all reads of few branches went through xrootd" in pages.read(links[0]).text


@pytest.mark.parametrize(
    ("variant", "few", "all_"),
    [
        (SPARSE, True, False),
        (FULL, False, True),
        ('{"branches":"@analysis.txt"}', True, False),
        ('{"branches":0.6}', False, False),
        ('{"cache":"warm"}', False, False),
        ("not JSON", False, False),
        ("[1]", False, False),
    ],
)
def test_reads_are_told_by_their_branches(variant: str, few: bool, all_: bool) -> None:
    assert is_kind_of_read(variant, is_sparse=True) == few
    assert is_kind_of_read(variant, is_sparse=False) == all_
