"""Set-up of a ROOT by setup scripts, of private builds (``path``) and of releases on CVMFS."""

from __future__ import annotations

import difflib
import errno
import os
import platform
import re
import shutil
import subprocess
from typing import Dict, List, Mapping, NoReturn, Tuple

from ..job_spec import SoftwareRequest
from ..record.outcome import ExecutionError, Failure

SETUP_TIMEOUT_S = 120
#: Line that pip prints above a traceback; the reason is in the traceback's last line.
_EMPTY_ERROR = "ERROR: Exception:"


def raise_setup_error(kind: str, message: str, *, transient: bool = False) -> NoReturn:
    """Raise an error of class ``software-setup``.

    Raises:
        ExecutionError: always.
    """
    raise ExecutionError(Failure("software-setup", kind, "setup", message, transient))


def run_tool(command: List[str], env: Mapping[str, str], action: str) -> str:
    """Run a tool with this environment and return its output.

    Raises:
        ExecutionError: kind ``broken``; the message is ``action`` and the tool's own reason.
    """
    result = run_setup_command(command, env, action)
    if result.returncode:
        raise_setup_error("broken", f"{action} failed: {extract_error_line(result.stderr)}")
    return result.stdout


def run_setup_command(
    command: List[str], env: Mapping[str, str], action: str, errors: str = "replace"
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, which may be a failure.

    Args:
        command: program and arguments.
        env: its complete environment.
        action: the command's purpose, for messages.
        errors: how bytes that are not UTF-8 are decoded.

    Raises:
        ExecutionError: kind ``broken``: it did not start, or took too long.
    """
    try:
        return subprocess.run(
            command,
            env=dict(env),
            cwd=os.sep,  # a stray ROOT.py in the current folder must not be found
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors=errors,
            timeout=SETUP_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise_setup_error(
            "broken", f"{action} took longer than {SETUP_TIMEOUT_S} s", transient=True
        )
    except OSError as error:
        reason = str(error)
        if error.errno == errno.ENOEXEC:
            reason += (
                f"; is it built for another architecture than this node's {platform.machine()}?"
            )
        raise_setup_error("broken", f"{action} failed: {reason}")


def extract_error_line(output: str) -> str:
    """Extract the line that names the error from a tool's output."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    starts = ("error", "fatal python error")  # after the latter, Python names a thread
    errors = [line for line in lines if line.lower().startswith(starts) and line != _EMPTY_ERROR]
    return (errors or lines or ["no output"])[-1]


def check_root_importable(python: str, env: Mapping[str, str], origin: str) -> None:
    """Check that this Python can import ROOT, before any payload runs.

    Raises:
        ExecutionError: kind ``missing`` (no module ROOT) or ``broken`` (Python does not start).
    """
    query = "import importlib.util as u; print(u.find_spec('ROOT') is not None)"
    if run_tool([python, "-c", query], env, origin).strip() != "True":
        raise_setup_error("missing", f"{python} finds no module ROOT")


def drop_foreign_python(env: Mapping[str, str]) -> Dict[str, str]:
    """Remove variables that make a Python load other modules, run slower or stop at warnings."""
    foreign = ("PYTHON", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__")
    clean = {name: value for name, value in env.items() if not name.startswith(foreign)}
    clean["PYTHONNOUSERSITE"] = "1"
    return clean


def drop_foreign_root(env: Mapping[str, str]) -> Dict[str, str]:
    """Remove what makes one ROOT load another's libraries, headers or modules, or differ by user."""
    clean = drop_foreign_python(env)
    clean["ROOTENV_NO_HOME"] = "1"  # a user's ~/.rootrc
    for name in ("ROOTSYS", "ROOT_INCLUDE_PATH", "CLING_STANDARD_PCH", "LD_PRELOAD"):
        clean.pop(name, None)
    folders = clean.pop("LD_LIBRARY_PATH", "").split(os.pathsep)
    library_folders = [
        f for f in folders if f and not os.path.exists(os.path.join(f, "libCore.so"))
    ]
    if library_folders:
        clean["LD_LIBRARY_PATH"] = os.pathsep.join(library_folders)
    return clean


#: Variable with the mount point of CVMFS on this machine, if not :data:`CVMFS`.
CVMFS_VARIABLE = "TREEHAMMER_CVMFS"
CVMFS = "/cvmfs"

_VIEWS_FOLDER = "sft.cern.ch/lcg/views"
_RELEASES_FOLDER = "sft.cern.ch/lcg/app/releases/ROOT"
_CVMFS_FORMS = (
    "'cvmfs:LCG_106/x86_64-el9-gcc13-opt' for a view, 'cvmfs:ROOT/6.38.00/PLATFORM' for a release, "
    "or 'cvmfs:REPOSITORY/FOLDER' for any other, each with @VERSION to require a version"
)
#: Names of a folder's neighbours that a message lists.
_MAX_LISTED = 8

#: The status alone proves nothing: the resulting environment is searched for a ROOT.
_SOURCE_COMMAND = 'source "$1" 1>&2; status=$?; exec /usr/bin/env -0 TREEHAMMER_SOURCED="$status"'
_SOURCED_VARIABLE = "TREEHAMMER_SOURCED"


def setup_path(request: SoftwareRequest, base: Mapping[str, str]) -> Tuple[str, Dict[str, str]]:
    """Set up an installation, a build tree or a script; return interpreter and environment."""
    script = find_path_script(request.location)
    env, output, status = _source_script(script, base)
    if status:
        raise_setup_error("broken", f"sourcing {script} failed: {extract_error_line(output)}")
    return _find_python(script, env, ""), env


def find_path_script(location: str) -> str:
    """Find the script to source: the location itself, or its ``bin/thisroot.sh``.

    Raises:
        ExecutionError: kind ``missing``.
    """
    if os.path.isfile(location):
        return location
    script = os.path.join(location, "bin", "thisroot.sh")
    if not os.path.isfile(script):
        problem = "has no bin/thisroot.sh" if os.path.isdir(location) else "does not exist"
        raise_setup_error(
            "missing",
            f"{location} {problem}; name the folder of a ROOT installation or build tree, "
            "or the script that sets it up",
        )
    return script


def parse_cvmfs(text: str, name: str, version: str) -> SoftwareRequest:
    """Parse the ``name`` of a ``cvmfs:`` request; its location is relative to the mount.

    Raises:
        ValueError: ``name`` is not a view, release or folder.
    """
    parts = name.strip("/").split("/")
    if len(parts) < 2 or not all(re.fullmatch(r"[\w.+-]+", part) for part in parts):
        raise ValueError(f"{text!r} names no ROOT on CVMFS; write {_CVMFS_FORMS}")
    if any(set(part) == {"."} for part in parts):
        raise ValueError(f"{text!r} names no ROOT on CVMFS: remove '.' and '..'")
    if parts[0] == "ROOT":
        return _parse_cvmfs_release(text, parts[1:], version)
    # CVMFS repositories are named like domains; names of views have no dot.
    folder = "/".join(parts) if "." in parts[0] else f"{_VIEWS_FOLDER}/{'/'.join(parts)}"
    return SoftwareRequest(text, "cvmfs", version, folder)


def _parse_cvmfs_release(text: str, parts: List[str], version: str) -> SoftwareRequest:
    """Parse ``VERSION/PLATFORM`` of a release of ROOT itself."""
    if len(parts) != 2:
        raise ValueError(f"{text!r} names no release of ROOT on CVMFS; write {_CVMFS_FORMS}")
    release, platform = parts
    if version and version != release:
        raise ValueError(f"{text!r} requests both {release} and {version}")
    return SoftwareRequest(text, "cvmfs", release, f"{_RELEASES_FOLDER}/{release}/{platform}")


def setup_cvmfs(request: SoftwareRequest, base: Mapping[str, str]) -> Tuple[str, Dict[str, str]]:
    """Set up a ROOT on CVMFS; return interpreter and environment."""
    script = find_cvmfs_script(request.location)
    # A view's script continues after failed commands, and sets up all packages, not only ROOT.
    env, output, _ = _source_script(script, base)
    return _find_python(script, env, output), env


def find_cvmfs_script(location: str) -> str:
    """Find the script to source on this machine.

    Raises:
        ExecutionError: kind ``missing``; transient when the repository is not mounted here.
    """
    mount = os.environ.get(CVMFS_VARIABLE) or CVMFS
    repository, *parts = location.split("/")
    location_path = os.path.join(mount, repository)
    if not os.path.isdir(location_path):  # under autofs this access mounts it
        raise_setup_error(
            "missing",
            f"the CVMFS repository {repository} is not mounted at {mount} on this machine; mount "
            f"it, or set {CVMFS_VARIABLE} to its mount point",
            transient=True,
        )
    for part in parts:
        if not os.path.exists(os.path.join(location_path, part)):
            raise_setup_error(
                "missing",
                f"{location_path} has no {part!r}; {_describe_neighbors(location_path, part)}",
            )
        location_path = os.path.join(location_path, part)
    scripts = (
        location_path,
        os.path.join(location_path, "setup.sh"),
        os.path.join(location_path, "bin", "thisroot.sh"),
    )
    setup_script = next((script for script in scripts if os.path.isfile(script)), None)
    if setup_script is None:
        raise_setup_error("missing", f"{location_path} has neither setup.sh nor bin/thisroot.sh")
    return setup_script


def _describe_neighbors(folder: str, missing: str) -> str:
    try:
        names = sorted(name for name in os.listdir(folder) if not name.startswith("."))
    except OSError as error:
        return f"it cannot be listed ({error.strerror})"
    near = difflib.get_close_matches(missing, names, n=1)
    more = "..., " if len(names) > _MAX_LISTED else ""  # the newest come last
    content = f"it has: {more}{', '.join(names[-_MAX_LISTED:])}" if names else "it is empty"
    return (f"did you mean {near[0]!r}? " if near else "") + content


def _source_script(script: str, base: Mapping[str, str]) -> Tuple[Dict[str, str], str, int]:
    """Source a script; return the new environment, the script's stderr and its status."""
    command = ["bash", "--noprofile", "--norc", "-c", _SOURCE_COMMAND, "treehammer", script]
    env = drop_foreign_root(base)
    result = run_setup_command(command, env, f"sourcing {script}", errors="surrogateescape")
    env = dict(item.split("=", 1) for item in result.stdout.split("\0") if "=" in item)
    if _SOURCED_VARIABLE not in env:
        raise_setup_error(
            "broken", f"sourcing {script} ended the shell: {extract_error_line(result.stderr)}"
        )
    return env, result.stderr, int(env.pop(_SOURCED_VARIABLE))


def _find_python(script: str, env: Mapping[str, str], output: str) -> str:
    """Find the interpreter that this environment's ROOT was built for."""
    config = shutil.which("root-config", path=env.get("PATH"))
    if config is None:
        reason = f": {extract_error_line(output)}" if output.strip() else ""
        raise_setup_error("broken", f"sourcing {script} put no root-config on PATH{reason}")
    python_version = run_tool([config, "--python-version"], env, config).strip()
    name = "python" + ".".join(python_version.split(".")[:2])
    python = shutil.which(name, path=env.get("PATH")) if python_version else None
    if python is None:
        raise_setup_error(
            "broken",
            f"the ROOT of {script} was built for Python {python_version or '(none)'}, but {name} is not "
            "on PATH",
        )
    check_root_importable(python, env, script)
    return python
