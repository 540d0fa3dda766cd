"""Hostile texts in every database column are shown as text."""

from __future__ import annotations

import html
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import date
from urllib.parse import quote, urlencode, urlsplit

import hostile_database
import httpx
import pytest
from browser import Visit, WatchedTab
from hostile_database import ATTACK_TEXTS, attack_text
from service_process import serve_folder

from treehammer.sql.core.schema import metadata

#: Elements that no template writes.
STRANGE = """
const ours = address => /^https?:/.test(address) && new URL(address).origin === location.origin;
const bad = one =>
    one.matches("script") ? one.type !== "application/json" && !ours(one.src)
    : one.matches("form") ? !ours(one.action)
    : one.matches("[href], [src]") ? !ours(one.href ?? one.src)
    : true;
[...document.querySelectorAll(
    "script, iframe, object, embed, base, img, form, [href], [src], [onload], [onerror]"
)].filter(bad).map(one => one.outerHTML.slice(0, 200))
"""
#: All that can be read, also in fields.
TEXT = """
document.body.textContent + [...document.querySelectorAll("input")].map(one => one.value).join(" ")
"""
LISTS = (
    "/",
    "/campaigns",
    "/sites",
    "/compare",
    "/explore?by=site&color=",
    "/explore?by=host&panels=variant",
    "/changes",
    f"/digest?week={date.fromisoformat(hostile_database.TODAY):%G-W%V}",
    "/alarms",
    "/patrol",
)
#: Columns that some page shows in full.
SHOWN = {
    f"{table}.{column}"
    for table, columns in {
        "alarm_message": "severity title",
        "attempt": "message",
        "campaign": "commit_id name plan ref repository test_name test_path",
        "change_point": "cause control evidence metric subject test_name",
        "job": "batch_id batch_system door id kind label",
        "measurement": "failure_kind failure_message failure_phase implausible_reasons log_excerpt",
        "node": "container cpu_model host kernel os_name",
        "patrol_entry": "follows name note sites test",
        "patrol_start": "entry message occasion state",
        "software": "root_version",
        "status_change": "cause evidence previous reason rule_version",
        "storage": "data_server file_url server_version",
        "subject": "axis_root dataset door site test_name variant",
        "verdict": "evidence label",
        "watched_series": "control release test_name",
    }.items()
    for column in columns.split()
}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("hostile")
    hostile_database.fill_hostile_database(f"sqlite:///{folder / 'results.db'}")
    with serve_folder(folder, "--read-access", "public") as address:
        yield address


def pages_of(number: int) -> list[str]:
    """The pages that are about the rows of one attack."""
    subject = attack_text(number, "subject", "site")
    ours = {"site": subject, "by": "host", "color": "variant"}
    return [
        f"/sites/{quote(subject, safe='')}",
        f"/campaigns/{quote(attack_text(number, 'campaign', 'id'), safe='')}",
        f"/jobs/{quote(attack_text(number, 'job', 'id'), safe='')}",
        f"/days/{hostile_database.TODAY}?{urlencode({'site': subject})}",
        f"/explore?{urlencode(ours)}",
        f"/compare/comparison%20{number}",
        *(
            f"/{page}/{quote(attack_text(number, table, column), safe='')}"
            for page, table, column in (
                ("state-changes", "status_change", "id"),
                ("changes", "change_point", "id"),
                ("releases", "watched_series", "release"),
            )
        ),
    ]


def flat(text: str) -> str:
    """Text without the spaces that HTML adds or folds."""
    return re.sub(r"\s", "", text)


def shown_in(text: str, number: int) -> set[str]:
    """The columns of which a page shows the attack whole."""
    page = flat(text)
    return {
        f"{table.name}.{column.key}"
        for table in metadata.sorted_tables
        for column in table.columns
        if table.name not in hostile_database.DERIVED_TABLES | hostile_database.UNDISPLAYED_TABLES
        and flat(attack_text(number, table.name, column.key)) in page
    }


def look(tab: WatchedTab, path: str, leads: set[str]) -> str:
    """Open a page in which nothing may happen, and add what it leads to; its text."""
    assert tab.open(path) == 200, path
    strange = tab.page.evaluate(STRANGE)
    assert not strange, (path, strange)
    assert not tab.bad, (path, tab.bad)
    leads |= set(tab.page.evaluate("[...document.links].map(one => one.href)"))
    return str(tab.page.evaluate(TEXT))


def test_all_texts_are_escaped(service: str, open_tab: Visit) -> None:
    tab = open_tab(service)
    tab.page.on("dialog", lambda dialog: tab.bad.append(f"dialog: {dialog.message}"))
    leads: set[str] = set()
    lists = "".join(look(tab, path, leads) for path in LISTS)
    # Links work, of each kind some; figures and ROOT files are slow and tested elsewhere.
    slow = ("/figure.", "/root-file", "/figures/")
    with httpx.Client(base_url=service, trust_env=False, timeout=30) as client:
        for number, attack in enumerate(ATTACK_TEXTS):
            # Those that a browser could run are opened in one; of the others the texts are read.
            is_program = "got()" in attack and "$(" not in attack
            pages = (
                look(tab, path, leads) if is_program else html.unescape(client.get(path).text)
                for path in pages_of(number)
            )
            text = lists + "".join(pages)
            assert shown_in(text, number) >= SHOWN, (number, SHOWN - shown_in(text, number))
        for address in select_links(leads):
            if not any(part in address for part in slow):
                assert not client.get(address).is_error, address


def select_links(addresses: Iterable[str]) -> Iterator[str]:
    """Select three links of each kind of page and parameters."""
    visits: Counter[tuple[str, ...]] = Counter()
    for address in sorted(addresses):
        url = urlsplit(address)
        kind = (url.path.rpartition("/")[0], *sorted(re.findall(r"(?:^|&)([^&=]*)", url.query)))
        visits[kind] += 1
        if visits[kind] <= 3:
            yield address


@pytest.mark.parametrize("path", ["/", "/sites", *pages_of(len(ATTACK_TEXTS) - 1)[:3]])
def test_pages_with_hostile_text_are_readable(service: str, open_tab: Visit, path: str) -> None:
    tab = open_tab(service, size="phone", scheme="dark")
    assert tab.open(path) == 200
    tab.check_page()
    # A long name moves no numbers out of view.
    names = tab.page.locator("tbody th:not(.long)")
    assert names.evaluate_all("cells => cells.every(cell => cell.offsetWidth <= 0.6 * innerWidth)")
