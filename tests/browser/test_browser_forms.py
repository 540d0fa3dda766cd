"""Forms in a real browser agree with their page, also after going back."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from browser import WatchedTab, check_form_after_back
from page_database import SITES
from playwright.sync_api import expect

Visit = Callable[..., WatchedTab]
#: Address, name of a choice, what the page shows, and what is chosen then.  That of ROOT files needs ROOT.
CHOICES = [
    ("/?days=14", "days", "14", "30"),
    ("/explore?metric=eff_job", "metric", "eff_job", "cpu_per_event_s"),
    (f"/sites/{SITES[0]}?days=30", "days", "30", "90"),
    ("/campaigns/running?state=running", "state", "running", "done"),
    ("/compare?axis=door", "axis", "door", "site"),
]


@pytest.mark.parametrize("address, name, shown, chosen", CHOICES)
def test_form_agrees_with_page_after_going_back(
    full_service: str, open_tab: Visit, address: str, name: str, shown: str, chosen: str
) -> None:
    check_form_after_back(open_tab(full_service), address, name, shown, chosen)


def test_form_agrees_with_page_restored_from_cache(full_service: str, open_tab: Visit) -> None:
    """Automated browsers have no back-forward cache, so its event is dispatched."""
    tab = open_tab(full_service)
    tab.open("/explore?metric=eff_job")
    box = tab.page.locator("select[name=metric]")
    box.select_option("cpu_per_event_s")
    for kept, value in (("false", "cpu_per_event_s"), ("true", "eff_job")):
        tab.page.evaluate(
            f"dispatchEvent(new PageTransitionEvent('pageshow', {{persisted: {kept}}}))"
        )
        expect(box).to_have_value(value)
