"""Debian's Chromium driven by Playwright, with checks that apply to every page."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import Any

from machine_requirements import skip_or_fail
from playwright.sync_api import Browser, Page, expect, sync_playwright

from treehammer import config
from treehammer.errors import TestbedError
from treehammer.testbed.debian_packages import PackageTree

VIEWPORT_WIDTHS = {"phone": 360, "laptop": 1280}
#: Widths and color schemes of the tests of a page: each once, as neither depends on the other.
LOOKS = (("phone", "dark"), ("laptop", "light"))
#: The fixture that opens tabs.
Visit = Callable[..., "WatchedTab"]


def unpack_chromium() -> Path:
    """Return the folder tree with Chromium; skip the test if it is not available."""
    folder = config.load_settings().cache_dir / "testbed"
    try:
        return PackageTree("chromium", ("chromium-headless-shell",)).unpack(folder, print)
    except TestbedError as error:
        skip_or_fail(f"no Chromium: {error}")


@contextmanager
def run_chromium() -> Iterator[Browser]:
    """Run a headless browser."""
    tree = unpack_chromium()
    program = tree / "usr/lib/chromium/chromium-headless-shell"
    # One of its libraries is in a folder of its own.
    libraries = ":".join(map(str, tree.glob("usr/lib/*/pulseaudio")))
    with (
        sync_playwright() as playwright,
        playwright.chromium.launch(
            executable_path=program, env={**os.environ, "LD_LIBRARY_PATH": libraries}
        ) as browser,
    ):
        yield browser


#: Lists charts that are cut, though they do not scroll as heat maps do, and texts that are cut or touch.
_FIND_CHART_FAULTS = """() => [...document.querySelectorAll(".plot.ready")].flatMap((plot) => {
  const canvas = plot.querySelector(".canvas"), svg = canvas.querySelector("svg");
  const meta = JSON.parse(plot.querySelector("script").textContent).usermeta;
  const faults = svg.clientWidth > canvas.clientWidth + 1 && !meta.places ? ["cut"] : [];
  const bottom = svg.getBoundingClientRect().bottom + 1;
  const isCut = (text) => text.getAttribute("opacity") !== "0" && text.getBoundingClientRect().bottom > bottom;
  for (const text of svg.querySelectorAll("text")) if (isCut(text)) faults.push(`${text.textContent} is cut`);
  for (const axis of svg.querySelectorAll(".role-axis-label")) {
    const boxes = [...axis.querySelectorAll("text")].filter((text) => text.getAttribute("opacity") !== "0" && !text.getAttribute("transform").includes("rotate"))
      .map((text) => [text.getBoundingClientRect(), text.textContent]).sort(([a], [b]) => a.left - b.left);
    for (const [index, [box, text]] of boxes.slice(1).entries()) {
      const before = boxes[index][0], level = Math.abs(box.top - before.top) < 2;
      if (level && box.left < before.right + 3) faults.push(`${text} touches ${boxes[index][1]}`);
    }
  }
  return faults;
})"""


class WatchedTab:
    """A browser tab that records foreign requests and errors.

    Args:
        browser: opens the tab.
        base: base URL of the service.
        size: key of :data:`VIEWPORT_WIDTHS`.
        scheme: color scheme, ``light`` or ``dark``.
        script: whether JavaScript runs.
        timezone: of the reader.
    """

    def __init__(
        self,
        browser: Browser,
        base: str,
        *,
        size: str = "laptop",
        scheme: Any = "light",
        script: bool = True,
        timezone: str = "UTC",
    ) -> None:
        self.base = base
        self.context = browser.new_context(
            base_url=base,
            viewport={"width": VIEWPORT_WIDTHS[size], "height": 800},
            color_scheme=scheme,
            java_script_enabled=script,
            locale="en-GB",
            timezone_id=timezone,
        )
        self.page: Page = self.context.new_page()
        #: Foreign requests, script errors and violations of the content policy.
        self.bad: list[str] = []
        self.page.on("request", lambda sent: self._record_request(sent.url))
        self.page.on("pageerror", lambda error: self.bad.append(f"error: {error}"))
        self.page.on("console", lambda message: self._record_message(message.type, message.text))

    def _record_request(self, url: str) -> None:
        if not url.startswith((self.base, "data:", "blob:")):
            self.bad.append(f"request to {url}")

    def _record_message(self, kind: str, text: str) -> None:
        # A refused page logs its status, which a test may expect.
        if kind in ("error", "warning") and "the server responded with a status of" not in text:
            self.bad.append(f"{kind}: {text}")

    def open(self, path: str) -> int:
        """Open a page, wait until it has loaded, and return the HTTP status."""
        answer = self.page.goto(path, wait_until="networkidle")
        assert answer is not None
        return answer.status

    def check_page(self) -> None:
        """Check that a page has no errors, fits the window with its charts, and passes axe-core."""
        self.page.wait_for_load_state()
        assert not self.bad, self.bad
        wide = self.page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
        assert wide <= 0, f"{self.page.url} is {wide} pixels too wide"
        assert self.page.title() != "got", "text was executed as a script"
        assert not (faults := self.page.evaluate(_FIND_CHART_FAULTS)), faults
        # Evaluated by the debugger, since the page's content policy forbids foreign scripts.
        axe_core = resources.files("axe_playwright_python") / "axe.min.js"
        self.page.evaluate(axe_core.read_text("utf-8"))
        results = self.page.evaluate("axe.run(document, {resultTypes: ['violations']})")
        violations = [
            f"{violation['id']}: {violation['help']}: {[node['target'] for node in violation['nodes'][:5]]}"
            for violation in results["violations"]
        ]
        assert not violations, "\n".join(violations)


def check_form_after_back(
    tab: WatchedTab, address: str, name: str, value: str, chosen: str
) -> None:
    """Check that a form shows the page's own values after navigating back."""
    assert tab.open(address) == 200
    box = tab.page.locator(f"main form:not(.find) [name={name}]")
    box.select_option(chosen)
    box.locator("xpath=ancestor::form").get_by_role("button").click()
    tab.page.wait_for_url(f"**{name}={chosen}**")
    tab.page.go_back()
    tab.page.wait_for_url(f"**{address}**")
    expect(box).to_have_value(value)
