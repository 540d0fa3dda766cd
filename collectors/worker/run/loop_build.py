"""Build of the kit's and the loop's libraries before the payload, once for each ROOT of a job."""

from __future__ import annotations

import json
import os
from typing import Any, Dict, Mapping

from ...job_spec import CHECKSUM, ExecutionSpec
from ...shared_files import read_regular_file
from ...software.providers import WITHOUT_ROOT, SoftwareSetup
from .job_context import JobContext
from .logged_command import run_logged_command

#: Variables of the kit's loop_libraries: folder to build in, folder of built libraries.
LOOP_BUILD_VARIABLE = "TREEHAMMER_LOOP_BUILD"
LOOP_LIBRARIES_VARIABLE = "TREEHAMMER_LOOP_LIBRARIES"
#: Folder of the libraries beside the environments of releases, or in the job's output.
LOOPS_FOLDER = "loops"
#: Text in a Python payload that may have a loop of the kit.
_KIT_MENTION = b"treehammer_kit"
#: Seconds after which ROOT's interpreter compiles the loop instead.
_TIMEOUT_S = 600
_MAX_RESULT_BYTES = 1_000_000


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
    private = os.path.join(context.output, "work", LOOPS_FOLDER)
    if spec.software.provider != "wheel" or context.job.payload_of(spec).build:
        return private
    shared = os.path.join(os.path.dirname(spec.software.location), LOOPS_FOLDER)
    try:
        os.makedirs(shared, exist_ok=True)
    except OSError:
        return private
    return shared if os.access(shared, os.W_OK | os.X_OK) else private


def is_loop_built(context: JobContext, spec: ExecutionSpec) -> bool:
    """Return whether this job built such a loop before, also without success."""
    return _make_key(context, spec) in context.loops


def find_loop_libraries(context: JobContext, spec: ExecutionSpec) -> str:
    """Return the folder of the libraries that this job built; '' for none."""
    return context.loops.get(_make_key(context, spec), "")


def build_loop(
    context: JobContext,
    spec: ExecutionSpec,
    setup: SoftwareSetup,
    folder: str,
    variables: Mapping[str, str],
) -> None:
    """Start the payload so that it builds its libraries alone; without them it is interpreted.

    Args:
        context: state of the job, which notes the folder of the libraries.
        spec: the execution.
        setup: its ROOT.
        folder: its work folder, with the payload's job file.
        variables: the payload's environment variables.

    Raises:
        ExecutionError: the job was stopped.
        OSError: the node cannot start a process.
    """
    base, result = locate_base(context, spec), os.path.join(folder, "loop.json")
    os.makedirs(base, exist_ok=True)
    build_variables = {**variables, LOOP_BUILD_VARIABLE: base, "TREEHAMMER_RESULT": result}
    payload = context.job.payload_of(spec)
    entry = os.path.join(context.locate_payload(spec), payload.entry)
    run_logged_command(
        setup.build_command(payload.kind, entry, build_variables),
        folder,
        {**setup.env, **build_variables},
        os.path.join(context.output, "logs", f"loop-{len(context.loops) + 1}.out"),
        _TIMEOUT_S,
        lambda: context.signals.raise_if_stopped("setup"),
    )
    context.loops[_make_key(context, spec)] = _read_folder(result)


def _make_key(context: JobContext, spec: ExecutionSpec) -> str:
    payload = context.locate_payload(spec)
    return f"{spec.software.request} {spec.variant.get('format', '')} {payload}"


def _read_folder(result: str) -> str:
    """Read the folder of the libraries; '' where the payload did not write it."""
    try:
        document: Dict[str, Any] = json.loads(read_regular_file(result, _MAX_RESULT_BYTES))
        return str(document["values"].get("folder", ""))
    except (OSError, ValueError, KeyError, TypeError):
        return ""
