"""Sends records home while a job goes on, without any part in what is measured.

It is a process of its own, forked between two executions and over before the next begins: nothing is
sent while anything is measured, and its CPU is in no figure.  The worker stays one thread, which its
payloads' start needs, and whatever the network does, a name that is looked up for minutes among it,
the process is ended when its time is up.

A service that does not answer costs a job ``wait_s`` seconds in all, at most half of them before the
end; one that answers is given :data:`GAP_S` at most between two executions, and ``wait_s`` at the end.
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
from ..stop_signals import STOP_SIGNALS, StopSignals, die_with_parent
from .outbox import Outbox
from .outbox_sender import SendStatus, backoff_pause_s, send_outbox
from .service_client import ServiceConfigError, ServiceEndpoint

#: Seconds from one sending between executions to the next, and the most that one takes.
UPLOAD_INTERVAL_S, MAX_UPLOAD_S = 10.0, 5.0
#: Seconds for a last try once the worker was asked to stop.
STOP_UPLOAD_S = 3.0
#: Seconds between two looks at a sending; a signal and its end show at once.
_POLL_INTERVAL_S = 1.0


class Uploader:
    """Sends what a sandbox has, to the service that lies beside ``job.json``, if any.

    Reads the token and removes its file: what comes back, and what payloads see, has none.

    Args:
        job_folder: of ``job.json``.
        output: the sandbox.
        signals: of the worker.
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
        self._left_s = self._wait_s = self._spec.wait_s if self._spec else 0.0
        self._due = time.monotonic() + UPLOAD_INTERVAL_S
        self._failures = 0

    def upload_if_due(self) -> None:
        """Between two executions: send what there is, if it is time to."""
        room_s = self._left_s - self._wait_s / 2
        due = time.monotonic() >= self._due and not self._signals.stopped_by
        if self._endpoint and due and room_s > 0:
            self._upload(min(MAX_UPLOAD_S, room_s), patient=False)

    def upload_remaining(self) -> None:
        """After the last execution: send what is left, and try until the time is up."""
        if self._endpoint:
            self._upload(self._left_s, patient=not self._signals.stopped_by)

    def summarize(self) -> Optional[Dict[str, Any]]:
        """What became of the records, for ``attempt.json``; None without a service."""
        if self._spec is None:
            return {"problem": self._problem} if self._problem else None
        found = Outbox(self._output, self._spec.url).summarize()
        return {**found, "problem": self._problem or found["problem"]}

    def _upload(self, limit_s: float, *, patient: bool) -> None:
        start = time.monotonic()
        result = self._send_in_process(start + limit_s, patient)
        took = time.monotonic() - start
        if result is SendStatus.DONE:
            self._failures = 0
            self._due = time.monotonic() + UPLOAD_INTERVAL_S
            return
        self._left_s = max(0.0, self._left_s - took)
        self._failures += 1
        asked = self._open_outbox().retry_after_s
        self._due = time.monotonic() + max(
            UPLOAD_INTERVAL_S, backoff_pause_s(self._failures, asked)
        )
        if result is SendStatus.REJECTED:
            self._endpoint = None

    def _open_outbox(self) -> Outbox:
        assert self._spec is not None
        return Outbox(self._output, self._spec.url)

    def _record_problem(self, problem: str) -> None:
        """Say what kept records from being sent, unless that is known better."""
        outbox = self._open_outbox()
        outbox.problem = outbox.problem or problem
        outbox.save()

    def _send_in_process(self, until: float, patient: bool) -> SendStatus:
        """Have a process of its own send, and see that it ends in time."""
        worker, start = os.getpid(), time.monotonic()
        try:
            pid = os.fork()
        except OSError as error:
            self._record_problem(f"the node lets no process be started: {error.strerror}")
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
        """In the new process: send, and leave with the result."""
        code = SendStatus.RETRY_LATER.value
        try:
            die_with_parent()
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for (
                number
            ) in STOP_SIGNALS:  # also sent to whole groups; the worker says when this is over
                signal.signal(number, signal.SIG_IGN)
            os.environ.update(worker_proxies(os.environ))
            assert self._endpoint is not None
            if os.getppid() == worker:
                code = send_outbox(
                    self._open_outbox(), self._endpoint, until, patient=patient
                ).value
        except Exception as error:  # whatever it is, measuring goes on
            self._record_problem(f"sending failed: {type(error).__name__}")
        finally:
            os._exit(code)


def worker_proxies(environ: Mapping[str, str]) -> Dict[str, str]:
    """The proxies that are meant for the worker alone, under their usual names."""
    return {name: environ[ours] for name, ours in PROXY_VARIABLES.items() if environ.get(ours)}


def read_service_spec(folder: str) -> Optional[ServiceSpec]:
    """The service that a folder names; None for none.

    Raises:
        ServiceConfigError: the file is wrong.
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
    """The file of a folder that says who vouches for its service; '' for none."""
    path = os.path.join(folder, CA_FILE)
    return path if os.path.exists(path) else ""


def take_token(folder: str) -> str:
    """The token of a folder, whose file is removed; '' for none."""
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
        pass  # not ours to remove
    return text.strip()
