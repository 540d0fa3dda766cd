"""Loading of ``test.toml`` with ``-P`` and ``-S`` applied, with all mistakes reported at once.

The files that a definition names are checked as well: payload, lists, commands and libraries.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any, Final

from pydantic import BaseModel

from treehammer.collectors.job_spec import BANDWIDTH_AXIS, LATENCY_AXIS, SERVER_CACHE_AXIS
from treehammer.errors import DefinitionError, suggest_nearest
from treehammer.hctests.definition import definition_checks
from treehammer.hctests.definition.document_problems import (
    DocumentProblem,
    KeyPath,
    combine_problems,
    format_key_path,
    leave_out_consequences,
    make_key_locator,
    parse_document,
)
from treehammer.hctests.definition.matrix import AXES_BY_NAME, have_same_kind, parse_axis_text
from treehammer.hctests.definition.model import (
    ANY_COMMAND,
    COMMIT_AXIS,
    DATASET_AXIS,
    DOOR_AXIS,
    FORMAT_AXIS,
    TEST_FILE_NAME,
    Scalar,
)
from treehammer.hctests.definition.toml_models import (
    TEST_TABLE_KEYS,
    LoadTable,
    TestDefinition,
    TestTable,
    fill_default_axes,
    normalize_file_name,
    validate_definition,
)
from treehammer.program_output import read_document_text
from treehammer.toml_documents import parse_toml

#: Keys of [test] that the command line cannot replace, since they determine the test's files.
FIXED_KEYS: Final = ("name", "payload", "files")

#: Tables and keys that name files of the test, beside preloaded libraries and lists of branches.
_FILE_KEYS: Final = (
    *(("test", "payload"), ("test", "files")),
    *(("before", "command"), ("build", "command"), ("build", "files")),
)
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


def load_definition(
    folder: Path,
    *,
    name: str = "",
    axes: Mapping[str, Sequence[str]] = MappingProxyType({}),
    settings: Mapping[str, str] = MappingProxyType({}),
) -> TestDefinition:
    """Read and check the test in a folder, with ``-P axis=v1,v2`` and ``-S key=value`` applied.

    Rules of exclude and include with a value that an axis no longer has are dropped, and so are
    twins of formats and limits for variants with such a value.  The test's files are those of
    test.toml; replaced values cannot add any.

    Args:
        folder: folder of ``test.toml`` and of every file that it names.
        name: name of test.toml in messages; its path by default.
        axes: axis (or ``bundle``) -> replacement values, as typed.
        settings: key of [test], or ``settings.KEY`` of test.toml -> value, as typed.

    Raises:
        DefinitionError: test.toml is missing or has mistakes, or an override has, all listed in
            ``problems``.
    """
    path = folder / TEST_FILE_NAME
    name = name or str(path)
    text = _read_test_file(path, name)
    raw = parse_document(text, name, DefinitionError)
    files = dict(_list_named_files(raw))
    fill_default_axes(raw)
    problems = _override_document(raw, axes, dict(settings))
    definition, shape_problems = validate_definition(raw)
    problems += shape_problems
    across = [
        *definition_checks.check_across_keys(definition),
        *_check_files(folder, files, dict(_list_named_files(raw))),
    ]
    problems += leave_out_consequences(across, problems)
    is_overridden = bool(axes or settings)
    if not problems:
        test = definition.test.replace(files=tuple(files))
        definition = definition.replace(test=test)
        problems += definition_checks.check_variants(definition)
        problems += _check_contents(folder, definition)
        if not is_overridden:
            problems += definition_checks.check_bases(definition)
    if not problems:
        return definition
    if is_overridden:
        load_definition(folder, name=name)  # mistakes of test.toml itself come first
        raise combine_problems(problems, _locate_option, definition.test.name, DefinitionError)
    raise combine_problems(problems, make_key_locator(text, name), name, DefinitionError)


def _read_test_file(path: Path, name: str) -> str:
    try:
        return read_document_text(path, DefinitionError, name=name)
    except DefinitionError as error:
        if not isinstance(error.__cause__, FileNotFoundError):
            raise
        hint = "A test is a folder that contains test.toml."
        raise DefinitionError("no test here", where=name, hint=hint) from error


def _locate_option(keys: KeyPath) -> tuple[int, str]:
    """Locate a mistake of an override by its option."""
    if keys[0] in ("matrix", "test") and len(keys) > 1:
        return (0, f"-P {keys[1]}") if keys[0] == "matrix" else (1, f"-S {keys[1]}")
    option = "-S " if keys[0] in ("settings", "load") else ""
    return 2, option + format_key_path(keys)


def _check_files(
    folder: Path, files: Mapping[str, KeyPath], named: Mapping[str, KeyPath]
) -> Iterator[DocumentProblem]:
    """Check that the test's files are in its folder or one beside it, and overrides name no others.

    Args:
        folder: folder of the test.
        files: the test's files, with the keys of test.toml that name them.
        named: files that the definition with its overrides names.
    """
    for name, path in files.items():
        problem = _find_path_problem(folder, name) or _find_content_problem(folder / name, name)
        if problem:
            yield DocumentProblem(path, problem)
    for name in named.keys() - files.keys():
        yield DocumentProblem(
            named[name],
            f"{name!r} is not a file of this test (expected one named in [test] files, so that "
            f"it is part of the test's identity){suggest_nearest(name, files)}",
        )


def _list_named_files(raw: Mapping[str, Any]) -> Iterator[tuple[str, KeyPath]]:
    """Yield every file of the test with the keys that name it, possibly several times."""
    yield TEST_FILE_NAME, ()
    for keys in _FILE_KEYS:
        for text, path in _list_texts(raw, *keys):
            if keys != ("test", "payload") or text != ANY_COMMAND:
                yield normalize_file_name(text), path
    built = [text for text, _ in _list_texts(raw, "build", "outputs")]
    for text, path in _list_texts(raw, "test", "load"):
        if not PurePosixPath(text).is_absolute() and text not in built:
            yield normalize_file_name(text), path
    yield from _list_branch_files(raw)


def _list_branch_files(raw: Mapping[str, Any]) -> Iterator[tuple[str, KeyPath]]:
    """Yield the files that list branches, ``@FILE``, with the keys that name them."""
    branches = [*_list_texts(raw, "matrix", "branches")]
    for number in range(len(_get_items(raw, "include"))):
        branches += _list_texts(raw, "include", number, "branches")
    for text, path in branches:
        if text.startswith("@"):
            yield normalize_file_name(text[1:]), path


def _list_texts(raw: Mapping[str, Any], *path: str | int) -> Iterator[tuple[str, KeyPath]]:
    """Yield the text at a path, or the texts of its list, each with its own path."""
    value: Any = raw
    for key in path:
        value = value[key] if isinstance(key, int) else _get_table(value).get(key)
    items = [(value, path)]
    if isinstance(value, list):
        items = [(item, (*path, index)) for index, item in enumerate(value)]
    return ((item, where) for item, where in items if isinstance(item, str))


# A document is overridden before it is validated: its tables may still be anything.


def _get_table(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _get_items(raw: Mapping[str, Any], key: str) -> list[Any]:
    value = raw.get(key)
    return value if isinstance(value, list) else []


def _override_document(
    raw: dict[str, Any], axes: Mapping[str, Sequence[str]], settings: dict[str, str]
) -> list[DocumentProblem]:
    """Replace values of a document; return the mistakes that its validation would not see."""
    if not axes and not settings:
        return []
    matrix = _get_table(raw["matrix"])
    if DATASET_AXIS in matrix and DATASET_AXIS in settings and DATASET_AXIS not in axes:
        axes = {**axes, DATASET_AXIS: (settings.pop(DATASET_AXIS),)}
    problems = [*_override_axes(raw, matrix, axes)]
    for key, value in settings.items():
        problems += _override_key(raw, key, value)
    return problems


def _override_axes(
    raw: dict[str, Any], matrix: dict[str, Any], typed: Mapping[str, Sequence[str]]
) -> Iterator[DocumentProblem]:
    # Any test may name its doors, datasets, commits and caches, and be measured at a distance.
    always = (
        *(DOOR_AXIS, DATASET_AXIS, COMMIT_AXIS, SERVER_CACHE_AXIS),
        *(LATENCY_AXIS, BANDWIDTH_AXIS),
    )
    axes = tuple(dict.fromkeys((*matrix, "bundle", *always)))
    if len(typed.get(COMMIT_AXIS, ())) > 1:
        # Commits are compared by turns; a release stays the same within a job.
        matrix["bundle"] = [COMMIT_AXIS]
    for name, texts in typed.items():
        if name not in axes:
            suggestion = suggest_nearest(name, axes)
            yield DocumentProblem(("matrix", name), f"is not an axis of this test{suggestion}")
        elif name == "bundle":
            matrix["bundle"] = list(texts)
        else:
            declared = _get_items(matrix, name)
            values = [parse_axis_text(name, text, declared) for text in texts]
            if name not in AXES_BY_NAME and not have_same_kind((*declared, *values)):
                yield DocumentProblem(
                    ("matrix", name), f"has another type than its own values: {declared[0]!r}"
                )
            matrix[name] = values
            _drop_conflicts(raw, name, values)


def _drop_conflicts(raw: dict[str, Any], axis: str, values: Sequence[Scalar]) -> None:
    """Drop the dataset, twins and rules that do not fit the new values of an axis."""
    if axis == DATASET_AXIS:
        _get_table(raw.get("test")).pop("dataset", None)
    if axis == FORMAT_AXIS:
        twins = _get_table(raw.get("twins"))
        for format_ in twins.keys() - set(values):
            del twins[format_]

    def fits(rule: Any) -> bool:
        return axis not in (table := _get_table(rule)) or table[axis] in values

    for kind in ("exclude", "include"):
        raw[kind] = [*filter(fits, _get_items(raw, kind))]
    limits = _get_items(raw, "expect")
    raw["expect"] = [limit for limit in limits if fits(_get_table(limit).get("where"))]


def _override_key(raw: dict[str, Any], key: str, text: str) -> Iterator[DocumentProblem]:
    table, _, name = key.partition(".")
    path = tuple(key.split("."))
    if not name or table not in ("environment", "load", "settings", "twins"):
        yield from _override_test_key(_get_table(raw.get("test")), key, text)
    elif table == "environment":
        raw.setdefault(table, {})[name] = text
    elif table == "load":
        _override_load(raw, path, text)
    else:
        yield from _override_setting(raw.get(table), path, text)


def _override_test_key(table: dict[str, Any], key: str, text: str) -> Iterator[DocumentProblem]:
    replaceable = [name for name in TEST_TABLE_KEYS if name not in FIXED_KEYS]
    if key in FIXED_KEYS:
        yield DocumentProblem(("test", key), "cannot be replaced here; change test.toml")
    elif key not in replaceable:
        keys_text = ", ".join(
            (*replaceable, "settings.KEY, environment.NAME, load.KEY, twins.FORMAT")
        )
        suggestion = suggest_nearest(key, replaceable)
        yield DocumentProblem(("test", key), f"unknown key (known: {keys_text}){suggestion}")
    else:
        table[key] = _parse_key(TestTable, key, text)


def _override_load(raw: dict[str, Any], path: tuple[str, ...], text: str) -> None:
    """Replace a key of [load]; the model checks its name and value.

    A test without the table becomes a load test. Its payload begins when it is launched.
    """
    table = _get_table(raw.setdefault("load", {"lead_s": 0.0}))
    name = ".".join(path[1:])
    if path[1] == "ceiling" and len(path) == 3:
        table, name = _get_table(table.setdefault("ceiling", {})), path[2]
    table[name] = _parse_key(LoadTable, name, text)


def _parse_key(table: type[BaseModel], key: str, text: str) -> Any:
    """Parse a typed value of a table's key: text stays text where its default is text."""
    field = table.model_fields.get(key)
    default = field.get_default(call_default_factory=True) if field else None
    return text if isinstance(default, str) else _parse_toml_value(text)


