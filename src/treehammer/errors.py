"""Errors that users can meet, and the exit code of each.

A message says what is wrong, where, and how to fix it.  The command line prints it without a
traceback and exits with ``exit_code``.  Any exception that is not a :class:`TreehammerError` is a
bug: :func:`exit_for_bug` prints its traceback.
"""

from __future__ import annotations

import difflib
import errno
import re
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

#: Errors of the operating system on a cache -> message and remedy.
_CACHE_ERRORS: Mapping[int, tuple[str, str]] = {
    **dict.fromkeys(
        (errno.ENOSPC, errno.EDQUOT),
        ("the disk is full", "Make room there, or choose another place with --cache-dir."),
    ),
    **dict.fromkeys(
        (errno.EACCES, errno.EPERM, errno.EROFS),
        (
            "you may only read this cache, and it lacks what is needed",
            "Choose a cache of your own with --cache-dir, or ask the owner of this one to add it.",
        ),
    ),
    errno.ENOLCK: (
        "this file system has no locks",
        "Mount it with locks (NFS: lockd), or choose a local place with --cache-dir.",
    ),
}
#: Imported module -> extra that brings it.
EXTRA_OF_MODULE = {
    "htcondor2": "grid",
    "classad2": "grid",
    "rucio": "grid",
    "XRootD": "grid",
    "jwt": "grid",
    "tomli_w": "grid",
    "scipy": "report",
    "numpy": "report",
    "vl_convert": "report",
    "pyarrow": "export",
    "uproot": "uproot",
    "awkward": "uproot",
    "alembic": "service",
    "nagiosplugin": "service",
    "prometheus_client": "service",
    "ruptures": "service",
    "starlette": "report",
    "anyio": "report",
    "uvicorn": "service",
    "psycopg": "service",
    "oracledb": "oracle",
    "weasyprint": "pdf",
    "cryptography": "testbed",
    "darshan": "darshan",
}


class ExitCode(IntEnum):
    """Exit codes of the command line."""

    DONE = 0
    REGRESSION = 1
    USAGE = 2
    NOTHING = 3
    INFRASTRUCTURE = 4
    BUG = 70  # EX_SOFTWARE of sysexits.h
    INTERRUPTED = 130
    OUTPUT_CLOSED = 141


def suggest_word(
    word: str, words: Iterable[str], *, cutoff: float = 0.6, form: str = "Did you mean {!r}? "
) -> str:
    """Build ``Did you mean 'x'? `` with the nearest known word, whose case may differ; '' without any."""
    folded = {candidate.casefold(): candidate for candidate in reversed([*words])}
    near = difflib.get_close_matches(word.casefold(), list(folded), n=1, cutoff=cutoff)
    return form.format(folded[near[0]]) if near else ""


def suggest_nearest(word: str, words: Iterable[str], *, cutoff: float = 0.6) -> str:
    """Build ``; did you mean 'x'?`` for the end of a message; '' if none is similar."""
    return suggest_word(word, words, cutoff=cutoff, form="; did you mean {!r}?")


@dataclass
class _Invocation:
    """Names of all commands, and the global options of the one that runs, as words to paste."""

    options: str = ""
    commands: re.Pattern[str] | None = None


_INVOCATION = _Invocation()


def remember_invocation(options: Iterable[str], commands: Iterable[str]) -> None:
    """Remember the global options that hints repeat, and the commands that they may name."""
    _INVOCATION.options = shlex.join(options)
    names = "|".join(map(re.escape, commands))
    _INVOCATION.commands = re.compile(rf"\btreehammer (?=(?:{names})\b)") if names else None


#: Characters that command a terminal or turn the direction of text, but for the bold lines of commands.
_CONTROLS = re.compile(
    "\x1b(?!\\[[01]m)|\r(?!\n)"
    "|[\0-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]"
)


def prepare_for_terminal(text: str) -> str:
    """Repeat the global options, such as ``--data-dir``, in each command of a text for the terminal.

    Without them a pasted command would work on other data. Names of others lose their control
    characters. Errors pass through here when they are printed, cells of tables, and lines with hints or
    names by :func:`treehammer.terminal.print_hint`; JSON and CSV do not.
    """
    text = _CONTROLS.sub("\N{REPLACEMENT CHARACTER}", text)
    options, commands = _INVOCATION.options, _INVOCATION.commands
    if not options or commands is None:
        return text
    return commands.sub(lambda match: f"{match[0]}{options} ", text)


def make_cache_error(kind: type[TreehammerError], error: OSError, path: Path) -> TreehammerError:
    """Make the error of a cache that cannot be written; a full disk is no fault of the command."""
    other = str(error.strerror or error), "Choose another place with --cache-dir."
    message, hint = _CACHE_ERRORS.get(error.errno or 0, other)
    cache_error = kind(message, where=str(error.filename or path), hint=hint)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        cache_error.exit_code = ExitCode.INFRASTRUCTURE
    return cache_error


