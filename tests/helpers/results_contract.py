"""What ``treehammer.results`` promises on every database; see :mod:`store_contract`."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from sql_makers import campaign_row, full_measurement, make_measurement

import treehammer
from treehammer.collectors.metrics import CATALOGUE
from treehammer.errors import ConfigError, NothingToDo, StoreError
from treehammer.sql import arrow, bulk_reader
from treehammer.sql.selection import Selection
from treehammer.sql.store import Store


@pytest.fixture
def filled(store: Store, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setattr(arrow, "ROWS", 3)
    store.add_campaign(campaign_row("campaign", created_us=1), [])
    store.add_campaign(campaign_row("other", created_us=2), [])
    store.add(
        [
            *(full_measurement(n) for n in range(4)),
            make_measurement(job="a", extras={"hits": 2.5, "e": 1}),
            make_measurement(job="b", host="h", read_latency_hist=[1, 2]),
            make_measurement(job="c", campaign_id="other", extras={"e": 3.0}),
        ]
    )
    return store


def rows_of(table: pa.Table) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = table.to_pylist()
    return found


def test_the_table_is_the_database(filled: Store, url: str) -> None:
    table = treehammer.results(database=url)
    names = [metric.name for metric in CATALOGUE]
    assert table.column_names == [*names, "extra_e", "extra_hits"]
    assert rows_of(table.select(names)) == list(filled.measurements(Selection()))
    assert b"unit" not in table.schema.metadata
    assert table.schema.field("eff_job").metadata[b"title"].endswith(b"[1]")


@pytest.mark.parametrize(
    "columns",
    [
        ["site"],
        ["extra_hits"],
        ["extra_e", "host", "read_latency_hist", "extra_hits"],
        ["measurement_id", "extra_e"],
        ["plausible", "job_id", "eff_job", "pass_loop_wall_s"],
    ],
)
def test_only_the_columns_asked_for_come_and_in_that_order(
    filled: Store, url: str, columns: list[str]
) -> None:
    whole = treehammer.results(database=url)
    table = treehammer.results(columns=iter(columns), database=url)
    assert table.column_names == columns
    assert rows_of(table) == rows_of(whole.select(columns))


def test_only_the_columns_asked_for_are_read(
    filled: Store, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    told = bulk_reader.Order.__init__

    def listen(order: bulk_reader.Order, *args: Any, **values: Any) -> None:
        told(order, *args, **values)
        asked.append(order.measurements.sql)

    monkeypatch.setattr(bulk_reader.Order, "__init__", listen)
    treehammer.results(columns="eff_job", database=url)
    assert "eff_job" in asked[0]
    assert "inventory" not in asked[0]


def test_campaigns_and_conditions(filled: Store, url: str) -> None:
    def jobs(campaign: str | list[str] | None, where: str | list[str] = "") -> list[str]:
        table = treehammer.results(campaign, where or (), ["job_id"], database=url)
        return [str(job) for job in table["job_id"].to_pylist()]

    assert jobs("last") == ["c"]
    assert jobs(["campaign", "name of other"]) == ["a", "b", "c"]
    assert jobs("campaign", "host=h") == ["b"]
    assert jobs(None, ["job_id~?", "host="]) == ["a", "c"]


def test_a_selection_that_nothing_meets_is_a_table_without_rows(filled: Store, url: str) -> None:
    table = treehammer.results(where="host=nobody", columns=["host", "extra_e"], database=url)
    assert table.num_rows == 0
    assert table.schema.field("extra_e").type == pa.float64()


def test_batches_see_one_state_of_the_database(filled: Store, url: str) -> None:
    with treehammer.result_batches(columns=["job_id"], database=url) as batches:
        first = batches.read_next_batch()
        assert 0 < first.num_rows <= 3
        filled.add([make_measurement(job="while it was read")])
        assert first.num_rows + batches.read_all().num_rows == 7
    assert treehammer.results(columns=["job_id"], database=url).num_rows == 8


def test_a_stream_that_is_abandoned_holds_nothing(filled: Store, url: str) -> None:
    treehammer.result_batches(database=url)
    with treehammer.result_batches(database=url) as batches:
        batches.read_next_batch()
    assert filled.add([make_measurement(job="afterwards")]).new == 1


@pytest.mark.parametrize(
    "wrong, said",
    [
        ({"columns": "sites"}, r"no column 'sites'\n.*'site'"),
        ({"columns": ["extra_hit"]}, r"no column 'extra_hit'\n.*'extra_hits'"),
        ({"columns": []}, "no column is asked for"),
        ({"where": "hots=1"}, "host"),
        ({"campaign": "nobody"}, "name of other"),
        ({"campaign": "no\0body"}, "name of other"),
        ({"campaign": []}, "no campaign is asked for"),
        ({"campaign": [None]}, "campaign: a text is expected, not None"),
        ({"campaign": 3}, "campaign: a text is expected, or several, not 3"),
        ({"where": "site=a\0b"}, "NUL"),
        ({"where": "site~a\0*"}, "NUL"),
        ({"where": "site=\udcff"}, "UTF-8"),
        ({"where": "site~\udcff*"}, "UTF-8"),
        ({"campaign": "no\udcffbody"}, "name of other"),
        ({"columns": "extra_\udcff"}, "no column"),
        ({"where": [4]}, "where: a text is expected, not 4"),
        ({"columns": "si\0te"}, "no column"),
        ({"columns": "extra_\0"}, "no column"),
        ({"columns": [5]}, "columns: a text is expected, not 5"),
    ],
)
def test_mistakes_are_told(filled: Store, url: str, wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        treehammer.results(**wrong, database=url)


def test_none_is_as_if_it_were_left_out(filled: Store, url: str) -> None:
    table = treehammer.results(None, None, None, database=url)
    assert table.equals(treehammer.results(database=url))


def test_a_reader_that_fails_says_so(filled: Store, url: str) -> None:
    with filled._engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE extra RENAME COLUMN value TO other")
    with pytest.raises(StoreError, match=r"other|value") as caught:
        treehammer.results(database=url)
    assert "JOIN" not in str(caught.value)


def test_no_database() -> None:
    with pytest.raises(NothingToDo):
        treehammer.results(database="sqlite:////no/such.db")
