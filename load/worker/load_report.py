"""Reports of a running load to HTCondor, as an attribute of the job.

A job whose ad has ``WantRemoteUpdates`` may set attributes of it over the Chirp protocol, in which the
starter listens on the node's loopback.  Each update makes the schedd write to its job queue, about a
millisecond of work, so that a job reports rarely and the jobs of a load share a limit.  A load goes on
without its reports: a call has a short deadline, and after a failed one comes a long pause.
"""

from __future__ import annotations

import os
import socket
import time
from typing import Mapping

from ...collectors.record.operation_steps import LOAD_ATTRIBUTE, LOAD_PROGRESS_NAME, LoadProgress

#: Variable with the file that names host, port and cookie of the starter.
CONFIG_VARIABLE = "_CONDOR_CHIRP_CONFIG"
#: Shortest time in seconds between two reports of a job, and of all jobs of a load.
JOB_INTERVAL_S, LOAD_INTERVAL_S = 10.0, 0.2
#: Seconds without reports after a failed one.
FAILURE_PAUSE_S = 60.0
#: Longest time in seconds of each step of a call: the connection and two answers.
_TIMEOUT_S = 1.0
_MAX_CONFIG_BYTES = 1000
_OK = 0


class LoadReport:
    """Reports of one execution's load.

    Args:
        folder: the payload's folder.
        attempt: number of the attempt.
        jobs: number of jobs of the load; 0 for an execution that is no load.
        environ: the worker's environment.
    """

    def __init__(self, folder: str, attempt: int, jobs: int, environ: Mapping[str, str]) -> None:
        self._path = os.path.join(folder, LOAD_PROGRESS_NAME)
        self._attempt = attempt
        self._config = environ.get(CONFIG_VARIABLE, "") if jobs else ""
        self._interval_s = max(JOB_INTERVAL_S, jobs * LOAD_INTERVAL_S)
        self._due = 0.0
        self._reported = ""

    @property
    def is_possible(self) -> bool:
        """Whether the execution is a load in HTCondor."""
        return bool(self._config)

    def send_if_due(self) -> None:
        """Report the last step if it is a new one and the last report was long enough ago."""
        if not self._config or time.monotonic() < self._due:
            return
        progress = LoadProgress.read(self._path)
        # A list of ClassAds without spaces.
        text = "{%s}" % ",".join(map(str, (self._attempt, *progress))) if progress else ""
        if text and text != self._reported:
            self._set(text)

    def end(self) -> None:
        """Withdraw the last report."""
        if self._reported:
            self._set("undefined")

    def _set(self, text: str) -> None:
        try:
            set_job_attribute(self._config, LOAD_ATTRIBUTE, text)
        except (OSError, ValueError):  # also where the ad or the pool does not allow updates
            self._due = time.monotonic() + FAILURE_PAUSE_S
            return
        self._reported = text
        self._due = time.monotonic() + self._interval_s


def set_job_attribute(config: str, name: str, expression: str) -> None:
    """Set an attribute of this job.

    Args:
        config: file that names the starter's address and cookie.
        name: of the attribute.
        expression: ClassAd expression without spaces and backslashes, which would need quoting.

    Raises:
        OSError: the starter does not answer, or refuses.
        ValueError: the file or an answer is no such text.
    """
    with open(config, encoding="ascii") as stream:
        host, port, cookie = stream.read(_MAX_CONFIG_BYTES).split()
    with socket.create_connection((host, int(port)), _TIMEOUT_S) as connection:
        for line in (f"cookie {cookie}", f"set_job_attr {name} {expression}"):
            connection.sendall(f"{line}\n".encode("ascii"))
            code = int(_read_line(connection))
            if code != _OK:
                raise PermissionError(f"chirp: {line.split()[0]} returned {code}")


def _read_line(connection: socket.socket) -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        byte = connection.recv(1)
        if not byte:
            raise ConnectionResetError("chirp: the starter closed the connection")
        line += byte
    return line
