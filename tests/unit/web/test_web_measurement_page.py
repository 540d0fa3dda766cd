"""Page of one measurement, alone and beside another one."""

from __future__ import annotations

from collections.abc import Iterator
from html import unescape
from typing import Any

import pytest
from measurement_factory import make_campaign_row, make_job_row, make_measurement
from page_database import HOSTILE_TEXTS
from service_thread import ServiceThread, run_service

from treehammer.sql.write.store import Store

PEOPLE = {"Accept": "text/html"}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServiceThread, list[str]]]:
    """A service with a good measurement and a failed one on another node."""
    folder = tmp_path_factory.mktemp("measurement")
    failure: dict[str, Any] = {
        "failure_class": "read",
        "log_excerpt": HOSTILE_TEXTS[0],
        "os_name": "EL9",
    }
    rows = [
        make_measurement(
            "job",
            1,
            position,
            site="SITE_A",
            host=f"node{position}",
            kernel="6.1.0",
            root_version="6.40.00",
            cpu_per_event_s=0.02 * position,
            bytes_read=2_000_000,
            plausible=True,
            **values,
        )
        for position, values in ((1, {}), (2, failure))
    ]
    with Store.open(f"sqlite:///{folder / 'results.db'}") as store:
        store.add(rows)
        campaign = make_campaign_row(str(rows[0].values["campaign_id"]))
        store.add_campaign(campaign, [make_job_row("job", campaign_id=campaign.id)])
    with run_service(folder, reading_open=True) as service:
        yield service, [str(row.values["measurement_id"]) for row in rows]


def test_values_are_grouped_with_units_and_meaning(
    pair: tuple[ServiceThread, list[str]],
) -> None:
    service, (good, _) = pair
    tables = service.load_tables(f"/measurements/{good}")
    shown = {row["name"]: row for rows in tables.values() for row in rows}
    assert shown["cpu_per_event_s"]["a"] == 0.02
    assert shown["cpu_per_event_s"]["group"] == "Times"
    assert shown["host"]["group"] == "Node"
    assert shown["root_version"]["group"] == "Software"
    assert shown["site"]["group"] == "Plan"
    assert all(row["meaning"] for row in shown.values())
    page = unescape(service.load_page(f"/measurements/{good}"))
    assert "2.0 MB" in page
    assert f'href="/api/v1/measurements/{good}"' in page
    assert "What differs" not in page


def test_differences_of_the_environment_come_first(
    pair: tuple[ServiceThread, list[str]],
) -> None:
    service, (good, failed) = pair
    found = service.load_tables(f"/measurements/{good}?with={failed}")
    differences = {
        row["name"]: (row["a"], row["b"]) for row in found["differences_of_the_environment"]
    }
    assert differences["host"] == ("node1", "node2")
    assert differences["os_name"] == (None, "EL9")
    assert "kernel" not in differences
    (time,) = [row for row in found["times"] if row["name"] == "cpu_per_event_s"]
    assert time["change"] == pytest.approx(1.0)
    page = service.load_page(f"/measurements/{good}?with={failed}")
    assert page.index("What differs") < page.index(">Times</h2>")
    assert "+100.0 %" in page


def test_failure_shows_its_log_as_text(pair: tuple[ServiceThread, list[str]]) -> None:
    service, (_, failed) = pair
    page = service.load_page(f"/measurements/{failed}")
    assert HOSTILE_TEXTS[0] not in page
    assert HOSTILE_TEXTS[0] in unescape(page)


def test_job_page_links_to_measurements(pair: tuple[ServiceThread, list[str]]) -> None:
    service, identities = pair
    page = service.load_page("/jobs/job")
    assert all(f'href="/measurements/{one}"' in page for one in identities)


@pytest.mark.parametrize("path", ["/measurements/none", "/measurements/{}?with=none"])
def test_unknown_measurement_is_not_found(pair: tuple[ServiceThread, list[str]], path: str) -> None:
    service, (good, _) = pair
    answer = service.client.get(path.format(good), headers=PEOPLE)
    assert answer.status_code == 404
    assert "here is no measurement 'none'" in unescape(answer.text)
