"""Signing in through an OpenID provider in a browser, with its rules for cookies and forms."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from browser import LOOKS, WatchedTab
from openid_provider import serve_with_provider
from playwright.sync_api import Browser, Page

Visit = Callable[..., WatchedTab]


@pytest.fixture(scope="module")
def provided_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serve_with_provider(tmp_path_factory.mktemp("provided")) as address:
        yield address


@pytest.fixture
def page(chromium: Browser) -> Iterator[Page]:
    """A page without access to other machines: the provider's forms load a font."""
    context = chromium.new_context()
    context.route(lambda url: not url.startswith("http://127.0.0.1:"), lambda one: one.abort())
    yield context.new_page()
    context.close()


def sign_in(page: Page, address: str, person: str) -> None:
    page.goto(f"{address}/campaigns?page=1")
    page.get_by_role("link", name="Sign in with").click()
    page.locator("input[name=login]").fill(person)
    page.locator("input[name=password]").fill("any")
    page.locator("button[type=submit]").click()
    page.get_by_role("button", name="Continue").click()


def test_member_of_group_signs_in_and_out(provided_service: str, page: Page) -> None:
    sign_in(page, provided_service, "alice")
    page.wait_for_url(f"{provided_service}/campaigns?page=1")
    (session,) = (one for one in page.context.cookies() if one["name"] == "treehammer_session")
    assert (session["httpOnly"], session["sameSite"]) == (True, "Lax")
    # The cookie is not visible to scripts of the page, and a reload keeps the session.
    assert "treehammer" not in page.evaluate("document.cookie")
    assert page.reload().status == 200  # type: ignore[union-attr]
    page.get_by_role("button", name="Sign out").click()
    page.get_by_role("link", name="Sign in with").wait_for()


def test_others_are_told_why(provided_service: str, page: Page) -> None:
    sign_in(page, provided_service, "eve")
    page.get_by_text("none of their groups has a role").wait_for()


@pytest.mark.parametrize("action", ["/sign-in", "/sign-out"])
def test_form_of_another_site_is_refused(
    provided_service: str, page: Page, tmp_path: Path, action: str
) -> None:
    """Attack with a real browser: a page of another origin sends the form by itself."""
    target = provided_service + action
    html = f"<form method=post action={target}><input name=token value=x></form>"
    page.context.route(
        "http://127.0.0.1:1/", lambda one: one.fulfill(body=html, content_type="text/html")
    )
    page.goto("http://127.0.0.1:1/")
    with page.expect_navigation(url=target) as found:
        page.evaluate("document.forms[0].submit()")
    assert found.value.status == 403


@pytest.mark.parametrize("size, scheme", LOOKS)
def test_sign_in_page_is_accessible(
    provided_service: str, open_tab: Visit, size: str, scheme: str
) -> None:
    tab = open_tab(provided_service, size=size, scheme=scheme)
    assert tab.open("/") == 401
    tab.check_page()
