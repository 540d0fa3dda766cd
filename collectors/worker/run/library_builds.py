"""Builds on the node, once for each ROOT of a job: the test's own libraries, those of kit and loop."""

from __future__ import annotations

import hashlib
import os
import shutil
from contextlib import suppress
from typing import Any, Dict, Mapping, Optional

from ...job_spec import (
    CHECKSUM,
    COMPILE,
    LOOPS_FOLDER,
    SHARED_LOOPS_VARIABLE,
    BuildCommand,
    ExecutionSpec,
)
from ...json_documents import decode_json
from ...kit.treehammer_kit import loop_libraries
from ...record.outcome import ExecutionError, Failure
from ...shared_files import read_file_end, read_regular_file
from ...software.providers import WITHOUT_ROOT, SoftwareSetup
from .crash_causes import find_compiler_error
from .job_context import CompiledLoop, JobContext
from .node_commands import MAX_LOG_BYTES, MAX_OUTPUT, describe_failure, run_logged_command

#: Class and phase of failed builds.
BUILD = "build"
#: Variable with the folder of the build, for the command and the payload.
BUILD_VARIABLE = "TREEHAMMER_BUILD"


def locate_build(context: JobContext, spec: ExecutionSpec) -> str:
    """Return the folder in which libraries for an execution are built; '' for a test without builds."""
    payload = context.job.payload_of(spec)
    if payload.build is None:
        return ""
    key = hashlib.sha256(f"{payload.folder}\0{spec.software.request}".encode()).hexdigest()[:12]
    return os.path.join(context.work, f"{BUILD}-{key}")


def build_libraries(
    context: JobContext, spec: ExecutionSpec, setup: SoftwareSetup, folder: str
) -> None:
    """Build in a folder, or fail as the first time.

    Raises:
        ExecutionError: class ``build`` and kind ``exit``, ``timeout`` or ``missing-output``; class
            ``evicted``.
        OSError: the node failed.
    """
    build = context.job.payload_of(spec).build
    assert build is not None
    if folder not in context.builds:
        context.builds[folder] = _run_build(context, spec, build, setup, folder)
    problem = context.builds[folder]
    if problem is not None:
        raise ExecutionError(problem)


def _run_build(
    context: JobContext, spec: ExecutionSpec, build: BuildCommand, setup: SoftwareSetup, folder: str
) -> Optional[Failure]:
    shutil.rmtree(folder, ignore_errors=True)  # left by an interrupted attempt
    shutil.copytree(context.locate_payload(spec), folder, symlinks=True)
    log = os.path.join(context.output, "logs", f"{os.path.basename(folder)}.out")
    variables = {BUILD_VARIABLE: folder}
    command = setup.build_command("executable", os.path.join(folder, build.command), variables)
    code = run_logged_command(
        command,
        folder,
        {**setup.env, **variables},
        log,
        build.timeout_s,
        lambda: context.signals.raise_if_stopped(BUILD),
    )
    if code != 0:
        problem = describe_failure(code, build.timeout_s, log)
        kind = "timeout" if code is None else "exit"
        return Failure(BUILD, kind, BUILD, f"{build.command} {problem}")
    missing = [name for name in build.outputs if not os.path.isfile(os.path.join(folder, name))]
    if missing:
        message = f"{build.command} did not make {', '.join(missing)}"
        return Failure(BUILD, "missing-output", BUILD, message)
    return None


def describe_environment(
    build: BuildCommand, folder: str, inherited: Dict[str, str]
) -> Dict[str, str]:
    """Return variables by which the payload finds the built libraries first."""
    preload = [os.path.join(folder, name) for name in build.preload]
    variables = {BUILD_VARIABLE: folder, "LD_LIBRARY_PATH": folder}
    if preload:
        variables["LD_PRELOAD"] = ":".join(preload)
    return {
        name: ":".join(filter(None, (text, inherited.get(name, "")))) if name[:3] == "LD_" else text
        for name, text in variables.items()
    }


#: Text in a Python payload that may have a loop of the kit.
_KIT_MENTION = b"treehammer_kit"
#: Seconds after which ROOT's interpreter compiles the loop instead.
_TIMEOUT_S = 600
_MAX_RESULT_BYTES = 1_000_000
#: Parts of a compiler's errors that no further header mends.
_CERTAIN_ERRORS = (
    "has no member named",
    "error: expected ",
    "invalid conversion",
    "cannot convert",
)


