"""The reference of the API as a page."""

from __future__ import annotations

from html import unescape

from service_thread import ServiceThread

from treehammer.collectors.record.metric_catalogue import METRICS_BY_NAME


def test_page_names_every_operation_and_its_parameters(filled_service: ServiceThread) -> None:
    described = filled_service.client.get("/api/v1/openapi.json").json()
    page = unescape(filled_service.load_page("/api/v1"))
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            heading = f'<h2 id="{operation["operationId"]}"><code>{method.upper()} {path}</code>'
            section = page.split(heading)[1].split("</section>")[0]
            assert operation["summary"] in section
            for one in operation.get("parameters", []):
                is_column = one["name"] in METRICS_BY_NAME and "Conditions on" in section
                assert is_column or one.get("description", "") in section
    assert "Conditions on" in page.split('id="exploreMeasurements"')[1]


def test_pages_link_to_reference(filled_service: ServiceThread) -> None:
    assert '<a href="/api/v1">API</a>' in filled_service.load_page("/")
    assert '<a href="/api/v1/openapi.json">' in filled_service.load_page("/api/v1")
