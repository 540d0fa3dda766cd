"""Checks across the keys of a definition: axes, rules, bundles, metrics, settings, files, limits."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from treehammer.collectors.job_spec import (
    BANDWIDTH_AXIS,
    LATENCY_AXIS,
    PAIRED,
    SERVER_CACHE_AXIS,
    THREADS_AXIS,
)
from treehammer.collectors.record.measurement_record import MAX_EXTRAS
from treehammer.collectors.record.metric_catalogue import METRICS_BY_NAME
from treehammer.errors import ConfigError, suggest_nearest
from treehammer.hctests.definition.document_problems import NAME_PATTERN, DocumentProblem, KeyPath
from treehammer.hctests.definition.execution_order import expand_variants
from treehammer.hctests.definition.judged_metrics import (
    BOUNDS,
    ExpectTable,
    HeadlineMetric,
    SiteLimitTable,
    find_headline_metric,
    find_numeric_metric,
    list_metric_names,
)
from treehammer.hctests.definition.matrix import (
    AXES_BY_NAME,
    AXIS_NAME_PATTERN,
    NEVER_BUNDLED_AXES,
    OPTIONAL_AXES,
    find_axis,
    have_same_kind,
)
from treehammer.hctests.definition.model import (
    ANY_COMMAND,
    DATASET_AXIS,
    DOOR_AXIS,
    FORMAT_AXIS,
    Scalar,
    Variant,
)
from treehammer.hctests.definition.toml_models import TEST_TABLE_KEYS, TestDefinition
from treehammer.text_formatting import JobRamp

#: Upper bound of a test's variants; more are taken for an oversight.
MAX_VARIANTS = 10_000


def _check_axes(definition: TestDefinition) -> Iterator[DocumentProblem]:
    """Check the axes in [matrix] for names, empty lists, duplicates and mixed types."""
    for name, values in definition.axes.items():
        path: KeyPath = ("matrix", name)
        yield from _check_axis_name(name, path)
        if not values:
            yield DocumentProblem(path, "has no value (expected at least one)")
        if not have_same_kind(values) and name not in AXES_BY_NAME:
            yield DocumentProblem(path, "mixes text, numbers or true and false (expected one type)")
        # Longer axes are refused anyway.
        for index, value in enumerate(values[:MAX_VARIANTS]):
            if value in values[:index]:
                yield DocumentProblem((*path, index), f"{value!r} is given twice")


def _check_axis_name(name: str, path: KeyPath) -> Iterator[DocumentProblem]:
    if name in AXES_BY_NAME or name in OPTIONAL_AXES:
        return
    suggestion = suggest_nearest(name, (*AXES_BY_NAME, "bundle", "exclude", "include"), cutoff=0.8)
    if name in TEST_TABLE_KEYS:
        yield DocumentProblem(path, "is a key of [test], not an axis")
    elif suggestion:
        yield DocumentProblem(path, f"unknown axis, too similar to a known one{suggestion}")
    elif not re.fullmatch(AXIS_NAME_PATTERN, name):
        yield DocumentProblem(
            path, "is not an axis name (expected up to 30 of a-z, 0-9 and _, a letter first)"
        )


def _check_bundle(definition: TestDefinition) -> Iterator[DocumentProblem]:
    """Check that ``bundle`` names axes that may run interleaved, each once."""
    bundle, axis_names = definition.matrix.bundle, tuple(definition.axes)
    for index, name in enumerate(bundle):
        path: KeyPath = ("matrix", "bundle", index)
        if name in NEVER_BUNDLED_AXES:
            yield DocumentProblem(path, f"{name!r} cannot be bundled: {NEVER_BUNDLED_AXES[name]}")
        elif name == DOOR_AXIS and name not in axis_names:
            yield DocumentProblem(
                path, "'door' needs the names of the doors: door = [...] in [matrix], -P door=A,B"
            )
        elif name not in axis_names:
            yield DocumentProblem(
                path, f"{name!r} is not an axis of this test{suggest_nearest(name, axis_names)}"
            )
        elif name in bundle[:index]:
            yield DocumentProblem(path, f"{name!r} is given twice")
        elif name == DOOR_AXIS and (reason := _reason_against_doors(definition)):
            yield DocumentProblem(path, f"{name!r} cannot be bundled {reason}")


def _reason_against_doors(definition: TestDefinition) -> str:
    """Describe why one job of this test cannot compare doors; '' if it can."""
    load = definition.load
    if load is not None and (load.writes or load.together):
        return "in a load that writes or starts together: each of its jobs loads one door"
    if "staged" in definition.axis_values("access"):
        return 'with access = "staged": the loop reads a copy, through any door'
    if "cold" in definition.axis_values("cache"):
        remedy = f" ({SERVER_CACHE_AXIS} empties caches: leave cache = 'warm')"
        return 'with cache = "cold": what one door reads is warm for the others' + (
            remedy if SERVER_CACHE_AXIS in definition.axes else ""
        )
    return ""


def _check_mode(definition: TestDefinition) -> Iterator[DocumentProblem]:
    """Check that a test in paired mode bundles values to compare, and nothing that two sides share."""
    if definition.test.mode != PAIRED:
        return
    matrix, bundle = definition.axes, definition.matrix.bundle
    mode: KeyPath = ("test", "mode")
    for path, is_shared, reason in (
        (mode, definition.load, "'paired' executions take turns; a load test needs 'solo'"),
        (
            mode,
            definition.before,
            "'paired' executions run at once; a test with [before] needs 'solo'",
        ),
        (
            ("matrix", THREADS_AXIS),
            any(threads != 1 for threads in matrix.get(THREADS_AXIS, ())),
            "'paired' executions share one core: several threads need mode = 'solo'",
        ),
        (
            ("matrix", SERVER_CACHE_AXIS),
            matrix.get(SERVER_CACHE_AXIS),
            "'paired' executions read the same files at once; the axis needs mode = 'solo'",
        ),
    ):
        if is_shared:
            yield DocumentProblem(path, reason)
    if not any(len(matrix.get(axis, ())) > 1 for axis in bundle):
        yield DocumentProblem(
            ("matrix", bundle[0]) if len(bundle) == 1 and bundle[0] in matrix else mode,
            "'paired' compares values of bundled axes: name an axis with several values in "
            "[matrix] bundle",
        )
    if "events" in bundle and len(matrix["events"]) > 1:
        yield DocumentProblem(
            ("matrix", "bundle", bundle.index("events")),
            "'events' cannot be compared in paired mode: both sides read the same entries",
        )


def _check_rule(
    rule: Mapping[str, Scalar], matrix: Mapping[str, Sequence[Scalar]], path: KeyPath
) -> Iterator[DocumentProblem]:
    """Check that an exclude or include rule names axes and possible values of them."""
    if not rule:
        yield DocumentProblem(path, "is empty (expected at least one axis and its value)")
    for name, typed in rule.items():
        key_path = (*path, name)
        if name not in matrix:
            yield DocumentProblem(
                key_path, f"is not an axis of this test{suggest_nearest(name, matrix)}"
            )
            continue
        try:
            value = find_axis(name).normalize(typed)
        except ValueError as error:
            yield DocumentProblem(key_path, find_axis(name).describe_problem(error))
            continue
        is_listed = path[0] in ("exclude", "expect") or name == "door"
        if is_listed and value not in matrix[name]:
            values = ", ".join(map(repr, matrix[name]))
            yield DocumentProblem(
                key_path, f"{value!r} is not a value of that axis (expected one of: {values})"
            )
        elif not have_same_kind((*matrix[name], value)) and name not in AXES_BY_NAME:
            yield DocumentProblem(key_path, f"{value!r} has another type than the axis' values")


def check_variants(definition: TestDefinition) -> Iterator[DocumentProblem]:
    """Check the number of variants, and that warm ones have a pass to count."""
    doors = definition.axes.get("door", ("any",))
    size = math.prod(len(values) for values in definition.axes.values())
    if size * (1 + len(definition.include)) > MAX_VARIANTS:
        yield DocumentProblem(
            ("matrix",), f"has {size} combinations (expected at most {MAX_VARIANTS})"
        )
        return
    variants = [variant for door in doors for variant in expand_variants(definition, str(door))]
    if size and not variants:
        yield DocumentProblem(("exclude",), "excludes all variants")
    yield from _check_passes(definition, variants)


def _check_passes(
    definition: TestDefinition, variants: Sequence[Variant]
) -> Iterator[DocumentProblem]:
    """Check that warm variants have a pass to count; executables and load tests need none."""
    is_exempt = definition.payload_kind == "executable" or definition.load
    # Without a dataset there is nothing that the first pass would warm up.
    if is_exempt or not definition.dataset or definition.test.passes >= 2:
        return
    # Where a cache is to have a state, each execution reads once.
    if SERVER_CACHE_AXIS not in definition.axes and any(
        variant["cache"] == "warm" for variant in variants
    ):
        yield DocumentProblem(
            ("test", "passes"),
            f"{definition.test.passes} leaves nothing to count: the first pass of a warm execution is "
            'not counted (expected at least 2, or cache = ["cold"])',
        )


def _check_optional_axes(definition: TestDefinition) -> Iterator[DocumentProblem]:
    """Check the values of known axes that a test need not have; a load test has no threads."""
    if THREADS_AXIS in definition.axes and definition.load:
        yield DocumentProblem(
            ("matrix", THREADS_AXIS), "a load test's clients share one thread; remove the axis"
        )
    for name, axis in OPTIONAL_AXES.items():
        for index, value in enumerate(definition.axes.get(name, ())):
            try:
                axis.normalize(value)
            except ValueError as error:
                yield DocumentProblem(("matrix", name, index), axis.describe_problem(error))


def _check_distance(definition: TestDefinition) -> Iterator[DocumentProblem]:
    """Check that distances are not compared at once, and that all of a load is at a distance."""
    for name in (LATENCY_AXIS, BANDWIDTH_AXIS):
        values = definition.axes.get(name, ())
        path: KeyPath = ("matrix", name)
        if name in definition.matrix.bundle and len(values) > 1 and definition.test.mode == PAIRED:
            yield DocumentProblem(
                path,
                "'paired' executions run at once, over one link: several distances need mode = 'solo', or "
                "jobs of their own (not in bundle)",
            )
        if values and definition.load and definition.load.writes:
            yield DocumentProblem(path, "writes of a load test have no distance; remove the axis")


def _check_datasets(definition: TestDefinition) -> Iterator[DocumentProblem]:
    """Check that [test] and [matrix] do not name different datasets.

    Each twin must belong to a value of the axis ``format`` and to a dataset.
    """
    datasets = definition.axes.get(DATASET_AXIS, ())
    if datasets and definition.test.dataset not in ("", datasets[0]):
        yield DocumentProblem(
            ("test", "dataset"),
            "is named in [matrix] as well (expected either one dataset here or several there)",
        )
    formats = definition.axes.get(FORMAT_AXIS, ())
    for name, twin in definition.twins.items():
        path: KeyPath = ("twins", name)
        if name not in formats:
            formats_text = ", ".join(map(repr, formats)) or "the test has no such axis"
            yield DocumentProblem(
                path, f"is not a value of the axis 'format' (expected one of: {formats_text})"
            )
        elif not definition.dataset:
            yield DocumentProblem(
                path, "needs a dataset to be the twin of: [test] dataset is empty"
            )
        elif len(datasets) > 1:
            yield DocumentProblem(
                path, "has the content of one dataset, but [matrix] names several"
            )
        elif not re.fullmatch(NAME_PATTERN, twin):
            yield DocumentProblem(path, f"{twin!r} is not a dataset name")


def _check_metrics(definition: TestDefinition) -> Iterator[DocumentProblem]:
    """Check the number and names of a test's own metrics, which the catalogue must not use."""
    names = tuple(definition.metrics)
    if len(names) > MAX_EXTRAS:
        yield DocumentProblem(("metrics",), f"{len(names)} metrics (expected at most {MAX_EXTRAS})")
    for name in names:
        if name in METRICS_BY_NAME:
            yield DocumentProblem(
                ("metrics", name), "is a name of the catalogue (expected another name)"
            )
        elif not re.fullmatch(AXIS_NAME_PATTERN, name):
            yield DocumentProblem(
                ("metrics", name),
                "is not a metric name (expected up to 30 of a-z, 0-9 and _, a letter first)",
            )


