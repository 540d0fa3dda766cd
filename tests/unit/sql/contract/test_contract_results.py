"""Results for Python programs from every database."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from measurement_factory import full_measurement, make_campaign_row, make_measurement
from store_helpers import read_in_process

import treehammer
from treehammer.collectors.record.metric_catalogue import CATALOGUE
from treehammer.errors import ConfigError, NothingToDoError, StoreError
from treehammer.sql.engine.database_engine import parse_url
from treehammer.sql.read.query_model import Selection
from treehammer.sql.transfer import arrow_columns, arrow_stream
from treehammer.sql.write.store import Store


@pytest.fixture
def filled(store: Store, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setattr(arrow_columns, "BATCH_ROWS", 3)
    store.add_campaign(make_campaign_row("campaign", created_us=1), [])
    store.add_campaign(make_campaign_row("other", created_us=2), [])
    store.add(
        [
            *(full_measurement(n) for n in range(4)),
            make_measurement(job="a", extras={"hits": 2.5, "e": 1}),
            make_measurement(job="b", host="h", read_latency_hist=[1, 2]),
            make_measurement(job="c", campaign_id="other", extras={"e": 3.0}),
        ]
    )
    return store


def to_rows(table: pa.Table) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = table.to_pylist()
    return found


def test_table_equals_database(filled: Store, url: str) -> None:
    table = treehammer.results(database=url)
    names = [metric.name for metric in CATALOGUE]
    assert table.column_names == [*names, "extra_e", "extra_hits"]
    assert to_rows(table.select(names)) == list(filled.measurements(Selection()))
    assert b"unit" not in table.schema.metadata
    assert table.schema.field("eff_job").metadata[b"title"].endswith(b"[1]")


def test_selected_columns_in_order(filled: Store, url: str) -> None:
    with read_in_process():
        whole = treehammer.results(database=url)
    for columns in (
        ["extra_hits"],
        ["extra_e", "host", "plausible", "read_latency_hist", "extra_hits", "pass_loop_wall_s"],
    ):
        table = treehammer.results(columns=iter(columns), database=url)
        assert table.column_names == columns
        assert to_rows(table) == to_rows(whole.select(columns))


@pytest.mark.backends("sqlite", "postgresql")
def test_only_selected_columns_are_read(url: str) -> None:
    request = arrow_stream._build_request(parse_url(url), Selection(), {}, ["eff_job"], False)
    assert "eff_job" in request.measurements.sql
    assert "inventory" not in request.measurements.sql


@pytest.mark.usefixtures("in_process_reader")
def test_campaigns_and_conditions(filled: Store, url: str) -> None:
    def jobs(campaign: str | list[str] | None, where: str | list[str] = "") -> list[str]:
        table = treehammer.results(campaign, where or (), ["job_id"], database=url)
        return [str(job) for job in table["job_id"].to_pylist()]

    assert jobs("last") == ["c"]
    assert jobs(["campaign", "name of other"]) == ["a", "b", "c"]
    assert jobs("campaign", "host=h") == ["b"]
    assert jobs(None, ["job_id~?", "host="]) == ["a", "c"]


def test_empty_selection_gives_empty_table(filled: Store, url: str) -> None:
    table = treehammer.results(where="host=nobody", columns=["host", "extra_e"], database=url)
    assert table.num_rows == 0
    assert table.schema.field("extra_e").type == pa.float64()


def test_batches_share_one_snapshot(filled: Store, url: str) -> None:
    with treehammer.result_batches(columns=["job_id"], database=url) as batches:
        first = batches.read_next_batch()
        assert 0 < first.num_rows <= 3
        filled.add([make_measurement(job="while it was read")])
        assert first.num_rows + batches.read_all().num_rows == 7
    assert len(list(filled.measurements(Selection(), ["job_id"]))) == 8


def test_abandoned_stream_releases_connection(filled: Store, url: str) -> None:
    treehammer.result_batches(database=url)
    with treehammer.result_batches(database=url) as batches:
        batches.read_next_batch()
    assert filled.add([make_measurement(job="afterwards")]).new == 1


INVALID_ARGUMENTS: list[tuple[dict[str, Any], str]] = [
    ({"columns": "sites"}, r"unknown column 'sites'\n.*'site'"),
    ({"columns": ["extra_hit"]}, r"unknown column 'extra_hit'\n.*'extra_hits'"),
    ({"columns": []}, "no column was given"),
    ({"where": "hots=1"}, "host"),
    ({"campaign": "nobody"}, "name of other"),
    ({"campaign": "no\0body"}, "name of other"),
    ({"campaign": []}, "no campaign was given"),
    ({"campaign": [None]}, "campaign: a text is expected, not None"),
    ({"campaign": 3}, "campaign: a text is expected, or several, not 3"),
    ({"where": "site=a\0b"}, "NUL"),
    ({"where": "site~a\0*"}, "NUL"),
    ({"where": "site=\udcff"}, "UTF-8"),
    ({"where": "site~\udcff*"}, "UTF-8"),
    ({"campaign": "no\udcffbody"}, "name of other"),
    ({"columns": "extra_\udcff"}, "unknown column"),
    ({"where": [4]}, "where: a text is expected, not 4"),
    ({"columns": "si\0te"}, "unknown column"),
    ({"columns": "extra_\0"}, "unknown column"),
    ({"columns": [5]}, "columns: a text is expected, not 5"),
]


def test_invalid_arguments_are_reported(filled: Store, url: str) -> None:
    for wrong, said in INVALID_ARGUMENTS:
        with pytest.raises(ConfigError, match=said):
            treehammer.results(**wrong, database=url)


@pytest.mark.usefixtures("in_process_reader")
def test_none_equals_omitted_argument(filled: Store, url: str) -> None:
    table = treehammer.results(None, None, None, database=url)
    assert table.equals(treehammer.results(database=url))


@pytest.mark.backends("sqlite", "postgresql")
def test_reader_failure_is_reported(filled: Store, url: str) -> None:
    with filled._engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE extra RENAME COLUMN value TO other")
    with pytest.raises(StoreError, match=r"other|value") as caught:
        treehammer.results(database=url)
    assert "JOIN" not in str(caught.value)


def test_missing_database() -> None:
    with pytest.raises(NothingToDoError):
        treehammer.results(database="sqlite:////no/such.db")
