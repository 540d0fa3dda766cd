"""A campaign in a real browser, while it runs and afterwards, and its load."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from browser import LOOKS, Visit
from captured_runs import commit_all, make_repository, run_captured
from page_database import CAMPAIGN, RATES, STEPS, add_load_campaign
from playwright.sync_api import Browser
from service_process import serve_folder

from treehammer.sql.write.store import Store

TEST = """
[test]
name = "waits"
payload = "run.sh"
repeats = 3
rounds = 1
passes = 1
[matrix]
style = ["good", "bad"]
"""
#: Writes down what a payload must, once it may end; half of the variants fail.
SCRIPT = """#!/bin/sh
for _ in $(seq 600); do [ -e 'MAY_END' ] && break; sleep 0.2; done
echo "reading <b>as asked</b>" >&2
grep -q '"style": *"bad"' job.json && { echo "no such file" >&2; exit 3; }
printf '{"format": 1, "values": {}, "extras": {}}' > "$TREEHAMMER_RESULT"
"""


@dataclass(frozen=True)
class Running:
    """A real campaign of this machine, and the service on its database."""

    address: str
    folder: Path
    submitting: subprocess.Popen[str]
    test: Path
    may_end: Path

    def end(self) -> None:
        """Let its payloads end, and wait until all is collected."""
        self.may_end.touch()
        self.submitting.wait(timeout=120)


# The browser starts first: it may be slow, and the campaign would end before.
@pytest.fixture(scope="module")
def running(chromium: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("campaign")
    test = folder / "waits"
    test.mkdir()
    (test / "test.toml").write_text(TEST, encoding="utf-8")
    may_end = folder / "may-end"
    (test / "run.sh").write_text(SCRIPT.replace("MAY_END", str(may_end)), encoding="utf-8")
    (test / "run.sh").chmod(0o755)
    make_repository(test)
    commit_all(test)
    submitting = subprocess.Popen(
        [*treehammer(folder), "submit", f"{test}@HEAD:.", "--wait"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        with serve_folder(folder, "--read-access", "public") as address:
            yield Running(address, folder, submitting, test, may_end)
    finally:
        may_end.touch()
        submitting.communicate(timeout=120)


def treehammer(folder: Path) -> list[str]:
    return [sys.executable, "-m", "treehammer", "--data-dir", str(folder), "--local-slots", "1"]


def test_campaign_page_follows_running_campaign(running: Running, open_tab: Visit) -> None:
    tab = open_tab(running.address)
    for _ in range(100):
        tab.open("/")
        if tab.page.get_by_role("link", name="waits@").count():
            break
        tab.page.wait_for_timeout(100)
    tab.page.get_by_role("link", name="waits@").first.click()
    tab.page.get_by_role("status").wait_for()
    assert "of 6 measured" in tab.page.get_by_role("status").inner_text()
    assert tab.page.locator("#live[hx-get]").count() == 1
    tab.check_page()
    running.may_end.touch()
    # The page updates itself, and stops polling at the end.
    tab.page.locator("#live:not([hx-get])").wait_for(timeout=60_000)
    assert "6 of 6 measured" in tab.page.get_by_role("status").inner_text()
    # So do the jobs below.
    tab.page.locator("#table-jobs").get_by_text("done", exact=True).nth(5).wait_for()
    asked: list[str] = []
    tab.page.on("request", lambda sent: asked.append(sent.url))
    tab.page.wait_for_timeout(6000)
    assert not asked
    tab.check_page()
    running.end()


def test_failures_link_to_job_with_log(running: Running, open_tab: Visit) -> None:
    running.end()
    tab = open_tab(running.address)
    tab.open("/campaigns")
    tab.check_page()
    tab.page.get_by_role("link", name="waits@").click()
    failures = tab.page.get_by_role("group", name="Failures by class and site")
    failures.get_by_role("link", name="payload").click()
    tab.page.wait_for_url("**failure=payload**")
    jobs = tab.page.get_by_role("group", name="Selected jobs")
    assert jobs.locator("tbody tr").count() == 3
    jobs.get_by_role("link", name="style=bad").first.click()
    assert "style=bad at local" in tab.page.get_by_role("heading", level=1).inner_text()
    log = tab.page.locator("pre.log").first
    assert "reading <b>as asked</b>" in log.inner_text()
    assert "no such file" in log.inner_text()
    assert tab.page.get_by_text("exit code 3").count()
    tab.check_page()
    tab.page.get_by_role("link", name="all values", exact=True).last.click()
    assert "no such file" in tab.page.locator("pre.log").inner_text()
    tab.check_page()
    tab.page.get_by_role("link", name="Record as JSON").click()
    assert json.loads(tab.page.locator("body").inner_text())["values"]["failure_class"] == "payload"


def test_rerun_command_plans_same_jobs(running: Running, open_tab: Visit) -> None:
    running.end()
    tab = open_tab(running.address)
    tab.open("/campaigns")
    tab.page.get_by_role("link", name="waits@").click()
    command = tab.page.locator("#again ~ pre code").first.inner_text()
    words = shlex.split(command)
    assert words[0] == "treehammer"
    done = run_captured(
        [*treehammer(running.folder), *words[1:], "--dry-run", "--json"], check=True
    )
    (plan,) = json.loads(done.stdout)
    assert (plan["jobs"], plan["measurements"]) == (6, 6)


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("load")
    with Store.open(f"sqlite:///{folder / 'results.db'}") as store:
        add_load_campaign(store)
    with serve_folder(folder, "--read-access", "public") as address:
        yield address


@pytest.mark.parametrize("size, scheme", LOOKS)
def test_load_is_reachable_and_drawn(loaded: str, open_tab: Visit, size: str, scheme: str) -> None:
    tab = open_tab(loaded, size=size, scheme=scheme)
    tab.open(f"/campaigns/{CAMPAIGN}")
    tab.page.get_by_role("link", name="Load", exact=True).click()
    tab.page.get_by_role("heading", name="Load of opens", level=1).wait_for()
    figures = tab.page.locator("figure")
    points, marks = ".canvas .mark-symbol.role-mark path", ".canvas .mark-text.role-mark text"
    figures.first.locator(".plot.ready").wait_for()
    assert figures.first.locator(points).count() == len(RATES)
    rates = figures.filter(has_text="over seconds since the start").first
    rates.scroll_into_view_if_needed()
    rates.locator(".plot.ready").wait_for()
    assert rates.locator(points).count() == 3 * (STEPS - 1)
    assert rates.locator(marks).count() == 1
    tab.check_page()