def _check_headline(definition: TestDefinition) -> Iterator[DocumentProblem]:
    """Check that the headline metrics exist, have a direction and are named once."""
    names = definition.test.headline
    for index, name in enumerate(names):
        path: KeyPath = ("test", "headline", index)
        yield from _check_metric(name, find_headline_metric, definition, path)
        if name in names[:index]:
            yield DocumentProblem(path, f"{name!r} is given twice")


def _check_metric(
    name: str, find: Callable[..., HeadlineMetric], definition: TestDefinition, path: KeyPath
) -> Iterator[DocumentProblem]:
    """Check that a function finds a metric of the catalogue, of the test or of its operations."""
    declared, is_load = definition.metrics, definition.load is not None
    try:
        find(name, declared, is_load=is_load)
    except KeyError:
        near = suggest_nearest(name, list_metric_names(find, declared, is_load=is_load))
        yield DocumentProblem(path, f"{name!r} is not a metric{near}")
    except ValueError as error:
        yield DocumentProblem(path, f"{name!r} {error}")


def _check_load(definition: TestDefinition) -> Iterator[DocumentProblem]:
    """Check that a load test starts together if it has a ramp, and ends before its wall limit."""
    load, test = definition.load, definition.test
    if load is None:
        return
    if load.duration_s > test.wall_limit_s:
        yield DocumentProblem(
            ("load", "duration_s"),
            f"is longer than wall_limit_s = {test.wall_limit_s:g} of [test]",
        )
    if not load.ramp:
        return
    path: KeyPath = ("load", "ramp")
    if not load.together:
        yield DocumentProblem(path, "needs a common start: together = true")
    try:
        ramp = JobRamp.parse(load.ramp, "")
    except ConfigError:
        yield DocumentProblem(
            path,
            f"{load.ramp!r} is not a ramp (expected like 10/5m: ten more jobs every 5 minutes)",
        )
        return
    if ramp.every_s % load.step_s:
        yield DocumentProblem(
            path, f"levels of {ramp.every_s} s are not a multiple of step_s = {load.step_s:g}"
        )


