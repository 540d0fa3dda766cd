"""xrdreplay as an engine: reads of ``root://`` files by a recording."""

from __future__ import annotations

import os
import random
import re
from typing import Dict, Iterator, List

from .....collectors.kit.treehammer_kit.payload_task import PayloadError
from .....collectors.record.latency_histograms import LatencyHistogram
from .....collectors.record.operation_steps import (
    READ,
)
from ..clients.xrootd_client import add_user
from ..operation import Chunk
from .engine import Engine, EngineLoad, EngineStep


class XrdReplayEngine(Engine):
    """xrdreplay: reads of ``root://`` files, as fast as they go, by a recording that is written.

    It reports counts and the time of all, no latencies.
    """

    name = "xrdreplay"
    package = "package xrootd-client of Debian and others"
    schemes = ("root", "roots", "xroot", "xroots")
    operations = (READ,)
    paces = False
    version_program = "xrdcp"

    def build_command(self) -> List[str]:
        """Write the recording: each client opens its file, reads it and closes it."""
        path = os.path.join(self.folder, "recording.csv")
        with open(path, "w", encoding="utf-8") as stream:
            for client in range(self.load.clients):
                stream.writelines(self._record_client(client))
        return [self.program, "--summary", path]

    def _record_client(self, client: int) -> Iterator[str]:
        load, task = self.load, self.task
        file = task.files[client % len(task.files)]
        instant = 1.7e9

        def line(name: str, arguments: str, response: str = "") -> str:
            nonlocal instant
            instant += 1e-4
            cells = (client + 1, name, f"{instant:.6f}", arguments)
            ends = (f"{instant + 5e-5:.6f}", "[SUCCESS]", response)
            return ",".join(f'"{cell}"' for cell in (*cells, *ends)) + "\n"

        yield line("Open", f"{add_user(file.url, client)};16;0;0")
        for offset, size in place_reads(load, client, file.size):
            yield line("Read", f"{offset};{size};0", str(size))
        yield line("Close", "0")

    def parse(self, output: str) -> List[EngineStep]:
        """Convert the summary."""
        return parse_xrdreplay(output)


def place_reads(load: EngineLoad, client: int, size: int) -> Iterator[Chunk]:
    """Iterate over the reads of a client, at the positions that the generator draws."""
    generator = random.Random(f"{load.task.seed} {client}")
    for _ in range(load.reads):
        length = generator.randint(*load.block)
        yield generator.randint(0, size - length), length


def parse_xrdreplay(output: str) -> List[EngineStep]:
    """Convert the summary of xrdreplay.

    Raises:
        PayloadError: there is none.
    """
    numbers: Dict[str, float] = {}
    for line in output.splitlines():
        match = re.match(r"#\s+([A-Za-z:]+(?:\s+[A-Za-z]+)?)\s*:\s+([\d.]+)", line)
        if match:
            numbers[" ".join(match[1].split())] = float(match[2])
    try:
        seconds, errors = numbers["Total Runtime"], int(numbers["Response Errors"])
        operations, size = int(numbers.get("read::n", 0)), int(numbers.get("read::b", 0))
    except KeyError as error:
        message = f"xrdreplay: no {error} in {output[-200:]!r}"
        raise PayloadError("payload", "bad-result", "load", message) from error
    failures = {"other": errors} if errors else {}
    return [
        EngineStep(0.0, seconds, max(operations - errors, 0), size, failures, LatencyHistogram())
    ]
