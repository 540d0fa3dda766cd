"""Dimensions share values between measurements; packed lists round-trip bit by bit."""

from __future__ import annotations

import math
import struct
import zlib
from pathlib import Path

import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st
from measurement_factory import full_measurement, make_measurement

from treehammer.collectors.record.metric_catalogue import CATALOGUE
from treehammer.sql.core import measurement_sql, schema
from treehammer.sql.core.column_types import StoredText
from treehammer.sql.core.measurement_columns import (
    DIMENSION_OF,
    DIMENSIONS,
    PACKED_COLUMNS,
    hash_dimension_row,
    pack_lists,
    unpack_columns,
    unpack_lists,
)
from treehammer.sql.write.store import Store

LISTS = st.none() | st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=9)


def rows(store: Store, table: sa.Table) -> int:
    engine = sa.create_engine(store.url)
    with engine.connect() as connection:
        count = connection.scalar(sa.select(sa.func.count()).select_from(table))
    engine.dispose()
    return int(count or 0)


def test_shared_values_are_stored_once(store: Store) -> None:
    store.add(make_measurement(job=str(n), site="SITE_A", host=f"node{n % 2}") for n in range(9))
    store.add([make_measurement(job="more", site="SITE_A", host="node2")])
    counts = {d.name: rows(store, schema.dimension_tables[d.name]) for d in DIMENSIONS}
    assert counts == {
        "subject": 1,
        "origin": 1,
        "software": 1,
        "inventory": 1,
        "node": 3,
        "storage": 1,
    }
    assert rows(store, schema.measurement) == 10


def test_row_number_depends_on_known_values_only() -> None:
    row = {"host": "n", "cpu_model": None, "cores_online": 4}
    assert hash_dimension_row(row) == hash_dimension_row(
        {"cores_online": 4, "host": "n", "later": None}
    )
    assert hash_dimension_row(row) != hash_dimension_row({**row, "cores_online": 5})
    # Frozen: existing databases contain these numbers.
    assert hash_dimension_row(row) == 7093405148890041269
    assert 0 <= hash_dimension_row({}) < 2**63


def test_constant_text_belongs_to_a_dimension() -> None:
    own = {c.name for c in schema.measurement.c if isinstance(c.type, StoredText)}
    assert own == {
        *(
            "measurement_id",
            "campaign_id",
            "job_id",
            "kind",
            "slot",
            "value_checksum",
            "start_state",
        ),
        *("failure_class", "failure_kind", "failure_phase", "failure_message"),
        *("implausible_reasons", "log_excerpt", "checksum_skipped_leaves", "content_notes"),
    }


def test_packed_lists_of_earlier_versions_are_read() -> None:
    body = struct.pack("<3i2d", 2, 2, -1, 0.25, 0.5)
    expected = {**dict.fromkeys(PACKED_COLUMNS), PACKED_COLUMNS[0]: [0.25, 0.5]}
    for level in (0, 1, 9):
        assert unpack_lists(b"\x01" + zlib.compress(body, level)) == expected
    # Small values are not compressed, but in the same format.
    packed = pack_lists(expected)
    assert packed is not None
    assert struct.pack("<2d", 0.25, 0.5) in packed
    assert unpack_lists(packed) == expected


@given(st.fixed_dictionaries(dict.fromkeys(PACKED_COLUMNS, LISTS)))
def test_packed_lists_round_trip(lists: dict[str, list[float] | None]) -> None:
    packed = pack_lists(lists)
    assert (packed is None) == all(one is None for one in lists.values())
    back = unpack_lists(packed)
    assert back == lists
    for name, numbers in lists.items():
        for before, after in zip(numbers or [], back[name] or [], strict=True):
            assert math.copysign(1, before) == math.copysign(1, after)


def test_lists_added_later_are_unknown_in_older_values() -> None:
    few = pack_lists({PACKED_COLUMNS[0]: [0.5]})
    assert few is not None
    lengths, numbers = unpack_columns([None, few])
    assert lengths.shape == (2, len(PACKED_COLUMNS))
    assert lengths[1, 0] == 1
    assert numbers.tolist() == [0.5]


def test_unknown_packing_version_is_refused() -> None:
    with pytest.raises(ValueError, match="does not know"):
        unpack_lists(b"\x02whatever")


def test_only_needed_tables_are_joined() -> None:
    assert "JOIN" not in str(measurement_sql.select_columns(["job_id", "eff_job", "passes_done"]))
    query = str(measurement_sql.select_columns(["job_id", "site", "host", "pass_loop_wall_s"]))
    assert query.count("JOIN") == 2
    assert "measurement.passes" in query


def test_dimension_condition_uses_subquery(store: Store, tmp_path: Path) -> None:
    store.add(full_measurement(n) for n in range(3))
    condition = measurement_sql.measurements_where(
        "site", measurement_sql.catalogue_column("site") == "text 21"
    )
    assert "IN (SELECT subject.id" in str(condition)
    assert DIMENSION_OF["site"].name == "subject"


def test_all_float_lists_are_packed() -> None:
    assert {metric.name for metric in CATALOGUE if metric.type == "floats"} == {*PACKED_COLUMNS}
