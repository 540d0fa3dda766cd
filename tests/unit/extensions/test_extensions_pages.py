"""Pages found in a folder outside the package."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from service_thread import StartService

from treehammer.web import pages
from treehammer.web.pages import load_pages

_MODULE = '''
"""A page with one table."""

from treehammer.tables import DataTable, TableColumn
from treehammer.web.pages.page_context import PageModule, PageView
from treehammer.web.pages.page_operation import PageOperation

OPERATIONS = (
    PageOperation("/tides", "listTides", "tides", "Tides", {"tides": "high waters"}),
)


def routes(context):
    return [context.page_route("/tides", tides_view, "tides")]


def tides_view(store, request):
    table = DataTable("tides", "Tides", (TableColumn("height", "Height"),), [{"height": 3}], "")
    return PageView("error.html.j2", "Tides", {"sentence": "High water", "number": 200, "remedy": ""}, (table,))


PAGES = PageModule(routes, position=1, menu={"tides": "Tides"}, operations=OPERATIONS)
'''


def test_page_is_found_by_its_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start_service: StartService
) -> None:
    (tmp_path / "tides_page.py").write_text(_MODULE)
    monkeypatch.setattr(pages, "__path__", [*pages.__path__, str(tmp_path)])
    try:
        first = load_pages()[0]
        assert [operation.path for operation in first.operations] == ["/tides"]
        with start_service(reading_open=True) as service:
            assert "Tides" in service.load_page("/tides")
            assert "/tides" in service.load_page("/")
            tables = service.client.get("/tides?format=json").json()["tables"]
    finally:
        sys.modules.pop(f"{pages.__name__}.tides_page", None)
    assert tables == {"tides": [{"height": 3}]}
