"""Exports from PostgreSQL, which equal those from SQLite."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import uproot
from measurement_factory import HOSTILE_TEXTS, full_measurement, make_measurement
from postgres_fixture import GUEST_PASSWORD, GUEST_ROLE, SharedPostgresServer
from pyarrow import parquet
from sqlalchemy.engine import make_url
from store_fixtures import WriteExport

from treehammer.collectors.job_spec import SoftwareRequest
from treehammer.collectors.record.measurement_record import Measurement
from treehammer.errors import StoreError
from treehammer.sql.read.query_model import Selection
from treehammer.sql.transfer import arrow_columns
from treehammer.sql.transfer.export import export_file
from treehammer.sql.write.store import Store


def awkward() -> Iterator[Measurement]:
    whole = [-(2**63), -1, 0, 2**53 + 1, 2**63 - 1]
    # SQLite has no negative zero.
    real = [5e-324, -0.25, 0.1, sys.float_info.max, -sys.float_info.max]
    for place, text in enumerate(HOSTILE_TEXTS):
        extras = {"hits": place / 3} if place % 2 else {"e": place}
        yield make_measurement(job=f"hostile {place}", host=text, log_excerpt=text, extras=extras)
    for place, (number, fraction) in enumerate(zip(whole, real, strict=True)):
        yield make_measurement(
            job="numbers",
            position=place + 1,
            site=["b", "", "B", "a", "é"][place],
            retries=number,
            eff_job=fraction,
            read_latency_hist=[0, 1, 2**53 + 1, 2**63 - 1],
            pass_loop_wall_s=real,
            plausible=bool(place % 2),
        )
    yield from (full_measurement(n) for n in range(7))


@pytest.fixture
def both(store: Store, tmp_path: Path) -> Iterator[tuple[Store, Store]]:
    """Fill SQLite and PostgreSQL with the same rows."""
    with Store.open(f"sqlite:///{tmp_path}/same.db") as other:
        other.add(awkward())
        store.add(reversed([*awkward()]))
        yield other, store


SELECTIONS = [
    Selection(),
    Selection.parse(["campaign"], ["host!=NULL", f"retries>={-(2**63)}"]),
    Selection.parse(["campaign", "it's"], [r"host~*'; DROP*\\*"]),
    Selection.parse(wheres=["host~*%(a)s*"]),
    Selection.parse(wheres=["host~*[red]*"]),
    Selection.parse(wheres=["plausible=true", "eff_job<=0.1"]),
    Selection.parse(wheres=["plausible=no", "site="]),
    Selection.parse(wheres=["eff_job=-1.7976931348623157e308"]),
]


@pytest.mark.usefixtures("in_process_reader")
@pytest.mark.parametrize("place", range(len(SELECTIONS)))
def test_export_equals_sqlite_export(
    both: tuple[Store, Store], tmp_path: Path, place: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrow_columns, "BATCH_ROWS", 5)
    selection = SELECTIONS[place]
    if not [*both[0].measurements(selection)]:
        assert not [*both[1].measurements(selection)]
        return
    for suffix in (".parquet", ".csv"):
        files = [tmp_path / f"{number}{suffix}" for number in (0, 1)]
        for store, file in zip(both, files, strict=True):
            assert _write(store, selection, file)
        if suffix == ".csv":
            assert files[0].read_bytes() == files[1].read_bytes()
        else:
            one, two = (parquet.read_table(file) for file in files)
            assert one.equals(two)
            assert one.schema.equals(two.schema, check_metadata=False)


def _write(store: Store, selection: Selection, file: Path, software_dir: Path = Path()) -> int:
    return export_file(
        store,
        selection,
        file,
        software_dir=software_dir,
    )


@pytest.mark.root
def test_tree_equals_sqlite_tree(
    both: tuple[Store, Store], tmp_path: Path, release: Callable[[str], SoftwareRequest]
) -> None:
    software = Path(release("6.40.00").location).parent
    found = []
    for number, store in enumerate(both):
        # A tree cannot hold the values that stand for NULL in it.
        selection = Selection.parse(wheres=[f"retries!={-(2**63)}"])
        file = tmp_path / f"{number}.root"
        assert _write(store, selection, file, software) == len([*awkward()]) - 1
        with uproot.open(file) as opened:
            tree = opened["results"]
            names = tree.keys()
            found.append({name: str(tree[name].array().tolist()) for name in names})
    assert found[0] == found[1]


def test_lost_connection_leaves_no_file(
    store: Store, postgresql: SharedPostgresServer, write: WriteExport, tmp_path: Path, url: str
) -> None:
    # This is more than driver and socket buffer.
    store.add(make_measurement(job=str(n), log_excerpt=f"{n:05}" * 8000) for n in range(1500))
    name = str(make_url(url).database)

    def cut(_done: int, _note: str = "") -> None:
        postgresql.end_connections(name)

    with pytest.raises(StoreError, match=r"was lost(.|\n)*intact"):
        write(tmp_path / "results.parquet", step=cut)
    assert not [p for p in tmp_path.iterdir() if "parquet" in p.name]


def test_password_reaches_only_the_reader(
    store: Store, postgresql: SharedPostgresServer, tmp_path: Path, url: str
) -> None:
    store.add([make_measurement()])
    name = str(make_url(url).database)
    postgresql.grant_reading(name)
    with Store.open(postgresql.url(name, GUEST_ROLE, GUEST_PASSWORD), create=False) as as_guest:
        assert _write(as_guest, Selection(), tmp_path / "results.csv") == 1
