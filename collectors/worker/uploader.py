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

from ..service import CA_NAME, PLACEHOLDER, PROXIES, SERVICE_NAME, TOKEN_NAME, ServiceSpec
from .child import end_with_worker
from .outbox import Outbox
from .posting import Endpoint, UnusableService
from .sending import Result, pause_s, send
from .stop import STOPPING, Signals

#: Seconds from one sending between executions to the next, and the most that one takes.
EVERY_S, GAP_S = 10.0, 5.0
#: Seconds for a last try once the worker was asked to stop.
STOP_S = 3.0
#: Seconds between two looks at a sending; a signal and its end show at once.
_LOOK_S = 1.0


class Uploader:
    """Sends what a sandbox has, to the service that lies beside ``job.json``, if any.

    Reads the token and removes its file: what comes back, and what payloads see, has none.

    Args:
        job_folder: of ``job.json``.
        output: the sandbox.
        signals: of the worker.
    """

    def __init__(self, job_folder: str, output: str, signals: Signals) -> None:
        self._signals = signals
        self._output = output
        self._endpoint: Optional[Endpoint] = None
        self._spec: Optional[ServiceSpec] = None
        self._problem = ""
        try:
            self._spec = read_service(job_folder)
            if self._spec is not None:
                token = take_token(job_folder)
                self._endpoint = Endpoint(self._spec.url, token, authorities(job_folder))
        except UnusableService as error:
            self._problem = str(error)
        self._left_s = self._wait_s = self._spec.wait_s if self._spec else 0.0
        self._due = time.monotonic() + EVERY_S
        self._failures = 0

    def between(self) -> None:
        """Between two executions: send what there is, if it is time to."""
        room_s = self._left_s - self._wait_s / 2
        due = time.monotonic() >= self._due and not self._signals.stopped_by
        if self._endpoint and due and room_s > 0:
            self._run(min(GAP_S, room_s), patient=False)

    def finish(self) -> None:
        """After the last execution: send what is left, and try until the time is up."""
        if self._endpoint:
            self._run(self._left_s, patient=not self._signals.stopped_by)

    def summary(self) -> Optional[Dict[str, Any]]:
        """What became of the records, for ``attempt.json``; None without a service."""
        if self._spec is None:
            return {"problem": self._problem} if self._problem else None
        found = Outbox(self._output, self._spec.url).summary()
        return {**found, "problem": self._problem or found["problem"]}

    def _run(self, limit_s: float, *, patient: bool) -> None:
        start = time.monotonic()
        result = self._supervised(start + limit_s, patient)
        took = time.monotonic() - start
        if result is Result.DONE:
            self._failures = 0
            self._due = time.monotonic() + EVERY_S
            return
        self._left_s = max(0.0, self._left_s - took)
        self._failures += 1
        asked = self._outbox().retry_after_s
        self._due = time.monotonic() + max(EVERY_S, pause_s(self._failures, asked))
        if result is Result.OVER:
            self._endpoint = None

    def _outbox(self) -> Outbox:
        assert self._spec is not None
        return Outbox(self._output, self._spec.url)

    def _note(self, problem: str) -> None:
        """Say what kept records from being sent, unless that is known better."""
        outbox = self._outbox()
        outbox.problem = outbox.problem or problem
        outbox.save()

    def _supervised(self, until: float, patient: bool) -> Result:
        """Have a process of its own send, and see that it ends in time."""
        worker, start = os.getpid(), time.monotonic()
        try:
            pid = os.fork()
        except OSError as error:
            self._note(f"the node lets no process be started: {error.strerror}")
            return Result.LATER
        if pid == 0:
            self._send_and_exit(worker, until, patient)
        while True:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else Result.LATER.value
                return Result(code)
            now = time.monotonic()
            if self._signals.stopped_by:
                until = min(until, now + STOP_S)
            if now >= until:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                self._note(f"it did not answer within {now - start:.0f} s")
                return Result.LATER
            select.select([self._signals.fd], [], [], min(_LOOK_S, until - now))
            self._signals.clear()

    def _send_and_exit(self, worker: int, until: float, patient: bool) -> None:
        """In the new process: send, and leave with the result."""
        code = Result.LATER.value
        try:
            end_with_worker()
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for number in STOPPING:  # also sent to whole groups; the worker says when this is over
                signal.signal(number, signal.SIG_IGN)
            os.environ.update(proxies(os.environ))
            assert self._endpoint is not None
            if os.getppid() == worker:
                code = send(self._outbox(), self._endpoint, until, patient=patient).value
        except Exception as error:  # whatever it is, measuring goes on
            self._note(f"sending failed: {type(error).__name__}")
        finally:
            os._exit(code)


def proxies(environ: Mapping[str, str]) -> Dict[str, str]:
    """The proxies that are meant for the worker alone, under their usual names."""
    return {name: environ[ours] for name, ours in PROXIES.items() if environ.get(ours)}


def read_service(folder: str) -> Optional[ServiceSpec]:
    """The service that a folder names; None for none.

    Raises:
        UnusableService: the file is wrong.
    """
    path = os.path.join(folder, SERVICE_NAME)
    try:
        with open(path, encoding="utf-8") as stream:
            return ServiceSpec.from_json(stream.read())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UnusableService(f"{path}: {reason}") from error


def authorities(folder: str) -> str:
    """The file of a folder that says who vouches for its service; '' for none."""
    path = os.path.join(folder, CA_NAME)
    return path if os.path.exists(path) else ""


def take_token(folder: str) -> str:
    """The token of a folder, whose file is removed; '' for none."""
    path = os.path.join(folder, TOKEN_NAME)
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            text = stream.read()
    except OSError:
        return ""
    if text == PLACEHOLDER:
        return ""
    try:
        os.unlink(path)
    except OSError:
        pass  # not ours to remove
    return text.strip()
