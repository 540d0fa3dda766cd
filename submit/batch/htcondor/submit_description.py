"""The folder of a submission that is written before the schedd is called, and its submit description.

A folder outlives crashes of the submitter, and requeued jobs are rebuilt from it.  See
:mod:`treehammer.submit.batch.htcondor` for the layout.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from treehammer.collectors.shared_files import hold_lock, write_atomically
from treehammer.errors import BatchError
from treehammer.submit.batch.htcondor.submit_language import split_statements
from treehammer.submit.batch.interface import InputReplacement, JobDescription
from treehammer.submit.batch.job_folders import (
    INPUT_ARCHIVE,
    OUTPUT_ARCHIVE,
    copy_input,
    create_folder_atomically,
    link_equal_files,
    link_input,
    pack_inputs,
    unpack_output,
)
from treehammer.submit.batch.submission_folder import (
    SubmissionFolder,
    find_shared_inputs,
    write_index,
)

#: Starts of a job before it is given up.
MAX_GRID_ATTEMPTS = 3
#: Seconds that a job may wait for a machine, or stay held by a person.
IDLE_LIMIT_S = 24 * 3600
#: Seconds that a job may stay held for any other reason that time does not cure.
HOLD_LIMIT_S = 600
#: Seconds before a failed file transfer is retried.
RETRY_PAUSE_S = 30
#: Seconds that an evicted worker has to end its payload and write its results.
VACATE_GRACE_S = 60
#: Longest time in seconds without contact to its node before a job is given up.  HTCondor's default of
#: 40 minutes would exceed the wall limit of a short job.
MAX_LEASE_S = 1200
#: Placeholder in a template: number of this start of the job.
ATTEMPT_VARIABLE = "$(treehammer_attempt)"
#: Placeholder in a template: the start script and its first argument, for jobs of plain files.
START_VARIABLE = "$(treehammer_start)"
#: Name of the start script in the job's sandbox.
START_SCRIPT = "treehammer-start.sh"
#: Sandbox folder that is transferred back, with a folder for every start.
OUTPUT_FOLDER = "output"
#: HTCondor's event log of a submission, or of a spooled job.
EVENT_LOG_NAME = "events.log"
#: Prefix of the folder of one start.
ATTEMPT_PREFIX = "attempt-"
#: ClassAd attributes of Treehammer's jobs.
SUBMISSION_ATTRIBUTE = "TreehammerSubmission"
ATTEMPT_ATTRIBUTE = "TreehammerAttempt"
#: Time of an event in seconds since 1970 UTC.  HTCondor's own is local to its writer, without a zone.
TIME_ATTRIBUTE = "TreehammerTime"
#: Number of the last attempt of a requeued job before it was requeued.
PREVIOUS_ATTEMPTS_ATTRIBUTE = "TreehammerPreviousAttempts"
# The schedd counts shadow starts durably; NumJobStarts falls back when the schedd is killed, and a
# later start would overwrite the output of an earlier one.  It is expanded when a shadow starts and
# kept when it reconnects.  No spaces: HTCondor would quote them inside quoted arguments.
_ATTEMPT_VALUE = f"$$([(NumShadowStarts?:1)+({PREVIOUS_ATTEMPTS_ATTRIBUTE}?:0)])"
#: Keys of late materialization, which HTCondor cannot combine with spooling.
_MATERIALIZATION_KEYS = frozenset({"max_materialize", "max_idle", "materialize_max_idle"})
#: Line of a requeued job's template.
PREVIOUS_ATTEMPTS = re.compile(rf"^My\.{PREVIOUS_ATTEMPTS_ATTRIBUTE} = (\d+)$\n?", re.MULTILINE)
_INPUT_NAME = re.compile(r"[A-Za-z0-9][\w.+-]*")
#: Folder of the archive and the start script of jobs that receive plain files only.
_PACKED = "packed"


@dataclass(frozen=True)
class Submission(SubmissionFolder):
    """Jobs of a campaign with the same description, and the folder they are submitted from."""

    @property
    def constraint(self) -> str:
        """ClassAd expression that matches exactly its jobs."""
        return f'{SUBMISSION_ATTRIBUTE} == "{self.name}"'

    @property
    def log_file(self) -> Path:
        """HTCondor's event log."""
        return self.path / EVENT_LOG_NAME

    @property
    def description_file(self) -> Path:
        """The submitted description."""
        return self.path / "submit.txt"

    def read_description(self) -> str:
        """Read the submitted description; '' of a removed folder."""
        with suppress(OSError):
            return self.description_file.read_text(encoding="utf-8")
        return ""

    @property
    def cancellation_mark(self) -> Path:
        """File that exists once Treehammer has cancelled the submission."""
        return self.path / "cancelled"

    @property
    def lock_file(self) -> Path:
        """File locked by the submitter of the campaign."""
        return self.root / ".locks" / self.campaign

    def locked(self) -> AbstractContextManager[object]:
        """Lock the campaign, so that no other process stages or submits for it."""
        return hold_lock(self.lock_file)

    @cached_property
    def previous_attempts(self) -> int:
        """Number of the last attempt of its jobs before they were requeued; 0 for new or removed ones."""
        return _parse_previous_attempts(self.text) if self.path.exists() else 0

    def _read_cluster(self) -> Mapping[str, Any]:
        with suppress(OSError, ValueError, TypeError):
            return dict(json.loads((self.path / "cluster.json").read_text(encoding="utf-8")))
        return {}

    @property
    def cluster(self) -> int | None:
        """Cluster of the submission; 0 or None until it was seen in the queue."""
        return self._read_cluster().get("cluster")

    @property
    def schedd(self) -> str:
        """Name of the schedd that the cluster was sent to; '' if it is not recorded."""
        return str(self._read_cluster().get("schedd", ""))

    def record_cluster(self, cluster: int, schedd: str = "") -> int:
        """Store the cluster of the submission, 0 before it is queued, and its schedd; return it."""
        document = json.dumps({"cluster": cluster, "schedd": schedd})
        write_atomically(self.path / "cluster.json", document)
        return cluster

    def batch_id(self, number: int, place: int) -> str:
        """Return CLUSTER.PROC@NAME, which :meth:`.HTCondorBatch.locate` reads."""
        return f"{number}.{place}@{self.name}"

    def sandboxes(self, proc: int) -> dict[int, Path]:
        """Return attempt -> output folder, as far as the output has arrived.

        An archive with the output is unpacked; one that is damaged, or not complete yet, stays.
        """
        job_folder = self.job_folder(proc)
        if (job_folder / OUTPUT_ARCHIVE).exists():
            with suppress(BatchError):
                unpack_output(job_folder / OUTPUT_ARCHIVE, OUTPUT_FOLDER)
        folders = {}
        with suppress(OSError), os.scandir(job_folder / OUTPUT_FOLDER) as entries:
            for entry in entries:
                number = entry.name.removeprefix(ATTEMPT_PREFIX)
                if number.isdecimal() and entry.is_dir(follow_symlinks=False):
                    folders[int(number)] = Path(entry.path)
        return dict(sorted(folders.items()))

    def full_description(self, text: str, jobs: Sequence[JobDescription], *, spool: bool) -> str:
        """Build the submit description without its ``queue`` statement.

        Args:
            text: the rendered template.
            jobs: its jobs.
            spool: whether inputs are sent to the schedd and outputs fetched from it.

        Raises:
            BatchError: an input has an invalid name, or the folder's name cannot be expressed.
        """
        folder = str(self.path)
        if re.search(r'[$"\n]', folder):
            raise BatchError(
                "HTCondor does not support folder names with $, quotation marks or line breaks",
                where=folder,
                hint="Choose another submit_dir for this pool, or another --data-dir.",
            )
        shared = _shared_inputs(jobs)
        own_inputs = [name for name in jobs[0].inputs if name not in shared]
        # HTCondor names a file in the sandbox by the last part of its path.
        if START_VARIABLE in text:
            inputs = [f"../../{_PACKED}/{name}" for name in (INPUT_ARCHIVE, START_SCRIPT)]
            outputs = OUTPUT_ARCHIVE
            # The other batch system counts the starts; their output shows the number.
            variables = [
                f'My.{ATTEMPT_ATTRIBUTE} = "unknown"',
                f"treehammer_start = {START_SCRIPT} {_parse_previous_attempts(text)}",
            ]
        else:
            # With the output of earlier starts, so that a job that has ended is not run again.
            inputs = [*(f"../../shared/{name}" for name in shared), OUTPUT_FOLDER]
            outputs = OUTPUT_FOLDER
            variables = [
                f"treehammer_attempt = {_ATTEMPT_VALUE}",
                f"treehammer_output = {OUTPUT_FOLDER}/{ATTEMPT_PREFIX}{ATTEMPT_VARIABLE}",
                f'My.{ATTEMPT_ATTRIBUTE} = "{ATTEMPT_VARIABLE}"',
            ]
        return "\n".join(
            [
                *(
                    statement
                    for statement, name, _ in split_statements(text)
                    if not (spool and name.lower() in _MATERIALIZATION_KEYS)
                ),
                f"initialdir = {folder}/jobs/$(job_id)",
                # The log of a spooled job is written at the schedd and returned with the output.
                f"log = {EVENT_LOG_NAME if spool else self.log_file}",
                # Added to each event, as evaluated then.
                f"job_ad_information_attrs = {ATTEMPT_ATTRIBUTE}, {TIME_ATTRIBUTE}",
                f"My.{TIME_ATTRIBUTE} = time()",
                "should_transfer_files = YES",
                f"transfer_input_files = {','.join((*inputs, *own_inputs))}",
                f"transfer_output_files = {outputs}",
                *variables,
                f'My.TreehammerCampaign = "{self.campaign}"',
                f'My.{SUBMISSION_ATTRIBUTE} = "{self.name}"',
                'My.TreehammerJob = "$(job_id)"',
                "",
            ]
        )

    def stage(self, text: str, jobs: Sequence[JobDescription], *, spool: bool) -> None:
        """Write all files of the jobs. The caller holds the campaign.

        Raises:
            BatchError: the folder cannot be written; none of it exists then.
        """
        hint = "Free disk space, or choose another submit_dir for the pool."
        whole = self.full_description(text, jobs, spool=spool)
        with create_folder_atomically(self.path, self.incoming, hint) as incoming:
            _write_inputs(incoming, text, jobs)
            (incoming / self.description_file.name).write_text(whole, encoding="utf-8")
            write_index(incoming, text, jobs)
            _change_owner(incoming, self.root)
            # The submissions of a campaign, one for each site, send the same worker and payload.
            for earlier in [*self.list_folders(self.root, self.campaign)][:1]:
                for name in ("shared", _PACKED):
                    link_equal_files(incoming / name, earlier.path / name)
            if not self.path.parent.exists():
                self.path.parent.mkdir()
                _change_owner(self.path.parent, self.root)

    def rebuild_jobs(
        self, job_ids: Collection[str], previous_attempts: int, inputs: InputReplacement
    ) -> list[JobDescription]:
        """Rebuild the descriptions of jobs that are queued again.

        Args:
            job_ids: the jobs.
            previous_attempts: number of the last attempt of any of them; the next continues from
                there.
            inputs: gives the new inputs of each.

        Raises:
            BatchError: the folder is damaged.
        """
        text = PREVIOUS_ATTEMPTS.sub("", self.text).rstrip("\n")
        text += f"\nMy.{PREVIOUS_ATTEMPTS_ATTRIBUTE} = {previous_attempts}\n"
        outputs = (OUTPUT_FOLDER, OUTPUT_ARCHIVE, EVENT_LOG_NAME)
        jobs = []
        for job_id in filter(job_ids.__contains__, self.job_ids):
            folders = (self.path / "shared", self.path / "jobs" / job_id)
            items = (item for folder in folders for item in folder.iterdir())
            sent_files = {item.name: item for item in items if item.name not in outputs}
            jobs.append(JobDescription(job_id, text, inputs(job_id, sent_files)))
        return jobs


