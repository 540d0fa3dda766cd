"""Fixtures of filled stores, shared by all tests of the sql package."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import pytest
from measurement_factory import full_measurement, make_campaign_row, make_job_row, make_measurement
from store_helpers import (
    EVERYTHING,
    awkward_measurements,
    build_finding,
    fill_database,
    read_in_process,
)

from treehammer.sql.core.rows import AttemptRow
from treehammer.sql.read.query_model import Selection
from treehammer.sql.transfer import arrow_columns, file_readers
from treehammer.sql.transfer.export import export_file, export_partitions
from treehammer.sql.write.store import Store
from treehammer.text_formatting import ProgressCallback

WriteExport = Callable[..., int]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    url = f"sqlite:///{tmp_path_factory.mktemp('copy')}/source.db"
    fill_database(url)
    return url


@pytest.fixture
def in_process_reader() -> Iterator[None]:
    with read_in_process():
        yield


@pytest.fixture
def write(store: Store, tmp_path: Path) -> WriteExport:
    def run(
        target: Path,
        selection: Selection = Selection(),  # noqa: B008
        step: ProgressCallback = lambda _done, _note="": None,
    ) -> int:
        return export_file(
            store,
            selection,
            target,
            software_dir=tmp_path / "software",
            bars=lambda _description, _total: nullcontext(step),
        )

    return run


@pytest.fixture
def export_rows(store: Store, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setattr(arrow_columns, "BATCH_ROWS", 3)
    store.add(
        [
            *(full_measurement(n) for n in range(5)),
            make_measurement(job="a", extras={"hits": 2.5, "e": 1}),
            make_measurement(job="b", host='"a", b\nc', extras={"hits": -0.125}),
            make_measurement(job="c", retries=-(2**63), bytes_read=2**63 - 1, read_latency_hist=[]),
        ]
    )
    return store


@dataclass(frozen=True)
class ExportedStore:
    """Database of another installation and its exports: a Parquet file and a folder."""

    database: Path
    file: Path
    folder: Path


@pytest.fixture(scope="session")
def exported_store(tmp_path_factory: pytest.TempPathFactory) -> ExportedStore:
    """Create another installation with rows of every kind; copy its files before changing them."""
    base = tmp_path_factory.mktemp("others")
    exported = ExportedStore(base / "others.db", base / "theirs.parquet", base / "parts")
    with (
        pytest.MonkeyPatch.context() as patch,
        Store.open(f"sqlite:///{exported.database}") as store,
    ):
        patch.setattr(arrow_columns, "BATCH_ROWS", 7)
        store.add(awkward_measurements())
        jobs = [make_job_row("done", state="done"), make_job_row("runs", state="running")]
        store.add_campaign(make_campaign_row(), jobs)
        store.add_campaign(make_campaign_row("unmeasured", plan="{}" * 5000), [])
        store.set_attempts(
            [
                AttemptRow("done", 1, "lost", 5, 9, None, "lost", "the node went away"),
                AttemptRow("done", 2, "done", 10, 20, 0, "", ""),
                AttemptRow("runs", 1, "running", 5, 0, None, "", ""),
            ]
        )
        store.add_replicas(
            [build_finding("bad", good=False), build_finding("good", good=True, found_us=9)]
        )
        export_file(store, EVERYTHING, exported.file, software_dir=Path())
        export_partitions(store, EVERYTHING, exported.folder, ".parquet", software_dir=Path())
    return exported


@pytest.fixture
def other_store(
    exported_store: ExportedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Store]:
    """Open a copy of the other installation's database, with small batches."""
    monkeypatch.setattr(arrow_columns, "BATCH_ROWS", 7)
    monkeypatch.setattr(file_readers, "READ_ROWS", 140)  # 7 with operations
    shutil.copy(exported_store.database, tmp_path / "others.db")
    with Store.open(f"sqlite:///{tmp_path}/others.db") as opened:
        yield opened
