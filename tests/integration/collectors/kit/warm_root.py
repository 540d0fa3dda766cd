"""Process of a ROOT release that forks for each payload; runs in the release's Python.

Loading ROOT and compiling the kit take seconds of CPU, the payload itself milliseconds. Each line
of the standard input is a request in JSON, answered by a line with the payload's exit code.
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import sys
from typing import Any

from treehammer_kit import root_engine
from treehammer_kit.payload_task import RNTUPLE, TTREE, PayloadTask

TIME_LIMIT_S = 120


def warm_up() -> None:
    """Load ROOT and compile what any payload needs."""
    root, _ = root_engine.load_root()
    for format_name in (TTREE, RNTUPLE):
        task = PayloadTask(
            "timed", "events", [""], [""], 1, 1, 1.0, 1_000_000, 1.0, {}, ".", format_name
        )
        root_engine.warm_up(root, task, root_engine.select_reader(root, task))
    root_engine.compile_header(root, "checksum.hpp")
    root_engine.compile_header(root, "ntuple_checksum.hpp")


def run_payload(request: dict[str, Any]) -> None:
    """Become the payload; its own exit ends this process."""
    signal.alarm(TIME_LIMIT_S)
    log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for number in (1, 2):
        os.dup2(log, number)
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["folder"])
    sys.argv = request["arguments"]
    if sys.argv[0] == "-m":
        del sys.argv[0]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(sys.argv[0], run_name="__main__")


def main() -> None:
    """Answer requests until the standard input ends."""
    warm_up()
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            try:
                run_payload(json.loads(line))
            finally:
                os._exit(70)
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
