"""Arrays in Slurm: its commands, the records of tasks, and the folder of an array."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from treehammer.errors import BatchError, ConfigError
from treehammer.submit.batch.interface import JobDescription
from treehammer.submit.batch.job_folders import copy_input, create_folder_atomically, link_input
from treehammer.submit.batch.submission_folder import (
    SubmissionFolder,
    find_shared_inputs,
    write_index,
)

#: Longest time in seconds that a command of Slurm may take.
COMMAND_TIMEOUT_S = 60.0
_FIELDS = (
    "ArrayJobID:40|,ArrayTaskID:40|,State:40|,Reason:200|,exit_code:40|,StartTime:40|,"
    "EndTime:40|,NodeList:200|,RestartCnt:20|,Name:200"
)
_ACCOUNTING_FIELDS = "JobID,State,ExitCode,Start,End,NodeList,JobName"
#: Name, array and task of a job: after a crash, Slurm gives the number of an array again.
TaskKey = tuple[str, int, int]
#: Output of a job's script, Slurm's words there when it ends the job, and the state that they mean.
_OUTPUT = "slurm.out"
_END = re.compile(r"(?:CANCELLED AT \S+(?: DUE TO)?|Detected \d+) (oom|[A-Z]*)")
_ENDS = {"TIME": "TIMEOUT", "PREEMPTION": "PREEMPTED", "NODE": "NODE_FAIL", "oom": "OUT_OF_MEMORY"}
_ARRAY_OPTION = re.compile(r"^#SBATCH --array=\S*%(\d+)$", re.MULTILINE)


def run_command(*command: str) -> str:
    """Run a command of Slurm and return its output.

    Raises:
        BatchError: it is missing, fails, or does not end in time.
    """
    # The user's own defaults win over scripts (SBATCH_PARTITION) and hide jobs (SQUEUE_NAMES); another
    # shell may name other clusters.
    defaults = (f"{command[0].upper()}_", "SLURM_CLUSTERS")
    environment = {name: os.environ[name] for name in os.environ if not name.startswith(defaults)}
    try:
        completed = subprocess.run(
            command,
            env={**environment, "SLURM_TIME_FORMAT": "%s"},
            capture_output=True,
            text=True,
            errors="replace",
            timeout=COMMAND_TIMEOUT_S,
            check=False,
        )
    except OSError as error:
        raise BatchError(
            f"there is no {command[0]} on this machine ({error.strerror})",
            where="slurm",
            hint="Use a login node of the cluster, or add the folder of Slurm's commands to PATH.",
        ) from error
    except subprocess.TimeoutExpired as error:
        # While Slurm takes no more jobs, sbatch says so and tries again.
        output = f"{(error.stderr or b'').decode(errors='replace')}timed out"
    else:
        if not completed.returncode:
            return completed.stdout
        output = completed.stderr or completed.stdout or f"exit code {completed.returncode}"
    message = "; ".join(output.replace(f"{command[0]}: error: ", "").splitlines())
    is_silent = re.search("Unable to contact|timed out|authentication", message)
    hint = "Queued jobs continue. Try again later, or ask the administrator." if is_silent else ""
    raise BatchError(f"{command[0]} fails: {message}", where="slurm", hint=hint)


@dataclass(frozen=True)
class TaskRecord:
    """What Slurm says of one task; times in microseconds since 1970 UTC, 0 if there are none."""

    state: str
    reason: str
    exit_code: int | None
    started_us: int
    ended_us: int
    node: str
    restarts: int = 0


def _parse_record(
    state: str, reason: str, code: str, started: str, ended: str, node: str, restarts: str = ""
) -> TaskRecord:
    number, _, signal = code.partition(":")
    # squeue of Slurm 22 prints the status of wait(2).
    exit_code = -int(signal) or int(number) if signal else os.waitstatus_to_exitcode(int(number))
    started_us, ended_us = (int(s) * 1_000_000 if s.isdigit() else 0 for s in (started, ended))
    state, node = state.partition(" ")[0], node.removeprefix("None assigned")
    return TaskRecord(state, reason, exit_code, started_us, ended_us, node, int(restarts or 0))


def load_queue() -> dict[TaskKey, TaskRecord]:
    """Load the records of this user's jobs, also of those that ended lately.

    Raises:
        BatchError: Slurm does not answer.
    """
    text = run_command("squeue", "--me", "-r", "--noheader", "--states=all", "-O", _FIELDS)
    records = {}
    for line in text.splitlines():
        # The name of another job may have any characters, even line breaks.
        fields = [field.strip() for field in line.split("|", 9)]
        if len(fields) > 9 and fields[1].isdigit():
            records[fields[9], int(fields[0]), int(fields[1])] = _parse_record(*fields[2:9])
    return records


def load_accounting(arrays: Iterable[int]) -> dict[TaskKey, TaskRecord]:
    """Load the records of tasks from Slurm's accounting; empty if there is none."""
    jobs = ",".join(map(str, sorted(arrays)))
    command = ("sacct", "-n", "-P", "-X", "-j", jobs, "-o", _ACCOUNTING_FIELDS)
    records = {}
    with suppress(BatchError):
        for line in run_command(*command).splitlines():
            job, state, *fields, name = line.split("|", 6)
            array, _, task = job.partition("_")
            if task.isdigit():
                records[name, int(array), int(task)] = _parse_record(state, "", *fields)
    return records


