"""Upload of records during a job, without influence on its measurements.

A separate process sends them.  It is forked between two executions and ends before the next begins:
nothing is sent during a measurement, and no metric contains its CPU time.  The worker keeps a single
thread, as the start of payloads requires.  A process that is stuck, for example in a name lookup, is
killed at its deadline.

A service that does not answer costs a job ``wait_s`` seconds in total, at most half of them before
the last execution; one that answers gets at most :data:`MAX_UPLOAD_S` between two executions, and
``wait_s`` at the end.
"""

from __future__ import annotations

import os
import select
import signal
import time
from typing import Any, Dict, Mapping, Optional

from ...service_spec import (
    CA_FILE,
    PROXY_VARIABLES,
    SERVICE_FILE,
    TOKEN_FILE,
    TOKEN_PLACEHOLDER,
    ServiceSpec,
)
from ..stop_signals import StopSignals, enter_helper_process
from .outbox import Outbox
from .outbox_sender import SendStatus, backoff_pause_s, send_outbox
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
        return Outbox(self._output, self._spec.url)

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
                code = (
                    os.WEXITSTATUS(status) if os.WIFEXITED(status) else SendStatus.RETRY_LATER.value
                )
                return SendStatus(code)
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
            os.environ.update(worker_proxies(os.environ))
            assert self._endpoint is not None
            if os.getppid() == worker:
                code = send_outbox(
                    self._open_outbox(), self._endpoint, until, patient=patient
                ).value
        except Exception as error:  # no upload error may end the job
            self._record_problem(f"sending failed: {type(error).__name__}")
        finally:
            os._exit(code)


def worker_proxies(environ: Mapping[str, str]) -> Dict[str, str]:
    """Return the proxies that are set for the worker alone, under their usual names."""
    return {
        usual: environ[private]
        for usual, private in PROXY_VARIABLES.items()
        if environ.get(private)
    }


def read_service_spec(folder: str) -> Optional[ServiceSpec]:
    """Read the service that a folder names; None for none.

    Raises:
        ServiceConfigError: the file is invalid.
    """
    path = os.path.join(folder, SERVICE_FILE)
    try:
        with open(path, encoding="utf-8") as stream:
            return ServiceSpec.from_json(stream.read())
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
        with open(path, encoding="utf-8", errors="replace") as stream:
            text = stream.read()
    except OSError:
        return ""
    if text == TOKEN_PLACEHOLDER:
        return ""
    try:
        os.unlink(path)
    except OSError:
        pass  # the folder is read-only
    return text.strip()