def make_install_command(package: str) -> str:
    """Make the command that installs a package beside this Python's; environments of uv lack pip."""
    command = [sys.executable, "-m", "pip", "install", package]
    if not find_spec("pip"):
        command = ["uv", "pip", "install", "--python", sys.executable, package]
    return shlex.join(command)


class TreehammerError(Exception):
    """An error that the user can understand and act on.

    Args:
        message: the problem, as one sentence.
        where: the file, key, host or identifier that has the problem.
        hint: the remedy.
    """

    exit_code: ExitCode = ExitCode.USAGE

    def __init__(self, message: str, *, where: str = "", hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.where = where
        self.hint = hint

    def __str__(self) -> str:
        text = f"{self.where}: {self.message}" if self.where else self.message
        return prepare_for_terminal(f"{text}\n  {self.hint}" if self.hint else text)


class InfrastructureError(TreehammerError):
    """A machine or service that a command needs fails; the command itself is right."""

    exit_code = ExitCode.INFRASTRUCTURE


class Interruption(KeyboardInterrupt):
    """Ctrl-C; the text describes the state it left, beginning in lower case."""


class ConfigError(TreehammerError):
    """A setting, flag or configuration file is wrong."""


class MissingExtraError(TreehammerError):
    """Optional packages are not installed."""

    def __init__(self, *packages: str) -> None:
        extras = ",".join(EXTRA_OF_MODULE[package] for package in packages)
        command = make_install_command(f"treehammer[{extras}]")
        super().__init__(f"Python packages are missing: {', '.join(packages)}; run: {command}")


class InvalidDocumentError(TreehammerError):
    """A document written by hand is wrong; ``problems`` lists every mistake in it."""

    def __init__(
        self, message: str, *, where: str = "", hint: str = "", problems: tuple[str, ...] = ()
    ) -> None:
        super().__init__(message, where=where, hint=hint)
        self.problems = problems

    def __str__(self) -> str:
        return "\n".join([super().__str__(), *(f"  {problem}" for problem in self.problems)])


class DefinitionError(InvalidDocumentError):
    """A test definition is wrong."""


class SitesError(InvalidDocumentError):
    """The sites file is wrong."""


class MeasurementFileError(InvalidDocumentError):
    """A file is not a file of measurements, or holds measurements that cannot be imported."""


class SourceError(TreehammerError):
    """A repository, ref or path is not available."""


class SourceUnreachableError(InfrastructureError, SourceError):
    """A repository does not answer or denies access; a retry can help."""


class DatasetError(TreehammerError):
    """A dataset is unknown, incomplete or differs from its manifest."""


class CatalogueError(InfrastructureError):
    """The data catalogue does not answer, or rejects a request."""


class SoftwareError(InfrastructureError):
    """A requested ROOT release cannot be set up."""


class BatchError(InfrastructureError):
    """A batch system did not accept, know or run a job."""


class TestbedError(InfrastructureError):
    """The testbed cannot be installed, started or stopped."""

    __test__ = False  # pytest would collect it because of its name


class StoreError(InfrastructureError):
    """The results database cannot be opened, read or written."""


class UnstorableContentError(StoreError):
    """The database cannot hold a value; a retry does not help."""


class ForeignCampaignError(UnstorableContentError):
    """A campaign or job belongs to somebody else than its sender, whose key may also be revoked."""


class TokenError(TreehammerError):
    """The results service does not accept a token.

    Args:
        message: the reason.
        may_be_new: whether its key is unknown, and may have been created just now.
    """

    def __init__(self, message: str, *, may_be_new: bool = False) -> None:
        super().__init__(message)
        self.may_be_new = may_be_new


class NothingToDoError(TreehammerError):
    """The request is valid and selects nothing."""

    exit_code = ExitCode.NOTHING


def exit_for_bug(error: Exception) -> NoReturn:
    """End with the exit code of a bug, after its traceback and the address to report it to."""
    sys.excepthook(type(error), error, error.__traceback__)
    address = "https://github.com/ORGANIZATION/treehammer/issues"
    print(f"treehammer: this is a bug; report it with the lines above: {address}", file=sys.stderr)
    sys.exit(ExitCode.BUG)


@contextmanager
def explain_missing_extra() -> Iterator[None]:
    """Replace the ImportError of an optional package by the command that installs it.

    Raises:
        MissingExtraError: a package of an extra is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRA_OF_MODULE:
            raise
        raise MissingExtraError(package) from error


def require_packages(*names: str) -> None:
    """Check that optional packages are installed, without importing them.

    Raises:
        MissingExtraError: some are not.
    """
    if missing := [name for name in names if find_spec(name) is None]:
        raise MissingExtraError(*missing)
