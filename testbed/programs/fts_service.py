"""Third-party copies for Rucio's conveyor: a service with a part of FTS's REST interface.

It replaces FTS, which is not available as a package. Rucio's stock transfer tool ``fts3`` uses
``POST /jobs`` and ``GET /jobs/ID,ID``, with one file per job. It is copied from its first source by
``xrdcp --tpc only``, which compares its checksum at the destination. Jobs are lost when the service
stops; Rucio's poller detects that.

Runs as a separate program with the standard library only::

    python fts_service.py PORT XRDCP
"""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlparse

#: Concurrent copies; each mostly waits, for at least two seconds.
WORKER_THREADS = 8
#: Time limit of a copy: a base, and a second per so many bytes.
COPY_TIMEOUT_S, MIN_BYTES_PER_S = 60.0, 2_000_000
#: Characters of xrdcp's output in a reason.
MAX_REASON_CHARS = 400


class TransferQueue:
    """Transfer jobs and the threads that execute them.

    Args:
        xrdcp: path of the copy program.
    """

    def __init__(self, xrdcp: str) -> None:
        self.xrdcp = xrdcp
        self.jobs: dict[str, dict[str, Any]] = {}
        self._threads = ThreadPoolExecutor(WORKER_THREADS)

    def submit(self, document: dict[str, Any]) -> str:
        """Accept a job in the format of FTS's ``POST /jobs``; return its id."""
        (request,) = document["files"]
        file = {
            "source_surl": request["sources"][0],
            "dest_surl": request["destinations"][0],
            "file_state": "SUBMITTED",
            "reason": "",
            "checksum": request.get("checksum") or "",
            "filesize": request.get("filesize") or 0,
            "file_metadata": request.get("metadata"),
            **dict.fromkeys(("start_time", "finish_time", "staging_start", "staging_finished")),
        }
        identity = str(uuid.uuid4())
        self.jobs[identity] = {
            "job_id": identity,
            "http_status": "200 Ok",
            "job_metadata": document["params"].get("job_metadata") or {},
            "files": [file],
        }
        self._threads.submit(self._process_file, file)
        return identity

    def describe_job(self, identity: str) -> dict[str, Any]:
        """Return a job in FTS's format; unknown ids get a status of their own."""
        if (job := self.jobs.get(identity)) is None:
            status = {"http_status": "404 Not Found", "http_message": "no such job"}
            return {"job_id": identity, **status}
        return {**job, "job_state": job["files"][0]["file_state"]}

    def _process_file(self, file: dict[str, Any]) -> None:
        file.update(start_time=_now_text(), file_state="ACTIVE")
        reason = self._copy_file(file)
        # The state comes last: it may be read at any time.
        state = "FAILED" if reason else "FINISHED"
        file.update(finish_time=_now_text(), reason=reason, file_state=state)
        print(f"{file['source_surl']} -> {file['dest_surl']}: {reason or 'copied'}", flush=True)

    def _copy_file(self, file: dict[str, Any]) -> str:
        """Copy a file and compare its checksum; return the failure, '' on success."""
        command = [self.xrdcp, "--force", "--silent", "--nopbar", "--path", "--tpc", "only"]
        if file["checksum"]:
            kind, _, value = file["checksum"].lower().partition(":")
            command += ["--rm-bad-cksum", "--cksum", f"{kind}:{value}"]
        try:
            result = subprocess.run(
                [*command, file["source_surl"], file["dest_surl"]],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=COPY_TIMEOUT_S + file["filesize"] / MIN_BYTES_PER_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            return f"not done after {error.timeout:.0f} s"
        if not result.returncode:
            return ""
        output = result.stdout.replace(b"\0", b"").decode("utf-8", "replace").strip()
        return output[-MAX_REASON_CHARS:] or f"xrdcp ended with {result.returncode}"


def _now_text() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S")


def make_handler(transfers: TransferQueue) -> type[BaseHTTPRequestHandler]:
    """Build the request handler for a queue."""

    class TransferHandler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing: copies are logged instead."""

        def do_POST(self) -> None:
            size = int(self.headers["Content-Length"])
            self._answer(200, {"job_id": transfers.submit(json.loads(self.rfile.read(size)))})

        def do_GET(self) -> None:
            ids = urlparse(self.path).path.removeprefix("/jobs/").split(",")
            # 207 Multi-Status, as FTS answers for several.
            self._answer(207 if len(ids) > 1 else 200, [*map(transfers.describe_job, ids)])

        def _answer(self, status: int, document: object) -> None:
            body = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    return TransferHandler


def main(words: Sequence[str]) -> None:
    """Serve until a signal arrives."""
    port, xrdcp = words
    handler = make_handler(TransferQueue(xrdcp))
    ThreadingHTTPServer(("127.0.0.1", int(port)), handler).serve_forever()


if __name__ == "__main__":
    main(sys.argv[1:])
