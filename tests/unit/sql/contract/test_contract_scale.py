"""Memory of exports is independent of the number of rows."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from measurement_factory import make_measurement

from treehammer.sql.write.store import Store

#: Exports few rows, then many, in small batches. Prints the peak memory of this process and of its
#: largest child after each (kB); peaks never fall.
EXPORT_SCRIPT = """
import resource, sys
from pathlib import Path
from treehammer.sql.transfer import arrow_columns, file_writers
from treehammer.sql.transfer.export import export_file
from treehammer.sql.read.query_model import Selection
from treehammer.sql.write.store import Store
arrow_columns.BATCH_ROWS, file_writers.ROW_GROUP_BYTES = 100, 2**22
with Store.open(sys.argv[1], create=False) as store:
    for rows in (200, 2000):
        selection = Selection.parse(wheres=[f"round<={rows}"])
        export_file(store, selection, Path(sys.argv[2]), software_dir=Path())
        status = open("/proc/self/status").readlines()
        print(next(line.split()[1] for line in status if line.startswith("VmHWM")))
        print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


pytestmark = pytest.mark.backends("sqlite", "postgresql")


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
    few, few_in_child, many, many_in_child = map(int, printed)
    # The measured growth is 31 MB, of Arrow's buffers.
    assert many - few < _MAX_GROWTH_KB
    assert many_in_child - few_in_child < _MAX_GROWTH_KB
