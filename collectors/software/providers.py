"""Software providers: selection and set-up of the ROOT of an execution.

``wheel``
    a released ROOT from PyPI in a cached environment.  :func:`prepare_software` installs it before
    any job is sent, since a job never downloads anything.
``path``
    an installation, a build tree or any set-up script, for patched and development builds.
``cvmfs``
    a view of the LCG releases or a release of ROOT itself, as mounted on the node.
``wrap``
    a ROOT behind a command prefix such as ``apptainer exec IMAGE``.
``current``
    the ROOT in the worker's own environment.
``xrootd``
    the XRootD client and aiohttp, for load tests: a release from PyPI in a cached environment, or
    the folder of a Python environment that has both.  No ROOT: the two do not share a process.
``build``
    the folder of any build or Python environment, without ROOT; the payload finds it in
    ``TREEHAMMER_SOFTWARE``.
``pypi``
    a package from PyPI, such as uproot, with its requirements in a cached environment.  No ROOT.
``none``
    no ROOT, for payloads that bring their own software.

Standard library only, Python 3.9 and later: this module is packed into the worker.
"""

from __future__ import annotations

import difflib
import os
import re
import shutil
import sys
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

from ..job_spec import SoftwareRequest
from ..record.outcome import ExecutionError
from ..shared_files import PathLike, hold_lock
from . import command_prefixes, setup_commands, wheel_installation, wheels
from .setup_commands import check_root_importable, drop_foreign_python, raise_setup_error, run_tool
from .wheels import (
    PYPI,
    XROOTD,
    Release,
    find_release,
    find_wheel,
    machine_suffix,
    make_package_release,
    make_root_release,
    name_release,
)

#: ROOT release -> version of the package ``ROOT`` on PyPI that contains it.
WHEELS = wheels.WHEELS
BUILD = "build"
#: Variable with the folder of the software.
SOFTWARE_VARIABLE = "TREEHAMMER_SOFTWARE"

#: Kind of a payload that is no file: the command of its settings.
COMMAND = "command"
RUNNABLE_PAYLOAD_KINDS = ("python", "macro", "executable", COMMAND)

_RELEASE_PATTERN = re.compile(r"\d+\.\d+[./]\d+")
_XROOTD_VERSION = re.compile(r"\d+\.\d+\.\d+")
#: Version as PyPI writes it, which has no leading zeros: 0.1a12, 6.42.0rc1.
_WHEEL_VERSION = re.compile(r"\d+(\.\d+)+((a|b|rc)\d+)?(\.post\d+)?")
_VERSIONED_REQUEST = re.compile(r"(?P<rest>.+?)(?:@(?P<version>\d+\.\d+[./]\d+))?")

#: Entry points of other packages' providers: modules with ``locate`` and ``set_up``, which
#: :mod:`treehammer.collectors.worker_zipapp` packs for the node.
EXTENSION_GROUP = "treehammer.root_providers"

Progress = Callable[[str], None]
_PythonSetup = Tuple[str, Dict[str, str]]


@dataclass(frozen=True)
class SoftwareProvider:
    """How a request for software is parsed, checked and set up.

    Attributes:
        set_up: returns interpreter and environment on the node; None for a command prefix.
        parse: makes the request of a text, its part after the colon and the base of relative
            folders; None if the part after the colon is a release.
        check: raises ExecutionError if this machine has no such software.
        has_root: whether it provides ROOT.
        installs_releases: whether its releases are installed on the submitting side.
    """

    set_up: Optional[Callable[[SoftwareRequest, Mapping[str, str]], _PythonSetup]]
    parse: Optional[Callable[[str, str, PathLike], SoftwareRequest]] = None
    check: Callable[[SoftwareRequest], object] = lambda _: None
    has_root: bool = True
    installs_releases: bool = False


