"""Pages of the core in an installation without any vertical."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from measurement_factory import make_measurement
from service_thread import StartService

from treehammer import verticals


def test_pages_and_metrics_render_without_states(
    start_service: StartService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verticals, "VERTICALS", ())
    now = datetime.now(UTC)
    started_us = int(now.timestamp() * 1e6)
    with start_service(reading_open=True) as service:
        service.store.add(
            [
                make_measurement(
                    "m",
                    site="SITE_A",
                    day=int(f"{now:%Y%m%d}"),
                    started_us=started_us,
                    axis_root="6.40.00",
                    root_version="6.40.00",
                )
            ]
        )
        tables = {address: service.load_tables(address) for address in ("/", "/sites/SITE_A")}
        assert not {"states", "state_changes", "changepoints"} & {
            *tables["/"],
            *tables["/sites/SITE_A"],
        }
        assert service.load_tables("/sites")["sites"][0].keys() & {"state", "use"} == set()
        for address in ("/", "/?by=storage_site", "/sites", "/sites/SITE_A"):
            service.load_page(address)
        # Without pages of releases and figures, the search only lists them.
        answer = service.client.get("/search?q=6.40.00", headers={"Accept": "text/html"})
        assert answer.status_code == 200
        assert service.load_tables("/search?q=6.40.00")["hits"][0]["address"] == ""
        metrics = service.get_path("/metrics").text
        assert 'treehammer_measurements_total{outcome="' in metrics
        assert "treehammer_site_status" not in metrics
        assert service.client.get("/alarms").status_code == 404
