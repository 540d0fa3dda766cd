"""Database with edge cases, exported as a TTree by real ROOT releases."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cached_software import prepare_cached
from measurement_factory import (
    full_measurement,
    make_campaign_row,
    make_job_row,
    make_measurement,
    make_operation,
)

from treehammer.collectors.job_spec import SoftwareRequest
from treehammer.sql.core.rows import AttemptRow
from treehammer.sql.read.query_model import Selection
from treehammer.sql.transfer.export import export_file
from treehammer.sql.write.store import Store

RELEASES = ("6.40.00", "6.38.00")
Row = dict[str, Any]
#: A step of a load test with one slow operation, and one that failed.
OPERATIONS = [make_operation([0.001] * 199 + [2.0], step=3), make_operation([], {"reset": 1})]


@dataclass(frozen=True)
class ExportedTree:
    """ROOT file with its expected rows."""

    file: Path
    rows: list[Row]


@pytest.fixture(scope="session")
def release() -> Callable[[str], SoftwareRequest]:
    """Provide a prepared ROOT release from the user's cache."""
    return prepare_cached


@pytest.fixture(scope="session")
def root(release: Callable[[str], SoftwareRequest]) -> Path:
    """Provide the folder of the release that reads exports."""
    return Path(release(RELEASES[0]).location)


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    whole = [0, 1, 2**53 + 1, 2**63 - 1]
    real = [5e-324, 0.1, sys.float_info.max, -sys.float_info.max]
    text = "'quoted' \"twice\",\n\ttab \\ % {{x}} 𝕏 中文 العربية é [red]"
    with Store.open(f"sqlite:///{tmp_path_factory.mktemp('sql')}/results.db") as opened:
        opened.add(
            [
                *(full_measurement(n) for n in range(12)),
                make_measurement(job="nothing"),
                make_measurement(job="extras", extras={"hits": 0.1, "_e": -1}),
                make_measurement(job="text", host=text, log_excerpt=text * 300, slot="x" * 254),
                make_measurement(job="text", position=2, slot="x" * 255, kernel="y" * 4000),
                make_measurement(
                    job="limits",
                    retries=2**63 - 1,
                    bytes_read=2**53 + 1,
                    eff_job=5e-324,
                    read_latency_hist=whole,
                    pass_loop_wall_s=real,
                    failure_transient=False,
                ),
                make_measurement(job="empty", read_latency_hist=[], pass_loop_wall_s=[0.0]),
                make_measurement(job="load", operations=OPERATIONS),
            ]
        )
        opened.add_campaign(make_campaign_row(), [make_job_row("a"), make_job_row("b")])
        opened.set_attempts([AttemptRow("a", 2, "lost", 5, 9, None, "lost", "gone")])
        yield opened


@pytest.fixture(scope="session")
def rows(store: Store) -> list[Row]:
    """Fill a database and return its rows with all columns of the tree."""
    extras = {(e.measurement_id, e.name): e.value for e in store.extras(Selection())}
    measurement_rows = [dict(row) for row in store.measurements(Selection())]
    for row in measurement_rows:
        for name in ("_e", "hits"):
            row[f"extra_{name}"] = extras.get((str(row["measurement_id"]), name))
        row["looks_unknown"] = "read_latency_hist" if row["job_id"] == "empty" else None
    return measurement_rows


@pytest.fixture(scope="session")
def exports(
    store: Store,
    rows: list[Row],
    release: Callable[[str], SoftwareRequest],
    tmp_path_factory: pytest.TempPathFactory,
) -> Mapping[str, ExportedTree]:
    """Export the database as a TTree with each release, the only one visible."""
    trees = {}
    for version in RELEASES:
        folder = tmp_path_factory.mktemp("root")
        ready = Path(release(version).location)
        (folder / ready.name).symlink_to(ready)
        file = folder / "results.root"
        export_file(store, Selection(), file, software_dir=folder)
        trees[version] = ExportedTree(file, rows)
    return trees


@pytest.fixture(scope="session", params=RELEASES)
def exported(request: pytest.FixtureRequest, exports: Mapping[str, ExportedTree]) -> ExportedTree:
    """Provide each exported tree in turn."""
    return exports[request.param]