def parse_software_request(text: str, *, base: PathLike = ".") -> SoftwareRequest:
    """Parse a value of the ``root`` axis.

    Args:
        text: ``6.40.00`` or ``wheel:6.40.00``; ``wheel:0.1a13`` by the version of the package on PyPI;
            ``path:FOLDER``, ``cvmfs:VIEW/PLATFORM`` or
            ``wrap:COMMAND``, each optionally with ``@6.40.01`` for the version it must report;
            ``xrootd:VERSION`` or ``xrootd:FOLDER``; ``build:FOLDER``; ``pypi:NAME==VERSION``;
            ``current``; ``none``.
        base: folder that a relative ``path:`` starts from.

    Raises:
        ValueError: none of these; the message suggests the nearest one.
    """
    text = text.strip()
    provider, _, argument = text.partition(":")
    if text in ("current", "none"):
        return SoftwareRequest(text, text, "", "")
    declared = _find_provider(provider) if argument else None
    if declared is not None and declared.parse is not None:
        return declared.parse(text, argument, base)
    release = name_release(argument) or argument if provider == "wheel" else text
    if find_wheel(release) or (provider == "wheel" and _is_wheel_version(argument)):
        return SoftwareRequest(text, "wheel", release, "")
    raise ValueError(_describe_unknown_request(text, release))


def _is_wheel_version(text: str) -> bool:
    """Return whether a text is the version of a wheel, not a release of ROOT such as 6.40.00."""
    is_release = re.fullmatch(r"\d+\.\d+\.\d\d", text)
    return bool(_WHEEL_VERSION.fullmatch(text)) and not is_release


def _parse_versioned(text: str, argument: str, base: PathLike) -> SoftwareRequest:
    """Parse a request that may end with the version that it must report."""
    provider = text.partition(":")[0]
    match = _VERSIONED_REQUEST.fullmatch(argument)
    assert match is not None  # any non-empty text matches
    version = (match["version"] or "").replace("/", ".")
    if provider == "cvmfs":
        return setup_commands.parse_cvmfs(text, match["rest"], version)
    if provider == "wrap":
        return command_prefixes.parse_wrap(text, match["rest"], version)
    return SoftwareRequest(text, "path", version, _resolve_folder(match["rest"], base))


def _resolve_folder(text: str, base: PathLike) -> str:
    return os.path.abspath(os.path.join(os.fspath(base), os.path.expanduser(text)))


def _parse_xrootd(text: str, argument: str, base: PathLike) -> SoftwareRequest:
    if _XROOTD_VERSION.fullmatch(argument):
        return SoftwareRequest(text, XROOTD, argument, "")
    if os.sep not in argument:
        raise ValueError(
            f"{text!r} is neither a version such as 'xrootd:6.2.1' nor a folder such as "
            "'xrootd:/opt/xrootd-client'"
        )
    return SoftwareRequest(text, XROOTD, "", _resolve_folder(argument, base))


