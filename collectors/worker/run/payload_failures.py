"""Failure that a payload's end means: its exit, and what the node lacks.

The words of the payload itself decide no cause.
"""

from __future__ import annotations

import os
import resource
import shutil
import signal
from contextlib import suppress
from dataclasses import replace
from typing import Optional

from ...job_spec import ExecutionLimits
from ...record import node_needs
from ...record.outcome import FORCED_KINDS, Failure
from ...shared_files import read_file_end
from ..probes.node_check import NodeCheck
from . import execution_record, payload_process
from .crash_causes import MISSING_HEADER, describe_crash, find_compiler_error

#: A disk with less free bytes was full: a payload removes files of its own as it ends.
MIN_FREE_BYTES = 1_000_000

#: Kind that the worker gives to ends that it forced -> kind where a payload reports it.
_REPORTED_KINDS = {kind: f"reported-{kind}" for kind in FORCED_KINDS}
#: Bytes of a payload's log that are searched for the cause of a crash.
_MAX_LOG_BYTES = 16_000_000


def classify_failure(
    outcome: payload_process.ProcessOutcome,
    reported: execution_record.PayloadResult,
    limits: ExecutionLimits,
    out_of_memory: bool,
    is_group_limited: bool = False,
) -> Optional[Failure]:
    """Classify the failure of a payload, None for success.

    An end forced by the worker takes precedence, then a failure that the payload reports, then its
    exit status.  ``out_of_memory``: the OOM killer ended a process, of the job if ``is_group_limited``.
    """
    if outcome.ended_by:
        return _forced_end(outcome.ended_by, limits)
    # A shell reports a killed child by its exit code.
    number = outcome.exit_signal or (outcome.exit_code or 0) - 128
    has_killed_child = reported.failure.kind == "killed" if reported.failure else is_group_limited
    killed = number == signal.SIGKILL or bool(outcome.exit_code and has_killed_child)
    if killed and out_of_memory:
        message = "The kernel killed the payload: out of memory (its OOM counter rose meanwhile)."
        return _payload_failure("memory", message, transient=True)
    if reported.failure:
        kind = reported.failure.kind
        return replace(reported.failure, kind=_REPORTED_KINDS.get(kind, kind))
    if failure := _end_by_signal(outcome, number):
        return failure
    if outcome.exit_code:
        return _payload_failure("exit", f"The payload ended with exit code {outcome.exit_code}.")
    return reported.problem


def _end_by_signal(outcome: payload_process.ProcessOutcome, number: int) -> Optional[Failure]:
    """Return the failure of a payload, or for a limit of the node its shell's child, ended by a signal."""
    limit_s = resource.getrlimit(resource.RLIMIT_CPU)[0]
    limit_bytes = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    cpu_s = outcome.values["payload_user_s"] + outcome.values["payload_sys_s"]
    # The kernel counts a little more than it reports.
    if 0 < limit_s < cpu_s + 1 and number in (signal.SIGXCPU, signal.SIGKILL):
        kind, limit = "cpu-limit", f"after {limit_s} s of CPU time (ulimit -t)"
    elif limit_bytes >= 0 and number == signal.SIGXFSZ:
        kind, limit = "file-limit", f"at a file of {limit_bytes} bytes (ulimit -f)"
    elif outcome.exit_signal is None:
        return None
    else:
        name = f"signal {number}"
        core = ", core dumped" if outcome.core_dumped else ""
        with suppress(ValueError):
            name = signal.Signals(number).name
        return _payload_failure("signal", f"The payload was ended by {name}{core}.")
    message = f"The node ended the payload {limit}: raise that."
    return Failure("software-setup", kind, "payload", message)


def _forced_end(reason: str, limits: ExecutionLimits) -> Failure:
    """Return the failure of a payload that the worker ended."""
    stopped = "The worker was asked to stop and ended the payload."
    return {
        "stop": Failure("evicted", "stopped", "payload", stopped, transient=True),
        "timeout": _payload_failure(
            "timeout",
            f"The payload ran longer than its wall limit of {limits.wall_s:g} s and was ended. "
            "Raise wall_limit_s in test.toml or read less.",
            transient=True,
        ),
        "memory": _payload_failure(
            "memory",
            f"The payload's processes used more than their limit of {limits.memory_bytes} bytes "
            "and were ended. Use less, or raise memory_limit_mb in test.toml, and ceilings.memory_mb of "
            "the site if it is less.",
        ),
    }[reason]


def _payload_failure(kind: str, message: str, *, transient: bool = False) -> Failure:
    return Failure("payload", kind, "payload", message, transient)


def name_cause(failure: Failure, log: str) -> Failure:
    """Add the cause that a payload's log names: of a crash, an exit, or code that does not compile."""
    if failure.failure_class != "payload":
        return failure
    if failure.kind == "compile" and (error := find_compiler_error(log)):
        return replace(failure, message=f"{failure.message}: {error}")
    if failure.kind not in ("signal", "exit"):
        return failure
    return replace(failure, message=f"{failure.message} {describe_crash(log)}".rstrip())


def read_log(path: str) -> tuple[str, str]:
    """Read the end of a payload's log; the second text says why it cannot be read, '' if it can."""
    try:
        return read_file_end(path, _MAX_LOG_BYTES), ""
    except OSError as error:
        return "", f"Its log cannot be read: {error.strerror}."


def attribute_to_full_disk(failure: Failure, folder: str) -> Failure:
    """Name a full disk as the cause of a payload's failure, if its work folder has no room."""
    full = shutil.disk_usage(folder).free < MIN_FREE_BYTES
    if not full or failure.failure_class != "payload" or failure.kind == "memory":
        return failure
    disk = os.path.realpath(folder)
    while not os.path.ismount(disk):
        disk = os.path.dirname(disk)
    message = (
        f"{failure.message} The disk of its work folder is full, {disk}: make room there, or let "
        "the payload write less."
    )
    return replace(failure, kind="disk-full", message=message, transient=True)


def attribute_to_headers(failure: Failure, log: str, node: NodeCheck) -> Failure:
    """Name the headers that a node lacks as the cause of a payload's failure, if one was not found."""
    is_headers = node_needs.HEADERS in node.lacks and MISSING_HEADER.search(log)
    if failure.failure_class not in ("payload", "software-setup") or not is_headers:
        return failure
    return _attribute_to_node(failure, node_needs.HEADERS, node)


def attribute_to_compiler(failure: Failure, node: NodeCheck) -> Failure:
    """Name the compiler that a node lacks as the cause of a failed build."""
    if failure.failure_class != "build" or node_needs.COMPILER not in node.lacks:
        return failure
    return _attribute_to_node(failure, node_needs.COMPILER, node)


def _attribute_to_node(failure: Failure, name: str, node: NodeCheck) -> Failure:
    message = f"{node.describe(name)} ({failure.message})"
    return Failure("software-setup", name, failure.phase, message)


def check_root_version(requested: str, reported: Optional[str]) -> Optional[Failure]:
    """Refuse a measurement whose ROOT has another version than requested."""
    if not requested or reported is None or reported == requested:
        return None
    message = (
        f"The payload ran with ROOT {reported} instead of the requested {requested}: the "
        "measurement is refused. Check the paths that the set-up of this ROOT adds."
    )
    return Failure("software-setup", "version", "payload", message)