def _check_before(definition: TestDefinition) -> Iterator[DocumentProblem]:
    """Check that a command applies bundled axes of the test's own."""
    before = definition.before
    if before is None:
        return
    predefined = {*AXES_BY_NAME, *OPTIONAL_AXES}
    # A server's threads need another name than those of the payload.
    own_axes = [name for name in definition.axes if name not in predefined]
    for index, name in enumerate(before.settings):
        path: KeyPath = ("before", "settings", index)
        if name not in own_axes:
            yield DocumentProblem(
                path,
                f"{name!r} is not an axis of this test's own{suggest_nearest(name, own_axes)}",
            )
        elif name not in definition.matrix.bundle:
            yield DocumentProblem(
                path,
                f"{name!r} is not bundled: add it to bundle in [matrix], so that a job compares all "
                "values, one after the other",
            )


#: Characters of all settings, or of all variables, which every job and plan repeats.
MAX_TABLE_CHARACTERS = 100_000


def _check_sizes(definition: TestDefinition) -> Iterator[DocumentProblem]:
    """Check that tables of any content are small enough for jobs, plans and processes, and are JSON."""
    yield from _check_setting(definition.settings, ("settings",))
    for table in ("settings", "environment"):
        size = len(json.dumps(getattr(definition, table), default=str))
        if size > MAX_TABLE_CHARACTERS:
            yield DocumentProblem(
                (table,),
                f"has {size:,} characters (expected at most {MAX_TABLE_CHARACTERS:,}; put more into a "
                "file of the test)",
            )