def _describe_unknown_request(text: str, release: str) -> str:
    provider, colon, _ = text.partition(":")
    if _RELEASE_PATTERN.fullmatch(release):
        nearest = " or ".join(map(repr, _find_nearest_releases(release)))
        return (
            f"no wheel of ROOT {release}; did you mean {nearest}? The command releases lists all. "
            f"Write 'path:/its/folder@{release}' for an installed build, "
            f"'cvmfs:ROOT/{release.replace('/', '.')}/PLATFORM' for one on CVMFS"
        )
    releases = ", ".join(WHEELS)
    prefixes = [name for name in PROVIDERS if name not in ("current", "none")]
    if colon and provider not in prefixes:
        near = difflib.get_close_matches(provider, prefixes, n=1)
    else:
        near = difflib.get_close_matches(release, [*WHEELS, "current", "none"], n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return (
        f"{text!r} names no ROOT; {hint}known: a release ({releases}), 'path:/folder' "
        "of an installation or build tree, 'cvmfs:VIEW/PLATFORM', 'wrap:COMMAND', "
        "'xrootd:VERSION', 'build:/folder' or 'pypi:NAME==VERSION' (without ROOT), 'current' or 'none'"
    )


def _find_nearest_releases(release: str) -> List[str]:
    """Find the releases nearest to a missing one: those of its cycle, else its neighbors."""
    version = split_version(release)
    ordered = sorted(WHEELS, key=split_version)
    same_cycle = [candidate for candidate in ordered if split_version(candidate)[:2] == version[:2]]
    if same_cycle:
        return same_cycle
    older = [candidate for candidate in ordered if split_version(candidate) < version]
    newer = [candidate for candidate in ordered if split_version(candidate) > version]
    return older[-1:] + newer[:1]


def split_version(release: str) -> Tuple[int, ...]:
    """Return the numbers in a version, by which releases are sorted."""
    return tuple(int(part) for part in re.findall(r"\d+", release))


def prepare_software(
    request: SoftwareRequest, software_dir: PathLike, progress: Optional[Progress] = None
) -> SoftwareRequest:
    """Check that the requested ROOT is usable, and install a release that is missing.

    When two processes prepare the same release, one installs it and the other waits.  An
    interrupted or damaged environment is installed again.

    Args:
        request: from :func:`parse_software_request`.
        software_dir: folder of the cached environments.
        progress: receives one short sentence at a time.

    Returns:
        the request with its location.

    Raises:
        ExecutionError: class ``software-setup``; the message names the remedy.
    """
    notify = progress or (lambda _note: None)
    if provider := _find_provider(request.provider):
        provider.check(request)
    if is_installed_release(request):
        release = find_release(request)
        return replace(request, location=_prepare_release(release, software_dir, notify))
    return request


def _prepare_release(release: Release, software_dir: PathLike, notify: Progress) -> str:
    folder = wheels.environment_folder(release, os.fspath(software_dir))
    if wheels.is_usable(folder, release):
        return folder
    if denied := wheels.find_denied_python(folder):
        # Installing it again would remove it for those that can use it.
        raise_setup_error(
            "broken",
            f"{release.title} in {folder} is another user's: you may not run its Python, {denied}. "
            "Choose a cache of your own (--cache-dir), or have this one made with a Python that all "
            "can run",
        )
    try:
        with hold_lock(f"{folder}.lock", lambda: notify(f"waiting for {release.title}")) as lock:
            if not wheels.is_usable(folder, release):
                if wheels.is_installed(folder, release):
                    notify(f"{release.title} is damaged: {wheels.find_damage(folder, release)}")
                wheel_installation.install_release(folder, release, notify, lock)
    except OSError as error:
        raise_setup_error(
            "broken",
            f"cannot install {release.title} in {folder}: {error.strerror or error}. Choose a cache of "
            "your own (--cache-dir), or ask the owner of this one to install it",
        )
    return folder


def list_prepared_releases(software_dir: PathLike) -> Dict[str, str]:
    """List the usable tested releases of ROOT in ``software_dir``: version -> folder, oldest first."""
    folders = {v: _find_prepared_folder(make_root_release(v), software_dir) for v in sorted(WHEELS)}
    return {version: folder for version, folder in folders.items() if folder}


def list_prepared_wheels(software_dir: PathLike) -> List[str]:
    """List the usable other wheels of ROOT, by release, or as ``wheel:VERSION`` if that is not known."""
    prefix = "root-"
    folders = os.listdir(software_dir) if os.path.isdir(software_dir) else []
    suffix = machine_suffix()
    versions = sorted(
        name[len(prefix) :].removesuffix(suffix) for name in folders if name.startswith(prefix)
    )
    return [
        version if find_wheel(version) else f"wheel:{version}"
        for version in versions
        if version not in WHEELS
        and (find_wheel(version) or _is_wheel_version(version))
        and _find_prepared_folder(make_root_release(version), software_dir)
    ]


def is_installed_release(request: SoftwareRequest) -> bool:
    """Return whether :func:`prepare_software` can install the release that a request names."""
    provider = PROVIDERS.get(request.provider)
    return bool(provider and provider.installs_releases and request.version)


def find_missing_release(request: SoftwareRequest, software_dir: PathLike) -> str:
    """Name the release that :func:`prepare_software` would have to install; '' for none."""
    if not is_installed_release(request):
        return ""
    release = find_release(request)
    return "" if _find_prepared_folder(release, software_dir) else release.title


def locate_prepared_software(request: SoftwareRequest, software_dir: PathLike) -> SoftwareRequest:
    """Return a request with its location, unless that is not installed yet."""
    if not is_installed_release(request):
        return request
    return replace(request, location=_find_prepared_folder(find_release(request), software_dir))


def _find_prepared_folder(release: Release, software_dir: PathLike) -> str:
    folder = wheels.environment_folder(release, os.fspath(software_dir))
    return folder if wheels.is_usable(folder, release) else ""


@dataclass(frozen=True)
class SoftwareSetup:
    """A ROOT that is ready to run payloads.

    Attributes:
        provider: name of the request's provider.
        python: interpreter that can import this ROOT.
        env: full environment of the payload.
        wrapper: command prefix of payloads, if any.
    """

    provider: str
    python: str
    env: Mapping[str, str]
    wrapper: Optional[command_prefixes.CommandWrapper] = None

    def build_command(
        self, kind: str, entry: str, variables: Optional[Mapping[str, str]] = None
    ) -> List[str]:
        """Build the command line of a payload.

        Args:
            kind: one of :data:`RUNNABLE_PAYLOAD_KINDS`.
            entry: path of the payload's file.
            variables: environment variables set inside, even behind a wrapper that passes none on.

        Raises:
            ExecutionError: a macro without ROOT.
        """
        command = self._payload_command(kind, entry)
        return self.wrapper.build_command(command, variables or {}) if self.wrapper else command

    def _payload_command(self, kind: str, entry: str) -> List[str]:
        if kind == "python":
            return [self.python, entry]
        if kind == "macro":
            if self.provider in WITHOUT_ROOT:
                raise_setup_error(
                    "missing",
                    f"{entry} is a ROOT macro, but the test requests root = '{self.provider}'",
                )
            return [self.python, "-c", _RUN_MACRO, entry]
        if kind == "executable":
            return [entry]
        if kind == COMMAND:
            return [self.python, "-c", _RUN_COMMAND, os.path.dirname(entry)]
        raise ValueError(
            f"unknown kind of payload {kind!r}; known: {', '.join(RUNNABLE_PAYLOAD_KINDS)}"
        )


#: Program that runs a macro, whose path is its argument.
_RUN_MACRO = "import treehammer_kit; treehammer_kit.run_macro()"
#: Program that runs a command; its argument is the folder of the test's files.
_RUN_COMMAND = "import sys, treehammer_tracer; treehammer_tracer.run(sys.argv[1])"


def setup_software(
    request: SoftwareRequest,
    base_env: Mapping[str, str],
    kit: PathLike,
    folders: Optional[Mapping[str, str]] = None,
) -> SoftwareSetup:
    """Set up the requested ROOT on the node, without installing anything.

    Except for ``current`` and ``none``, neither the user's site-packages nor a foreign
    ``PYTHONPATH`` or ROOT leaks in.

    Args:
        request: with its location filled in by :func:`prepare_software`.
        base_env: environment to start from.
        kit: folder of the package ``treehammer_kit``.
        folders: further folders visible to a wrapped payload: ``work`` (its current folder),
            ``payload`` and ``input``; by default the current folder.

    Raises:
        ExecutionError: class ``software-setup``; kind ``missing`` or ``broken``.
    """
    kit = os.path.abspath(os.fspath(kit))
    if request.provider == "wrap":
        wrapper, outside = command_prefixes.setup_wrap(request, base_env, kit, folders or {})
        return SoftwareSetup("wrap", command_prefixes.WRAPPED_PYTHON, outside, wrapper)
    provider = _find_provider(request.provider)
    if provider is None or provider.set_up is None:
        raise_setup_error("missing", f"unknown software provider {request.provider!r}")
    python, env = provider.set_up(request, base_env)
    env["PYTHONPATH"] = os.pathsep.join(path for path in (kit, env.get("PYTHONPATH", "")) if path)
    env["PYTHONNOUSERSITE"] = "1"
    return SoftwareSetup(request.provider, python, env)


def _setup_current(request: SoftwareRequest, base_env: Mapping[str, str]) -> _PythonSetup:
    env = dict(base_env)
    candidates = [sys.executable, shutil.which("python3", path=env.get("PATH"))]
    reasons = []
    for python in dict.fromkeys(item for item in candidates if item):
        try:
            check_root_importable(python, env, python)
        except ExecutionError as error:
            reasons.append(str(error))
        else:
            return python, env
    return raise_setup_error("missing", f"root = 'current' is unusable: {'; '.join(reasons)}")


def _setup_xrootd(request: SoftwareRequest, base_env: Mapping[str, str]) -> _PythonSetup:
    if request.version:
        return wheels.setup_wheel(request, base_env)
    python, env = wheels.environment_python(request.location), dict(base_env)
    env = drop_foreign_python(env)
    query = "import importlib.util as u; print(u.find_spec('XRootD') is not None)"
    if run_tool([python, "-c", query], env, f"the Python of {request.location}").strip() != "True":
        raise_setup_error(
            "missing", f"{python} finds no module XRootD; install the package 'xrootd' there"
        )
    # Copies use its xrdcp, if it has one.
    env["PATH"] = os.pathsep.join(p for p in (os.path.dirname(python), env.get("PATH")) if p)
    return python, env


def _check_build(request: SoftwareRequest) -> None:
    if not os.path.isdir(request.location):
        raise_setup_error("missing", f"there is no folder {request.location}")


def _setup_build(request: SoftwareRequest, base_env: Mapping[str, str]) -> _PythonSetup:
    """Use the folder's own Python if it has one, and its programs and libraries first."""
    _check_build(request)
    env, folder = drop_foreign_python(base_env), request.location
    env[SOFTWARE_VARIABLE] = folder
    for name, below in (("PATH", "bin"), ("LD_LIBRARY_PATH", "lib")):
        existing = env.get(name, "")
        env[name] = os.pathsep.join(p for p in (os.path.join(folder, below), existing) if p)
    python = wheels.environment_python(folder)
    return (python if os.access(python, os.X_OK) else sys.executable), env


PROVIDERS: Mapping[str, SoftwareProvider] = {
    "wheel": SoftwareProvider(wheels.setup_wheel, installs_releases=True),
    "path": SoftwareProvider(
        setup_commands.setup_path,
        _parse_versioned,
        lambda request: setup_commands.find_path_script(request.location),
    ),
    "cvmfs": SoftwareProvider(
        setup_commands.setup_cvmfs,
        _parse_versioned,
        lambda request: setup_commands.find_cvmfs_script(request.location),
    ),
    "wrap": SoftwareProvider(None, _parse_versioned, command_prefixes.check_wrap),
    "current": SoftwareProvider(_setup_current),
    "none": SoftwareProvider(
        lambda _request, env: (sys.executable, {**env, "PYTHONHOME": ""}), has_root=False
    ),
    XROOTD: SoftwareProvider(_setup_xrootd, _parse_xrootd, has_root=False, installs_releases=True),
    BUILD: SoftwareProvider(
        _setup_build,
        lambda text, folder, base: SoftwareRequest(text, BUILD, "", _resolve_folder(folder, base)),
        _check_build,
        has_root=False,
    ),
    PYPI: SoftwareProvider(
        wheels.setup_wheel,
        lambda text, package, _base: SoftwareRequest(
            text, PYPI, make_package_release(package).version, ""
        ),
        has_root=False,
        installs_releases=True,
    ),
}
#: Providers without ROOT.
WITHOUT_ROOT = tuple(name for name, provider in PROVIDERS.items() if not provider.has_root)


def _find_provider(name: str) -> Optional[SoftwareProvider]:
    """Return the provider of a name, shipped or of another package."""
    if name in PROVIDERS:
        return PROVIDERS[name]
    modules = list_extensions()
    return _wrap_extension(import_module(modules[name])) if name in modules else None


def list_extensions() -> Mapping[str, str]:
    """List the providers of other packages: name -> module."""
    from importlib import metadata  # only an unknown name needs it, and it loads slowly

    # A lookup by group differs between Python 3.9 and 3.12.
    return {
        entry_point.name: entry_point.value
        for distribution in metadata.distributions()
        for entry_point in distribution.entry_points
        if entry_point.group == EXTENSION_GROUP
    }


def _wrap_extension(module: Any) -> SoftwareProvider:
    def parse(text: str, argument: str, _base: PathLike) -> SoftwareRequest:
        location, version = module.locate(argument)
        return SoftwareRequest(text, text.partition(":")[0], version, location)

    def set_up(request: SoftwareRequest, base_env: Mapping[str, str]) -> _PythonSetup:
        try:
            python, env = module.set_up(request.location, dict(base_env))
        except (OSError, ValueError) as error:
            return raise_setup_error("broken", f"{request.request}: {error}")
        return python, env

    return SoftwareProvider(set_up, parse)
