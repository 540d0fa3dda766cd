"""Build of the test's own libraries on the node, once for each ROOT and commit of a job."""

from __future__ import annotations

import hashlib
import os
import shutil
from typing import Dict, Union

from ...job_spec import BuildCommand, ExecutionSpec
from ...record.failures import ExecutionError, Failure
from ...software.providers import SoftwareSetup
from .job_context import JobContext
from .logged_command import describe_failure, run_logged_command

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
    return os.path.join(context.output, "work", f"{BUILD}-{key}")


def is_built(context: JobContext, folder: str) -> bool:
    """Return whether this job built in a folder before, also without success."""
    return folder in context.builds


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
    if not is_built(context, folder):
        failure = _run_build(context, spec, build, setup, folder)
        context.builds[folder] = failure
    problem = context.builds[folder]
    if problem is not None:
        raise ExecutionError(problem)


def _run_build(
    context: JobContext,
    spec: ExecutionSpec,
    build: BuildCommand,
    setup: SoftwareSetup,
    folder: str,
) -> Union[Failure, None]:
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
