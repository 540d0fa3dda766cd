"""The one tree of errors a user can meet, and the exit code of each.

A message says what was wrong, where, and what to do next.  The command line
prints it without a traceback and leaves with ``exit_code``; anything that is not
a :class:`TreehammerError` is a bug and keeps its traceback.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from enum import IntEnum


class ExitCode(IntEnum):
    """What the process tells its caller."""

    DONE = 0
    REGRESSION = 1
    USAGE = 2
    NOTHING = 3
    INFRASTRUCTURE = 4
    INTERRUPTED = 130


def suggest_word(word: str, known: Iterable[str]) -> str:
    """``Did you mean 'x'? `` with the nearest known word, to begin a hint with; or nothing."""
    near = difflib.get_close_matches(word, list(known), n=1)
    return f"Did you mean {near[0]!r}? " if near else ""


class TreehammerError(Exception):
    """Something the user can understand and act on.

    Args:
        message: what was wrong, as one sentence.
        where: the file, key, host or identifier it was found in.
        hint: what to do next.
    """

    exit_code: ExitCode = ExitCode.USAGE

    def __init__(self, message: str, *, where: str = "", hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.where = where
        self.hint = hint

    def __str__(self) -> str:
        text = f"{self.where}: {self.message}" if self.where else self.message
        return f"{text}\n  {self.hint}" if self.hint else text


class Interruption(KeyboardInterrupt):
    """Ctrl-C; the text tells the user what it left, beginning in lower case."""


class ConfigError(TreehammerError):
    """A setting, flag or configuration file is wrong."""


class InvalidDocumentError(TreehammerError):
    """A document that people write is wrong; ``problems`` names every mistake found in it."""

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
    """A file of measurements is none, or holds some that cannot be taken in."""


class SourceError(TreehammerError):
    """A repository, ref or path cannot be had."""


class SourceUnreachableError(SourceError):
    """A repository does not answer or does not let us in; trying again can help."""

    exit_code = ExitCode.INFRASTRUCTURE


class DatasetError(TreehammerError):
    """A dataset is unknown, incomplete or not what its manifest says."""


class CatalogueError(TreehammerError):
    """The data catalogue does not answer, or does not do what it was asked for."""

    exit_code = ExitCode.INFRASTRUCTURE


class SoftwareError(TreehammerError):
    """A ROOT release was asked for that cannot be set up."""

    exit_code = ExitCode.INFRASTRUCTURE


class BatchError(TreehammerError):
    """A batch system did not take, know or run a job."""

    exit_code = ExitCode.INFRASTRUCTURE


class TestbedError(TreehammerError):
    """The grid in a box cannot be installed, started or stopped."""

    __test__ = False  # no test case, whatever pytest takes its name for
    exit_code = ExitCode.INFRASTRUCTURE


class StoreError(TreehammerError):
    """The results database cannot be opened, read or written."""

    exit_code = ExitCode.INFRASTRUCTURE


class UnstorableContentError(StoreError):
    """The database cannot hold what was to be written: trying again does not help."""


class TokenError(TreehammerError):
    """The results service does not accept a token.

    Args:
        message: why not.
        may_be_new: whether its key is not known, which may have been made just now.
    """

    def __init__(self, message: str, *, may_be_new: bool = False) -> None:
        super().__init__(message)
        self.may_be_new = may_be_new


class NothingToDoError(TreehammerError):
    """The request is valid and selects nothing."""

    exit_code = ExitCode.NOTHING
