"""The overview's days by the site of the jobs, and by the site of the storage."""

from __future__ import annotations

import re
from datetime import date
from html import unescape

from measurement_factory import STARTED_DAY, make_measurement, make_operation
from service_thread import StartService

from treehammer.sql.write.store import Store

BROWSER = {"Accept": "text/html,*/*"}
DAY = date.fromisoformat(str(STARTED_DAY))


def test_days_are_shown_by_either_site(start_service: StartService) -> None:
    with start_service(reading_open=True) as service:
        with Store.open(service.url) as store:
            store.add(
                [
                    make_measurement(position=1, site="A", storage_site="B"),
                    make_measurement(position=2, site="A", storage_site="C"),
                    make_measurement(position=3, site="A"),  # from before it was recorded
                ]
            )

        def count_by_site(by: str) -> dict[str, int]:
            answer = service.client.get(f"/?format=json&to={DAY}&by={by}").json()
            rows = answer["tables"]["site_days"]
            return {row["site"]: row["good"] for row in rows if row["day"] == str(DAY)}

        assert count_by_site("site") == {"A": 3}
        assert count_by_site("storage_site") == {"A": 1, "B": 1, "C": 1}
        page = service.client.get(f"/?to={DAY}&by=storage_site", headers=BROWSER).text
        addresses = re.findall(r'href="([^"]*where=storage_site[^"]*)"', page)
        assert len(addresses) == 3
        explored = service.client.get(unescape(addresses[1]), headers=BROWSER)
        assert explored.status_code == 200
        assert "storage_site=B" in unescape(explored.text)
        # Only A has a page: no job ran at the others.
        assert set(re.findall(r'href="[^"]*/sites/(\w)"', page)) == {"A"}
        assert service.client.get("/?by=door", headers=BROWSER).status_code == 400


def test_letters_of_storages_link_to_their_campaigns(start_service: StartService) -> None:
    with start_service(reading_open=True) as service:
        assert "Storages under load" not in service.load_page(f"/?to={DAY}")
        with Store.open(service.url) as store:
            for job, storage, failures in (("a", "B", {}), ("b", "C", {"reset": 9})):
                steps = [make_operation([0.001] * 30, failures)]
                store.add([make_measurement(job, operations=steps, site="A", storage_site=storage)])
        page = unescape(service.load_page(f"/?to={DAY}"))
        assert re.findall(r'title="(\w, [^"]*opens[^"]*)"', page) == [
            "B, 1 Mar 2026: ok, 30 of 30 opens succeeded",
            "C, 1 Mar 2026: warning, 9 of 39 opens failed",
        ]
        rows = service.load_tables(f"/api/v1/overview?to={DAY}")["storage_days"]
        assert [(row["storage_site"], row["letter"], row["open_failed"]) for row in rows] == [
            ("B", "G", 0),
            ("C", "W", 9),
        ]
        [address, _] = re.findall(r'href="([^"]*by=campaign_id[^"]*)"', page)
        assert service.client.get(address, headers=BROWSER).status_code == 200
