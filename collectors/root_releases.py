"""ROOT on the submitting machine: releases on the package index, cached ones, their preparation.

Jobs install nothing.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from treehammer.collectors.job_spec import SoftwareRequest
from treehammer.collectors.record.outcome import ExecutionError
from treehammer.collectors.software import command_prefixes, providers
from treehammer.collectors.software.setup_commands import (
    drop_foreign_python,
    drop_foreign_root,
    raise_setup_error,
    run_tool,
)
from treehammer.collectors.software.wheels import (
    WHEELS,
    describe_python,
    find_release,
    find_wheel,
    name_release,
)
from treehammer.errors import ConfigError, SoftwareError, suggest_word
from treehammer.text_formatting import ProgressFactory, split_list

_VERSIONS_LINE = re.compile(r"^Available versions:\s*(.+)$", re.MULTILINE)
_CYCLE = re.compile(r"\d+\.\d+(?=\.)")
_WHEEL_PREFIX = "wheel:"


@dataclass(frozen=True)
class ListedRelease:
    """A ROOT release that can be installed, or is.

    Attributes:
        release: value of the root axis.
        cycle: its production or development cycle, such as ``6.40``; '' where the release of a wheel
            is not known.
        wheel: version of the package ROOT that contains it.
        is_cached: whether it is installed in the cache.
        is_newest: whether it is the newest patch of its cycle; None without an answer of the index.
    """

    release: str
    cycle: str
    wheel: str
    is_cached: bool
    is_newest: bool | None


def list_root_releases() -> list[str]:
    """List the ROOT releases that the index offers for this interpreter, newest first.

    A wheel whose release is not known yet is listed as ``wheel:VERSION``, by the version of its
    package.

    Raises:
        SoftwareError: pip is missing, or the index does not answer.
    """
    wheels = list_package_versions("ROOT", "--pre")
    return [name_release(wheel) or f"{_WHEEL_PREFIX}{wheel}" for wheel in wheels]


def list_package_versions(name: str, *options: str) -> list[str]:
    """List the versions of a package that the index offers for this interpreter, newest first.

    Raises:
        SoftwareError: pip is missing, or the index does not answer.
    """
    command = [sys.executable, "-m", "pip", "index", "versions", name, *options]
    command += ["--no-input", "--disable-pip-version-check", "--retries", "1"]
    try:
        printed = run_tool(command, drop_foreign_python(os.environ), f"listing {name}'s versions")
    except ExecutionError as fault:
        hint = "Check the network and pip's configuration, or list releases in a file."
        if not find_spec("pip"):
            hint = f"Install pip: {sys.executable} -m ensurepip"
        raise SoftwareError(str(fault), hint=hint) from fault
    match = _VERSIONS_LINE.search(printed)
    return [*split_list(match[1])] if match else []


def list_cached_releases(software_dir: Path) -> list[str]:
    """List the ROOT releases that are installed in the cache."""
    releases = providers.list_prepared_releases(software_dir)
    return [*releases, *providers.list_prepared_wheels(software_dir)]


def describe_releases(offered: Sequence[str] | None, cached: Sequence[str]) -> list[ListedRelease]:
    """Describe releases, newest first: wheels of unknown release, then by version.

    Args:
        offered: values of the root axis that the index offers; None without an answer.
        cached: those that are installed, whether or not they are offered.
    """
    names = dict.fromkeys([*(offered or ()), *cached])
    releases = sorted(filter(find_wheel, names), key=lambda name: [*map(int, name.split("."))])[
        ::-1
    ]
    newest: dict[str, str] = {}
    for release in releases:
        newest.setdefault(_find_cycle(release), release)
    return [
        ListedRelease(
            release=name,
            cycle=_find_cycle(name) if find_wheel(name) else "",
            wheel=_find_package_version(name),
            is_cached=name in cached,
            is_newest=None if offered is None else name in newest.values(),
        )
        for name in [*(name for name in names if not find_wheel(name)), *releases]
    ]


def _find_package_version(release: str) -> str:
    return find_wheel(release) or release.removeprefix(_WHEEL_PREFIX)


def _find_cycle(release: str) -> str:
    match = _CYCLE.match(release)
    return match[0] if match else ""


def check_unknown_wheels(
    requests: Iterable[SoftwareRequest], software_dir: Path, *, where: str
) -> None:
    """Refuse wheels that are no tested releases, and that neither the cache nor the index has.

    Only such wheels need a request to the index. Without its answer the installation reports the error.

    Raises:
        ConfigError: there is no such wheel; ``where`` is the option or key that names it.
    """
    untested = [request for request in requests if _is_untested_wheel(request, software_dir)]
    if not untested:
        return
    try:
        offered = list_root_releases()
    except SoftwareError:
        return
    wheels = [_find_package_version(release) for release in offered]
    for request in untested:
        wheel = find_release(request).wheel
        if wheel not in wheels:
            raise ConfigError(
                f"the package index has no wheel {wheel} of ROOT for {describe_python()}",
                where=where,
                hint=f"{_suggest_wheel(request, offered)}See: treehammer releases",
            )


def _suggest_wheel(request: SoftwareRequest, offered: Sequence[str]) -> str:
    unnamed = [name for name in offered if name.startswith(_WHEEL_PREFIX)]
    if find_wheel(request.version) and unnamed:
        return f"It may be in a wheel whose release is not known yet: {', '.join(unnamed)}. "
    wheels = [f"{_WHEEL_PREFIX}{_find_package_version(name)}" for name in offered]
    return suggest_word(request.request, [*offered, *wheels])


def _is_untested_wheel(request: SoftwareRequest, software_dir: Path) -> bool:
    is_tested = request.provider != "wheel" or request.version in WHEELS
    return not is_tested and bool(providers.find_missing_release(request, software_dir))


_VERSION_CODE = "import ROOT; print('treehammer', ROOT.gROOT.GetVersion())"
_KIT_FOLDER = Path(__file__).parent / "kit"


def prepare_root(
    request: SoftwareRequest, software_dir: Path, bars: ProgressFactory, *, is_tried: bool = True
) -> SoftwareRequest:
    """Prepare the requested ROOT, with a progress bar when a release has to be downloaded.

    One that was not installed by Treehammer is set up and imported, as a job will do.

    Args:
        request: from :func:`treehammer.collectors.software.providers.parse_software_request`.
        software_dir: folder of the cached environments.
        bars: opens progress bars.
        is_tried: False leaves that import to :func:`try_root`.
    Returns:
        the request with its location.

    Raises:
        ConfigError: the request names a folder without ROOT, or a missing command.
        SoftwareError: the preparation failed; the message names cause and remedy.
    """
    with _explain_faults(request):
        missing = providers.find_missing_release(request, software_dir)
        if not missing:
            prepared = providers.prepare_software(request, software_dir)
            if is_tried:
                _try_software(prepared)
            return prepared
        with bars(f"Fetching {missing}", 1) as step:
            return providers.prepare_software(request, software_dir, lambda note: step(0, note))


def try_root(request: SoftwareRequest) -> None:
    """Set up and import a prepared ROOT that was not installed by Treehammer, as a job will do.

    Raises:
        ConfigError: a job could not use it.
        SoftwareError: the same for a place that may be missing for the moment.
    """
    with _explain_faults(request):
        _try_software(request)


@contextmanager
def _explain_faults(request: SoftwareRequest) -> Iterator[None]:
    """Raise a fault of the block as an error of the request."""
    try:
        yield
    except ExecutionError as fault:
        # CVMFS may be not mounted; any other place is the user's own choice.
        is_mistake = request.provider != "cvmfs" and not providers.is_installed_release(request)
        error = ConfigError if is_mistake else SoftwareError
        raise error(str(fault), where=f"ROOT {request.request}") from fault


def _try_software(request: SoftwareRequest) -> None:
    """Set up software of the user's own, and import its ROOT.

    Raises:
        ExecutionError: a job could not use it, or its ROOT has another version than requested.
    """
    if request.provider == "none" or providers.is_installed_release(request):
        return
    if request.provider == "wrap":
        command = command_prefixes.wrap_python(request, _VERSION_CODE)
        env: Mapping[str, str] = drop_foreign_root(os.environ)
    else:
        setup = providers.setup_software(request, os.environ, _KIT_FOLDER)
        if request.provider in providers.WITHOUT_ROOT:
            return
        command, env = [setup.python, "-c", _VERSION_CODE], setup.env
    output = run_tool(command, env, "importing ROOT")
    version = output.rpartition("treehammer ")[2].strip().replace("/", ".")
    if request.version and version != request.version:
        raise_setup_error("version", f"it is ROOT {version}, but must report {request.version}")
