"""Upload of records, during a job and afterwards.

During a job it does not influence measurements.  A separate process sends the records.  It is forked
between two executions and ends before the next begins: nothing is sent during a measurement, and no
metric contains its CPU time.  The worker keeps a single thread, as the start of payloads requires.  A
process that is stuck, for example in a name lookup, is killed at its deadline.

A service that does not answer costs a job ``wait_s`` seconds in total, at most half of them before
the last execution; one that answers gets at most :data:`MAX_UPLOAD_S` between two executions, and
``wait_s`` at the end.

``python worker.pyz upload SANDBOX…`` sends the records that are still pending after a job.
"""

from __future__ import annotations

import argparse
import os
import select
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Dict, Optional

from ..job_spec import (
    CA_FILE,
    DEFAULT_WAIT_S,
    PROXY_VARIABLES,
    SERVICE_FILE,
    TOKEN_FILE,
    TOKEN_PLACEHOLDER,
    TOKEN_VARIABLE,
    ServiceSpec,
)
from .child_processes import StopSignals, enter_helper_process, print_line
from .outbox import (
    Outbox,
    SendStatus,
    backoff_pause_s,
    describe_upload_problems,
    read_last_service,
    send_outbox,
)
from .service_client import ServiceConfigError, ServiceEndpoint

#: Seconds between two uploads during a job, and the longest time that one may take.
UPLOAD_INTERVAL_S, MAX_UPLOAD_S = 10.0, 5.0
#: Seconds for a last upload after a stop signal.
STOP_UPLOAD_S = 3.0
#: Seconds between checks of a running upload; signals, also of its end, wake the worker at once.
_POLL_INTERVAL_S = 1.0


class Uploader:
    """Upload of a sandbox's records to the service named beside ``job.json``, if any.

    Reads the token and removes its file, so that neither payloads nor the returned sandbox have it.

    Args:
        job_folder: folder of ``job.json``.
        output: the sandbox.
        signals: the worker's signals.
    """

    def __init__(self, job_folder: str, output: str, signals: StopSignals) -> None:
        self._signals = signals
        self._output = output
        self._endpoint: Optional[ServiceEndpoint] = None
        self._spec: Optional[ServiceSpec] = None
        self._problem = ""
        try:
            self._spec = read_service_spec(job_folder)
            if self._spec is not None:
                token = take_token(job_folder)
                self._endpoint = ServiceEndpoint(self._spec.url, token, find_ca_file(job_folder))
        except ServiceConfigError as error:
            self._problem = str(error)
        self._budget_s = self._wait_s = self._spec.wait_s if self._spec else 0.0
        self._due = time.monotonic() + UPLOAD_INTERVAL_S
        self._failures = 0

    @property
    def endpoint(self) -> Optional[ServiceEndpoint]:
        """The service with this job's token; None without one, or after it refused the token."""
        return self._endpoint

    def upload_if_due(self) -> None:
        """Send the pending records between two executions, if an upload is due."""
        room_s = self._budget_s - self._wait_s / 2
        is_due = time.monotonic() >= self._due and not self._signals.stopped_by
        if self._endpoint and is_due and room_s > 0:
            self._upload(min(MAX_UPLOAD_S, room_s), patient=False)

    def upload_remaining(self) -> None:
        """Send the pending records after the last execution, with retries until the deadline."""
        if self._endpoint:
            self._upload(self._budget_s, patient=not self._signals.stopped_by)

    def summarize(self) -> Optional[Dict[str, Any]]:
        """Summarize the upload for ``attempt.json``; None without a service."""
        if self._spec is None:
            return {"problem": self._problem} if self._problem else None
        summary = self._open_outbox().summarize()
        return {**summary, "problem": self._problem or summary["problem"]}

    def _upload(self, limit_s: float, *, patient: bool) -> None:
        start = time.monotonic()
        result = self._send_in_process(start + limit_s, patient)
        elapsed_s = time.monotonic() - start
        if result is SendStatus.DONE:
            self._failures = 0
            self._due = time.monotonic() + UPLOAD_INTERVAL_S
            return
        self._budget_s = max(0.0, self._budget_s - elapsed_s)
        self._failures += 1
        requested_s = self._open_outbox().retry_after_s
        self._due = time.monotonic() + max(
            UPLOAD_INTERVAL_S, backoff_pause_s(self._failures, requested_s)
        )
        if result is SendStatus.REJECTED:
            self._endpoint = None

    def _open_outbox(self) -> Outbox:
        assert self._spec is not None
        # Only the submitter knows whether a cancellation interrupted an execution.
        return Outbox(self._output, self._spec.url, sends_interrupted=False)

    def _record_problem(self, problem: str) -> None:
        """Note why records were not sent, unless the outbox has a more specific reason."""
        outbox = self._open_outbox()
        outbox.problem = outbox.problem or problem
        outbox.save()

    def _send_in_process(self, until: float, patient: bool) -> SendStatus:
        """Send in a separate process, and kill it at the deadline or soon after a stop signal."""
        worker, start = os.getpid(), time.monotonic()
        try:
            pid = os.fork()
        except OSError as error:
            self._record_problem(f"the node cannot start a process: {error.strerror}")
            return SendStatus.RETRY_LATER
        if pid == 0:
            self._send_and_exit(worker, until, patient)
        while True:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                is_exit = os.WIFEXITED(status)
                return SendStatus(os.WEXITSTATUS(status)) if is_exit else SendStatus.RETRY_LATER
            now = time.monotonic()
            if self._signals.stopped_by:
                until = min(until, now + STOP_UPLOAD_S)
            if now >= until:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                self._record_problem(f"it did not answer within {now - start:.0f} s")
                return SendStatus.RETRY_LATER
            select.select([self._signals.fd], [], [], min(_POLL_INTERVAL_S, until - now))
            self._signals.drain()

    def _send_and_exit(self, worker: int, until: float, patient: bool) -> None:
        """Send the records and exit with the status; runs in the new process."""
        code = SendStatus.RETRY_LATER.value
        try:
            enter_helper_process()
            # Proxies that are set for the worker alone, under their usual names.
            for usual, private in PROXY_VARIABLES.items():
                if os.environ.get(private):
                    os.environ[usual] = os.environ[private]
            assert self._endpoint is not None
            if os.getppid() == worker:
                outbox = self._open_outbox()
                code = send_outbox(outbox, self._endpoint, until, patient=patient).value
        except Exception as error:  # no upload error may end the job
            self._record_problem(f"sending failed: {type(error).__name__}")
        finally:
            os._exit(code)


