"""The store on SQLite: files, pruning, quarantine commands, dimensions, and checks of owners."""

from __future__ import annotations

import json
import math
import struct
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click
import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st
from measurement_factory import (
    STARTED_US,
    full_measurement,
    make_campaign_row,
    make_job_row,
    make_measurement,
)
from repository_code import invoke_command
from store_helpers import limit_file_sizes, read_rows

from treehammer import config
from treehammer.errors import ConfigError, ExitCode, StoreError
from treehammer.sql.core import schema
from treehammer.sql.core.measurement_columns import (
    DIMENSIONS,
    PACKED_COLUMNS,
    hash_dimension_row,
    pack_lists,
    unpack_lists,
)
from treehammer.sql.core.schema import campaign, campaign_owner, job, measurement, receipt
from treehammer.sql.read.query_model import Selection
from treehammer.sql.write.audit_trail import Sender
from treehammer.sql.write.maintenance import check_database
from treehammer.sql.write.recording import AddResult
from treehammer.sql.write.store import CampaignUpload, Store

# Opening


def test_database_is_created_with_its_folder(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/a b%c/ä/results.db"
    with Store.open(url) as store:
        store.add([make_measurement()])
    with Store.open(url, create=False) as store:
        assert len(read_rows(store)) == 1


@pytest.mark.parametrize("url", ["", "results.db", "nosuch://h/d", "sqlite:///file:r.db?uri=true"])
def test_wrong_url_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="database"):
        Store.open(url)


def test_folder_creation_failure_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="folder"):
        Store.open(f"sqlite:///{tmp_path}/file/results.db")


def test_foreign_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "results.db"
    file.write_text("this is a letter, no database\n" * 100)
    with pytest.raises(StoreError, match="not an SQLite database") as caught:
        Store.open(f"sqlite:///{file}")
    assert caught.value.exit_code is ExitCode.INFRASTRUCTURE
    assert file.read_text().startswith("this is a letter")


def test_damaged_database_is_found(url: str, tmp_path: Path) -> None:
    with Store.open(url) as store:
        store.add(full_measurement(n) for n in range(40))
    file = tmp_path / "results.db"
    content = bytearray(file.read_bytes())
    middle = len(content) // 2 // 4096 * 4096
    content[middle : middle + 8192] = b"\xff" * 8192
    file.write_bytes(content)
    with pytest.raises(StoreError, match="damaged"):
        check_database(url)


def test_ctrl_c_while_connections_close_is_not_logged(
    url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def interrupt(_dialect: object, connection: Any) -> None:
        connection.close()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), Store.open(url) as store:
        monkeypatch.setattr(type(store._engine.dialect), "do_close", interrupt)
    assert not caplog.records


# Concurrent access and full disks


def test_full_disk_loses_nothing(url: str) -> None:
    with Store.open(url) as store:
        store.add(full_measurement(n) for n in range(20))
        size = Path(url.removeprefix("sqlite:///")).stat().st_size
        with (
            limit_file_sizes(size + 300_000),
            pytest.raises(StoreError, match=r"what was(.|\n)*intact"),
        ):
            store.add(make_measurement(str(n), log_excerpt=f"{n:03}" * 9000) for n in range(100))
        assert check_database(url)["measurement"] == 20
        assert store.add(full_measurement(n) for n in range(20)) == AddResult(0, 20)


@pytest.mark.parametrize("days", ["0", "36501", "1000000", str(2**70)])
def test_invalid_age_is_refused(tmp_path: Path, days: str) -> None:
    done = invoke_command("db", tmp_path, "prune", "--passes-after", days)
    assert done.exit_code == click.UsageError.exit_code
    assert "not in the range" in done.output


@pytest.fixture
def settings(settings: config.Settings, store: Store) -> config.Settings:
    store.add_campaign(make_campaign_row("c1", name="nightly"), [])
    store.add(
        make_measurement(position=n, campaign_id="c1", started_us=STARTED_US, plausible=True)
        for n in (1, 2)
    )
    return settings


db = partial(invoke_command, "db")


def plausible(store: Store) -> list[Any]:
    return [row["plausible"] for row in store.measurements(Selection(), ["plausible"])]


def test_quarantine_unquarantine_and_delete(settings: config.Settings, store: Store) -> None:
    done = db(
        settings, "quarantine", "--campaign", "nightly", "--reason", "x", "--dry-run", "--json"
    )
    (count,) = json.loads(done.stdout)
    assert (count["campaign_id"], count["measurements"]) == ("c1", 2)
    assert "nothing was changed" in done.stderr
    assert plausible(store) == [True, True]
    done = db(settings, "quarantine", "--campaign", "nightly", "--reason", "wrong clock")
    assert "2 measurements put into quarantine" in done.stderr
    assert plausible(store) == [False, False]
    assert (
        "2 measurements taken out of quarantine"
        in db(settings, "unquarantine", "--since", "2026-03-01").stderr
    )
    assert plausible(store) == [True, True]
    assert "2 measurements deleted" in db(settings, "delete", "--campaign", "c1").stderr
    assert plausible(store) == []
    trail = json.loads(db(settings, "audit", "--json").stdout)
    assert [(row["action"], row["scope"], row["reason"]) for row in trail] == [
        ("delete", "campaign c1", ""),
        ("unquarantine", "since 2026-03-01 00:00:00", ""),
        ("quarantine", "campaign c1", "wrong clock"),
    ]
    assert "@" in trail[0]["actor"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("unquarantine",), "Give --campaign, --key, --since or --until."),
        (("delete", "--checks", "--campaign", "c1"), "--checks needs --key"),
        (("unquarantine", "--since", "yesterday"), "must be a time such as 2026-03-01"),
        (("unquarantine", "--since", "9999-12-31T23:00-05:00"), "must be a time such as"),
        (("unquarantine", "--key", "0" * 12), f"no measurements match key {'0' * 12}"),
        (("quarantine", "--campaign", "c1", "--reason", " "), "must be printable text"),
    ],
)
def test_bad_input_is_refused(
    settings: config.Settings, store: Store, arguments: tuple[str, ...], message: str
) -> None:
    done = db(settings, *arguments)
    assert done.exit_code
    assert message in done.output + str(done.exception)
    assert plausible(store) == [True, True]


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


