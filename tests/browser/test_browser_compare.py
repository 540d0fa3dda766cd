"""Comparisons in a real browser."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from browser import Watched
from page_makers import HOSTILE

Visit = Callable[..., Watched]


@pytest.mark.parametrize(
    "size, scheme", [*itertools.product(("phone", "laptop"), ("light", "dark"))]
)
def test_a_comparison(rich: str, visit: Visit, size: str, scheme: str) -> None:
    tab = visit(rich, size=size, scheme=scheme)
    assert tab.open("/compare/comparison") == 200
    assert tab.page.locator("tbody th", has_text=HOSTILE[2]).count() == 8
    for table in tab.page.locator("table.effects").all():
        heads, cells = (
            [round(one.bounding_box()["x"]) for one in table.locator(cell).all()]  # type: ignore[index]
            for cell in ("thead th", "tbody tr:first-child > *")
        )
        assert heads == cells
    tab.check()


def test_from_the_overview_to_the_evidence(rich: str, visit: Visit) -> None:
    tab = visit(rich, script=False)
    tab.open("/")
    tab.page.get_by_role("link", name="root 6.40.00 against 6.38.00").first.click()
    tab.page.wait_for_url("**/compare/comparison")
    assert tab.page.get_by_text("not enough data").count() == 0
    with tab.page.expect_download() as download:
        tab.page.get_by_role("link", name="By site as CSV").click()
    assert "SITE_A" in download.value.path().read_text("utf-8")
    tab.page.get_by_role("link", name="Compare", exact=True).first.click()
    assert tab.page.get_by_role("heading", name="Comparisons").is_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_list_and_nothing_yet(rich: str, empty: str, visit: Visit, scheme: str) -> None:
    for address in (rich, empty):
        tab = visit(address, scheme=scheme)
        assert tab.open("/compare") == 200
        tab.check()
    tab = visit(empty, size="phone")
    assert tab.open("/compare?a=6.38.00&b=6.40.00") == 404
    tab.check()
