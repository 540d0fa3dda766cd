"""Answers to a reader's questions: one click from the overview, on the first screen.

Chromium opens the overview of a world with known answers, follows the links of each question, and
looks for the answer's texts on the screen without scrolling.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pytest
from playwright.sync_api import Browser, Page
from repository_code import import_short_benchmarks
from service_process import serve_folder

#: Width and height of the screens.
SCREENS = ((1400, 900), (390, 844))
#: The first text that matches a pattern, and whether it is seen without scrolling: within the window,
#: and neither clipped nor covered.
_FIND_TEXT = """pattern => {
    const expression = new RegExp(pattern), matches = [];
    for (const block of document.querySelectorAll("main :is(h1, p, li, td, th, a)")) {
        if (!expression.test(block.textContent)) continue;
        const range = document.createRange();
        range.selectNodeContents(block);
        const boxes = [...range.getClientRects()].filter(box => box.width > 1);
        if (!boxes.length) continue;
        const seen = boxes.every(box => {
            const [x, y] = [(box.left + box.right) / 2, (box.top + box.bottom) / 2];
            if (box.left < 0 || box.right > innerWidth + 1) return false;
            if (box.top < 0 || box.bottom > innerHeight) return false;
            const top = document.elementFromPoint(x, y);
            return block.contains(top);
        });
        matches.push({text: block.textContent.trim(), seen});
    }
    return matches.find(match => match.seen) ?? matches[0] ?? null;
}"""


@dataclass(frozen=True)
class Question:
    """A question of a reader.

    Attributes:
        text: the question.
        links: patterns of the links to follow, from the overview.
        answers: part of the answer -> pattern of its text, with the planted value.
    """

    text: str
    links: Sequence[str]
    answers: Mapping[str, str]


@dataclass(frozen=True)
class AnswerPart:
    """A part of an answer as found.

    Attributes:
        question: the question.
        width: of the screen in pixels.
        part: of the answer.
        clicks: from the overview.
        found: text with the answer; '' if there is none.
        on_first_screen: whether it is seen without scrolling.
    """

    question: str
    width: int
    part: str
    clicks: int
    found: str
    on_first_screen: bool


def build_questions(planted_world: ModuleType) -> list[Question]:
    """Build the questions, with the answers of the planted world."""
    since = f"since {planted_world.find_slow_day()}"
    base, slower = map(re.escape, (planted_world.BASE, planted_world.SLOWER))
    variants = f"{len(planted_world.SLOWER_VARIANTS)} of 24"
    percent = r"(4\.[7-9]|5\.[0-3]) %"
    site = re.escape(planted_world.INEFFICIENT_SITE)
    return [
        Question(
            f"Is {planted_world.SLOWER} slower than {planted_world.BASE}, where, by how much, how "
            "certain, since when?",
            [f"{slower} against {base}"],
            {
                "slower": rf"{slower} needs .* more .*{base} \(wall time [45]\.\d",
                "which variants": f"more .* in {variants} variants",
                "which sites": r"slower.* over \d+ sites",
                "by how much": f"{slower} is {percent} slower",
                "how certain": r"slower \[",
                "since when": f"{slower}.*{since}",
            },
        ),
        Question(
            "Since when?",
            ["^Changes$"],
            {
                "subject": rf"ROOT {slower}",
                "by how much": rf"\+{percent}",
                "since when": since,
            },
        ),
        Question(
            "How is my site, and why?",
            [f"^{site}$"],
            {
                "how": r"[3-6]\.\d % below the median of the same work",
                "rank": "40th of 40 sites",
                "why": rf"Mainly host node{planted_world.BAD_HOST:03}\..*below",
            },
        ),
    ]


def walk(browser: Browser, address: str, questions: Sequence[Question]) -> Iterator[AnswerPart]:
    """Walk to the answer of each question on each screen."""
    for width, height in SCREENS:
        context = browser.new_context(
            viewport={"width": width, "height": height}, locale="en-GB", timezone_id="UTC"
        )
        page = context.new_page()
        for question in questions:
            yield from _walk_to_answer(page, address, question)
        context.close()


def _walk_to_answer(page: Page, address: str, question: Question) -> Iterator[AnswerPart]:
    page.goto(address)
    page.wait_for_load_state("networkidle")
    screen = page.viewport_size
    assert screen is not None
    for pattern in question.links:
        page.get_by_role("link", name=re.compile(pattern)).first.click()
        page.wait_for_load_state("load")
    for part, pattern in question.answers.items():
        match = find_text(page, pattern)
        text, is_seen = (str(match["text"]), bool(match["seen"])) if match else ("", False)
        yield AnswerPart(question.text, screen["width"], part, len(question.links), text, is_seen)


def find_text(page: Page, pattern: str) -> Mapping[str, str | bool] | None:
    """Find a text on a page, preferably where it is seen without scrolling."""
    match: Mapping[str, str | bool] | None = page.evaluate(_FIND_TEXT, pattern)
    return match


@pytest.fixture(scope="module")
def planted_world() -> Iterator[ModuleType]:
    """The planted world without its days before the regression."""
    with import_short_benchmarks() as import_benchmark:
        world: Any = importlib.import_module("planted_world")
        world.PLANTED_DAYS = world.SLOW_DAYS
        world.COMPARED = world.COMPARED[-1:]
        jobs: Any = import_benchmark("harness.synthetic_jobs")
        jobs.CAMPAIGN_COUNT = 1
        yield world
        del sys.modules["planted_world"]


@pytest.fixture(scope="module")
def world_service(
    planted_world: ModuleType, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """A service with the planted world."""
    folder = tmp_path_factory.mktemp("walk")
    planted_world.fill_database(f"sqlite:///{folder / 'results.db'}")
    with serve_folder(folder, "--read-access", "public") as address:
        yield address


def test_answers_are_one_click_away_on_the_first_screen(
    planted_world: ModuleType, chromium: Browser, world_service: str
) -> None:
    questions = build_questions(planted_world)
    answers = list(walk(chromium, world_service, questions))
    parts = sum(len(question.answers) for question in questions)
    assert len(answers) == len(SCREENS) * parts
    assert [part for part in answers if not part.on_first_screen or part.clicks > 1] == []