@given(st.fixed_dictionaries(dict.fromkeys(PACKED_COLUMNS, LISTS)))
def test_packed_lists_round_trip(lists: dict[str, list[float] | None]) -> None:
    packed = pack_lists(lists)
    assert (packed is None) == all(values is None for values in lists.values())
    back = unpack_lists(packed)
    assert back == lists
    for name, numbers in lists.items():
        for before, after in zip(numbers or [], back[name] or [], strict=True):
            assert math.copysign(1, before) == math.copysign(1, after)


def test_lists_added_later_are_unknown_in_older_values() -> None:
    few = pack_lists({PACKED_COLUMNS[0]: [0.5]})
    assert few is not None
    body = zlib.decompress(few[1:])
    older = struct.pack("<2i", 1, 1) + body[4 * (1 + len(PACKED_COLUMNS)) :]
    lists = unpack_lists(few[:1] + zlib.compress(older))
    assert lists == dict.fromkeys(PACKED_COLUMNS) | {PACKED_COLUMNS[0]: [0.5]}


def test_unknown_packing_version_is_refused() -> None:
    with pytest.raises(ValueError, match="does not know"):
        unpack_lists(b"\x02whatever")


SENDER = Sender("0123456789ab", "alice", "127.0.0.1", 1)

#: Methods of the store that write campaigns, jobs or measurements.
GATED: dict[str, Callable[[Store], object]] = {
    "add": lambda store: store.add([make_measurement()]),
    "add_campaign": lambda store: store.add_campaign(
        make_campaign_row("b"), [make_job_row("j", campaign_id="b")]
    ),
    "extend_campaign": lambda store: store.extend_campaign(
        "given", [make_job_row("m", campaign_id="given")]
    ),
    "set_jobs": lambda store: store.set_jobs([make_job_row("k", campaign_id="given")]),
    "apply_upload": lambda store: store.apply_upload(
        CampaignUpload(make_campaign_row("d"), [make_job_row("l", campaign_id="d")]), SENDER
    ),
}


READING = {"open", "preview_add", "find_owner", "count_scope", "list_changes", "prunable"}
#: Methods that change only what is stored, or belongs to this installation.
CHANGING = {
    "writing_connection", "set_attempts", "add_replicas", "mark_bad_replicas", "apply_change",
    "add_audit_entries", "rebuild_rollups", "prune", "replace_comparison", "include_sites",
    "replace_instruction_count", "add_instruction_counts",
}  # fmt: skip


def find_unowned(store: Store) -> list[str]:
    """List campaigns without an owner, and jobs without a receipt of their campaign."""
    owned, received = (
        sa.select(campaign_owner.c.campaign_id),
        (receipt.c.subject, receipt.c.campaign_id),
    )
    with store._engine.connect() as connection:
        receipts = {tuple(row) for row in connection.execute(sa.select(*received))}
        campaigns: set[str] = set()
        jobs: set[tuple[str, str]] = set()
        for ids, query in (
            (campaigns, sa.select(campaign.c.id)),
            (campaigns, sa.select(measurement.c.campaign_id)),
            (campaigns, sa.select(job.c.campaign_id)),
        ):
            ids.update(connection.scalars(query))
        for query in (
            sa.select(job.c.id, job.c.campaign_id),
            sa.select(measurement.c.job_id, measurement.c.campaign_id),
        ):
            jobs |= {tuple(row) for row in connection.execute(query)}
        unowned = campaigns - set(connection.scalars(owned))
    return [*sorted(unowned), *(" of ".join(pair) for pair in sorted(jobs - receipts))]


def test_every_method_of_the_store_is_listed() -> None:
    public = {name for name in vars(Store) if not name.startswith("_")}
    assert public == GATED.keys() | READING | CHANGING, (
        "enter the method above, and pass the gate if it writes"
    )


@pytest.mark.parametrize("name", GATED)
def test_writing_leaves_owner_and_receipts(tmp_path: Path, name: str) -> None:
    with Store.open(f"sqlite:///{tmp_path}/r.db") as store:
        store.add_campaign(make_campaign_row("given"), [])
        GATED[name](store)
        assert find_unowned(store) == []


def test_measurements_without_a_delivery_are_a_bug(tmp_path: Path) -> None:
    with Store.open(f"sqlite:///{tmp_path}/r.db") as store:
        with pytest.raises(ValueError, match="nobody sent the measurements of job job"):
            store.add([make_measurement()], [])
        assert list(store.measurements(Selection())) == []
