"""A reader's walk through the pages: clicks from the overview to an answer, and where it stands.

Chromium opens the overview of a world with known answers, follows the links of each question, and
looks for the answer's texts on the screen without scrolling.
"""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.harness import planted_world
from benchmarks.harness.chromium import run_chromium
from benchmarks.harness.ratio_figures import RatioFigure, write_rows
from benchmarks.harness.service_runs import run_service

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

#: Width and height of the screens.
SCREENS = ((1400, 900), (390, 844))
#: Clicks that an answer may be away from the overview.
MAX_CLICKS = 1

#: Lower edge of the first text that matches a pattern, in pixels from the top of the page; whether
#: it is seen without scrolling: within the window, and neither clipped nor covered.
_FIND_TEXT = """pattern => {
    const wanted = new RegExp(pattern), found = [];
    for (const block of document.querySelectorAll("main :is(h1, p, li, td, th, a)")) {
        if (!wanted.test(block.textContent)) continue;
        const nodes = document.createTreeWalker(block, NodeFilter.SHOW_TEXT);
        const range = document.createRange();
        range.selectNodeContents(block);
        const boxes = [...range.getClientRects()].filter(one => one.width > 1);
        if (!boxes.length) continue;
        const seen = boxes.every(one => {
            const [x, y] = [(one.left + one.right) / 2, (one.top + one.bottom) / 2];
            if (one.left < 0 || one.right > innerWidth + 1) return false;
            if (one.top < 0 || one.bottom > innerHeight) return false;
            const top = document.elementFromPoint(x, y);
            return block.contains(top);
        });
        found.push({text: block.textContent.trim(), seen, lower: Math.max(...boxes.map(one => one.bottom + scrollY))});
    }
    return found.find(one => one.seen) ?? found[0] ?? null;
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
        link_seen: whether the first link is on the overview's first screen.
        found: text with the answer; '' if there is none.
        on_first_screen: whether it is seen without scrolling.
        screens: lower edge of the text by the height of the screen.
        page_s: from the last click until the page has loaded.
    """

    question: str
    width: int
    part: str
    clicks: int
    link_seen: bool
    found: str
    on_first_screen: bool
    screens: float
    page_s: float


def build_questions() -> list[Question]:
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


def walk(browser: Browser, address: str) -> Iterator[AnswerPart]:
    """Walk to the answer of each question on each screen."""
    for width, height in SCREENS:
        context = browser.new_context(
            viewport={"width": width, "height": height}, locale="en-GB", timezone_id="UTC"
        )
        page = context.new_page()
        for question in build_questions():
            yield from _walk_to_answer(page, address, question)
        context.close()


def _walk_to_answer(page: Page, address: str, question: Question) -> Iterator[AnswerPart]:
    page.goto(address)
    page.wait_for_load_state("networkidle")
    screen = page.viewport_size
    assert screen is not None
    link_seen, page_s = False, 0.0
    for place, pattern in enumerate(question.links):
        link = page.get_by_role("link", name=re.compile(pattern)).first
        box = link.bounding_box()
        if place == 0:
            link_seen = box is not None and box["y"] + box["height"] <= screen["height"]
        start = time.monotonic()
        link.click()
        page.wait_for_load_state("load")
        page_s = time.monotonic() - start
    for part, pattern in question.answers.items():
        found = find_text(page, pattern)
        yield AnswerPart(
            question.text,
            screen["width"],
            part,
            len(question.links),
            link_seen,
            str(found["text"]) if found else "",
            bool(found and found["seen"]),
            float(found["lower"]) / screen["height"] if found else float("inf"),
            page_s,
        )


def find_text(page: Page, pattern: str) -> Mapping[str, str | float | bool] | None:
    """Find a text on a page, preferably where it is seen without scrolling."""
    found: Mapping[str, str | float | bool] | None = page.evaluate(_FIND_TEXT, pattern)
    return found


def measure() -> list[RatioFigure]:
    """Fill the planted world, walk, and compare with the limits."""
    with tempfile.TemporaryDirectory(prefix="treehammer-") as folder:
        url = f"sqlite:///{Path(folder) / 'results.db'}"
        planted_world.fill_database(url)
        with run_service(url) as (port, _), run_chromium() as browser:
            rows = list(walk(browser, f"http://127.0.0.1:{port}"))
    write_rows("walk", [asdict(row) for row in rows])
    return build_figures(rows)


def build_figures(rows: Sequence[AnswerPart]) -> list[RatioFigure]:
    """Return clicks, and the lowest part of each answer by the height of the screen."""
    figures = []
    for question, width in dict.fromkeys((row.question, row.width) for row in rows):
        own = [row for row in rows if (row.question, row.width) == (question, width)]
        where = f"{question} {width} px"
        figures += [
            RatioFigure(f"clicks, {where}", own[0].clicks, upper_bound=MAX_CLICKS),
            RatioFigure(
                f"parts off the first screen, {where}",
                sum(not row.on_first_screen for row in own),
                upper_bound=0,
            ),
            RatioFigure(f"lower edge / screen, {where}", max(row.screens for row in own)),
        ]
    return figures
