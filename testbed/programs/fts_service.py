"""Third-party copies for Rucio's conveyor: a service with a part of FTS's REST interface.

It replaces FTS, which is not available as a package. Rucio's stock transfer tool ``fts3`` uses
``POST /jobs``, ``GET /jobs/ID,ID`` and ``DELETE /jobs/ID``. Each file is copied from storage to
storage, by ``xrdcp --tpc only`` or, between ``https`` and ``davs`` URLs, by WebDAV's COPY with the
job's tokens, and its checksum is compared at the destination. Jobs are lost when the service stops;
Rucio's poller detects that. Authorities are those of the system and of ``X509_CERT_DIR``.

Runs as a separate program with the standard library only::

    python fts_service.py PORT XRDCP
"""

from __future__ import annotations

import json
import os
import queue
import socket
import ssl
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from http import HTTPStatus
from http.client import HTTPException, HTTPSConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlparse

#: Concurrent copies; each mostly waits, for at least two seconds.
WORKER_THREADS = 8
#: Time limit of a copy: a base, and a second per so many bytes.
COPY_TIMEOUT_S, MIN_BYTES_PER_S = 60.0, 2_000_000
#: Characters of xrdcp's output in a reason.
MAX_REASON_CHARS = 400
#: Jobs kept in memory.
MAX_JOBS = 10_000
#: Schemes of WebDAV over TLS.
HTTPS_SCHEMES = ("https", "davs")
FINAL_STATES = ("FINISHED", "FAILED", "CANCELED", "NOT_USED")


#: Types of jobs: several sources of one file, hops of one file, independent files.
_SOURCES, _HOPS, _ALL_FILES = "R", "H", "N"
#: Entry of a job's metadata -> its type.
_JOB_TYPES = {"multi_sources": _SOURCES, "multihop": _HOPS}
#: Type of a job -> its state if some of its files were copied and others were not.
_PARTIAL_STATES = {_SOURCES: "FINISHED", _HOPS: "FAILED", _ALL_FILES: "FINISHEDDIRTY"}