def _override_setting(table: Any, path: tuple[str, ...], text: str) -> Iterator[DocumentProblem]:
    for depth, key in enumerate(path[1:], 2):
        keys = tuple(_get_table(table))
        if key not in keys:
            keys_text = ", ".join(keys) or "none"
            yield DocumentProblem(
                path[:depth],
                f"test.toml has no such setting (known: {keys_text}){suggest_nearest(key, keys)}",
            )
            return
        if depth < len(path):
            table = table[key]
    old = table[path[-1]]
    new = text if isinstance(old, str) else _parse_toml_value(text)
    if type(new) is not type(old) and (type(old), type(new)) != (float, int):
        yield DocumentProblem(path, f"{text!r} has another type than in test.toml: {old!r}")
    table[path[-1]] = new


def _parse_toml_value(text: str) -> Any:
    """Parse a typed number, true, false or list; any other text stays text."""
    try:
        return parse_toml(f"value = {text}")["value"]
    except ValueError:
        return text


def _find_path_problem(folder: Path, name: str) -> str:
    """Describe why no file of the test has this name; '' if one has."""
    pure = PurePosixPath(name)
    inside = f"(expected a file in {folder.name}/)"
    is_path = name.isprintable() and len(name) <= MAX_NAME_LENGTH
    if not is_path or pure.is_absolute() or {"..", "\\"} & {*pure.parts, *name}:
        return f"{name!r} is not a path below the test's folder {inside}"
    target = folder / pure
    if not _is_test_file(target.resolve(), folder.resolve()):
        return f"{name!r} is a link to neither this test's folder nor one beside it {inside}"
    if target.is_dir():
        return f"{name!r} is a folder (expected its files, one by one)"
    if not target.is_file():
        names = sorted(item.name for item in folder.glob("*"))
        return f"there is no file {name!r} {inside}{suggest_nearest(name, names)}"
    return ""