def _check_setting(value: Any, path: KeyPath) -> Iterator[DocumentProblem]:
    """Check that a setting can be passed to the payload as JSON."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _check_setting(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _check_setting(item, (*path, index))
    elif isinstance(value, float) and not math.isfinite(value):
        yield DocumentProblem(path, f"{value!r} is not valid JSON (expected a finite number)")
    elif not isinstance(value, str | int | float):
        yield DocumentProblem(path, "a date or time is not valid JSON (expected text in quotes)")


def _check_build(definition: TestDefinition) -> Iterator[DocumentProblem]:
    """Check that outputs are names in the folder of the build, and preloaded ones among them."""
    build = definition.build
    if build is None:
        return
    for index, name in enumerate(build.outputs):
        if not re.fullmatch(r"[A-Za-z0-9_+][A-Za-z0-9._+-]*", name):
            yield DocumentProblem(
                ("build", "outputs", index), f"{name!r} is not the name of a file, without a folder"
            )
    for index, name in enumerate(build.preload):
        if name not in build.outputs:
            yield DocumentProblem(
                ("build", "preload", index),
                f"{name!r} is not built: add it to outputs{suggest_nearest(name, build.outputs)}",
            )


def _check_environment(definition: TestDefinition) -> Iterator[DocumentProblem]:
    """Check the names of environment variables, and the axes that their values name.

    ``{build}`` is the folder of a test that builds its libraries.
    """
    axes = definition.axes
    names = axes.keys() - {DOOR_AXIS} | ({"build"} if definition.build else set())
    for name, value in definition.environment.items():
        path: KeyPath = ("environment", name)
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            yield DocumentProblem(path, "is not the name of an environment variable")
        elif name.startswith(("TREEHAMMER_", "LD_", "PYTHON")) or name == "PATH":
            yield DocumentProblem(path, "is set by the worker or by the root axis")
        if not value.isprintable():
            yield DocumentProblem(path, "holds a line break or another control character")
        for axis in re.findall(r"\{([^{}]*)\}", value):
            if axis not in names:
                yield DocumentProblem(
                    path, f"{axis!r} is not an axis of this test{suggest_nearest(axis, axes)}"
                )


def _check_limits(definition: TestDefinition) -> Iterator[DocumentProblem]:
    """Check that limits are of metrics that exist, and that their bounds leave something."""
    for index, limit in enumerate(definition.expect):
        path: KeyPath = ("expect", index)
        yield from _check_metric(limit.metric, find_numeric_metric, definition, (*path, "metric"))
        if limit.where:
            yield from _check_rule(limit.where, definition.axes, (*path, "where"))
        # The bounds of each site complete those of the limit.
        tables: list[tuple[KeyPath, ExpectTable | SiteLimitTable]] = [
            ((*path, "sites", site), table) for site, table in limit.sites.items()
        ]
        for table_path, table in tables or [(path, limit)]:
            if table.at_most is None and table.at_least is None:
                yield DocumentProblem(table_path, "has no bound: add at_most or at_least")
        for table_path, table in [(path, limit), *tables]:
            yield from _check_table_bounds(limit, table, table_path)


def _check_table_bounds(
    limit: ExpectTable, table: ExpectTable | SiteLimitTable, path: KeyPath
) -> Iterator[DocumentProblem]:
    """Check the bounds of one table; the limit itself has the bounds that the table lacks."""
    at_most = limit.at_most if table.at_most is None else table.at_most
    at_least = limit.at_least if table.at_least is None else table.at_least
    if at_most is not None and at_least is not None and at_least > at_most:
        yield DocumentProblem(path, f"at_least = {at_least:g} is above at_most = {at_most:g}")
    for kind in BOUNDS if limit.base else ():
        bound = getattr(table, kind)
        if bound is not None and bound <= 0:
            yield DocumentProblem(
                (*path, kind), f"{bound:g} is no multiple of a base (expected more than 0)"
            )


def check_bases(definition: TestDefinition) -> Iterator[DocumentProblem]:
    """Check that the bases of limits are values of their axes."""
    for index, limit in enumerate(definition.expect):
        axis, value = limit.resolve_base(definition.axes, definition.matrix.bundle)
        included = (rule[axis] for rule in definition.include if axis in rule)
        values = [*definition.axes.get(axis, ()), *included]
        if axis and value not in values:
            texts = [str(candidate) for candidate in values]
            suggestion = suggest_nearest(str(value), texts)
            yield DocumentProblem(
                ("expect", index, "base"),
                f"{str(value)!r} is not a value of {axis} (expected one of: {', '.join(texts)}){suggestion}",
            )
        elif axis and limit.where.get(axis) == value:
            yield DocumentProblem(
                ("expect", index, "where", axis),
                f"{str(value)!r} is the base itself (expected another value, or none)",
            )


def _check_command(definition: TestDefinition) -> Iterator[DocumentProblem]:
    """Check that a test of any command has one."""
    command = definition.settings.get("command", definition.settings.get("commands"))
    if definition.test.payload == ANY_COMMAND and not isinstance(command, str | dict):
        yield DocumentProblem(
            ("settings",),
            "payload = 'any' measures a command (add [settings] command = 'python analysis.py')",
        )


def _check_extensions(definition: TestDefinition) -> Iterator[DocumentProblem]:
    """Check the names of libraries and modules, which payloads on the kit load."""
    test = definition.test
    for key in ("load", "imports"):
        if getattr(test, key) and (definition.load or definition.payload_kind == "executable"):
            yield DocumentProblem(
                ("test", key), "needs a payload in Python or C++ that reads a tree with the kit"
            )
    for index, name in enumerate(test.load):
        if not re.search(r"\.so(\.\d+)*$", name):
            yield DocumentProblem(
                ("test", "load", index),
                f"{name!r} is not a shared library (expected a name in .so)",
            )
    for index, name in enumerate(test.imports):
        if not all(part.isidentifier() for part in name.split(".")):
            yield DocumentProblem(
                ("test", "imports", index), f"{name!r} is not the name of a module"
            )


_CHECKS = (
    _check_axes,
    _check_bundle,
    _check_mode,
    _check_optional_axes,
    _check_distance,
    _check_datasets,
    _check_metrics,
    _check_headline,
    _check_limits,
    _check_sizes,
    _check_environment,
    _check_command,
    _check_extensions,
    _check_load,
    _check_before,
    _check_build,
)


def check_across_keys(definition: TestDefinition) -> Iterator[DocumentProblem]:
    """Check that the keys of a definition fit together."""
    for check in _CHECKS:
        yield from check(definition)
    for kind in ("exclude", "include"):
        for number, rule in enumerate(getattr(definition, kind)):
            yield from _check_rule(rule, definition.axes, (kind, number))
