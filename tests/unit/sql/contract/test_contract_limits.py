"""Cancellation of queries, and memory of exports, on real databases."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import sqlalchemy as sa
from measurement_factory import make_measurement

from treehammer.errors import StoreError
from treehammer.sql.engine.database_engine import QueryGroup, is_cancelled, read_transaction
from treehammer.sql.engine.database_setup import open_engine
from treehammer.sql.write.store import Store

pytestmark = pytest.mark.backends("sqlite", "postgresql")

ENDLESS = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT 1 FROM c) SELECT count(*) FROM c"
PATIENCE_S = 60.0


def test_cancelled_query_ends_and_others_go_on(url: str) -> None:
    engine = open_engine(url, create=True)
    group = QueryGroup()
    began = threading.Event()
    failures: list[StoreError] = []

    def run_endless_query() -> None:
        with read_transaction(engine) as connection:
            connection.scalar(sa.text("SELECT 1"))
            began.set()
            connection.scalar(sa.text(ENDLESS))

    def run_group() -> None:
        try:
            group.run(run_endless_query)
        except StoreError as error:
            failures.append(error)

    thread = threading.Thread(target=run_group, daemon=True)
    thread.start()
    assert began.wait(PATIENCE_S)
    deadline = time.monotonic() + PATIENCE_S
    while thread.is_alive():
        assert time.monotonic() < deadline
        group.cancel()
        thread.join(0.05)
    assert failures
    with pytest.raises(StoreError, match="cancelled"):
        group.run(run_endless_query)
    assert not is_cancelled()
    with read_transaction(engine) as connection:
        assert connection.scalar(sa.text("SELECT 2")) == 2
    engine.dispose()


#: Exports few rows, then many, in small batches. Prints the peak memory after each (kB).
EXPORT_SCRIPT = """
import sys
from pathlib import Path
from treehammer.sql.read import measurement_queries
from treehammer.sql.transfer import arrow_stream, file_writers
from treehammer.sql.transfer.export import export_file
from treehammer.sql.read.query_model import Selection
from treehammer.sql.write.store import Store
arrow_stream.BATCH_ROWS = measurement_queries.FETCH_ROWS = 100
file_writers.ROW_GROUP_BYTES = 2**22
with Store.open(sys.argv[1], create=False) as store:
    for rows in (200, 2000):
        selection = Selection.parse(wheres=[f"round<={rows}"])
        export_file(store, selection, Path(sys.argv[2]), software_dir=Path())
        status = open("/proc/self/status").readlines()
        print(next(line.split()[1] for line in status if line.startswith("VmHWM")))
"""


#: Growth of a process that holds some batches, but not all texts.
_MAX_GROWTH_KB = 50_000


def test_export_memory_is_independent_of_rows(url: str, tmp_path: Path) -> None:
    with Store.open(url) as store:
        # All texts in memory would take 80 MB.
        store.add(
            make_measurement(job=str(n), round_=n + 1, log_excerpt=f"{n:05}" * 8000)
            for n in range(2000)
        )

    run = [sys.executable, "-c", EXPORT_SCRIPT, url, str(tmp_path / "out.parquet")]
    printed = subprocess.run(run, check=True, capture_output=True).stdout.split()
    few, many = map(int, printed)
    # The measured growth is 31 MB, of Arrow's buffers.
    assert many - few < _MAX_GROWTH_KB
