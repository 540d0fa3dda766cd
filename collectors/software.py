"""Software providers: which ROOT an execution is given, and how it is set up.

``wheel``
    a released ROOT from PyPI in a cached environment of its own; :func:`prepare` makes it before
    any job is sent, since a job itself never downloads anything.
``path``
    an installation, a build tree or any set-up script: patched and development builds.
``current``
    the ROOT that is already in the environment of the worker.
``none``
    no ROOT at all, for payloads that bring what they need.

Standard library only, Python 3.9 and later: this module is packed into the worker.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from typing import Callable, Dict, List, Mapping, NoReturn, Optional, Tuple

from .failures import Failure, Fault
from .files import PathLike, locked
from .job import SoftwareRequest

#: ROOT release -> version of the package ``ROOT`` on PyPI that holds it.
WHEELS: Dict[str, str] = {
    "6.37.01": "0.1a8",
    "6.38.00": "0.1a10",
    "6.39.01": "0.1a9",
    "6.40.00": "0.1a12",
}

PAYLOAD_KINDS = ("python", "macro", "executable")

_RELEASE = re.compile(r"\d+\.\d+[./]\d+")
_PATH = re.compile(r"(?P<folder>.+?)(?:@(?P<version>\d+\.\d+[./]\d+))?")
_MARKER = ".treehammer.json"
_SETUP_TIMEOUT_S = 120
_PIP_INSTALL = ("-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check")

Progress = Callable[[str], None]


def parse(text: str, *, base: PathLike = ".") -> SoftwareRequest:
    """Read a value of the ``root`` axis.

    Args:
        text: ``6.40.00`` or ``wheel:6.40.00``; ``path:FOLDER``, optionally ``@6.40.01`` for the
            version it must report; ``current``; ``none``.
        base: folder that a relative ``path:`` starts from.

    Raises:
        ValueError: not one of these; the message names what is near.
    """
    text = text.strip()
    provider, _, rest = text.partition(":")
    if text in ("current", "none"):
        return SoftwareRequest(text, text, "", "")
    if provider == "path" and rest:
        match = _PATH.fullmatch(rest)
        assert match is not None  # any non-empty text matches
        folder = os.path.join(os.fspath(base), os.path.expanduser(match["folder"]))
        version = (match["version"] or "").replace("/", ".")
        return SoftwareRequest(text, "path", version, os.path.abspath(folder))
    release = rest if provider == "wheel" else text
    if release in WHEELS:
        return SoftwareRequest(text, "wheel", release, "")
    raise ValueError(_unknown(text, release))


def _unknown(text: str, release: str) -> str:
    known = ", ".join(WHEELS)
    near = difflib.get_close_matches(release, [*WHEELS, "current", "none"], n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    if _RELEASE.fullmatch(release):
        return (
            f"there is no wheel of ROOT {release}; {hint}wheels: {known}; "
            f"an installed build is asked for as 'path:/its/folder@{release}'"
        )
    return (
        f"{text!r} names no ROOT; {hint}known: a release ({known}), 'path:/folder' "
        "of an installation or build tree, 'current' or 'none'"
    )


def _fault(kind: str, message: str, *, transient: bool = False) -> NoReturn:
    raise Fault(Failure("software setup", kind, "setup", message, transient))


# --- Preparing: on the submitting side, never in a job --------------------------------------


def prepare(
    request: SoftwareRequest, software_dir: PathLike, progress: Optional[Progress] = None
) -> SoftwareRequest:
    """Make what is missing on this machine, and fill in where it is.

    Two processes may prepare the same release at once: one makes it, the other waits.  An
    environment whose making was interrupted is never used but made again.

    Args:
        request: from :func:`parse`.
        software_dir: folder of the cached environments.
        progress: receives one short sentence at a time.

    Raises:
        Fault: it cannot be made (class ``software setup``); the message says what to do.
    """
    say = progress or (lambda _note: None)
    if request.provider == "path":
        _setup_script(request.location)
    if request.provider != "wheel":
        return request
    folder = os.path.abspath(os.path.join(os.fspath(software_dir), f"root-{request.version}"))
    if not _is_complete(folder, request.version):
        try:
            with locked(f"{folder}.lock", lambda: say(f"waiting for ROOT {request.version}")):
                if not _is_complete(folder, request.version):
                    _make(folder, request.version, say)
        except OSError as error:
            _fault("broken", f"cannot make ROOT {request.version} in {folder}: {error}")
    return replace(request, location=folder)


def prepared(software_dir: PathLike) -> Dict[str, str]:
    """Releases that are ready in ``software_dir``: version -> folder, oldest first."""
    found = {}
    for version in sorted(WHEELS):
        folder = os.path.abspath(os.path.join(os.fspath(software_dir), f"root-{version}"))
        if _is_complete(folder, version):
            found[version] = folder
    return found


def _is_complete(folder: str, version: str) -> bool:
    try:
        with open(os.path.join(folder, _MARKER), encoding="utf-8") as stream:
            document = json.load(stream)
    except (OSError, ValueError):
        return False
    # The interpreter is a link to the Python that made the environment, which can disappear.
    return document == _marker(version) and os.access(_python_of(folder), os.X_OK)


def _marker(version: str) -> Dict[str, str]:
    return {"root": version, "wheel": WHEELS.get(version, "")}


def _python_of(folder: str) -> str:
    return os.path.join(folder, "bin", "python")


def _make(folder: str, version: str, say: Progress) -> None:
    """Build in place, since an environment is bound to its path; the marker comes last."""
    shutil.rmtree(folder, ignore_errors=True)
    python = _python_of(folder)
    wheel = WHEELS[version]
    try:
        say(f"ROOT {version}: new environment")
        _step(
            [sys.executable, "-m", "venv", folder],
            f"cannot make a Python environment in {folder}",
            "Python's venv module must be installed (Debian: python3-venv)",
        )
        say(f"ROOT {version}: installing (240 MB to fetch, 670 MB on disk)")
        _step(
            [python, *_PIP_INSTALL, f"ROOT=={wheel}", "numpy"],
            f"pip could not install ROOT {version} (ROOT=={wheel}) for Python "
            f"{sys.version_info[0]}.{sys.version_info[1]}",
            "check the network, the disk and pip's configuration, or use 'path:' with a ROOT of "
            "your own",
            transient=True,
        )
        say(f"ROOT {version}: first start")
        output = _step(
            [python, "-c", "import ROOT; print('version', ROOT.gROOT.GetVersion())"],
            f"ROOT {version} is installed in {folder} but does not start",
            "its wheel may need another system; use 'path:' with a ROOT of your own",
        )
        found = output.split()[-1] if output.split() else "nothing"
        if found != version:
            _fault("version", f"the wheel ROOT=={wheel} reports {found}, not {version}")
        with open(os.path.join(folder, _MARKER), "w", encoding="utf-8") as stream:
            json.dump(_marker(version), stream)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _step(command: List[str], what: str, remedy: str, *, transient: bool = False) -> str:
    """Run one step of the making and return its output."""
    env = _without_foreign_python(os.environ)
    done = subprocess.run(command, env=env, cwd=os.sep, capture_output=True, text=True, check=False)
    if done.returncode:
        _fault(
            "broken", f"{what}: {_why(done.stderr or done.stdout)}; {remedy}", transient=transient
        )
    return done.stdout


def _why(output: str) -> str:
    """The line of a tool's output that says what was wrong."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if line.lower().startswith("error")]
    return (errors or lines or ["it said nothing"])[-1]


