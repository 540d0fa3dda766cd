"""Which door is best for sparse reads, as the comparison of doors answers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from measurement_factory import make_measurement
from service_thread import ServiceThread

from treehammer.analysis.descriptive.door_comparison import is_sparse_read
from treehammer.collectors.record.measurement_record import Measurement

DOORS = "/compare?axis=door&where=day>=20260301"
SPARSE, FULL = '{"branches":0.02}', '{"branches":1.0}'


def make_day(door: str, site: str, day: int, seconds: float, variant: str = SPARSE) -> Measurement:
    return make_measurement(
        f"{door}-{site}-{day}-{len(variant)}",
        site=site,
        day=20260301 + day if day < 30 else 20260607,
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
    redirected = pages.client.get("/figures/doors?where=site=A&where=site=B")
    door, protocol = pages.read(redirected.headers["location"]).list_texts("p", "headline")
    assert door.startswith("xrootd is the best door for reads of few branches: https is 25.")
    assert "n = 10 days with both at 2 sites" in door
    assert protocol == door.replace(" door ", " protocol ")
    newest = make_day("xrootd", "A", 98, 1.0)  # in June
    pages.store.add([newest])
    assert "all reads of few branches went through xrootd" in pages.read("/compare?axis=door").text
    assert "xrootd is the best door" in pages.read(DOORS).text


def test_equal_doors_have_no_best(pages: ServiceThread) -> None:
    pages.store.add(make_days({"xrootd": 1.0, "https": 1.001}))
    page = pages.read(DOORS).text
    assert "No door is certainly the best for reads of few branches" in page


def test_intervals_of_several_doors_name_their_common_confidence(pages: ServiceThread) -> None:
    pages.store.add(make_days({"xrootd": 1.0, "https": 1.25, "file": 1.5}))
    assert pages.read(DOORS).list_texts("p", "headline")[0].count("(97.5 % interval [") == 2


def test_tied_doors_are_not_compared(pages: ServiceThread) -> None:
    pages.store.add(
        make_day(door, "A", day, 1.0, f'{{"branches":{share}}}')
        for door, share in (("xrootd", 0.02), ("https", 0.04))
        for day in range(3)
    )
    page = pages.read(DOORS).text
    assert "No door can be named: no site did the same reads" in page
    assert "Each variant has one door only" in page


def test_explore_links_the_answer(pages: ServiceThread) -> None:
    pages.store.add(make_days({"xrootd": 1.0}))
    (link,) = pages.read("/explore?site=A").list_links("/compare.*axis=door")
    assert "where=site%3DA" in link
    assert "all reads of few branches went through xrootd" in pages.read(link).text


@pytest.mark.parametrize(
    ("variant", "is_sparse"),
    [
        (SPARSE, True),
        (FULL, False),
        ('{"branches":"@analysis.txt"}', True),
        ('{"branches":0.6}', False),
        ('{"cache":"warm"}', False),
        ("not JSON", False),
        ("[1]", False),
    ],
)
def test_reads_are_told_by_their_branches(variant: str, is_sparse: bool) -> None:
    assert is_sparse_read(variant) == is_sparse