def read_service_spec(folder: str) -> Optional[ServiceSpec]:
    """Read the service that a folder names; None for none.

    Raises:
        ServiceConfigError: the file is invalid.
    """
    path = os.path.join(folder, SERVICE_FILE)
    try:
        return ServiceSpec.from_json(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ServiceConfigError(f"{path}: {reason}") from error


def find_ca_file(folder: str) -> str:
    """Find a folder's file of certificate authorities; '' for none."""
    path = os.path.join(folder, CA_FILE)
    return path if os.path.exists(path) else ""


def take_token(folder: str) -> str:
    """Read a folder's token and remove its file; '' for none."""
    path = os.path.join(folder, TOKEN_FILE)
    try:
        text = Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    if text == TOKEN_PLACEHOLDER:
        return ""
    with suppress(OSError):  # the folder is read-only
        os.unlink(path)
    return text.strip()


def add_upload_command(verbs: Any) -> None:
    """Add the command to a parser's sub-parsers."""
    verb = verbs.add_parser(
        "upload",
        help="send the records of sandboxes to a results service",
        epilog="example: python worker.pyz upload attempt-1 --token-file token",
    )
    verb.add_argument(
        "sandboxes", metavar="SANDBOX", nargs="+", help="a folder that contains records/"
    )
    verb.add_argument(
        "--service",
        metavar="URL",
        default="",
        help="results service [default: the one that the sandbox names or last used]",
    )
    verb.add_argument(
        "--ca",
        metavar="FILE",
        default="",
        help="certificate authorities of the service "
        "[default: service-ca.pem in the sandbox, else the node's own]",
    )
    verb.add_argument(
        "--token-file",
        metavar="FILE",
        default="",
        help="a key with role submit, or the jobs' own token "
        f"[default: {TOKEN_VARIABLE}, else {TOKEN_FILE} in the sandbox]",
    )
    verb.add_argument(
        "--wait",
        metavar="S",
        type=parse_count,
        default=DEFAULT_WAIT_S,
        help="maximum seconds for each sandbox [default: %(default)g]",
    )


def upload_sandboxes(options: argparse.Namespace) -> int:
    """Send the pending records of each sandbox; return the exit code.

    Raises:
        ServiceConfigError: a sandbox, its service or the token is unusable; earlier sandboxes are
            sent.
    """
    worst = SendStatus.DONE.value
    for folder in options.sandboxes:
        endpoint = _build_endpoint(folder, options)
        outbox = Outbox(folder, endpoint.url)
        before = len(outbox.acknowledged)
        result = send_outbox(outbox, endpoint, time.monotonic() + options.wait, patient=True)
        summary = outbox.summarize()
        print_line(
            f"{folder}: {summary['acknowledged'] - before} sent, {before} sent before, "
            f"{len(summary['refused'])} refused, {summary['pending']} pending"
        )
        if describe_upload_problems(summary):
            print_line(describe_upload_problems(summary), "stderr")
        worst = max(worst, result.value, 1 if summary["refused"] else 0)
    return 1 if worst else 0


def _build_endpoint(folder: str, options: argparse.Namespace) -> ServiceEndpoint:
    if not os.path.isdir(os.path.join(folder, "records")):
        raise ServiceConfigError(f"{folder}: no folder 'records'; name a job's sandbox")
    spec = read_service_spec(folder)
    url = options.service or (spec.url if spec else read_last_service(folder))
    if not url:
        raise ServiceConfigError(f"{folder}: no results service known; name one with --service URL")
    if not url.startswith(("https://", "http://")):
        raise ServiceConfigError(f"--service {url}: must begin with https://")
    token = _read_token(folder, options.token_file)
    if not token:
        raise ServiceConfigError(f"{folder}: no token; name one with --token-file FILE")
    return ServiceEndpoint(url, token, options.ca or find_ca_file(folder))


def _read_token(folder: str, file: str) -> str:
    """Read the token; '' for none."""
    path = file or os.path.join(folder, TOKEN_FILE)
    if not file and os.environ.get(TOKEN_VARIABLE):
        return os.environ[TOKEN_VARIABLE].strip()
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").strip()
    except OSError as error:
        if not file:
            return ""
        raise ServiceConfigError(
            f"--token-file {path}: cannot be read ({error.strerror})"
        ) from error


def parse_count(text: str) -> int:
    """Parse a number of an option, from 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number
