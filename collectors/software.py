"""Software providers: which ROOT an execution is given, and how it is set up.

``wheel``
    a released ROOT from PyPI in a cached environment of its own; :func:`prepare` makes it before
    any job is sent, since a job itself never downloads anything.
``path``
    an installation, a build tree or any set-up script: patched and development builds.
``cvmfs``
    a view of the LCG releases or a release of ROOT itself, as the node has them on CVMFS.
``wrap``
    a ROOT behind a command prefix such as ``apptainer exec IMAGE``.
``current``
    the ROOT that is already in the environment of the worker.
``none``
    no ROOT at all, for payloads that bring what they need.

Standard library only, Python 3.9 and later: this module is packed into the worker.
"""

from __future__ import annotations

import difflib
import os
import re
import shutil
import sys
from dataclasses import dataclass, replace
from typing import Callable, Dict, List, Mapping, Optional, Tuple

from .failures import Fault
from .files import PathLike, locked
from .job import SoftwareRequest
from .providers import fetch, script, wheel, wrap
from .providers.common import fault, import_root

#: ROOT release -> version of the package ``ROOT`` on PyPI that holds it.
WHEELS = wheel.WHEELS

PAYLOAD_KINDS = ("python", "macro", "executable")

_RELEASE = re.compile(r"\d+\.\d+[./]\d+")
_NAMED = ("wheel", "path", "cvmfs", "wrap")
_VERSIONED = re.compile(r"(?P<rest>.+?)(?:@(?P<version>\d+\.\d+[./]\d+))?")

Progress = Callable[[str], None]


def parse(text: str, *, base: PathLike = ".") -> SoftwareRequest:
    """Read a value of the ``root`` axis.

    Args:
        text: ``6.40.00`` or ``wheel:6.40.00``; ``path:FOLDER``, ``cvmfs:VIEW/PLATFORM`` or
            ``wrap:COMMAND``, each optionally with ``@6.40.01`` for the version it must report;
            ``current``; ``none``.
        base: folder that a relative ``path:`` starts from.

    Raises:
        ValueError: not one of these; the message names what is near.
    """
    text = text.strip()
    provider, _, rest = text.partition(":")
    if text in ("current", "none"):
        return SoftwareRequest(text, text, "", "")
    if provider in _NAMED[1:] and rest:
        match = _VERSIONED.fullmatch(rest)
        assert match is not None  # any non-empty text matches
        version = (match["version"] or "").replace("/", ".")
        if provider == "cvmfs":
            return script.parse_cvmfs(text, match["rest"], version)
        if provider == "wrap":
            return wrap.parse_wrap(text, match["rest"], version)
        folder = os.path.join(os.fspath(base), os.path.expanduser(match["rest"]))
        return SoftwareRequest(text, "path", version, os.path.abspath(folder))
    release = rest if provider == "wheel" else text
    if release in WHEELS:
        return SoftwareRequest(text, "wheel", release, "")
    raise ValueError(_unknown(text, release))