# --- Setting up: on the node ---------------------------------------------------------------


@dataclass(frozen=True)
class Setup:
    """A ROOT that is ready to run payloads.

    Attributes:
        provider: of the request.
        python: interpreter that can import this ROOT.
        env: full environment of the payload.
    """

    provider: str
    python: str
    env: Mapping[str, str]

    def command(self, kind: str, entry: str) -> List[str]:
        """Arguments that run a payload.

        Args:
            kind: one of :data:`PAYLOAD_KINDS`.
            entry: path of the payload's file.

        Raises:
            Fault: a macro is to run without ROOT.
        """
        if kind == "python":
            return [self.python, entry]
        if kind == "macro":
            if self.provider == "none":
                _fault("missing", f"{entry} is a ROOT macro, but root = 'none' was asked for")
            return [self.python, "-m", "treehammer_kit.macro", entry]
        if kind == "executable":
            return [entry]
        raise ValueError(f"unknown kind of payload {kind!r}; known: {', '.join(PAYLOAD_KINDS)}")


def setup(request: SoftwareRequest, base_env: Mapping[str, str], kit: PathLike) -> Setup:
    """Set the requested ROOT up; nothing is installed here.

    Neither the user's site-packages nor a foreign ``PYTHONPATH`` or ROOT leaks into ``wheel`` and
    ``path``.

    Args:
        request: with its location filled in by :func:`prepare`.
        base_env: environment to start from.
        kit: folder that holds the package ``treehammer_kit``.

    Raises:
        Fault: class ``software setup``; kind ``missing`` (not there) or ``broken`` (unusable).
    """
    providers = {"wheel": _wheel, "path": _path, "current": _current, "none": _none}
    if request.provider not in providers:
        _fault("missing", f"unknown software provider {request.provider!r}")
    python, env = providers[request.provider](request, base_env)
    paths = [os.path.abspath(os.fspath(kit)), env.get("PYTHONPATH", "")]
    env["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    env["PYTHONNOUSERSITE"] = "1"
    return Setup(request.provider, python, env)


def _wheel(request: SoftwareRequest, base_env: Mapping[str, str]) -> Tuple[str, Dict[str, str]]:
    if not _is_complete(request.location, request.version):
        _fault(
            "missing",
            f"ROOT {request.version} is not ready in {request.location or 'any folder'}; "
            "it is made when the job is planned, never in a job",
        )
    env = _without_foreign_root(base_env)
    python = _python_of(request.location)
    query = "import sysconfig; print(sysconfig.get_path('platlib'))"
    packages = _run([python, "-c", query], env, f"the Python of {request.location}").strip()
    folders = [os.path.dirname(python), os.path.join(packages, "ROOT", "bin"), env.get("PATH", "")]
    env["PATH"] = os.pathsep.join(folder for folder in folders if folder)
    env["VIRTUAL_ENV"] = request.location
    return python, env


def _path(request: SoftwareRequest, base_env: Mapping[str, str]) -> Tuple[str, Dict[str, str]]:
    script = _setup_script(request.location)
    shell = 'source "$1" 1>&2 && exec /usr/bin/env -0'
    output = _run(
        ["bash", "--noprofile", "--norc", "-c", shell, "treehammer", script],
        _without_foreign_root(base_env),
        f"sourcing {script}",
    )
    env = dict(item.split("=", 1) for item in output.split("\0") if "=" in item)
    config = shutil.which("root-config", path=env.get("PATH"))
    if config is None:
        _fault("broken", f"after sourcing {script} there is no root-config on PATH")
    wanted = _run([config, "--python-version"], env, config).strip()
    name = "python" + ".".join(wanted.split(".")[:2])
    python = shutil.which(name, path=env.get("PATH")) if wanted else None
    if python is None:
        _fault(
            "broken",
            f"the ROOT of {script} was built for Python {wanted or '(none)'}, but there is no "
            f"{name} on PATH",
        )
    _import_root(python, env, script)
    return python, env


def _setup_script(location: str) -> str:
    """The script to source: given itself, or ``bin/thisroot.sh`` of an installation or build."""
    if os.path.isfile(location):
        return location
    script = os.path.join(location, "bin", "thisroot.sh")
    if not os.path.isfile(script):
        what = "has no bin/thisroot.sh" if os.path.isdir(location) else "does not exist"
        _fault(
            "missing",
            f"{location} {what}; name the folder of a ROOT installation or build tree, "
            "or the script that sets it up",
        )
    return script


def _current(request: SoftwareRequest, base_env: Mapping[str, str]) -> Tuple[str, Dict[str, str]]:
    env = dict(base_env)
    candidates = [sys.executable, shutil.which("python3", path=env.get("PATH"))]
    reasons = []
    for python in dict.fromkeys(item for item in candidates if item):
        try:
            _import_root(python, env, python)
        except Fault as fault:
            reasons.append(str(fault))
        else:
            return python, env
    _fault("missing", "root = 'current' was asked for, but: " + "; ".join(reasons))


def _none(request: SoftwareRequest, base_env: Mapping[str, str]) -> Tuple[str, Dict[str, str]]:
    return sys.executable, dict(base_env)


def _import_root(python: str, env: Mapping[str, str], origin: str) -> None:
    """Find out before any payload runs whether this Python finds a ROOT."""
    query = "import importlib.util as u; print(u.find_spec('ROOT') is not None)"
    if _run([python, "-c", query], env, origin).strip() != "True":
        _fault("missing", f"{python} finds no module ROOT")


def _run(command: List[str], env: Mapping[str, str], what: str) -> str:
    try:
        done = subprocess.run(
            command,
            env=dict(env),
            cwd=os.sep,  # a stray ROOT.py in the current folder must not be found
            capture_output=True,
            text=True,
            timeout=_SETUP_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        _fault("broken", f"{what} took longer than {_SETUP_TIMEOUT_S} s", transient=True)
    except OSError as error:
        _fault("broken", f"{what} failed: {error}")
    if done.returncode:
        _fault("broken", f"{what} failed: {_why(done.stderr)}")
    return done.stdout


def _without_foreign_python(env: Mapping[str, str]) -> Dict[str, str]:
    foreign = ("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__")
    clean = {name: value for name, value in env.items() if name not in foreign}
    clean["PYTHONNOUSERSITE"] = "1"
    return clean


def _without_foreign_root(env: Mapping[str, str]) -> Dict[str, str]:
    """Drop what would make one ROOT load another's libraries, headers or modules."""
    clean = _without_foreign_python(env)
    for name in ("ROOTSYS", "ROOT_INCLUDE_PATH", "CLING_STANDARD_PCH", "LD_PRELOAD"):
        clean.pop(name, None)
    folders = clean.pop("LD_LIBRARY_PATH", "").split(os.pathsep)
    kept = [f for f in folders if f and not os.path.exists(os.path.join(f, "libCore.so"))]
    if kept:
        clean["LD_LIBRARY_PATH"] = os.pathsep.join(kept)
    return clean
