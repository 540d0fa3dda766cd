"""Slurm's commands, and the records of tasks that they print."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from treehammer.errors import BatchError

#: Longest time in seconds that a command of Slurm may take.
COMMAND_TIMEOUT_S = 60.0
_FIELDS = (
    "Name:200|,ArrayJobID:40|,ArrayTaskID:40|,State:40|,Reason:200|,exit_code:40|,StartTime:40|,"
    "EndTime:40|,NodeList:200|,RestartCnt:20|"
)
_ACCOUNTING_FIELDS = "JobID,State,ExitCode,Start,End,NodeList"


def run_command(*command: str) -> str:
    """Run a command of Slurm and return its output.

    Raises:
        BatchError: it is missing, fails, or does not end in time.
    """
    try:
        completed = subprocess.run(
            command,
            env={**os.environ, "SLURM_TIME_FORMAT": "%s"},
            capture_output=True,
            text=True,
            timeout=COMMAND_TIMEOUT_S,
            check=False,
        )
    except FileNotFoundError as error:
        raise BatchError(
            f"there is no {command[0]} on this machine",
            where="slurm",
            hint="Use a login node of the cluster, or add the folder of Slurm's commands to PATH.",
        ) from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BatchError(
            f"Slurm does not answer ({command[0]}: {error})",
            where="slurm",
            hint="Queued jobs continue. Try again later.",
        ) from error
    if completed.returncode:
        lines = (
            line.removeprefix(f"{command[0]}: error: ") for line in completed.stderr.splitlines()
        )
        message = "; ".join(lines) or f"exit code {completed.returncode}"
        hint = "Queued jobs continue. Try again later." * ("contact" in message)
        raise BatchError(f"{command[0]} fails: {message}", where="slurm", hint=hint)
    return completed.stdout


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
    exit_code = -int(signal) if signal.strip("0") else int(number or 0)
    started_us, ended_us = (
        int(text) * 1_000_000 if text.isdigit() else 0 for text in (started, ended)
    )
    times = (started_us, ended_us)
    return TaskRecord(state.partition(" ")[0], reason, exit_code, *times, node, int(restarts or 0))


def load_queue() -> Iterator[tuple[str, int, int, TaskRecord]]:
    """Load name, array, task and record of this user's jobs, also of those that ended lately.

    Raises:
        BatchError: Slurm does not answer.
    """
    text = run_command("squeue", "--me", "-r", "--noheader", "--states=all", "-O", _FIELDS)
    for line in text.splitlines():
        name, array, task, *fields = (field.strip() for field in line.split("|")[:10])
        if task.isdigit():
            yield name, int(array), int(task), _parse_record(*fields)


def load_accounting(arrays: Iterable[int]) -> dict[tuple[int, int], TaskRecord]:
    """Load the records of tasks from Slurm's accounting; empty if there is none."""
    jobs = ",".join(map(str, sorted(arrays)))
    command = ("sacct", "-n", "-P", "-X", "-j", jobs, "-o", _ACCOUNTING_FIELDS)
    try:
        text = run_command(*command)
    except BatchError:
        return {}
    records = {}
    for line in text.splitlines():
        job, state, *fields = line.split("|")
        array, _, task = job.partition("_")
        if task.isdigit():
            records[int(array), int(task)] = _parse_record(state, "", *fields)
    return records
