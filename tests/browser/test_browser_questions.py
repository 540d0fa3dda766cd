"""Answers to readers' questions: one or two clicks from the overview, on the first screen.

Chromium opens the overview of a world with known answers, follows the links of each question, and
looks for the answer's texts on the screen without scrolling. A figure is downloaded.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from browser import Visit
from playwright.sync_api import Browser, Page
from repository_code import import_short_benchmarks
from service_process import serve_folder

from treehammer.web.figures.drawing import PAPER_WIDTHS_MM

#: Width and height of the screens.
SCREENS = ((1400, 900), (390, 844))
#: The first text that matches a pattern, and whether it is seen without scrolling: within the window,
#: and neither clipped nor covered.
_FIND_TEXT = """pattern => {
    const expression = new RegExp(pattern), matches = [];
    for (const block of document.querySelectorAll("main :is(h1, p, li, td, th, a)")) {
        if (!expression.test(block.textContent.replaceAll("\\u00a0", " "))) continue;
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
        links: patterns of the links to follow, from the overview, or selectors after ``css=``.
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
    return [
        *_ask_developers(planted_world),
        *_ask_sites(planted_world),
        *_ask_groups(planted_world),
    ]


def _ask_developers(planted_world: ModuleType) -> Iterator[Question]:
    since = f"since {planted_world.find_slow_day()}"
    base, slower = map(re.escape, (planted_world.BASE, planted_world.SLOWER))
    variants = f"{len(planted_world.SLOWER_VARIANTS)} of 24"
    percent = r"(4\.[7-9]|5\.[0-3]) %"
    yield Question(
        f"Is {planted_world.SLOWER} slower than {planted_world.BASE}, where, by how much, how "
        "certain, since when, in which kind of read?",
        [f"{slower} against {base}"],
        {
            "slower": rf"{slower} needs .* more .*{base} \(wall time [45]\.\d",
            "which variants": f"more .* in {variants} variants",
            "which sites": r"slower.* over \d+ sites",
            "by how much": f"{slower} is {percent} slower",
            "how certain": r"slower \[",
            "since when": f"{slower}.*{since}",
            "kind of read": r"Largest: \d+ % of the branches",
        },
    )
    yield Question(
        "Since when?",
        ["^Changes$"],
        {"subject": rf"ROOT {slower}", "by how much": rf"\+{percent}", "since when": since},
    )
    # The planted difference, and the one seen from the other side.
    effect = r"(9\.[5-9]|10\.[0-5]) %"
    best, worse = planted_world.DOORS
    yield Question(
        "Which door is best for sparse reads?",
        ["^Explore$", "Best door for sparse reads"],
        {
            "which": f"{best} is the best door for reads of few branches",
            "by how much": f"{worse} is {effect} slower",
            "how certain": r"95 % interval \[\d+\.\d, \d+\.\d\] %; n = \d+ days with both",
        },
    )


def _ask_sites(planted_world: ModuleType) -> Iterator[Question]:
    site, failing = planted_world.INEFFICIENT_SITE, planted_world.FAILING_SITE
    host = f"node{planted_world.BAD_HOST:03}"
    yield Question(
        "How is my site, why, since when, what should I do?",
        [f"^{site}$"],
        {
            "how": r"[3-6]\.\d % below the median of the same work",
            "rank": "40th of 40 sites",
            "why": rf"Mainly host {host}\..*below",
            "since when": r"So (in all weeks from|since the week of) \d{4}-\d\d-\d\d",
            "action": rf"Check the load, disk and network of {host}\.",
        },
    )
    bad, total, bad_elsewhere, total_elsewhere = _count_last_day(planted_world)
    begin = f"since {planted_world.find_failing_day()}"
    counts = f"{bad} of {total:,} failed here, {bad_elsewhere} of {total_elsewhere:,} elsewhere"
    yield Question(
        "Why does my site fail, since when, what should I do?",
        [f"^{failing}$"],
        {
            "why": "failed here, .* elsewhere: the site",
            "since when": f"the site, {begin}",
            "action": r"Cause: door\. Check the door and its files",
        },
    )
    last_day = planted_world.find_last_day()
    cell = f"css=.matrix a[href='/days/{last_day}?site={failing}']"
    action = r"Cause: door\. Check the door"
    yield Question(
        "Did the site or the test fail last night?",
        [cell],
        {"site or test": f"{counts}: the site, {begin}", "action": action},
    )
    # The state of the site explains its jobs, from counts of 24 hours.
    yield Question(
        "Why did a job fail last night: my site or the test?",
        [cell, "css=[data-table=jobs] tbody th a"],
        {"site or test": r"failed here, \d+ of [\d,]+ elsewhere: the site", "action": action},
    )


def _count_last_day(planted_world: ModuleType) -> tuple[int, int, int, int]:
    """Count the bad and all measurements of the last day, at the failing site and elsewhere."""
    bad, total = {True: 0, False: 0}, {True: 0, False: 0}
    for measurement in planted_world.list_last_days(1):
        values = measurement.values
        is_here = values["site"] == planted_world.FAILING_SITE
        total[is_here] += 1
        bad[is_here] += bool(values.get("failure_class")) or not values["plausible"]
    return bad[True], total[True], bad[False], total[False]


def _ask_groups(planted_world: ModuleType) -> Iterator[Question]:
    count = planted_world.MEASUREMENTS_PER_DAY
    cpu_hours = count * planted_world.PAYLOAD_CPU_S / 3600
    yield Question(
        "What did last night's campaign cost, and what runs now?",
        [f"^{planted_world.find_last_campaign()}$"],
        {
            "used CPU": rf"{count} measurements in \d\.\d slot hours, {cpu_hours:.1f} CPU hours",
            "used bytes": r"5[5-8]\.\d GB read",
            "planned": r"planned were 7 slot hours, 6\.1 CPU hours, 55\.0 GB",
            "what runs": r"jobs: 40 running, 80 done",
        },
    )

    # The week of yesterday, the last day with measurements.
    days = planted_world.find_last_day().weekday() + 1
    measured = sum(1 for _ in planted_world.list_last_days(days))
    yield Question(
        "I have one hour a week: what changed this week?",
        ["^Digest of the week$"],
        {
            "what": r"\d+ bad states?, \d+ new failures?, \d+ slowdowns?, \d+ comparisons?",
            "campaigns": rf"{days} campaigns?;",
            "cost": rf"{measured:,} measurements in [\d.]+ slot hours, [\d.]+ CPU hours, [\d.]+ GB read",
        },
    )


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
    width: int = page.evaluate("innerWidth")
    for pattern in question.links:
        if pattern.startswith("css="):
            link = page.locator(pattern)
        else:
            link = page.get_by_role("link", name=re.compile(pattern))
        link.first.click()
        page.wait_for_load_state("load")
    for part, pattern in question.answers.items():
        match = find_text(page, pattern)
        text, is_seen = (str(match["text"]), bool(match["seen"])) if match else ("", False)
        yield AnswerPart(question.text, width, part, len(question.links), text, is_seen)


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


def test_answers_are_two_clicks_away_on_the_first_screen(
    planted_world: ModuleType, chromium: Browser, world_service: str
) -> None:
    questions = build_questions(planted_world)
    answers = list(walk(chromium, world_service, questions))
    parts = sum(len(question.answers) for question in questions)
    assert len(answers) == len(SCREENS) * parts
    assert [part for part in answers if not part.on_first_screen or part.clicks > 2] == []
    one_click = {question.text for question in questions if len(question.links) == 1}
    assert len(one_click) == len(questions) - 2


def test_figure_of_efficiency_is_two_clicks_away_as_in_a_paper(
    world_service: str, open_tab: Visit
) -> None:
    tab = open_tab(world_service)
    tab.open("/")
    tab.page.get_by_role("link", name="CPU efficiency by site (study S0)").click()
    tab.page.wait_for_url("**/figures/s0")
    tab.page.get_by_role("button", name="Show").click()
    tab.page.wait_for_url("**/figures/s0?**")
    with tab.page.expect_download() as downloading:
        tab.page.get_by_role("link", name="PDF as wide as a single column").click()
    pdf = Path(downloading.value.path()).read_bytes()
    box = re.search(rb"/MediaBox \[0 0 ([\d.]+)", pdf)
    assert box
    assert float(box[1]) == pytest.approx(PAPER_WIDTHS_MM["single"] / 25.4 * 72, rel=1e-3)
    for text in ("CPU efficiency", "/figures/s0?"):
        assert text.encode("utf-16-be").hex().encode() in pdf
