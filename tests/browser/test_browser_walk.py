"""Answers to a reader's questions: one click from the overview, on the first screen."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
from benchmark_modules import import_short_benchmarks
from local_service import serve_folder
from playwright.sync_api import Browser


@pytest.fixture(scope="module")
def named() -> Iterator[Callable[[str], ModuleType]]:
    """Import function for the benchmarks' modules."""
    with import_short_benchmarks() as found:
        yield found


@pytest.fixture(scope="module")
def world_service(
    named: Callable[[str], ModuleType], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """A service with the planted world, without its days before the regression."""
    world: Any = named("harness.planted_world")
    world.PLANTED_DAYS = world.SLOW_DAYS
    world.COMPARED = world.COMPARED[-1:]
    jobs: Any = named("harness.synthetic_jobs")
    jobs.CAMPAIGN_COUNT = 1
    folder = tmp_path_factory.mktemp("walk")
    world.fill_database(f"sqlite:///{folder / 'results.db'}")
    with serve_folder(folder, "--read-access", "public") as address:
        yield address


@pytest.fixture(scope="module")
def walked(named: Callable[[str], ModuleType], chromium: Browser, world_service: str) -> list[Any]:
    """Walk through the planted world."""
    return list(named("service.page_walk").walk(chromium, world_service))


def test_answers_are_one_click_away_on_the_first_screen(
    named: Callable[[str], ModuleType], walked: list[Any]
) -> None:
    walk = named("service.page_walk")
    parts = sum(len(one.answers) for one in walk.build_questions())
    assert len(walked) == len(walk.SCREENS) * parts
    assert [one for one in walked if not one.on_first_screen or one.clicks > 1] == []


def test_figures_exceed_their_limits_off_the_first_screen(
    named: Callable[[str], ModuleType], walked: list[Any]
) -> None:
    figures = named("service.page_walk").build_figures
    assert all(one.within_bound for one in figures(walked))
    for change in ({"clicks": 2}, {"on_first_screen": False}):
        first = replace(walked[0], **change)
        assert not all(one.within_bound for one in figures([first, *walked[1:]]))


def test_grid_of_sites_and_days_is_one_tab_stop(chromium: Browser, world_service: str) -> None:
    page = chromium.new_page(viewport={"width": 1400, "height": 900})
    page.goto(f"{world_service}/?days=60")
    grid = page.locator("table.matrix")
    assert grid.locator("a").count() > 300
    stops, inside = 0, 0
    while stops == 0 or page.evaluate("document.activeElement !== document.body"):
        page.keyboard.press("Tab")
        stops += 1
        inside += grid.locator("a:focus").count()
        assert stops < 150
    assert inside < 10, "links of the caption and one cell"
    page.close()


@pytest.mark.parametrize(
    "style, seen",
    [
        ("", True),
        ("margin-top: 2000px", False),
        ("margin-left: 2000px; width: 20rem", False),
        ("display: none", False),
        ("height: 0; overflow: hidden", False),
    ],
)
def test_text_is_seen_without_scrolling_only(
    named: Callable[[str], ModuleType], chromium: Browser, style: str, seen: bool
) -> None:
    page = chromium.new_page(viewport={"width": 390, "height": 844})
    page.set_content(f"<main><p style='{style}'>The answer is 42.</p><p>next</p></main>")
    found = named("service.page_walk").find_text(page, r"answer is \d+")
    page.close()
    assert bool(found and found["seen"]) == seen
