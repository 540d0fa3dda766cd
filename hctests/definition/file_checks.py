"""Checks of the files that a definition names: payload, lists, commands and libraries."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from treehammer.errors import suggest_nearest
from treehammer.hctests.definition.document_problems import DocumentProblem, KeyPath
from treehammer.hctests.definition.toml_models import TestDefinition

#: Files of a payload that ROOT or Python compiles.
SOURCE_SUFFIXES = (".py", ".C", ".cc", ".cpp", ".cxx", ".h", ".hh", ".hpp", ".hxx")
#: A text in one line, or a comment of C++ or Python.
_TEXT_OR_COMMENT = re.compile(
    r'"(?:\\.|[^"\\\n])*"|//[^\n]*|/\*.*?\*/|^\s*#[^\n]*', re.DOTALL | re.MULTILINE
)
#: Calls by which loops of the kit, and analyses with uproot, report a metric by its name.
_REPORT_IN_LOOP = re.compile(r'\.\s*Report\s*\(\s*"(\w+)"')
_REPORT_IN_PYTHON = re.compile(r"""\breport\s*\(\s*["'](\w+)["']""")

#: Longest name of a file in common file systems.
MAX_NAME_LENGTH = 255
LFS_POINTER = b"version https://git-lfs.github.com/spec/"


def check_file(folder: Path, name: str, path: KeyPath) -> Iterator[DocumentProblem]:
    """Check that a named file is in the test's folder, or a link to a file of a test beside it."""
    problem = _find_file_problem(folder, name)
    if problem:
        yield DocumentProblem(path, problem)


def _find_file_problem(folder: Path, name: str) -> str:
    return _find_path_problem(folder, name) or _find_content_problem(folder / name, name)


def _find_path_problem(folder: Path, name: str) -> str:
    """Describe why no file of the test has this name; '' if one has."""
    pure = PurePosixPath(name)
    inside = f"(expected a file in {folder.name}/)"
    is_path = name.isprintable() and "\\" not in name and len(name) <= MAX_NAME_LENGTH
    if not is_path or pure.is_absolute() or ".." in pure.parts:
        return f"{name!r} is not a path below the test's folder {inside}"
    target = folder / pure
    if not _is_test_file(target.resolve(), folder.resolve()):
        return f"{name!r} is a link to neither this test's folder nor one beside it {inside}"
    if target.is_dir():
        return f"{name!r} is a folder (expected its files, one by one)"
    if not target.is_file():
        names = sorted(item.name for item in folder.iterdir()) if folder.is_dir() else []
        return f"there is no file {name!r} {inside}{suggest_nearest(name, names)}"
    return ""


def _find_content_problem(target: Path, name: str) -> str:
    if not os.access(target, os.R_OK):
        return f"{name!r} cannot be read"
    if _is_lfs_pointer(target):
        return (
            f"{name!r} is a Git LFS pointer (expected the file itself: run 'git lfs pull' in a "
            "working tree; LFS files of commits are not supported)"
        )
    return _find_syntax_error(target) if target.suffix == ".py" else ""


def _find_syntax_error(file: Path) -> str:
    """Describe a syntax error of a Python file, which would fail every job; '' without one."""
    try:
        compile(file.read_bytes(), file.name, "exec", dont_inherit=True)
    except SyntaxError as error:
        return f"{file.name}:{error.lineno or 1}: {error.msg} (expected valid Python)"
    except ValueError as error:  # NUL bytes
        return f"{file.name}: {error} (expected valid Python)"
    return ""


def _is_lfs_pointer(file: Path) -> bool:
    with file.open("rb") as stream:
        return stream.read(len(LFS_POINTER)) == LFS_POINTER


def _is_test_file(target: Path, folder: Path) -> bool:
    """Return whether a file belongs to this test, or through a link to a test beside it."""
    if target.is_relative_to(folder):
        return True
    if not target.is_relative_to(folder.parent):
        return False
    neighbor = target.relative_to(folder.parent).parts[0]
    return (folder.parent / neighbor / "test.toml").is_file()


def check_contents(folder: Path, definition: TestDefinition) -> Iterator[DocumentProblem]:
    """Check the files of a test that exist against its definition."""
    if definition.payload_kind == "executable":
        yield from _check_executable(folder, definition.test.payload, ("test", "payload"))
    yield from _check_dictionary_files(folder, definition)
    yield from _check_reported_metrics(folder, definition)
    for table, command in (("before", definition.before), ("build", definition.build)):
        if command:
            yield from _check_executable(folder, command.command, (table, "command"))


def _check_executable(folder: Path, payload: str, path: KeyPath) -> Iterator[DocumentProblem]:
    """Check that a command, or a payload that is neither Python nor a macro, is executable."""
    target = folder / payload
    if target.is_file() and not os.access(target, os.X_OK):
        yield DocumentProblem(
            path,
            f"{payload!r} is {'neither .py nor .C and ' * (path[0] == 'test')}not executable "
            f"(run 'chmod +x {payload}', "
            "or 'git update-index --chmod=+x' for a committed file)",
        )


def _check_dictionary_files(folder: Path, definition: TestDefinition) -> Iterator[DocumentProblem]:
    """Check that the files of dictionaries are sent with their libraries."""
    for index, name in enumerate(definition.test.load):
        library = PurePosixPath(name)
        if library.is_absolute():
            continue
        stem = library.name.partition(".so")[0]
        for file in sorted((folder / library.parent).glob(f"{stem}*_rdict.pcm")):
            pcm = str(library.parent / file.name)
            if pcm not in definition.test.files:
                yield DocumentProblem(
                    ("test", "load", index), f"{name!r} needs {pcm!r}: add it to files"
                )


def _check_reported_metrics(folder: Path, definition: TestDefinition) -> Iterator[DocumentProblem]:
    """Check that payloads of the kit report only metrics that the test declares.

    A result with another one fails the measurement.
    """
    if definition.payload_kind == "executable":
        return
    for name in definition.test.files:
        if PurePosixPath(name).suffix not in SOURCE_SUFFIXES:
            continue
        text = (folder / name).read_text(encoding="utf-8", errors="replace")
        for line, metric in _find_reported_metrics(text):
            if metric not in definition.metrics:
                yield DocumentProblem(
                    ("metrics",),
                    f"{name}:{line} reports {metric!r}, which is not declared: add "
                    f"[metrics.{metric}]{suggest_nearest(metric, definition.metrics)}",
                )


def _find_reported_metrics(text: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the name of each metric that a source file of the kit reports."""
    code = _TEXT_OR_COMMENT.sub(_blank_comment, text)
    patterns = [_REPORT_IN_LOOP, *([_REPORT_IN_PYTHON] if "run_uproot" in text else [])]
    for pattern in patterns:
        for match in pattern.finditer(code):
            yield code.count("\n", 0, match.start()) + 1, match[1]


def _blank_comment(match: re.Match[str]) -> str:
    """Return a text as it is, and only the line breaks of a comment."""
    return match[0] if match[0].startswith('"') else "\n" * match[0].count("\n")
