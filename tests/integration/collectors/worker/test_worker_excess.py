"""A payload that does too much of something cannot make the worker do too much too."""

from __future__ import annotations

import os
import subprocess
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


def test_a_gigabyte_of_output_needs_neither_disk_nor_memory(bench: Any) -> None:
    bench.write(PRINTS)
    with (bench.folder / "worker.out").open("wb") as out:
        process = subprocess.Popen(
            bench.command(), cwd=bench.folder, stdout=out, stderr=subprocess.STDOUT
        )
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    ran = bench.read(process.returncode)
    assert ran.exit_code == 0
    assert ran.values["plausible"] is True
    assert ran.values["io_write_chars"] >= 1 << 30
    assert usage.ru_maxrss * 1024 < 100_000_000, "of the worker or any process below it"
    for name in ("out", "err"):
        text = ran.log(f"1-1.{name}")
        assert text.startswith(f"first of {name}\n")
        assert text.endswith(f"last of {name}\n")
        assert "bytes left out" in text
    written = sum(path.stat().st_size for path in bench.folder.rglob("*") if path.is_file())
    assert written < 5_000_000