def _unknown(text: str, release: str) -> str:
    known = ", ".join(WHEELS)
    provider, colon, _ = text.partition(":")
    if colon and provider not in _NAMED:
        near = difflib.get_close_matches(provider, _NAMED, n=1)
    else:
        near = difflib.get_close_matches(release, [*WHEELS, "current", "none"], n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    if _RELEASE.fullmatch(release):
        return (
            f"there is no wheel of ROOT {release}; {hint}wheels: {known}; "
            f"an installed build is asked for as 'path:/its/folder@{release}', one on CVMFS as "
            f"'cvmfs:ROOT/{release.replace('/', '.')}/PLATFORM'"
        )
    return (
        f"{text!r} names no ROOT; {hint}known: a release ({known}), 'path:/folder' "
        "of an installation or build tree, 'cvmfs:VIEW/PLATFORM', 'wrap:COMMAND', 'current' or "
        "'none'"
    )


# --- Preparing: on the submitting side, never in a job --------------------------------------


def prepare(
    request: SoftwareRequest,
    software_dir: PathLike,
    progress: Optional[Progress] = None,
) -> SoftwareRequest:
    """Make what is missing on this machine, and fill in where it is.

    Two processes may prepare the same release at once: one makes it, the other waits.  An
    environment whose making was interrupted, or that was damaged since, is made again.

    Args:
        request: from :func:`parse`.
        software_dir: folder of the cached environments.
        progress: receives one short sentence at a time.

    Raises:
        Fault: it cannot be made (class ``software setup``); the message says what to do.
    """
    say = progress or (lambda _note: None)
    if request.provider == "path":
        script.path_script(request.location)
    elif request.provider == "cvmfs":
        script.cvmfs_script(request.location)
    elif request.provider == "wrap":
        wrap.check_wrap(request)
    elif request.provider == "wheel":
        return replace(request, location=_prepare_wheel(request.version, software_dir, say))
    return request


def _prepare_wheel(version: str, software_dir: PathLike, say: Progress) -> str:
    folder = wheel.folder_of(version, os.fspath(software_dir))
    if wheel.is_complete(folder, version):
        return folder
    try:
        with locked(f"{folder}.lock", lambda: say(f"waiting for ROOT {version}")) as lock:
            if not wheel.is_complete(folder, version):
                if wheel.is_made(folder, version):
                    say(f"ROOT {version} is damaged: {wheel.damage(folder, version)}")
                fetch.make(folder, version, say, lock)
    except OSError as error:
        fault("broken", f"cannot make ROOT {version} in {folder}: {error}")
    return folder


def prepared(software_dir: PathLike) -> Dict[str, str]:
    """Releases that are ready in ``software_dir``: version -> folder, oldest first."""
    folders = {v: wheel.folder_of(v, os.fspath(software_dir)) for v in sorted(WHEELS)}
    return {v: folder for v, folder in folders.items() if wheel.is_complete(folder, v)}


# --- Setting up: on the node ---------------------------------------------------------------


@dataclass(frozen=True)
class Setup:
    """A ROOT that is ready to run payloads.

    Attributes:
        provider: of the request.
        python: interpreter that can import this ROOT.
        env: full environment of the payload.
        wrapper: what to run payloads behind.
    """

    provider: str
    python: str
    env: Mapping[str, str]
    wrapper: Optional[wrap.Wrapper] = None

    def command(
        self, kind: str, entry: str, variables: Optional[Mapping[str, str]] = None
    ) -> List[str]:
        """Arguments that run a payload.

        Args:
            kind: one of :data:`PAYLOAD_KINDS`.
            entry: path of the payload's file.
            variables: what the payload must find in its environment, even behind a command that
                lets nothing through.

        Raises:
            Fault: a macro is to run without ROOT.
        """
        command = self._command(kind, entry)
        return self.wrapper.command(command, variables or {}) if self.wrapper else command

    def _command(self, kind: str, entry: str) -> List[str]:
        if kind == "python":
            return [self.python, entry]
        if kind == "macro":
            if self.provider == "none":
                fault("missing", f"{entry} is a ROOT macro, but root = 'none' was asked for")
            return [self.python, "-m", "treehammer_kit.macro", entry]
        if kind == "executable":
            return [entry]
        raise ValueError(f"unknown kind of payload {kind!r}; known: {', '.join(PAYLOAD_KINDS)}")


def setup(
    request: SoftwareRequest,
    base_env: Mapping[str, str],
    kit: PathLike,
    folders: Optional[Mapping[str, str]] = None,
) -> Setup:
    """Set the requested ROOT up; nothing is installed here.

    Neither the user's site-packages nor a foreign ``PYTHONPATH`` or ROOT leaks into any but
    ``current`` and ``none``.

    Args:
        request: with its location filled in by :func:`prepare`.
        base_env: environment to start from.
        kit: folder that holds the package ``treehammer_kit``.
        folders: what a wrapped payload must see besides: ``work`` (its current folder),
            ``payload`` and ``input``; by default the current folder.

    Raises:
        Fault: class ``software setup``; kind ``missing`` (not there) or ``broken`` (unusable).
    """
    kit = os.path.abspath(os.fspath(kit))
    if request.provider == "wrap":
        wrapper, outside = wrap.setup_wrap(request, base_env, kit, folders or {})
        return Setup("wrap", wrap.PYTHON, outside, wrapper)
    if request.provider not in _PROVIDERS:
        fault("missing", f"unknown software provider {request.provider!r}")
    python, env = _PROVIDERS[request.provider](request, base_env)
    env["PYTHONPATH"] = os.pathsep.join(path for path in (kit, env.get("PYTHONPATH", "")) if path)
    env["PYTHONNOUSERSITE"] = "1"
    return Setup(request.provider, python, env)


def _current(request: SoftwareRequest, base_env: Mapping[str, str]) -> Tuple[str, Dict[str, str]]:
    env = dict(base_env)
    candidates = [sys.executable, shutil.which("python3", path=env.get("PATH"))]
    reasons = []
    for python in dict.fromkeys(item for item in candidates if item):
        try:
            import_root(python, env, python)
        except Fault as error:
            reasons.append(str(error))
        else:
            return python, env
    return fault("missing", "root = 'current' was asked for, but: " + "; ".join(reasons))


def _none(request: SoftwareRequest, base_env: Mapping[str, str]) -> Tuple[str, Dict[str, str]]:
    return sys.executable, dict(base_env)


_PROVIDERS = {
    "wheel": wheel.setup_wheel,
    "path": script.setup_path,
    "cvmfs": script.setup_cvmfs,
    "current": _current,
    "none": _none,
}