def has_loop(context: JobContext, spec: ExecutionSpec) -> bool:
    """Return whether the payload may have a loop that can be compiled before it starts."""
    payload = context.job.payload_of(spec)
    if spec.kind == CHECKSUM or context.job.load or spec.software.provider in WITHOUT_ROOT:
        return False
    if payload.kind == "python":
        with open(os.path.join(context.locate_payload(spec), payload.entry), "rb") as stream:
            return _KIT_MENTION in stream.read()
    return payload.kind == "macro"


def locate_base(context: JobContext, spec: ExecutionSpec) -> str:
    """Return the folder below which libraries are built, for all jobs where it can be.

    Libraries of a test that builds its own depend on headers that the next job builds again.
    """
    private = os.path.join(context.work, LOOPS_FOLDER)
    shared = os.environ.get(SHARED_LOOPS_VARIABLE, "")
    if spec.software.provider == "wheel":
        shared = os.path.join(os.path.dirname(spec.software.location), LOOPS_FOLDER)
    if not shared or context.job.payload_of(spec).build:
        return private
    try:
        os.makedirs(shared, exist_ok=True)
    except OSError:
        return private
    return shared if os.access(shared, os.W_OK | os.X_OK) else private


def find_loop(context: JobContext, spec: ExecutionSpec) -> Optional[CompiledLoop]:
    """Find the loop of an execution that this job built before, also without success."""
    return context.loops.get(_make_key(context, spec))


def build_loop(
    context: JobContext,
    spec: ExecutionSpec,
    setup: SoftwareSetup,
    folder: str,
    variables: Mapping[str, str],
) -> CompiledLoop:
    """Start the payload so that it builds its libraries alone; without them it is interpreted.

    Args:
        context: state of the job, which notes the folder of the libraries.
        spec: the execution.
        setup: its ROOT.
        folder: its work folder, with the payload's job file.
        variables: the payload's environment variables.

    Raises:
        ExecutionError: the job was stopped, or a trial found a loop that cannot compile.
        OSError: the node cannot start a process.
    """
    base, result = locate_base(context, spec), os.path.join(folder, "loop.json")
    os.makedirs(base, exist_ok=True)
    build_variables = {
        **variables,
        loop_libraries.BUILD_VARIABLE: base,
        "TREEHAMMER_RESULT": result,
    }
    payload = context.job.payload_of(spec)
    entry = os.path.join(context.locate_payload(spec), payload.entry)
    log = os.path.join(context.output, "logs", f"loop-{len(context.loops) + 1}.out")
    code = run_logged_command(
        setup.build_command(payload.kind, entry, build_variables),
        folder,
        {**setup.env, **build_variables},
        log,
        _TIMEOUT_S,
        lambda: context.signals.raise_if_stopped("setup"),
    )
    if spec.kind == COMPILE:
        error = ""
        with suppress(OSError):
            error = find_compiler_error(read_file_end(log, MAX_LOG_BYTES))
        # ROOT's interpreter, which knows more classes, shares these.
        if any(text in error for text in _CERTAIN_ERRORS):
            message = f"the payload's loop does not compile: {error}"
            raise ExecutionError(Failure("payload", "compile", "compile", message))
    values: Dict[str, Any] = {}
    with suppress(OSError, ValueError, KeyError, TypeError):
        values = dict(decode_json(read_regular_file(result, _MAX_RESULT_BYTES))["values"])
    ended = f"ended with {code}" if code is not None else f"did not end within {_TIMEOUT_S} s"
    reason = values.get("reason", "") if values else f"its build {ended}"
    loop = CompiledLoop(
        str(values.get("folder", "")), str(values.get("loop_hash", "")), str(reason)[:MAX_OUTPUT]
    )
    context.loops[_make_key(context, spec)] = loop
    return loop


def _make_key(context: JobContext, spec: ExecutionSpec) -> str:
    payload = context.locate_payload(spec)
    return f"{spec.software.request} {spec.variant.get('format', '')} {payload}"
