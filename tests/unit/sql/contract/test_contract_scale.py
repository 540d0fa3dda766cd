"""Memory of exports is independent of the number of rows."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from measurement_factory import make_measurement

from treehammer.sql.write.store import Store

#: Exports in small batches and prints the memory of this process and its largest child (kB).
EXPORT_SCRIPT = """
import resource, sys
from pathlib import Path
from treehammer.sql.arrow import arrow_schema
from treehammer.sql.transfer import file_writers
from treehammer.sql.transfer.export import export_file
from treehammer.sql.read.measurement_selection import Selection
from treehammer.sql.write.store import Store
arrow_schema.BATCH_ROWS, file_writers.ROW_GROUP_BYTES = 100, 2**22
with Store.open(sys.argv[1], create=False) as store:
    export_file(store, Selection.parse(wheres=[f"round<={sys.argv[2]}"]), Path(sys.argv[3]),
           software_dir=Path())
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


pytestmark = pytest.mark.backends("sqlite", "postgresql")


def test_export_memory_is_independent_of_rows(url: str, tmp_path: Path) -> None:
    with Store.open(url) as store:
        # All texts in memory would take 80 MB, on top of a process of 150 MB.
        store.add(
            make_measurement(job=str(n), round_=n + 1, log_excerpt=f"{n:05}" * 8000)
            for n in range(2000)
        )

    def peaks(rows: int) -> list[int]:
        run = [sys.executable, "-c", EXPORT_SCRIPT, url, str(rows), str(tmp_path / "out.parquet")]
        return [
            int(line)
            for line in subprocess.run(run, check=True, capture_output=True).stdout.split()
        ]

    few, many = peaks(200), peaks(2000)
    for less, more in zip(few, many, strict=True):
        assert more / less < 1.2
