"""Meeting of jobs in a folder of the machine that runs them all."""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from typing import Optional

from ...job_spec import LoadSpec
from ...shared_files import write_atomically
from .appointment import Appointment

#: Seconds between two listings of the folder.
POLL_S = 0.2
#: Seconds after the agreement before which no payload is launched: all jobs look once more.
NOTICE_S = 1.0
_START_FILE, _ABSENT_PREFIX = "start.json", "absent-"


class FolderMeeting:
    """Each job leaves a file; the first that sees all of them, or has waited long enough, sets the start.

    Args:
        load: the job's part in the load.
        folder: the barrier's own folder; created if missing.
    """

    pause_s = POLL_S
    repeat = False

    def __init__(self, load: LoadSpec, folder: str) -> None:
        self._load = load
        self._folder = folder

    def poll(self, waited_s: float, appointment: Optional[Appointment]) -> Optional[Appointment]:
        """Announce this job; see :class:`~.appointment.Meeting`."""
        self._leave_file(str(self._load.index))
        start = self._read_start()
        if start is None and self._is_due():
            self._set_start()
            start = self._read_start()
        return start

    def withdraw(self) -> None:
        """Announce that this job will not come; see :class:`~.appointment.Meeting`."""
        self._leave_file(f"{_ABSENT_PREFIX}{self._load.index}")

    def _leave_file(self, name: str) -> None:
        os.makedirs(self._folder, exist_ok=True)
        with suppress(FileExistsError):
            path = os.path.join(self._folder, name)
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))

    def _read_start(self) -> Optional[Appointment]:
        try:
            with open(os.path.join(self._folder, _START_FILE), encoding="ascii") as stream:
                return Appointment(**json.load(stream))
        except FileNotFoundError:
            return None

    def _is_due(self) -> bool:
        entries = list(os.scandir(self._folder))
        first_s = min(entry.stat().st_mtime for entry in entries if entry.name.isdigit())
        # A job that withdrew and came in another attempt counts once.
        announced = {entry.name.replace(_ABSENT_PREFIX, "") for entry in entries}
        announced_count = sum(name.isdigit() for name in announced)
        return (
            announced_count >= self._load.participants or time.time() - first_s >= self._load.wait_s
        )

    def _set_start(self) -> None:
        """Write the start unless another job was faster."""
        present = sum(name.isdigit() for name in os.listdir(self._folder))
        start_us = round((time.time() + NOTICE_S + self._load.lead_s) * 1e6)
        draft = os.path.join(self._folder, f"draft-{self._load.index}")
        write_atomically(draft, json.dumps(Appointment(start_us, present).to_document()))
        with suppress(FileExistsError):
            os.link(draft, os.path.join(self._folder, _START_FILE))
        os.unlink(draft)
