"""State of the cache behind a door before an execution (axis ``server_cache``).

Files are removed from the cache before each execution with the axis.  A payload then reads some of
them (``half``), or all (``warm``), before it measures: one of a load by itself, any other started
once more, as kind ``prime``.  The cache's counts before and after become values of the record.
"""

from __future__ import annotations

import os
import shlex
import time
from typing import TYPE_CHECKING, Dict, List, Mapping, Optional, Sequence
from urllib.parse import unquote, urlsplit

from ...job_spec import (
    CHECKSUM,
    COLD,
    HALF,
    PRIMED_SHARE,
    SERVER_CACHE_AXIS,
    ExecutionSpec,
    InputFile,
    ServerCache,
)
from ...record.outcome import ExecutionError, Failure
from ...shared_files import local_path, read_file_end
from .execution_record import read_payload_result
from .job_context import JobContext
from .node_commands import describe_failure, run_logged_command

if TYPE_CHECKING:
    from ...cache_counts import CacheCounter

#: Kind of the failure of an eviction, in the class of the set-up.
SERVER_CACHE = "server-cache"
#: Seconds for the eviction of one file, and pause before a file in use is tried again.
EVICTION_S, _RETRY_S = 45.0, 0.5
#: Messages of an XCache about a file that is still open, as it closes files with a delay, and about
#: one that it does not have (XRootD 6).
_IN_USE, _ABSENT = "file is in use", "file does not exist"
_MAX_OUTPUT_BYTES = 4_000
#: Seconds for the reads before an execution, if the payload has no limit.
_PRIME_S = 600.0


def prepare_server_cache(
    context: JobContext, spec: ExecutionSpec, env: Mapping[str, str], name: str
) -> Dict[str, str]:
    """Empty the cache of an execution's files if its variant asks for it; return values of the record.

    Args:
        context: state of the job.
        spec: the execution, with the URLs at the door.
        env: environment of its software, which may have the program.
        name: name of its log, ``NAME.evict``.

    Raises:
        ExecutionError: a file could not be removed, class ``software-setup``, kind ``server-cache``.
    """
    state, cache = spec.variant.get(SERVER_CACHE_AXIS), spec.server_cache
    if all(local_path(file.url) is not None for file in spec.files):
        return {}
    if state is None or spec.kind == CHECKSUM:
        return _describe("unknown", "not controlled by the worker")
    if cache is None:
        return _describe("unknown", "the sites file declares no cache at this door")
    for file in spec.files:
        _evict(context, cache, file, env, os.path.join(context.output, "logs", f"{name}.evict"))
    program = shlex.split(cache.evict)[0]
    method = f"evicted with {os.path.basename(program)}"
    return _describe(str(state), method if state == COLD else f"{method}, then read by the payload")


def _describe(state: str, method: str) -> Dict[str, str]:
    return {"server_cache_state": state, "server_cache_method": method}


def is_controlled(context: JobContext, spec: ExecutionSpec) -> bool:
    """Return whether the worker brings about the state of a cache, and counts what is read.

    The payload of a load test does so by itself.
    """
    return bool(
        SERVER_CACHE_AXIS in spec.variant
        and spec.server_cache
        and spec.kind != CHECKSUM
        and not context.job.load
        and not context.count
    )


def needs_priming(spec: ExecutionSpec) -> bool:
    """Return whether something is to be read before an execution, into a cache that was emptied."""
    return spec.variant[SERVER_CACHE_AXIS] != COLD


def prime(
    context: JobContext,
    spec: ExecutionSpec,
    command: Sequence[str],
    env: Mapping[str, str],
    folder: str,
    name: str,
) -> None:
    """Let the payload read the first half of the entries, or all, before an execution.

    Args:
        context: state of the job.
        spec: the execution.
        command: starts the payload with kind ``prime``.
        env: its environment.
        folder: its work folder.
        name: name of its log, ``NAME.prime``.

    Raises:
        ExecutionError: the payload failed, or does not know this kind.
        OSError: the node cannot start it.
    """
    timeout_s = context.job.limits.wall_s or _PRIME_S
    log = os.path.join(context.output, "logs", f"{name}.prime")
    code = run_logged_command(
        command, folder, env, log, timeout_s, lambda: context.signals.raise_if_stopped("open")
    )
    reported = read_payload_result(env["TREEHAMMER_RESULT"], {PRIMED_SHARE: {}})
    if reported.failure:
        raise ExecutionError(reported.failure)
    state = spec.variant[SERVER_CACHE_AXIS]
    reads = f"The reads before the payload, for {SERVER_CACHE_AXIS} = {state!r},"
    if code != 0:
        raise _fail(f"{reads} failed: it {describe_failure(code, timeout_s, log)}")
    if reported.extras.get(PRIMED_SHARE) != (0.5 if state == HALF else 1.0):
        raise _fail(
            f"{reads} are not confirmed: payloads of the kit report them; another one must read them if "
            f"TREEHAMMER_KIND is 'prime', and report the share of the entries as extra {PRIMED_SHARE!r}"
        )


def begin_counting(spec: ExecutionSpec) -> "Optional[CacheCounter]":
    """Note the cache's counts before an execution; None if the job does not see them."""
    cache = spec.server_cache
    if cache is None or not cache.files:
        return None
    from ...cache_counts import CacheCounter

    counter = CacheCounter(cache.files, [file.url for file in spec.files])
    counter.begin(is_primed=needs_priming(spec))
    return counter


def _evict(
    context: JobContext, cache: ServerCache, file: InputFile, env: Mapping[str, str], log: str
) -> None:
    """Remove a file from the cache; one that is still in use is tried again."""
    deadline = time.monotonic() + EVICTION_S
    command = fill_command(cache.evict, file.url)
    info = f"{cache.files}{find_path(file.url)}.cinfo" if cache.files else ""
    while True:
        try:
            code = run_logged_command(
                command,
                context.output,
                env,
                log,
                max(deadline - time.monotonic(), 1.0),
                lambda: context.signals.raise_if_stopped("open"),
            )
        except OSError as error:
            raise _fail(
                f"{command[0]} empties the cache of this door and cannot be run: {error.strerror}. Install "
                "it on the node, or name another command in the sites file (cache.evict)"
            ) from error
        if code == 0:
            # Commands of older caches return before the file is gone.
            if not os.path.exists(info):
                return
        else:
            output = read_file_end(log, _MAX_OUTPUT_BYTES)
            if _ABSENT in output:
                return
            if _IN_USE not in output:
                break
        if time.monotonic() > deadline - _RETRY_S:
            break
        time.sleep(_RETRY_S)
    if code == 0:
        raise _fail(f"{shlex.join(command)} succeeded, but the cache still has {info}")
    problem = describe_failure(code, EVICTION_S, log)
    raise _fail(f"{shlex.join(command)}, which empties the cache of this door, {problem}")


def fill_command(command: str, url: str) -> List[str]:
    """Fill the address of a file into an eviction command, in words for the system."""
    values = {"server": urlsplit(url).netloc, "path": find_path(url), "url": url}
    words = shlex.split(command)
    for name, value in values.items():
        words = [word.replace("{%s}" % name, value) for word in words]
    return words


def find_path(url: str) -> str:
    """Return the path of a file at its server."""
    return "/" + unquote(urlsplit(url).path).lstrip("/")


def _fail(message: str) -> ExecutionError:
    return ExecutionError(Failure("software-setup", SERVER_CACHE, "setup", message))
