"""The shipped dashboards of Grafana: its schema, and each query in Prometheus and in PostgreSQL.

Grafana itself is in none of the package sources that tests use.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import psycopg
import pytest
from command_forker import run_command
from monitoring_servers import DEPLOYMENT, fetch_json, query_prometheus, run_prometheus, wait_for
from page_database import add_load_campaign, fill_store
from postgres_fixture import SharedPostgresServer
from service_process import serve_folder

from treehammer.sql.write.store import Store

pytestmark = pytest.mark.xdist_group("monitoring")

DASHBOARDS = sorted((DEPLOYMENT / "grafana").glob("*.json"))
#: Panels of events that occur neither in the sample data nor in this service.
EMPTY_PANELS = {"Failed writes", "Measurements written", "Refused requests", "Time of a commit"}


def load_dashboard(file: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(file.read_text())
    return document


def list_queries(key: str) -> Iterator[tuple[str, str]]:
    """List titles of panels with their queries in a language: ``expr`` or ``rawSql``."""
    for file in DASHBOARDS:
        for panel in load_dashboard(file)["panels"]:
            for target in panel["targets"]:
                if key in target:
                    yield panel["title"], target[key]


def list_lost_keys(document: Any, encoded: Any, place: str = "") -> Iterator[str]:
    """List values of a document that its encoded copy does not have."""
    if isinstance(document, dict) and isinstance(encoded, dict):
        for key, value in document.items():
            if value not in ("", None, False, [], {}):
                yield from list_lost_keys(value, encoded.get(key), f"{place}/{key}")
    elif isinstance(document, list) and isinstance(encoded, list):
        for place_in_list, (value, copied) in enumerate(zip(document, encoded, strict=True)):
            yield from list_lost_keys(value, copied, f"{place}/{place_in_list}")
    elif document != encoded:
        yield place


@pytest.mark.parametrize("file", DASHBOARDS, ids=[file.stem for file in DASHBOARDS])
def test_dashboard_has_only_what_grafana_knows(file: Path) -> None:
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.cog.plugins import register_default_plugins
    from grafana_foundation_sdk.models.dashboard import Dashboard

    register_default_plugins()
    document = load_dashboard(file)
    encoded = json.loads(JSONEncoder().encode(Dashboard.from_json(document)))
    assert [*list_lost_keys(document, encoded)] == []
    cells = [
        (x, y)
        for panel in document["panels"]
        for place in (panel["gridPos"],)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(cells) == len({*cells})
    assert max(x for x, _ in cells) < 24
    assert all(panel["description"] for panel in document["panels"])


def test_each_view_query_answers_in_postgresql(postgresql: SharedPostgresServer) -> None:
    name = postgresql.make_store_database()
    with Store.open(postgresql.url(name)) as store:
        fill_store(store)
        add_load_campaign(store)
    empty_panels = set()
    with psycopg.connect(postgresql.url(name).replace("+psycopg", ""), autocommit=True) as database:
        # As after an upgrade: the views are there already.
        for _ in range(2):
            database.execute((DEPLOYMENT / "grafana" / "views.sql").read_text())
        database.execute("SET TIME ZONE 'America/Los_Angeles'")
        for title, query in list_queries("rawSql"):
            text = re.sub(
                r'\$__timeFilter\("time"\)', "\"time\" > now() - interval '100 years'", query
            )
            text = re.sub(
                r"\$\{(\w+):sqlstring\}",
                lambda match: {
                    "site": "SELECT DISTINCT site FROM dashboards.site_day",
                    "storage": "SELECT DISTINCT storage_site FROM dashboards.load_day",
                    "test": "SELECT DISTINCT test FROM dashboards.work_day",
                }[match[1]],
                text,
            )
            if not database.execute(text).fetchall():
                empty_panels.add(title)
        (views, days) = database.execute(
            "SELECT sum(measurements), min(extract(hour FROM \"time\" AT TIME ZONE 'UTC'))"
            " FROM dashboards.site_day"
        ).fetchone() or (0, None)
        measurements = database.execute("SELECT count(*) FROM measurement").fetchone()
    postgresql.drop_database(name)
    assert empty_panels == set()
    assert (int(views),) == measurements
    assert days == 0


def test_views_keep_their_readers(postgresql: SharedPostgresServer) -> None:
    name = postgresql.make_store_database()
    text = (DEPLOYMENT / "grafana" / "views.sql").read_text()
    everything, part = (f"{prefix}_{name}" for prefix in ("all", "One"))
    with psycopg.connect(postgresql.url(name).replace("+psycopg", ""), autocommit=True) as database:

        def list_readable(reader: str) -> set[str]:
            relations = database.execute(
                "SELECT relname FROM pg_class WHERE relnamespace = 'dashboards'::regnamespace"
                " AND has_schema_privilege(%(reader)s, 'dashboards', 'USAGE')"
                " AND has_table_privilege(%(reader)s, oid, 'SELECT')",
                {"reader": reader},
            )
            return {relname for (relname,) in relations.fetchall()}

        database.execute(text)
        for reader, tables in (
            (everything, "ALL TABLES IN SCHEMA dashboards"),
            (part, "dashboards.site_day"),
        ):
            database.execute(f'CREATE ROLE "{reader}"')
            database.execute(f'GRANT USAGE ON SCHEMA dashboards TO "{reader}"')
            database.execute(f'GRANT SELECT ON {tables} TO "{reader}"')
        # A version with one view less, and one that goes.
        database.execute("DROP VIEW dashboards.campaign")
        database.execute("CREATE VIEW dashboards.gone AS SELECT 1 AS n")
        database.execute(f'GRANT SELECT ON dashboards.gone TO "{everything}"')
        database.execute(text)
        views = list_readable(everything)
        assert {"campaign", "site_day"} < views
        assert "gone" not in views
        assert list_readable(part) == {"site_day"}
        for reader in (everything, part):
            database.execute(f'DROP OWNED BY "{reader}"; DROP ROLE "{reader}"')
    postgresql.drop_database(name)


def test_each_expression_answers_in_prometheus(tmp_path: Path) -> None:
    with Store.open(f"sqlite:///{tmp_path / 'results.db'}") as store:
        fill_store(store)
    key = tmp_path / "read.key"
    words = ("token", "create", "--role", "read", "--name", "prometheus", "-o", str(key))
    run_command(("--data-dir", str(tmp_path), *words)).check_returncode()
    with serve_folder(tmp_path, "--read-access", "public") as url:
        target = url.partition("//")[2]
        with run_prometheus(tmp_path / "prometheus", target, 1, key.read_text().strip()) as server:
            # Rates need two samples.
            for name in (
                "treehammer_info",
                "process_cpu_seconds_total",
                "treehammer_queue_measurements",
            ):
                wait_for(
                    partial(query_prometheus, server, f"count_over_time({name}[1m]) > 1"), tmp_path
                )
            empty_panels = set()
            for title, expression in list_queries("expr"):
                text = expression.replace("$__rate_interval", "1m").replace("$site", ".*")
                answer = fetch_json(f"{server}/api/v1/query?{urlencode({'query': text})}")
                assert answer, text
                if not answer["data"]["result"]:
                    empty_panels.add(title)
    assert empty_panels == EMPTY_PANELS
