"""Loading of ``test.toml`` into a :class:`TestDefinition`, with all mistakes reported at once."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path, PurePosixPath
from typing import Any, Final

from treehammer.collectors.job_spec import BuildCommand, ServerCommand
from treehammer.errors import DefinitionError, suggest_nearest
from treehammer.hctests.definition import definition_checks, file_checks
from treehammer.hctests.definition.document_problems import (
    DocumentProblem,
    KeyPath,
    LocateKeys,
    combine_problems,
    format_key_path,
    make_key_locator,
    parse_document,
    problems_overlap,
)
from treehammer.hctests.definition.judged_metrics import ExpectedLimit, LimitBounds
from treehammer.hctests.definition.matrix import (
    AXES_BY_NAME,
    find_axis,
    have_same_kind,
    parse_axis_text,
)
from treehammer.hctests.definition.model import (
    COMMIT_AXIS,
    DATASET_AXIS,
    FORMAT_AXIS,
    TEST_FILE_NAME,
    LoadCeiling,
    LoadSettings,
    MetricDeclaration,
    Scalar,
    TestDefinition,
    detect_payload_kind,
)
from treehammer.hctests.definition.toml_models import (
    TEST_TABLE_KEYS,
    BeforeTable,
    BuildTable,
    DefinitionDocument,
    ExpectTable,
    LoadTable,
    validate_definition,
)

#: Keys of [test] that the command line cannot replace, since they determine the test's files.
FIXED_KEYS: Final = ("name", "payload", "files")


def load_definition(folder: Path, *, name: str = "") -> TestDefinition:
    """Read and check the test in a folder.

    Args:
        folder: folder of ``test.toml`` and of every file that it names.
        name: name of test.toml in messages; its path by default.

    Raises:
        DefinitionError: test.toml is missing or has mistakes, all listed in ``problems``.
    """
    path = folder / TEST_FILE_NAME
    name = name or str(path)
    text = _read_file(path, name)
    raw = parse_document(text, name, DefinitionError)
    return _check_definition(raw, folder, make_key_locator(text, name), name)


def override_definition(
    definition: TestDefinition, axes: Mapping[str, Sequence[str]], settings: Mapping[str, str]
) -> TestDefinition:
    """Apply ``-P axis=v1,v2`` and ``-S key=value`` with the checks of :func:`load_definition`.

    Rules of exclude and include with a value that an axis no longer has are dropped, and so are
    twins of formats and limits for variants with such a value.

    Args:
        definition: the definition as loaded.
        axes: axis (or ``bundle``) -> replacement values, as typed.
        settings: key of [test], or ``settings.KEY`` of test.toml -> value, as typed.

    Raises:
        DefinitionError: unknown axis or key, or a value that is invalid in test.toml as well.
    """
    raw = _build_document(definition)
    if DATASET_AXIS in definition.axes and DATASET_AXIS in settings and DATASET_AXIS not in axes:
        settings = dict(settings)
        axes = {**axes, DATASET_AXIS: (settings.pop(DATASET_AXIS),)}
    problems = [
        *_override_axes(raw, definition, axes),
        *(problem for key, value in settings.items() for problem in _override_key(raw, key, value)),
    ]

    def locate(keys: KeyPath) -> tuple[int, str]:
        if keys[0] in ("matrix", "test") and len(keys) > 1:
            return (0, f"-P {keys[1]}") if keys[0] == "matrix" else (1, f"-S {keys[1]}")
        option = "-S " if keys[0] in ("settings", "load") else ""
        return 2, option + format_key_path(keys)

    return _check_definition(
        raw, None, locate, definition.name, files=definition.files, earlier=problems
    )


def _read_file(path: Path, name: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise DefinitionError(
            "no test here", where=name, hint="A test is a folder that contains test.toml."
        ) from error
    except UnicodeDecodeError as error:
        raise DefinitionError(f"is not UTF-8 text ({error.reason})", where=name) from error
    except OSError as error:
        raise DefinitionError(f"cannot be read ({error.strerror})", where=name) from error


def _check_definition(
    raw: dict[str, Any],
    folder: Path | None,
    where: LocateKeys,
    name: str,
    *,
    files: Sequence[str] = (),
    earlier: Sequence[DocumentProblem] = (),
) -> TestDefinition:
    """Build the definition of a document, or raise all its problems together with ``earlier`` ones.

    Without a folder the definition may name only ``files``.
    """
    document, problems = validate_definition(raw)
    problems += earlier
    matrix = _collect_axes(document, raw)
    named = dict(_list_named_files(document, matrix))
    across = [*_check_across_keys(document, matrix), *_check_files(named, folder, files)]
    # Skip problems that only follow from an invalid shape.
    problems += [
        problem
        for problem in across
        if not any(problems_overlap(problem, shape) for shape in problems)
    ]
    if problems:
        raise combine_problems(problems, where, name, DefinitionError)

    definition = _build_definition(document, matrix, files or tuple(named))
    problems += definition_checks.check_variants(definition)
    if folder is not None:
        problems += _check_contents(definition, folder)
    if problems:
        raise combine_problems(problems, where, name, DefinitionError)
    return definition


def _check_contents(definition: TestDefinition, folder: Path) -> Iterator[DocumentProblem]:
    if definition.payload_kind == "executable":
        yield from file_checks.check_executable(folder, definition.payload)
    yield from file_checks.check_dictionary_files(folder, definition)
    yield from definition_checks.check_bases(definition)
    yield from file_checks.check_reported_metrics(folder, definition)
    for table, command in (("before", definition.before), ("build", definition.build)):
        if command:
            yield from file_checks.check_executable(folder, command.command, (table, "command"))


def _check_across_keys(
    document: DefinitionDocument, matrix: Mapping[str, Sequence[Scalar]]
) -> Iterator[DocumentProblem]:
    yield from definition_checks.check_axes(matrix)
    yield from definition_checks.check_bundle(document, matrix)
    yield from definition_checks.check_mode(document.test.mode, document.matrix.bundle, matrix)
    for number, rule in enumerate(document.exclude):
        yield from definition_checks.check_rule(rule, matrix, ("exclude", number))
    for number, rule in enumerate(document.include):
        yield from definition_checks.check_rule(rule, matrix, ("include", number))
    yield from definition_checks.check_optional_axes(matrix)
    yield from definition_checks.check_threads(
        matrix, document.test.mode, is_load=document.load is not None
    )
    dataset = document.test.dataset
    yield from definition_checks.check_datasets(dataset, matrix)
    main = dataset or next(iter(matrix.get(DATASET_AXIS, ())), "")
    yield from definition_checks.check_twins(document.twins, str(main), matrix)
    yield from definition_checks.check_metrics(tuple(document.metrics))
    yield from definition_checks.check_headline(document.test.headline, document)
    yield from definition_checks.check_limits(document.expect, document, matrix)
    yield from definition_checks.check_settings(dict(document.settings))
    yield from definition_checks.check_environment(
        document.environment, matrix, builds=document.build is not None
    )
    yield from file_checks.check_extensions(document.test, is_load=document.load is not None)
    if document.load:
        yield from definition_checks.check_load(document.load, document.test)
    if document.before:
        yield from definition_checks.check_before(document.before, document, matrix)
    if document.build:
        yield from definition_checks.check_build(document.build)


def _check_files(
    named: Mapping[str, KeyPath], folder: Path | None, expected: Sequence[str]
) -> Iterator[DocumentProblem]:
    """Check that the files exist or, without a folder, are among the known ones."""
    for name, path in named.items():
        if folder is not None:
            yield from file_checks.check_file(folder, name, path)
        elif name not in expected:
            yield DocumentProblem(
                path,
                f"{name!r} is not a file of this test (expected one named in [test] files, so that "
                f"it is part of the test's identity){suggest_nearest(name, expected)}",
            )


def _collect_axes(
    document: DefinitionDocument, raw: Mapping[str, Any]
) -> dict[str, tuple[Scalar, ...]]:
    """Collect every axis and its values: those of test.toml in its order, then the defaults."""
    matrix = document.matrix
    values = {**dict(matrix), **(matrix.__pydantic_extra__ or {})}
    names = [name for name in document.matrix.model_fields_set if name != "bundle"]
    names.sort(key=list(raw.get("matrix", {})).index)
    axes = {name: tuple(values[name]) for name in names}
    for name, axis in AXES_BY_NAME.items():
        if name not in axes and name != "door":
            axes[name] = axis.default
    if "root" not in names and detect_payload_kind(document.test.payload) == "executable":
        axes["root"] = ("none",)
    return axes


def _list_named_files(
    document: DefinitionDocument, axes: Mapping[str, Sequence[Scalar]]
) -> Iterator[tuple[str, KeyPath]]:
    """Yield every file of the test with the keys that name it, possibly several times."""
    yield TEST_FILE_NAME, ()
    test, before, build = document.test, document.before, document.build
    named: list[tuple[Scalar, KeyPath]] = [
        (test.payload, ("test", "payload")),
        *_number_items(test.files, "test", "files"),
    ]
    built = build.outputs if build else ()
    named += [
        (name, path)
        for name, path in _number_items(test.load, "test", "load")
        if not PurePosixPath(str(name)).is_absolute() and name not in built
    ]
    if before:
        named.append((before.command, ("before", "command")))
    if build:
        named.append((build.command, ("build", "command")))
        named += _number_items(build.files, "build", "files")
    named += _list_branch_files(document, axes)
    for name, path in named:
        yield _normalize_file_name(str(name)), path


def _list_branch_files(
    document: DefinitionDocument, axes: Mapping[str, Sequence[Scalar]]
) -> Iterator[tuple[str, KeyPath]]:
    """Yield the files ``@FILE`` that list branches."""
    rules = enumerate(document.include)
    values = [
        *_number_items(axes["branches"], "matrix", "branches"),
        *((rule.get("branches", ""), ("include", number, "branches")) for number, rule in rules),
    ]
    for value, path in values:
        if isinstance(value, str) and value.startswith("@"):
            yield value[1:], path


def _number_items(values: Iterable[Scalar], *keys: str) -> Iterator[tuple[Scalar, KeyPath]]:
    return ((value, (*keys, index)) for index, value in enumerate(values))


def _normalize_file_name(name: str) -> str:
    """Convert ``./read.py`` to ``read.py``; other unusual names are left to the check of files."""
    return str(PurePosixPath(name))


def _build_definition(
    document: DefinitionDocument, axes: Mapping[str, tuple[Scalar, ...]], files: Sequence[str]
) -> TestDefinition:
    test = document.test
    return TestDefinition(
        name=test.name,
        description=test.description,
        payload=_normalize_file_name(test.payload),
        dataset=test.dataset or str(next(iter(axes.get(DATASET_AXIS, ())), "")),
        tree=test.tree,
        repeats=test.repeats,
        rounds=test.rounds,
        passes=test.passes,
        seed=test.seed,
        wall_limit_s=float(test.wall_limit_s),
        memory_limit_mb=test.memory_limit_mb,
        axes=axes,
        bundle=tuple(document.matrix.bundle),
        exclude=tuple(_normalize_rule(rule) for rule in document.exclude),
        include=tuple(_normalize_rule(rule) for rule in document.include),
        settings=document.settings,
        metrics={
            name: MetricDeclaration(metric.unit, metric.better, metric.description, metric.exact)
            for name, metric in document.metrics.items()
        },
        files=tuple(files),
        twins=dict(document.twins),
        mode=test.mode,
        load=_build_load(document.load) if document.load else None,
        record=test.record,
        environment=dict(document.environment),
        headline=tuple(test.headline),
        before=_build_before(document.before, axes) if document.before else None,
        libraries=tuple(test.load),
        imports=tuple(test.imports),
        build=_build_build(document.build) if document.build else None,
        expect=tuple(map(_build_limit, document.expect)),
    )


def _build_limit(table: ExpectTable) -> ExpectedLimit:
    sites = {site: LimitBounds(at.at_most, at.at_least) for site, at in table.sites.items()}
    where = _normalize_rule(table.where)
    return ExpectedLimit(table.metric, table.at_most, table.at_least, table.base, where, sites)


def _build_before(table: BeforeTable, axes: Mapping[str, tuple[Scalar, ...]]) -> ServerCommand:
    first = {name: axes[name][0] for name in table.settings}
    return ServerCommand(_normalize_file_name(table.command), first, float(table.timeout_s))


def _build_build(table: BuildTable) -> BuildCommand:
    return BuildCommand(
        command=_normalize_file_name(table.command),
        outputs=tuple(table.outputs),
        preload=tuple(table.preload),
        timeout_s=float(table.timeout_s),
    )


def _build_load(table: LoadTable) -> LoadSettings:
    ceiling = LoadCeiling(**table.ceiling.model_dump())
    return LoadSettings(**{**table.model_dump(), "ceiling": ceiling})


def _normalize_rule(rule: Mapping[str, Scalar]) -> dict[str, Scalar]:
    return {name: find_axis(name).normalize(value) for name, value in rule.items()}


def _build_document(definition: TestDefinition) -> dict[str, Any]:
    """Build the document of a definition, with every default written out."""
    values = asdict(definition)
    test = {key: values[key] for key in TEST_TABLE_KEYS if key != "load"}
    test["files"] = list(definition.files)
    test["headline"] = list(definition.headline)
    test["load"], test["imports"] = list(definition.libraries), list(definition.imports)
    matrix: dict[str, Any] = {name: list(items) for name, items in definition.axes.items()}
    return {
        "test": test,
        "matrix": {**matrix, "bundle": list(definition.bundle)},
        "exclude": [dict(rule) for rule in definition.exclude],
        "include": [dict(rule) for rule in definition.include],
        "settings": values["settings"],
        "environment": values["environment"],
        "twins": values["twins"],
        "metrics": values["metrics"],
        "expect": [*values["expect"]],
        **({"load": values["load"]} if definition.load else {}),
        **({"before": _build_before_table(definition.before)} if definition.before else {}),
        **({"build": _build_build_table(definition.build)} if definition.build else {}),
    }


def _build_before_table(before: ServerCommand) -> dict[str, Any]:
    return {**asdict(before), "settings": [*before.settings]}


def _build_build_table(build: BuildCommand) -> dict[str, Any]:
    # Its files are among those of the test.
    return {**asdict(build), "outputs": [*build.outputs], "preload": [*build.preload]}


def _override_axes(
    raw: dict[str, Any], definition: TestDefinition, typed: Mapping[str, Sequence[str]]
) -> Iterator[DocumentProblem]:
    axes = (*raw["matrix"], "door", DATASET_AXIS, COMMIT_AXIS)
    if len(typed.get(COMMIT_AXIS, ())) > 1:
        # Commits are compared by turns; a release stays the same within a job.
        raw["matrix"]["bundle"] = [COMMIT_AXIS]
    for name, texts in typed.items():
        if name not in axes:
            suggestion = suggest_nearest(name, axes)
            yield DocumentProblem(("matrix", name), f"is not an axis of this test{suggestion}")
        elif name == "bundle":
            raw["matrix"]["bundle"] = list(texts)
        else:
            yield from _override_axis(raw, name, texts, definition.axes.get(name, ()))


def _override_axis(
    raw: dict[str, Any], name: str, texts: Sequence[str], declared: Sequence[Scalar]
) -> Iterator[DocumentProblem]:
    values = [parse_axis_text(name, text, declared) for text in texts]
    if name not in AXES_BY_NAME and not have_same_kind((*declared, *values)):
        yield DocumentProblem(
            ("matrix", name), f"has another type than its own values: {declared[0]!r}"
        )
    raw["matrix"][name] = values
    _drop_conflicts(raw, name, values)


def _drop_conflicts(raw: dict[str, Any], axis: str, values: Sequence[Scalar]) -> None:
    """Drop the dataset, twins and rules that do not fit the new values of an axis."""
    if axis == DATASET_AXIS:
        raw["test"]["dataset"] = ""
    if axis == FORMAT_AXIS:
        raw["twins"] = {
            format_: twin for format_, twin in raw["twins"].items() if format_ in values
        }
    for kind in ("exclude", "include"):
        raw[kind] = [rule for rule in raw[kind] if axis not in rule or rule[axis] in values]
    raw["expect"] = [
        limit
        for limit in raw["expect"]
        if axis not in limit["where"] or limit["where"][axis] in values
    ]


def _override_key(raw: dict[str, Any], key: str, text: str) -> Iterator[DocumentProblem]:
    table, _, name = key.partition(".")
    path = tuple(key.split("."))
    if not name or table not in ("environment", "load", "settings", "twins"):
        yield from _override_test_key(raw["test"], key, text)
    elif table == "environment":
        raw[table][name] = text
    elif table == "load":
        _override_load(raw, path, text)
    else:
        yield from _override_setting(raw[table], path, text)


def _override_test_key(table: dict[str, Any], key: str, text: str) -> Iterator[DocumentProblem]:
    replaceable = [name for name in table if name not in FIXED_KEYS]
    if key in FIXED_KEYS:
        yield DocumentProblem(("test", key), "cannot be replaced here; change test.toml")
    elif key not in replaceable:
        listed = ", ".join((*replaceable, "settings.KEY, environment.NAME, load.KEY, twins.FORMAT"))
        suggestion = suggest_nearest(key, replaceable)
        yield DocumentProblem(("test", key), f"unknown key (known: {listed}){suggestion}")
    else:
        table[key] = text if isinstance(table[key], str) else _parse_toml_value(text)


def _override_load(raw: dict[str, Any], path: tuple[str, ...], text: str) -> None:
    """Replace a key of [load]; the model checks its name and value.

    A test without the table becomes a load test. Its payload begins when it is launched.
    """
    table = raw.setdefault("load", {"lead_s": 0.0, "ceiling": {}})
    if path[1] == "ceiling" and len(path) == 3:
        table = table["ceiling"]
    name = path[-1] if len(path) == 2 or table is not raw["load"] else ".".join(path[1:])
    table[name] = text if isinstance(table.get(name), str) else _parse_toml_value(text)


def _override_setting(
    settings: dict[str, Any], path: tuple[str, ...], text: str
) -> Iterator[DocumentProblem]:
    table: Any = settings
    for depth, key in enumerate(path[1:], 2):
        keys = tuple(table) if isinstance(table, dict) else ()
        if key not in keys:
            listed = ", ".join(keys) or "none"
            yield DocumentProblem(
                path[:depth],
                f"test.toml has no such setting (known: {listed}){suggest_nearest(key, keys)}",
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
        return tomllib.loads(f"value = {text}")["value"]
    except ValueError:
        return text
