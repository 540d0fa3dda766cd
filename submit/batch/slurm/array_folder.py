"""The folder of an array: its script, its inputs, and what its tasks left there."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from treehammer.submit.batch.interface import JobDescription
from treehammer.submit.batch.job_folders import copy_input, create_folder_atomically, link_input
from treehammer.submit.batch.slurm.slurm_commands import TaskRecord
from treehammer.submit.batch.submission_folder import (
    SubmissionFolder,
    find_shared_inputs,
    write_index,
)

#: Reason of an end that only the job's files show.
FORGOTTEN = (
    "it left no exit code, and Slurm no longer knows why it ended (time limit, memory, node)"
)
_ARRAY_OPTION = re.compile(r"^#SBATCH --array=\S*%(\d+)$", re.MULTILINE)


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
        """Complete a rendered template by the options that Treehammer sets."""
        throttle = _ARRAY_OPTION.search(text)
        options = {
            "job-name": self.name,
            "array": f"0-{count - 1}{f'%{throttle[1]}' if throttle else ''}",
            "chdir": quote_option(self.path),
            "output": "jobs/%a/slurm.out",
        }
        first, _, rest = _ARRAY_OPTION.sub("", text).partition("\n")
        lines = (f"#SBATCH --{name}={value}" for name, value in options.items())
        return "\n".join([first, *lines, rest])

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
        is_cancelled = (folder.job_folder(task) / "cancelled").exists()
        return TaskRecord("CANCELLED", "", None, 0, 0, "") if is_cancelled else None
    number, sandbox = max(sandboxes.items())
    node, code = sandbox / "node", sandbox / "exit_code"
    with suppress(OSError, ValueError):
        started_us = node.stat().st_mtime_ns // 1000
        host, restarts = node.read_text().split()[0], number - 1 - folder.previous_attempts
        if not code.exists():
            return TaskRecord("NODE_FAIL", FORGOTTEN, None, started_us, 0, host, restarts)
        ended_us = code.stat().st_mtime_ns // 1000
        exit_code = int(code.read_text())
        return TaskRecord("COMPLETED", "", exit_code, started_us, ended_us, host, restarts)
    return None


def quote_option(value: object) -> str:
    """Quote the value of an option of sbatch in a script.

    Raises:
        ValueError: it has a line break, a quotation mark or a backslash, which Slurm may misread.
    """
    text = str(value)
    if re.search(r"[\n\r\"'\\]", text):
        raise ValueError(f"{text!r} cannot be the value of an option of sbatch")
    return f'"{text}"' if re.search(r"[\s#]", text) else text