class TransferQueue:
    """Transfer jobs and the threads that execute them.

    A job with several sources for one file tries them in turn, and one of several hops copies them
    one after the other until one fails; any other job copies all its files.

    Args:
        xrdcp: path of the copy program.
    """

    def __init__(self, xrdcp: str) -> None:
        self.xrdcp = xrdcp
        self.jobs: dict[str, dict[str, Any]] = {}
        #: Tokens of source and destination by job and source; they stay in this process.
        self._tokens: dict[tuple[str, str], tuple[str, str]] = {}
        self.pending_files: queue.SimpleQueue[tuple[dict[str, Any], dict[str, Any]]] = (
            queue.SimpleQueue()
        )
        self.lock = threading.Lock()

    def start(self) -> None:
        """Start the daemon threads."""
        for _ in range(WORKER_THREADS):
            threading.Thread(target=self._run_worker, daemon=True).start()

    def submit(self, document: dict[str, Any]) -> str:
        """Accept a job in the format of FTS's ``POST /jobs``; return its id."""
        requests = document["files"]
        files = [
            _make_file(request, source) for request in requests for source in request["sources"]
        ]
        metadata = document["params"].get("job_metadata") or {}
        kind = _find_job_type(metadata)
        identity = str(uuid.uuid4())
        job = {
            "job_id": identity,
            "http_status": "200 Ok",
            "job_state": "SUBMITTED",
            "job_type": kind,
            "job_metadata": metadata,
            "files": files,
        }
        tokens = {
            (identity, source): pair
            for request in requests
            for source, pair in _list_tokens(request)
        }
        self._store_job(job, tokens)
        for file in files[: None if kind == _ALL_FILES else 1]:
            self.pending_files.put((job, file))
        return identity

    def _store_job(
        self, job: dict[str, Any], tokens: dict[tuple[str, str], tuple[str, str]]
    ) -> None:
        """Store a job, and forget the oldest ones with their tokens."""
        with self.lock:
            while len(self.jobs) >= MAX_JOBS:
                self.jobs.pop(next(iter(self.jobs)))
            self.jobs[job["job_id"]] = job
            remaining_tokens = {
                key: pair for key, pair in self._tokens.items() if key[0] in self.jobs
            }
            self._tokens = remaining_tokens | tokens

    def find_job(self, identity: str) -> dict[str, Any]:
        """Return a job in FTS's format; unknown ids get a status of their own."""
        unknown = {
            "job_id": identity,
            "http_status": "404 Not Found",
            "http_message": "no such job",
        }
        return self.jobs.get(identity, unknown)

    def cancel(self, identity: str) -> None:
        """Cancel copies that have not started."""
        with self.lock:
            job = self.jobs.get(identity, {"files": []})
            for file in job["files"]:
                if file["file_state"] == "SUBMITTED":
                    file["file_state"] = "CANCELED"
            if job["files"]:
                self._update_job_state(job)

    def _run_worker(self) -> None:
        while True:
            job, file = self.pending_files.get()
            with self.lock:
                if file["file_state"] != "SUBMITTED":
                    continue
                file["file_state"] = job["job_state"] = "ACTIVE"
                file["start_time"] = _now_text()
            tokens = self._tokens.pop((job["job_id"], file["source_surl"]), ("", ""))
            reason = self._copy_file(file, *tokens)
            with self.lock:
                file["finish_time"] = _now_text()
                file["reason"] = reason
                file["file_state"] = "FAILED" if reason else "FINISHED"
                self._update_job_state(job)
            print(f"{file['source_surl']} -> {file['dest_surl']}: {reason or 'copied'}", flush=True)

    def _copy_file(self, file: dict[str, Any], source_token: str, destination_token: str) -> str:
        """Copy a file and compare its checksum; return the failure, '' on success."""
        if all(urlparse(file[name]).scheme in HTTPS_SCHEMES for name in _SURLS):
            return copy_over_https(file, source_token, destination_token)
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
        output = done.stdout.replace(b"\0", b"").decode("utf-8", "replace").strip()
        return output[-MAX_REASON_CHARS:] or f"xrdcp ended with {done.returncode}"

    def _update_job_state(self, job: dict[str, Any]) -> None:
        """Derive a job's state from its files; start the next source."""
        if job["job_type"] != _ALL_FILES:
            self._start_next_file(job)
        states = {file["file_state"] for file in job["files"]}
        if states <= {*FINAL_STATES}:
            job["job_state"] = _combine_states(job["job_type"], states)

    def _start_next_file(self, job: dict[str, Any]) -> None:
        """Start the next source or hop, or drop the others when they are of no use."""
        states = [file["file_state"] for file in job["files"]]
        submitted = [file for file in job["files"] if file["file_state"] == "SUBMITTED"]
        useless = "FINISHED" if job["job_type"] == _SOURCES else "FAILED"
        if useless in states and "ACTIVE" not in states:
            for file in submitted:
                file["file_state"] = "NOT_USED"
        elif submitted and "ACTIVE" not in states:
            self.pending_files.put((job, submitted[0]))


_SURLS = ("source_surl", "dest_surl")


def _find_job_type(metadata: dict[str, Any]) -> str:
    return next((kind for name, kind in _JOB_TYPES.items() if metadata.get(name)), _ALL_FILES)


def _combine_states(kind: str, states: set[str]) -> str:
    """Combine the final states of a job's files into the job's."""
    if "CANCELED" in states:
        return "CANCELED"
    if "FINISHED" not in states:
        return "FAILED"
    return "FINISHED" if states == {"FINISHED"} else _PARTIAL_STATES[kind]


def _make_file(listed: dict[str, Any], source: str) -> dict[str, Any]:
    """Make the state of a file's copy from one of its sources."""
    return {
        "source_surl": source,
        "dest_surl": listed["destinations"][0],
        "file_state": "SUBMITTED",
        "reason": "",
        "checksum": listed.get("checksum") or "",
        "filesize": listed.get("filesize") or 0,
        "file_metadata": listed.get("metadata"),
        "start_time": None,
        "finish_time": None,
        "staging_start": None,
        "staging_finished": None,
    }


def _list_tokens(listed: dict[str, Any]) -> list[tuple[str, tuple[str, str]]]:
    """List the sources of a file with the tokens of source and destination, '' for none."""
    sources = listed["sources"]
    source_tokens = listed.get("source_tokens") or [""] * len(sources)
    destination_token = (listed.get("destination_tokens") or [""])[0]
    pairs = [(token, destination_token) for token in source_tokens]
    return list(zip(sources, pairs, strict=True))


