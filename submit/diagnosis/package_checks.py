"""Checks of the Python packages and programs that Treehammer uses."""

from __future__ import annotations

import importlib.metadata
import re
import shutil
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

from packaging.requirements import Requirement

from treehammer.submit.diagnosis.diagnosis_run import Diagnosis, DiagnosisState
from treehammer.version import __version__

PACKAGE = "treehammer"
#: Extras for developers, and sums of others.
_LEFT_OUT = ("dev", "all")
_EXTRA = re.compile(r"""extra\s*==\s*["']([\w-]+)["']""")
#: Program -> its purpose, and whether all users need it.
_PROGRAMS = {
    "git": ("tests from repositories", True),
    "valgrind": ("treehammer count", False),
}


def check_packages() -> Iterator[Diagnosis]:
    """Check the required packages, and those of each extra."""
    python = ".".join(map(str, sys.version_info[:3]))
    finding = f"version {__version__} on Python {python}"
    yield Diagnosis("treehammer", DiagnosisState.OK, finding)
    groups: dict[str, list[Requirement]] = defaultdict(list)
    for text in importlib.metadata.requires(PACKAGE) or ():
        match = _EXTRA.search(text)
        groups[match[1] if match else ""].append(Requirement(text.partition(";")[0]))
    for extra, requirements in groups.items():
        if extra not in _LEFT_OUT:
            yield _check_group(extra, requirements)


def _check_group(extra: str, requirements: list[Requirement]) -> Diagnosis:
    versions = {
        requirement.name: _find_version(requirement.name)
        for requirement in requirements
        if requirement.name != PACKAGE
    }
    old = list(_list_old(requirements, versions))
    state, finding = DiagnosisState.FAILED, f"too old: {', '.join(old)}"
    if not old:
        state, finding = _judge_presence(versions, is_optional=bool(extra))
    part, package = "packages", PACKAGE
    if extra:
        part, package = f"packages [{extra}]", f"'{PACKAGE}[{extra}]'"
    remedy = "" if state is DiagnosisState.OK else f"Run: pip install {package}"
    return Diagnosis(part, state, finding, remedy)


def _judge_presence(
    versions: Mapping[str, str | None], *, is_optional: bool
) -> tuple[DiagnosisState, str]:
    missing = [name for name, version in versions.items() if version is None]
    if not missing:
        finding = ", ".join(f"{name} {version}" for name, version in versions.items())
        return DiagnosisState.OK, finding or "nothing further"
    if is_optional and len(missing) == len(versions):
        return DiagnosisState.NOT_CONFIGURED, "not installed"
    state = DiagnosisState.WARNING if is_optional else DiagnosisState.FAILED
    return state, f"missing: {', '.join(missing)}"


def _list_old(
    requirements: Iterable[Requirement], versions: Mapping[str, str | None]
) -> Iterator[str]:
    for requirement in requirements:
        version = versions.get(requirement.name)
        if version and not requirement.specifier.contains(version, prereleases=True):
            yield f"{requirement.name} {version} instead of {requirement.specifier}"


def _find_version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def check_programs() -> Iterator[Diagnosis]:
    """Check the programs that are called."""
    for name, (purpose, is_needed) in _PROGRAMS.items():
        path = shutil.which(name)
        if path:
            yield Diagnosis(f"program {name}", DiagnosisState.OK, path)
            continue
        state = DiagnosisState.FAILED if is_needed else DiagnosisState.NOT_CONFIGURED
        yield Diagnosis(
            f"program {name}", state, f"not found; for {purpose}", "Install it if you need that."
        )
