"""``test.toml`` to :class:`TestDefinition`: reads, checks everything, names every mistake at once."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path, PurePosixPath
from typing import Any, Final

from treehammer.errors import DefinitionError
from treehammer.hctests import checks, mistakes, positions
from treehammer.hctests.axes import KNOWN, from_text, same_kind
from treehammer.hctests.axes import of as axis_of
from treehammer.hctests.definition import MetricDeclaration, Scalar, TestDefinition, payload_kind
from treehammer.hctests.document import TEST_KEYS, Document, validated
from treehammer.hctests.mistakes import Problem, nearest

FILE_NAME = "test.toml"

#: Keys of [test] that the command line cannot replace: they say which files the test is made of.
FIXED_KEYS: Final = ("name", "payload", "files")


def load(folder: Path, *, shown: str = "") -> TestDefinition:
    """Read and check the test in a folder.

    Args:
        folder: holds ``test.toml`` and every file that it names.
        shown: what messages call test.toml; its path by default.

    Raises:
        DefinitionError: there is no test.toml, or it has mistakes; ``problems`` names every one.
    """
    path = folder / FILE_NAME
    shown = shown or str(path)
    text = _read(path, shown)
    raw = mistakes.parse(text, shown, DefinitionError)
    return _checked(raw, folder, mistakes.places(text, shown), shown)


def override(
    definition: TestDefinition, axes: Mapping[str, Sequence[str]], settings: Mapping[str, str]
) -> TestDefinition:
    """Apply ``-P axis=v1,v2`` and ``-S key=value`` with the checks of :func:`load`.

    Args:
        definition: as loaded.
        axes: axis (or ``bundle``) -> the values that replace its own, as typed.
        settings: key of [test], or ``settings.KEY`` that test.toml has -> value, as typed.

    Rules of exclude and include that name a value which an axis no longer has are left out.

    Raises:
        DefinitionError: unknown axis or key, or a value that test.toml could not have either.
    """
    raw = _document(definition)
    problems = [
        *_override_axes(raw, definition, axes),
        *(problem for key, value in settings.items() for problem in _set(raw, key, value)),
    ]

    def where(keys: positions.Path) -> tuple[int, str]:
        if keys[0] == "matrix" and len(keys) > 1:
            return 0, f"-P {keys[1]}"
        if keys[0] == "test" and len(keys) > 1:
            return 1, f"-S {keys[1]}"
        return 2, f"-S {mistakes.dotted(keys)}" if keys[0] == "settings" else mistakes.dotted(keys)

    return _checked(raw, None, where, definition.name, files=definition.files, found=problems)


def _read(path: Path, shown: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise DefinitionError(
            "there is no test here", where=shown, hint="A test is a folder that holds test.toml."
        ) from error
    except UnicodeDecodeError as error:
        raise DefinitionError(f"is not UTF-8 text ({error.reason})", where=shown) from error
    except OSError as error:
        raise DefinitionError(f"cannot be read ({error.strerror})", where=shown) from error


def _checked(
    raw: dict[str, Any],
    folder: Path | None,
    where: mistakes.Where,
    shown: str,
    *,
    files: Sequence[str] = (),
    found: Sequence[Problem] = (),
) -> TestDefinition:
    """The definition in a document, which must have no mistake beside those already found.

    Without a folder, ``files`` are the only ones that it may name.
    """
    document, problems = validated(raw)
    problems += found
    matrix = _axes(document, raw)
    named = dict(_named_files(document, matrix))
    across = [*_across_keys(document, matrix), *_files(named, folder, files)]
    # What follows from a wrong shape is no mistake of its own.
    problems += [
        one for one in across if not any(mistakes.overlap(one, shape) for shape in problems)
    ]
    if problems:
        raise mistakes.all_of(problems, where, shown, DefinitionError)

    definition = _definition(document, matrix, files or tuple(named))
    problems += checks.of_variants(definition)
    if folder is not None and definition.payload_kind == "executable":
        problems += checks.of_executable(folder, definition.payload)
    if problems:
        raise mistakes.all_of(problems, where, shown, DefinitionError)
    return definition


def _across_keys(document: Document, found: Mapping[str, Sequence[Scalar]]) -> Iterator[Problem]:
    yield from checks.of_axes(found)
    yield from checks.of_bundle(document.matrix.bundle, tuple(found))
    for number, rule in enumerate(document.exclude):
        yield from checks.of_rule(rule, found, ("exclude", number))
    for number, rule in enumerate(document.include):
        yield from checks.of_rule(rule, found, ("include", number))
    yield from checks.of_formats(found)
    yield from checks.of_twins(document.twins, document.test.dataset, found)
    yield from checks.of_metrics(tuple(document.metrics))
    yield from checks.of_settings(dict(document.settings))


def _files(
    named: Mapping[str, positions.Path], folder: Path | None, known: Sequence[str]
) -> Iterator[Problem]:
    """The files are there, or, without a folder, are among the known ones."""
    for name, path in named.items():
        if folder is not None:
            yield from checks.of_file(folder, name, path)
        elif name not in known:
            yield Problem(
                path,
                f"{name!r} is no file of this test (expected one that [test] files names, so that "
                f"it is part of the test's identity){nearest(name, known)}",
            )


def _axes(document: Document, raw: Mapping[str, Any]) -> dict[str, tuple[Scalar, ...]]:
    """Every axis and its values: those of test.toml in its order, then the defaults."""
    matrix = document.matrix
    values = {**dict(matrix), **(matrix.__pydantic_extra__ or {})}
    given = [name for name in document.matrix.model_fields_set if name != "bundle"]
    given.sort(key=list(raw.get("matrix", {})).index)
    found = {name: tuple(values[name]) for name in given}
    for name, axis in KNOWN.items():
        if name not in found and name != "door":
            found[name] = axis.default
    if "root" not in given and payload_kind(document.test.payload) == "executable":
        found["root"] = ("none",)
    return found


def _named_files(
    document: Document, found: Mapping[str, Sequence[Scalar]]
) -> Iterator[tuple[str, positions.Path]]:
    """Every file that the test is made of and the keys that name it; later ones are known before."""
    yield FILE_NAME, ()
    yield _plain(document.test.payload), ("test", "payload")
    for index, name in enumerate(document.test.files):
        yield _plain(name), ("test", "files", index)
    lists: list[tuple[Scalar, positions.Path]] = [
        (value, ("matrix", "branches", index)) for index, value in enumerate(found["branches"])
    ]
    lists += [
        (rule["branches"], ("include", number, "branches"))
        for number, rule in enumerate(document.include)
        if "branches" in rule
    ]
    for value, path in lists:
        if isinstance(value, str) and value.startswith("@"):
            yield _plain(value[1:]), path


def _plain(name: str) -> str:
    """``./read.py`` is ``read.py``; anything stranger is left for the check of files."""
    return str(PurePosixPath(name))


def _definition(
    document: Document, found: Mapping[str, tuple[Scalar, ...]], files: Sequence[str]
) -> TestDefinition:
    test = document.test
    return TestDefinition(
        name=test.name,
        description=test.description,
        payload=_plain(test.payload),
        dataset=test.dataset,
        tree=test.tree,
        repeats=test.repeats,
        rounds=test.rounds,
        passes=test.passes,
        seed=test.seed,
        wall_limit_s=float(test.wall_limit_s),
        memory_limit_mb=test.memory_limit_mb,
        axes=found,
        bundle=tuple(document.matrix.bundle),
        exclude=tuple(_rule(rule) for rule in document.exclude),
        include=tuple(_rule(rule) for rule in document.include),
        settings=document.settings,
        metrics={
            name: MetricDeclaration(metric.unit, metric.better, metric.meaning)
            for name, metric in document.metrics.items()
        },
        files=tuple(files),
        twins=dict(document.twins),
    )


def _rule(rule: Mapping[str, Scalar]) -> dict[str, Scalar]:
    return {name: axis_of(name).read(value) for name, value in rule.items()}


def _document(definition: TestDefinition) -> dict[str, Any]:
    """The document that gives this definition, with every default written out."""
    values = asdict(definition)
    test = {key: values[key] for key in TEST_KEYS}
    test["files"] = list(definition.files)
    matrix: dict[str, Any] = {name: list(found) for name, found in definition.axes.items()}
    return {
        "test": test,
        "matrix": {**matrix, "bundle": list(definition.bundle)},
        "exclude": [dict(rule) for rule in definition.exclude],
        "include": [dict(rule) for rule in definition.include],
        "settings": values["settings"],
        "twins": values["twins"],
        "metrics": values["metrics"],
    }


def _override_axes(
    raw: dict[str, Any], definition: TestDefinition, typed: Mapping[str, Sequence[str]]
) -> Iterator[Problem]:
    known = (*raw["matrix"], "door")
    for name, texts in typed.items():
        if name not in known:
            near = nearest(name, known)
            yield Problem(("matrix", name), f"is no axis of this test{near}")
        elif name == "bundle":
            raw["matrix"]["bundle"] = list(texts)
        else:
            declared = definition.axes.get(name, ())
            values = [from_text(name, text, declared) for text in texts]
            if name not in KNOWN and not same_kind((*declared, *values)):
                yield Problem(("matrix", name), f"is not of the kind of its own: {declared[0]!r}")
            raw["matrix"][name] = values
            for kind in ("exclude", "include"):
                raw[kind] = [rule for rule in raw[kind] if name not in rule or rule[name] in values]


def _set(raw: dict[str, Any], key: str, text: str) -> Iterator[Problem]:
    table = key.partition(".")[0]
    if table in ("settings", "twins") and table != key:
        yield from _set_setting(raw[table], tuple(key.split(".")), text)
        return
    known = [name for name in raw["test"] if name not in FIXED_KEYS]
    if key in FIXED_KEYS:
        yield Problem(("test", key), "cannot be replaced here; change test.toml")
    elif key not in known:
        listed = ", ".join(known)
        yield Problem(
            ("test", key),
            f"unknown key (known: {listed}, settings.KEY, twins.FORMAT){nearest(key, known)}",
        )
    else:
        raw["test"][key] = text if isinstance(raw["test"][key], str) else _toml_value(text)


def _set_setting(settings: dict[str, Any], path: tuple[str, ...], text: str) -> Iterator[Problem]:
    table: Any = settings
    for depth, key in enumerate(path[1:], 1):
        if not isinstance(table, dict) or key not in table:
            known = tuple(table) if isinstance(table, dict) else ()
            listed = ", ".join(known) or "none"
            yield Problem(
                path[: depth + 1],
                f"test.toml has no such setting (known: {listed}){nearest(key, known)}",
            )
            return
        if depth < len(path) - 1:
            table = table[key]
    old = table[path[-1]]
    new = text if isinstance(old, str) else _toml_value(text)
    if type(new) is not type(old) and not (isinstance(old, float) and type(new) is int):
        yield Problem(path, f"{text!r} is not of the kind that test.toml has: {old!r}")
    table[path[-1]] = new


def _toml_value(text: str) -> Any:
    """A typed number, true, false or list; text that is none of these stays text."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except ValueError:
        return text
