"""A published site of a database on PostgreSQL."""

from __future__ import annotations

from pathlib import Path

from measurement_factory import build_verdict
from page_database import fill_store
from postgres_fixture import SharedPostgresServer

from treehammer.config import load_settings
from treehammer.publish.publication import PublicationRequest, publish_site
from treehammer.sql.write.store import Store
from treehammer.text_formatting import no_progress


def test_pages_are_those_of_a_file(postgresql: SharedPostgresServer, tmp_path: Path) -> None:
    pages = []
    urls = postgresql.url(postgresql.make_store_database()), f"sqlite:///{tmp_path}/results.db"
    for number, url in enumerate(urls):
        with Store.open(url) as store:
            fill_store(store)
            judged = {"verdict": "too little read", "effect": None, "low": None, "high": None}
            unjudged = build_verdict("unjudged", created_us=2**51, **judged)
            store.replace_comparison("unjudged", [], [unjudged])
        settings = load_settings(
            {"data_dir": tmp_path, "database": url}, environ={}, folder=tmp_path
        )
        publication = publish_site(
            settings, PublicationRequest(tmp_path / f"site-{number}"), no_progress
        )
        assert not publication.problems
        index = (publication.site.folder / "index.html").read_text()
        headline = index.partition('class="headline"')[2].partition("</p>")[0]
        assert "more CPU time per event than 6.38.00" in headline  # the newest was not judged
        pages.append([row["pages"] for row in publication.site.measure_pages()])
    assert pages[0] == pages[1]