def copy_over_https(file: dict[str, Any], source_token: str, destination_token: str) -> str:
    """Let the destination fetch a file, and compare its checksum; return the failure, '' on success.

    The destination gets the token for its own storage, and passes that of the source on.
    """
    deadline = time.monotonic() + COPY_TIMEOUT_S + file["filesize"] / MIN_BYTES_PER_S
    source, destination = (urlparse(file[name]) for name in _SURLS)
    headers = {"Source": source._replace(scheme="https").geturl(), "Overwrite": "T"}
    headers |= _authorize("Authorization", destination_token)
    headers |= _authorize("TransferHeaderAuthorization", source_token)
    try:
        status, text = _send_request("COPY", destination.geturl(), headers, deadline)
        if status >= HTTPStatus.MULTIPLE_CHOICES:
            return f"COPY: {status} {text}"[-MAX_REASON_CHARS:]
        # Progress comes before the outcome in the last line.
        outcome = (text.strip().splitlines() or ["no outcome"])[-1]
        if not outcome.lower().startswith("success"):
            return outcome[-MAX_REASON_CHARS:]
        return _compare_checksum(file, destination_token, deadline)
    except (OSError, HTTPException) as error:
        return f"{type(error).__name__}: {error}"[-MAX_REASON_CHARS:]


def _compare_checksum(file: dict[str, Any], token: str, deadline: float) -> str:
    """Compare the checksum at the destination, and remove a wrong file."""
    kind, _, value = file["checksum"].lower().partition(":")
    if not value:
        return ""
    headers = {"Want-Digest": kind, **_authorize("Authorization", token)}
    status, digest = _send_request("HEAD", file["dest_surl"], headers, deadline)
    if digest.lower() == f"{kind}={value}":
        return ""
    _send_request("DELETE", file["dest_surl"], _authorize("Authorization", token), deadline)
    return f"checksum is {digest or status}, not {kind}={value}"


def _authorize(header: str, token: str) -> dict[str, str]:
    return {header: f"Bearer {token}"} if token else {}


def _send_request(
    method: str, url: str, headers: dict[str, str], deadline: float
) -> tuple[int, str]:
    """Return the status, and the text or, of HEAD, the digest."""
    context = ssl.create_default_context()
    if folder := os.environ.get("X509_CERT_DIR"):
        context.load_verify_locations(capath=folder)
    address = urlparse(url)
    remaining_s = max(deadline - time.monotonic(), 0.0)
    connection = HTTPSConnection(
        str(address.hostname), address.port, timeout=remaining_s, context=context
    )
    connection.connect()
    # The time limit of a connection counts for each wait only.
    timer = threading.Timer(remaining_s, _end_waits, (connection.sock,))
    timer.start()
    try:
        connection.request(method, address.path, headers=headers)
        response = connection.getresponse()
        if method == "HEAD":
            return response.status, response.getheader("Digest", "")
        lines = []
        while line := response.readline(65_536):
            lines.append(line.decode("utf-8", "replace"))
        if time.monotonic() > deadline:
            raise TimeoutError("the copy took too long")
        return response.status, "".join(lines)
    finally:
        timer.cancel()
        connection.close()


def _end_waits(connection: socket.socket) -> None:
    """Let all waits for a server end, with an error or with what came so far."""
    with suppress(OSError):
        # That of TLS would change its state, which another thread uses.
        socket.socket.shutdown(connection, socket.SHUT_RDWR)


def _now_text() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S")


def make_handler(transfers: TransferQueue) -> type[BaseHTTPRequestHandler]:
    """Build the request handler for a queue."""

    class TransferHandler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing: copies are logged instead."""

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
                    HTTPStatus.OK, {"api": {"major": 3}, "service": "fts_service.py, not FTS"}
                )
                return
            jobs = [transfers.find_job(identity) for identity in self._ids()]
            status = HTTPStatus.OK if len(jobs) == 1 else HTTPStatus.MULTI_STATUS
            self._answer(status, jobs)

        def do_DELETE(self) -> None:
            for identity in self._ids():
                transfers.cancel(identity)
            self._answer(HTTPStatus.OK, {})

        def _ids(self) -> Sequence[str]:
            collection, _, ids = urlparse(self.path).path.strip("/").partition("/")
            return ids.split(",") if collection == "jobs" and ids else ()

        def _answer(self, status: HTTPStatus, document: object) -> None:
            with transfers.lock:
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
    transfers = TransferQueue(xrdcp)
    transfers.start()
    ThreadingHTTPServer(("127.0.0.1", int(port)), make_handler(transfers)).serve_forever()


if __name__ == "__main__":
    main(sys.argv[1:])
