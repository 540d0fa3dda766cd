"""oha as an engine: opens over HTTP."""

from __future__ import annotations

import math
import os
import sqlite3
from typing import Dict, List, Sequence, Tuple

from .....collectors.json_documents import decode_json
from .....collectors.kit.treehammer_kit.payload_task import PayloadError
from .....collectors.record.latency_histograms import LatencyHistogram
from .....collectors.record.operation_steps import (
    OPEN,
)
from .....collectors.storage_access import BUNDLE_VARIABLES, PROXY_VARIABLE
from ..clients.xrootd_client import classify_exit, classify_http_status
from .engine import Engine, EngineLoad, EngineStep, make_error


class OhaEngine(Engine):
    """oha: opens over HTTP (HEAD requests), at a rate or as many as possible.

    Its database holds instant, time and status of each request, its report the errors.
    """

    name = "oha"
    package = "crate oha"
    schemes = ("http", "https")
    operations = (OPEN,)

    def __init__(self, load: EngineLoad) -> None:
        super().__init__(load)
        self._requests: List[Tuple[float, float, int]] = []

    def _check(self) -> None:
        super()._check()
        secrets = [name for name in (PROXY_VARIABLE, "BEARER_TOKEN_FILE") if os.environ.get(name)]
        if secrets and self.task.files[0].url.startswith("https"):
            raise make_error(
                f"engine = 'oha': the job has credentials ({', '.join(secrets)}), which a command line "
                "would show to all users of the node; use engine = 'generator'"
            )

    @property
    def _database(self) -> str:
        return os.path.join(self.folder, "requests.db")

    def build_command(self) -> List[str]:
        """Write the addresses and build the command line."""
        load, task = self.load, self.task
        addresses = os.path.join(self.folder, "urls")
        with open(addresses, "w", encoding="utf-8") as stream:
            stream.writelines(f"{file.url}\n" for file in task.files)
        rate = load.clients * load.rate_hz
        words = [self.program, "--no-tui", "--output-format", "json", "-m", "HEAD"]
        words += ["-c", str(load.clients), "-z", f"{round(1e3 * task.duration_s)}ms"]
        words += ["--wait-ongoing-requests-after-deadline"]
        if rate:
            # Latency counts from the scheduled instant, as that of the generator does.
            words += ["-q", f"{max(1, round(rate))}", "--latency-correction"]
        words += ["-t", f"{round(1e3 * self.timeout_s)}ms", "--db-url", self._database]
        bundle = next(filter(None, (os.environ.get(name) for name in BUNDLE_VARIABLES)), "")
        words += ["--cacert", bundle] if bundle else []
        return [*words, "--urls-from-file", addresses]

    def read_files(self) -> None:
        """Read the database."""
        self._requests = read_oha_requests(self._database)

    def parse(self, output: str) -> List[EngineStep]:
        """Convert requests and errors."""
        return parse_oha(output, self._requests, self.task.step_s)


#: Instant in s since oha began, time in s, and HTTP status of a request.
OhaRequest = Tuple[float, float, int]


def read_oha_requests(path: str) -> List[OhaRequest]:
    """Read the requests that were answered from oha's database; none without one."""
    if not os.path.exists(path):
        return []
    connection = sqlite3.connect(path)
    try:
        query = 'SELECT coalesce(start_latency_correction, start), "end", status FROM oha'
        return [(start, end - start, status) for start, end, status in connection.execute(query)]
    except sqlite3.Error as error:
        message = f"oha: its database cannot be read: {error}"
        raise PayloadError("payload", "bad-result", "load", message) from error
    finally:
        connection.close()


def parse_oha(output: str, requests: Sequence[OhaRequest], step_s: float) -> List[EngineStep]:
    """Convert oha's requests and its report; errors without an instant count to the last step.

    Raises:
        PayloadError: the report is missing.
    """
    try:
        report = decode_json(output)
        seconds, errors = float(report["summary"]["total"]), report["errorDistribution"]
    except (ValueError, KeyError, TypeError) as error:
        message = f"oha: no report in {output[:200]!r}"
        raise PayloadError("payload", "bad-result", "load", message) from error
    # The last answers come a little after the load, which is no step of its own.
    count = max(1, math.ceil(seconds / step_s - 0.1))
    latencies = [LatencyHistogram() for _ in range(count)]
    failures: List[Dict[str, int]] = [{} for _ in range(count)]

    def fail(step: int, failure: str, number: int) -> None:
        failures[step][failure] = failures[step].get(failure, 0) + number

    for start_s, latency_s, status in requests:
        step = min(max(int(start_s // step_s), 0), count - 1)
        if status < 400:
            latencies[step].record(latency_s)
        else:
            fail(step, classify_http_status(status), 1)
    for text, number in errors.items():
        # Requests that are on their way at the end are given up.
        failure = "unfinished" if "deadline" in text else classify_exit(text)
        fail(count - 1, failure, number)
    return [
        EngineStep(
            step * step_s,
            step_s if step < count - 1 else seconds - step * step_s,
            latencies[step].count,
            0,
            failures[step],
            latencies[step],
        )
        for step in range(count)
    ]
