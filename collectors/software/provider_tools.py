"""Helpers shared by the providers: errors, running a tool, environments free of other ROOTs."""

from __future__ import annotations

import os
import subprocess
from typing import Dict, List, Mapping, NoReturn

from ..record.failures import ExecutionError, Failure

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
    done = run_setup_command(command, env, action)
    if done.returncode:
        raise_setup_error("broken", f"{action} failed: {extract_error_line(done.stderr)}")
    return done.stdout


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
        raise_setup_error("broken", f"{action} failed: {error}")


def extract_error_line(output: str) -> str:
    """Extract the line that names the error from a tool's output."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if line.lower().startswith("error") and line != _EMPTY_ERROR]
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
    """Remove variables that make a Python load another installation's modules."""
    foreign = ("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__")
    clean = {name: value for name, value in env.items() if name not in foreign}
    clean["PYTHONNOUSERSITE"] = "1"
    return clean


def drop_foreign_root(env: Mapping[str, str]) -> Dict[str, str]:
    """Remove variables that make one ROOT load another's libraries, headers or modules."""
    clean = drop_foreign_python(env)
    for name in ("ROOTSYS", "ROOT_INCLUDE_PATH", "CLING_STANDARD_PCH", "LD_PRELOAD"):
        clean.pop(name, None)
    folders = clean.pop("LD_LIBRARY_PATH", "").split(os.pathsep)
    library_folders = [
        f for f in folders if f and not os.path.exists(os.path.join(f, "libCore.so"))
    ]
    if library_folders:
        clean["LD_LIBRARY_PATH"] = os.pathsep.join(library_folders)
    return clean
