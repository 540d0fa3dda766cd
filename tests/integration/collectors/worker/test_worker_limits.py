"""Excessive output of a payload does not overload the worker."""

from __future__ import annotations

import re
import subprocess
import time
from pathlib import Path
from typing import Any

PRINTS = """
import os, sys, threading
block = b"x" * 65535 + b"\\n"
def flood(stream, name):
    stream.write(b"first of " + name + b"\\n")
    for _ in range(8 * 1024): stream.write(block)
    stream.write(b"last of " + name + b"\\n")
    stream.flush()
threads = [threading.Thread(target=flood, args=(stream.buffer, name))
           for stream, name in ((sys.stdout, b"out"), (sys.stderr, b"err"))]
for thread in threads: thread.start()
for thread in threads: thread.join()
open(os.environ["TREEHAMMER_RESULT"], "w").write('{"format": 1}')
"""


def _peak_bytes(pid: int) -> int:
    """Read the worker's own peak; wait4 would include the size of the process that started it."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    except OSError:
        return 0
    found = re.search(r"VmHWM:\s*(\d+) kB", status)
    return int(found[1]) * 1024 if found else 0


def test_gigabyte_of_output_is_bounded(bench: Any) -> None:
    bench.write_job(PRINTS)
    with (bench.folder / "worker.out").open("wb") as out:
        process = subprocess.Popen(
            bench.command(), cwd=bench.folder, stdout=out, stderr=subprocess.STDOUT
        )
        peak = 0
        while process.poll() is None:
            peak = max(peak, _peak_bytes(process.pid))
            time.sleep(0.02)
    ran = bench.read_result(process.returncode)
    assert ran.exit_code == 0
    assert ran.record_values["plausible"] is True
    assert ran.record_values["io_write_chars"] >= 1 << 30
    assert 0 < peak < 100_000_000
    assert ran.record_values["max_rss_bytes"] < 100_000_000
    for name in ("out", "err"):
        text = ran.read_log(f"1-1.{name}")
        assert text.startswith(f"first of {name}\n")
        assert text.endswith(f"last of {name}\n")
        assert "bytes omitted" in text
    written = sum(path.stat().st_size for path in bench.folder.rglob("*") if path.is_file())
    assert written < 5_000_000
