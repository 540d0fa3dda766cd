"""Third-party copies for Rucio's conveyor: a small service that understands a part of FTS's REST.

It stands in for FTS, of which no server can be had as a package.  Rucio's stock transfer tool
``fts3`` talks to it: ``POST /jobs``, ``GET /jobs/ID,ID``, ``DELETE /jobs/ID``.  Each file is copied
by ``xrdcp --tpc only``, from storage to storage, and its checksum is compared at the destination.
It forgets all jobs when it ends, as Rucio's poller then notes.

Started as a program of its own; standard library only::

    python transfers.py PORT XRDCP
"""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlparse

#: Copies under way at once; each one mostly waits, for two seconds at least.
WORKER_THREADS = 8
#: Seconds that a copy may take: some, and one for each so many bytes.
COPY_TIMEOUT_S, MIN_BYTES_PER_S = 60.0, 2_000_000
#: Characters of xrdcp's words that a reason repeats.
MAX_REASON_CHARS = 400
#: Jobs that are remembered.
MAX_JOBS = 10_000
FINAL_STATES = ("FINISHED", "FAILED", "CANCELED", "NOT_USED")


class TransferQueue:
    """Jobs, and the threads that carry them out.

    A job with several sources for its one file tries them in turn; any other copies all its files.

    Args:
        xrdcp: the program that copies.
    """

    def __init__(self, xrdcp: str) -> None:
        self.xrdcp = xrdcp
        self.jobs: dict[str, dict[str, Any]] = {}
        self.waiting: queue.SimpleQueue[tuple[dict[str, Any], dict[str, Any]]] = queue.SimpleQueue()
        self.lock = threading.Lock()

    def start(self) -> None:
        """Start the threads; they end with the process."""
        for _ in range(WORKER_THREADS):
            threading.Thread(target=self._run_worker, daemon=True).start()

    def submit(self, document: dict[str, Any]) -> str:
        """Take a job, as FTS's ``POST /jobs`` has it; its id."""
        files = [
            {
                "source_surl": source,
                "dest_surl": one["destinations"][0],
                "file_state": "SUBMITTED",
                "reason": "",
                "checksum": one.get("checksum") or "",
                "filesize": one.get("filesize") or 0,
                "file_metadata": one.get("metadata"),
                "start_time": None,
                "finish_time": None,
                "staging_start": None,
                "staging_finished": None,
            }
            for one in document["files"]
            for source in one["sources"]
        ]
        metadata = document["params"].get("job_metadata") or {}
        identity = str(uuid.uuid4())
        job = {
            "job_id": identity,
            "http_status": "200 Ok",
            "job_state": "SUBMITTED",
            "job_type": "R" if metadata.get("multi_sources") else "N",
            "job_metadata": metadata,
            "files": files,
        }
        with self.lock:
            while len(self.jobs) >= MAX_JOBS:
                self.jobs.pop(next(iter(self.jobs)))
            self.jobs[identity] = job
        for file in files[: 1 if metadata.get("multi_sources") else None]:
            self.waiting.put((job, file))
        return identity

    def find_job(self, identity: str) -> dict[str, Any]:
        """A job as FTS shows it, with a status of its own where it is not known."""
        unknown = {
            "job_id": identity,
            "http_status": "404 Not Found",
            "http_message": "no such job",
        }
        return self.jobs.get(identity, unknown)

    def cancel(self, identity: str) -> None:
        """Do not begin what has not begun."""
        with self.lock:
            job = self.jobs.get(identity, {"files": []})
            for file in job["files"]:
                if file["file_state"] == "SUBMITTED":
                    file["file_state"] = "CANCELED"
            if job["files"]:
                self._update_job_state(job)

    def _run_worker(self) -> None:
        while True:
            job, file = self.waiting.get()
            with self.lock:
                if file["file_state"] != "SUBMITTED":
                    continue
                file["file_state"] = job["job_state"] = "ACTIVE"
                file["start_time"] = _now_text()
            reason = self._copy_file(file)
            with self.lock:
                file["finish_time"] = _now_text()
                file["reason"] = reason
                file["file_state"] = "FAILED" if reason else "FINISHED"
                self._update_job_state(job)
            print(f"{file['source_surl']} -> {file['dest_surl']}: {reason or 'copied'}", flush=True)

    def _copy_file(self, file: dict[str, Any]) -> str:
        """Why a copy failed; '' when it is there, with the right checksum."""
        command = [self.xrdcp, "--force", "--silent", "--nopbar", "--path", "--tpc", "only"]
        if file["checksum"]:
            kind, _, value = file["checksum"].partition(":")
            command += ["--rm-bad-cksum", "--cksum", f"{kind.lower()}:{value.lower()}"]
        try:
            done = subprocess.run(
                [*command, file["source_surl"], file["dest_surl"]],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=COPY_TIMEOUT_S + file["filesize"] / MIN_BYTES_PER_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            return f"not done after {error.timeout:.0f} s"
        if not done.returncode:
            return ""
        said = done.stdout.replace(b"\0", b"").decode("utf-8", "replace").strip()
        return said[-MAX_REASON_CHARS:] or f"xrdcp ended with {done.returncode}"

    def _update_job_state(self, job: dict[str, Any]) -> None:
        """Bring the state of a job up to that of its files; begin the next source."""
        files = job["files"]
        states = [file["file_state"] for file in files]
        if job["job_type"] == "R" and "ACTIVE" not in states:
            if "FINISHED" in states:
                for file in files:
                    if file["file_state"] == "SUBMITTED":
                        file["file_state"] = "NOT_USED"
            elif "SUBMITTED" in states:
                self.waiting.put((job, files[states.index("SUBMITTED")]))
            states = [file["file_state"] for file in files]
        if any(state not in FINAL_STATES for state in states):
            return
        good = states.count("FINISHED")
        if "CANCELED" in states:
            job["job_state"] = "CANCELED"
        elif job["job_type"] == "R" or good in (0, len(states)):
            job["job_state"] = "FINISHED" if good else "FAILED"
        else:
            job["job_state"] = "FINISHEDDIRTY"


def _now_text() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S")


def make_handler(transfers: TransferQueue) -> type[BaseHTTPRequestHandler]:
    """What answers requests about these transfers."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:
            """Nothing: the copies are logged."""

        def do_POST(self) -> None:
            size = int(self.headers.get("Content-Length", 0))
            try:
                job = transfers.submit(json.loads(self.rfile.read(size)))
            except (ValueError, KeyError, TypeError, IndexError) as error:
                self._answer(
                    HTTPStatus.BAD_REQUEST, {"message": f"{type(error).__name__}: {error}"}
                )
            else:
                self._answer(HTTPStatus.OK, {"job_id": job})

        def do_GET(self) -> None:
            if not self._ids():
                self._answer(
                    HTTPStatus.OK, {"api": {"major": 3}, "service": "transfers.py, not FTS"}
                )
                return
            found = [transfers.find_job(identity) for identity in self._ids()]
            status = HTTPStatus.OK if len(found) == 1 else HTTPStatus.MULTI_STATUS
            self._answer(status, found)

        def do_DELETE(self) -> None:
            for identity in self._ids():
                transfers.cancel(identity)
            self._answer(HTTPStatus.OK, {})

        def _ids(self) -> Sequence[str]:
            place, _, ids = urlparse(self.path).path.strip("/").partition("/")
            return ids.split(",") if place == "jobs" and ids else ()

        def _answer(self, status: HTTPStatus, document: object) -> None:
            with transfers.lock:
                body = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    return Handler


def main(words: Sequence[str]) -> None:
    """Serve until a signal ends it."""
    port, xrdcp = words
    transfers = TransferQueue(xrdcp)
    transfers.start()
    ThreadingHTTPServer(("127.0.0.1", int(port)), make_handler(transfers)).serve_forever()


if __name__ == "__main__":
    main(sys.argv[1:])