def _parse_previous_attempts(text: str) -> int:
    """Return the number of the last attempt before a template's jobs were requeued; 0 for new ones."""
    match = PREVIOUS_ATTEMPTS.search(text)
    return int(match[1]) if match else 0


def _shared_inputs(jobs: Sequence[JobDescription]) -> Mapping[str, Path]:
    """Return the inputs that are the same file for all jobs."""
    first = jobs[0].inputs
    for name in first:
        if not _INPUT_NAME.fullmatch(name) or name == OUTPUT_FOLDER:
            raise BatchError(f"{name!r} is not a valid name of an input")
    for job in jobs:
        if job.inputs.keys() != first.keys():
            raise BatchError(f"job {job.job_id} has other inputs than {jobs[0].job_id}")
    return find_shared_inputs(jobs)


def _write_inputs(folder: Path, text: str, jobs: Sequence[JobDescription]) -> None:
    """Write the inputs that jobs share, their archive if the template needs it, and those of each."""
    shared = _shared_inputs(jobs)
    (folder / "shared").mkdir(parents=True)
    for name, source in shared.items():
        copy_input(source, folder / "shared" / name)
    if START_VARIABLE in text:
        (folder / _PACKED).mkdir()
        pack_inputs(shared, folder / _PACKED / INPUT_ARCHIVE)
        shutil.copy(Path(__file__).with_name("start.sh"), folder / _PACKED / START_SCRIPT)
    own_inputs = [name for name in jobs[0].inputs if name not in shared]
    for job in jobs:
        # Plain strings and hard links are fast enough for ten thousand jobs.
        job_folder = f"{folder}/jobs/{job.job_id}"
        os.makedirs(f"{job_folder}/{OUTPUT_FOLDER}")  # noqa: PTH103
        for name in own_inputs:
            link_input(job.inputs[name], Path(f"{job_folder}/{name}"))


def _change_owner(folder: Path, like: Path) -> None:
    """Give a folder and its content to the owner of another folder if that is not this user.

    Root changes the owner; other users copy the group and world permissions, except for private files.
    """
    status = like.stat()
    if status.st_uid == os.geteuid() and not status.st_mode & 0o022:
        return
    for path in (folder, *folder.rglob("*")):
        mode = path.lstat().st_mode
        if os.geteuid() == 0:
            os.lchown(path, status.st_uid, status.st_gid)
        elif stat.S_ISDIR(mode):
            path.chmod(mode | (status.st_mode & 0o7777))
        elif stat.S_ISREG(mode) and mode & 0o077:
            path.chmod(mode | (status.st_mode & 0o666))