@dataclass(frozen=True)
class ArrayFolder(SubmissionFolder):
    """Folder of one array."""

    @cached_property
    def previous_attempts(self) -> int:
        """Number of the last attempt of its jobs before they were requeued; 0 for new jobs."""
        with suppress(OSError, ValueError):
            return int((self.path / "previous_attempts").read_text(encoding="ascii"))
        return 0

    @property
    def array(self) -> int | None:
        """Number of the array; None until it was seen in the queue."""
        with suppress(OSError, ValueError):
            return int((self.path / "array.json").read_text(encoding="ascii"))
        return None

    def batch_id(self, number: int, place: int) -> str:
        """Return ARRAY_TASK@NAME."""
        return f"{number}_{place}@{self.name}"

    def job_folder(self, task: int) -> Path:
        """Return the folder of a job."""
        return self.path / "jobs" / str(task)

    def sandboxes(self, task: int) -> dict[int, Path]:
        """Return attempt -> output folder."""
        folders = self.job_folder(task).glob("output/attempt-*")
        return dict(sorted((int(folder.name.rpartition("-")[2]), folder) for folder in folders))

    def render_script(self, text: str, count: int) -> str:
        """Add the options that Treehammer sets behind those of a template, which they override."""
        throttle = _ARRAY_OPTION.search(text)
        options = {
            "job-name": self.name,
            "array": f"0-{count - 1}{f'%{throttle[1]}' if throttle else ''}",
            "chdir": quote_option(self.path),
            "output": f"jobs/%a/{_OUTPUT}",
            "open-mode": "truncate",  # words on the end of an earlier start would count
        }
        head, *rest = re.split(r"(?m)^(?!#|$)", _ARRAY_OPTION.sub("", text), maxsplit=1)
        lines = (f"#SBATCH --{name}={value}\n" for name, value in options.items())
        return "".join([head, *lines, *rest])

    def stage(self, text: str, jobs: Sequence[JobDescription], previous_attempts: int) -> None:
        """Write all files of the jobs.

        Raises:
            BatchError: the folder cannot be written; none of it exists then.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with create_folder_atomically(self.path, self.incoming, "Free disk space.") as folder:
            shared = find_shared_inputs(jobs)
            (folder / "shared").mkdir(parents=True)
            for name, source in shared.items():
                copy_input(source, folder / "shared" / name)
            for task, job in enumerate(jobs):
                inputs = folder / "jobs" / str(task) / "inputs"
                inputs.mkdir(parents=True)
                for name in job.inputs.keys() - shared.keys():
                    link_input(job.inputs[name], inputs / name)
            write_index(folder, text, jobs)
            (folder / "previous_attempts").write_text(f"{previous_attempts}\n", encoding="ascii")
            script = self.render_script(text, len(jobs))
            (folder / "slurm.sbatch").write_text(script, encoding="utf-8")


def read_end(folder: ArrayFolder, task: int) -> TaskRecord | None:
    """Read the end of a job that Slurm no longer knows from its files; None without any."""
    sandboxes = folder.sandboxes(task)
    if not sandboxes:
        removed = TaskRecord("REMOVED", "", None, 0, 0, "")
        return removed if folder.job_folder(task).exists() else None
    number, sandbox = max(sandboxes.items())
    node, code, output = sandbox / "node", sandbox / "exit_code", folder.job_folder(task) / _OUTPUT
    with suppress(OSError, ValueError):
        started_us = node.stat().st_mtime_ns // 1000
        host, restarts = node.read_text().split()[0], number - 1 - folder.previous_attempts
        ended_us = code.stat().st_mtime_ns // 1000 if code.exists() else 0
        exit_code = int(code.read_text()) if ended_us else None
        words = _END.search(output.read_text(errors="replace")) if output.exists() else None
        state = "COMPLETED" if ended_us else "FORGOTTEN"
        state = _ENDS.get(words[1], "CANCELLED") if words else state
        return TaskRecord(state, "", exit_code, started_us, ended_us, host, restarts)
    return None


def quote_option(value: object) -> str:
    """Quote the value of an option of sbatch in a script.

    Raises:
        ConfigError: it has a line break, a quotation mark or a backslash, which Slurm may misread.
    """
    text = str(value)
    if re.search(r"[\n\r\"'\\]", text):
        raise ConfigError(f"{text!r} cannot be the value of an option of sbatch")
    return f'"{text}"' if re.search(r"[\s#]", text) else text