def _find_content_problem(target: Path, name: str) -> str:
    if not os.access(target, os.R_OK):
        return f"{name!r} cannot be read"
    with target.open("rb") as stream:
        is_pointer = stream.read(len(LFS_POINTER)) == LFS_POINTER
    if is_pointer:
        return (
            f"{name!r} is a Git LFS pointer (expected the file itself: run 'git lfs pull' in a "
            "working tree; LFS files of commits are not supported)"
        )
    if target.suffix == ".py":
        try:
            compile(target.read_bytes(), target.name, "exec", dont_inherit=True)
        except SyntaxError as error:  # it would fail every job
            return f"{target.name}:{error.lineno or 1}: {error.msg} (expected valid Python)"
        except ValueError as error:  # NUL bytes
            return f"{target.name}: {error} (expected valid Python)"
    return ""


def _is_test_file(target: Path, folder: Path) -> bool:
    """Return whether a file belongs to this test, or through a link to a test beside it."""
    if target.is_relative_to(folder):
        return True
    if not target.is_relative_to(folder.parent):
        return False
    neighbor = target.relative_to(folder.parent).parts[0]
    return (folder.parent / neighbor / "test.toml").is_file()


def _check_contents(folder: Path, definition: TestDefinition) -> Iterator[DocumentProblem]:
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
            f"{payload!r} is {'neither .py nor .C and ' if path[0] == 'test' else ''}not executable "
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
    # A text stays as it is, and of a comment only the line breaks.
    code = _TEXT_OR_COMMENT.sub(
        lambda match: match[0] if match[0].startswith('"') else "\n" * match[0].count("\n"), text
    )
    patterns = [_REPORT_IN_LOOP, *([_REPORT_IN_PYTHON] if "run_uproot" in text else [])]
    for pattern in patterns:
        for match in pattern.finditer(code):
            yield code.count("\n", 0, match.start()) + 1, match[1]
