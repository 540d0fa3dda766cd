"""Checks of an installation, each with its state and remedy.

The checks run at the same time, each bounded in time. Those of this module cover this machine, its
packages and programs, and the database.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path

from treehammer.config import Settings
from treehammer.errors import NothingToDoError, TreehammerError, make_install_command
from treehammer.sql.engine.database_engine import parse_url
from treehammer.sql.engine.database_setup import REVISION
from treehammer.sql.read.reader import ResultsReader
from treehammer.text_formatting import format_duration, pluralize
from treehammer.version import __version__

#: Free bytes below which a folder is nearly full, and below which nothing fits.
LOW_BYTES, FULL_BYTES = 5_000_000_000, 200_000_000
PACKAGE = "treehammer"
#: Extras for developers, and sums of others.
_UNCHECKED_EXTRAS = ("dev", "docs", "all")
#: Name of a requirement, and the lowest version that it allows; none is bounded otherwise.
_REQUIREMENT = re.compile(r"([\w.-]+)[^>;]*(?:>=([\w.!]+))?")
_EXTRA_MARKER = re.compile(r"""extra\s*==\s*["']([\w-]+)["']""")


def list_checks(settings: Settings) -> list[InstallationCheck]:
    """List the checks of this machine for these settings."""
    return [
        InstallationCheck("packages", check_packages),
        InstallationCheck("programs", check_programs),
        InstallationCheck(
            "disk",
            partial(check_folders, settings),
            remedy="A file system does not answer: check its mount.",
        ),
        InstallationCheck("database", partial(check_revision, settings)),
    ]


class DiagnosisState(StrEnum):
    """State of one part of an installation."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"
    NOT_CONFIGURED = "not configured"


#: Program -> its purpose, and the state of a machine without it.
_PROGRAMS = {
    "git": ("tests from repositories", DiagnosisState.FAILED),
    "g++": ("ROOT, unless it brings a compiler", DiagnosisState.WARNING),
    "valgrind": ("treehammer count", DiagnosisState.NOT_CONFIGURED),
}


@dataclass(frozen=True)
class Diagnosis:
    """State of one part: ``finding`` is the observation, ``remedy`` the advice."""

    part: str
    state: DiagnosisState
    finding: str
    remedy: str = ""


@dataclass(frozen=True)
class InstallationCheck:
    """A check of some parts.

    Attributes:
        name: part that is named if the check itself fails.
        examine: yields the findings; a TreehammerError is a finding, too.
        limit_s: seconds after which the remaining findings are ignored.
        remedy: advice if it takes longer.
    """

    name: str
    examine: Callable[[], Iterable[Diagnosis]]
    limit_s: float = 15.0
    remedy: str = "Check the network and the server."


def diagnose(checks: Sequence[InstallationCheck]) -> Iterator[Diagnosis]:
    """Run all checks at once and yield their findings in order; those that hang are abandoned."""
    begin = time.monotonic()
    findings: list[list[Diagnosis]] = [[] for _ in checks]
    threads = [
        threading.Thread(target=_run_check, args=arguments, daemon=True)
        for arguments in zip(checks, findings, strict=True)
    ]
    for thread in threads:
        thread.start()
    for check, diagnoses, thread in zip(checks, findings, threads, strict=True):
        thread.join(max(begin + check.limit_s - time.monotonic(), 0))
        yield from [*diagnoses]
        if thread.is_alive():
            finding = f"no answer within {format_duration(check.limit_s)}"
            yield Diagnosis(check.name, DiagnosisState.FAILED, finding, check.remedy)


def _run_check(check: InstallationCheck, findings: list[Diagnosis]) -> None:
    try:
        for diagnosis in check.examine():
            findings.append(diagnosis)
    except TreehammerError as error:
        finding = f"{error.where and f'{error.where}: '}{error.message}"
        findings.append(Diagnosis(check.name, DiagnosisState.FAILED, finding, error.hint))
    except Exception as error:  # a broken part must not hide the others
        finding = f"{type(error).__name__}: {error}"
        findings.append(Diagnosis(check.name, DiagnosisState.FAILED, finding))


def check_folders(settings: Settings) -> Iterator[Diagnosis]:
    """Check that the folders can be written and have space."""
    folders = {"cache_dir": settings.cache_dir, "data_dir": settings.data_dir}
    url = parse_url(settings.database)
    if url.get_backend_name() == "sqlite" and url.database:
        folders["database folder"] = Path(url.database).parent
    for name, folder in folders.items():
        yield check_folder(f"disk of {name}", folder)


def check_folder(part: str, folder: Path) -> Diagnosis:
    """Check one folder, or the existing one in which it would be made."""
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        remedy = "Choose a folder of your own with --cache-dir, --data-dir or --database."
        return Diagnosis(part, DiagnosisState.FAILED, f"{existing} cannot be written", remedy)
    free = shutil.disk_usage(existing).free
    finding = f"{free / 1e9:.1f} GB free in {folder}"
    if free >= LOW_BYTES:
        return Diagnosis(part, DiagnosisState.OK, finding)
    state = DiagnosisState.FAILED if free < FULL_BYTES else DiagnosisState.WARNING
    remedy = (
        "Make room: treehammer purge removes working folders, treehammer datasets remove datasets."
    )
    return Diagnosis(part, state, finding, remedy)


def check_packages() -> Iterator[Diagnosis]:
    """Check the required packages, and those of each extra."""
    python = ".".join(map(str, sys.version_info[:3]))
    finding = f"version {__version__} on Python {python}"
    yield Diagnosis("treehammer", DiagnosisState.OK, finding)
    groups: dict[str, dict[str, str]] = defaultdict(dict)
    for text in importlib.metadata.requires(PACKAGE) or ():
        match = _EXTRA_MARKER.search(text)
        if requirement := _REQUIREMENT.match(text):
            groups[match[1] if match else ""][requirement[1]] = requirement[2] or ""
    for extra, requirements in groups.items():
        if extra not in _UNCHECKED_EXTRAS:
            yield _check_group(extra, requirements)


def _check_group(extra: str, requirements: Mapping[str, str]) -> Diagnosis:
    versions = {name: _find_version(name) for name in requirements if name != PACKAGE}
    old = [
        f"{name} {version} instead of >={requirements[name]}"
        for name, version in versions.items()
        if version and [*_list_numbers(version), 0, 0, 0] < _list_numbers(requirements[name])
    ]
    state, finding = DiagnosisState.FAILED, f"too old: {', '.join(old)}"
    if not old:
        state, finding = _judge_presence(versions, is_optional=bool(extra))
    suffix = f"[{extra}]" if extra else ""
    command = make_install_command(PACKAGE + suffix)
    remedy = "" if state is DiagnosisState.OK else f"Run: {command}"
    return Diagnosis(f"packages {suffix}".rstrip(), state, finding, remedy)


def _judge_presence(
    versions: Mapping[str, str | None], *, is_optional: bool
) -> tuple[DiagnosisState, str]:
    """Judge by the installed versions whether a group of packages is complete."""
    missing = [name for name, version in versions.items() if version is None]
    if not missing:
        finding = ", ".join(f"{name} {version}" for name, version in versions.items())
        return DiagnosisState.OK, finding or "nothing further"
    # Extras share packages: another one may have brought a few, such as one of two.
    if is_optional and len(missing) >= len(versions) / 2:
        return DiagnosisState.NOT_CONFIGURED, "not installed"
    state = DiagnosisState.WARNING if is_optional else DiagnosisState.FAILED
    return state, f"missing: {', '.join(missing)}"


def _list_numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)]


def _find_version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def check_programs() -> Iterator[Diagnosis]:
    """Check the programs that are called."""
    for name, (purpose, state) in _PROGRAMS.items():
        part, path = f"program {name}", shutil.which(name)
        if path:
            yield Diagnosis(part, DiagnosisState.OK, path)
        else:
            remedy = "Install it if you need that."
            yield Diagnosis(part, state, f"not found; for {purpose}", remedy)


def check_revision(settings: Settings) -> Iterator[Diagnosis]:
    """Check that the database can be opened and has this version's revision."""
    try:
        with ResultsReader.open(settings.database) as reader:
            count = len(reader.campaigns())
    except NothingToDoError:
        finding = "none yet; the first submission creates it"
        yield Diagnosis("database", DiagnosisState.NOT_CONFIGURED, finding)
        return
    yield Diagnosis(
        "database", DiagnosisState.OK, f"revision {REVISION}, {pluralize(count, 'campaign')}"
    )
