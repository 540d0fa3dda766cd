"""Checks that go across the keys of a definition: axes, rules, bundles, metrics, settings, files."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path as FilePath
from pathlib import PurePosixPath
from typing import Any

from treehammer.collectors.metrics import BY_NAME
from treehammer.hctests import axes, matrix
from treehammer.hctests.definition import FORMAT_AXIS, Scalar, TestDefinition
from treehammer.hctests.document import TEST_KEYS
from treehammer.hctests.mistakes import NAME, Problem, nearest
from treehammer.hctests.positions import Path

#: More variants than this are a slip, not a plan.
MAX_VARIANTS = 10_000

LFS_POINTER = b"version https://git-lfs.github.com/spec/"


def of_axes(found: Mapping[str, Sequence[Scalar]]) -> Iterator[Problem]:
    """Names, empty lists, duplicates and mixed types of the axes in [matrix]."""
    for name, values in found.items():
        path: Path = ("matrix", name)
        yield from _axis_name(name, path)
        if not values:
            yield Problem(path, "has no value (expected at least one)")
        if not axes.same_kind(values) and name not in axes.KNOWN:
            yield Problem(path, "mixes text, numbers or true and false (expected one kind)")
        for index, value in enumerate(values):
            if value in values[:index]:
                yield Problem((*path, index), f"{value!r} is given twice")


def _axis_name(name: str, path: Path) -> Iterator[Problem]:
    if name in axes.KNOWN:
        return
    near = nearest(name, (*axes.KNOWN, "bundle", "exclude", "include"), cutoff=0.8)
    if name in TEST_KEYS:
        yield Problem(path, "is a key of [test], not an axis")
    elif near:
        yield Problem(path, f"is no known axis, yet too near to one to be your own{near}")
    elif not re.fullmatch(axes.AXIS_NAME, name):
        yield Problem(
            path, "is no name for an axis (expected up to 30 of a-z, 0-9 and _, a letter first)"
        )


def of_bundle(bundle: Sequence[str], known: Sequence[str]) -> Iterator[Problem]:
    """``bundle`` names axes, each once, that may run interleaved."""
    for index, name in enumerate(bundle):
        path: Path = ("matrix", "bundle", index)
        if name in axes.UNBUNDLED:
            yield Problem(path, f"{name!r} cannot be bundled: {axes.UNBUNDLED[name]}")
        elif name not in known:
            yield Problem(path, f"{name!r} is no axis of this test{nearest(name, known)}")
        elif name in bundle[:index]:
            yield Problem(path, f"{name!r} is given twice")


def of_rule(
    rule: Mapping[str, Scalar], known: Mapping[str, Sequence[Scalar]], path: Path
) -> Iterator[Problem]:
    """An exclude or include rule names axes, and values that they can have."""
    if not rule:
        yield Problem(path, "is empty (expected at least one axis and its value)")
    for name, given in rule.items():
        here = (*path, name)
        if name not in known:
            yield Problem(here, f"is no axis of this test{nearest(name, known)}")
            continue
        try:
            value = axes.of(name).read(given)
        except ValueError as error:
            yield Problem(here, f"{error} (expected {axes.of(name).expected})")
            continue
        listed = path[0] == "exclude" or name == "door"
        if listed and value not in known[name]:
            values = ", ".join(repr(one) for one in known[name])
            yield Problem(here, f"{value!r} is no value of that axis (expected one of: {values})")
        elif not axes.same_kind((*known[name], value)) and name not in axes.KNOWN:
            yield Problem(here, f"{value!r} is of another kind than the axis' values")


def of_variants(definition: TestDefinition) -> Iterator[Problem]:
    """There is at least one variant, there are not too many, and warm ones have a pass to count.

    What an executable does with its passes, and which of them it counts, is its own affair.
    """
    doors = definition.axes.get("door", ("any",))
    size = math.prod(len(values) for values in definition.axes.values())
    if size * (1 + len(definition.include)) > MAX_VARIANTS:
        yield Problem(("matrix",), f"has {size} combinations (expected at most {MAX_VARIANTS})")
        return
    found = [variant for door in doors for variant in matrix.variants(definition, str(door))]
    if size and not found:
        yield Problem(("exclude",), "leaves no variant at all")
    counted = definition.payload_kind != "executable"
    if counted and definition.passes < 2 and any(one["cache"] == "warm" for one in found):
        yield Problem(
            ("test", "passes"),
            f"{definition.passes} leaves nothing to count: the first pass of a warm execution is "
            'not counted (expected at least 2, or cache = ["cold"])',
        )


def of_formats(found: Mapping[str, Sequence[Scalar]]) -> Iterator[Problem]:
    """The axis ``format`` has values that the kit knows."""
    for index, value in enumerate(found.get(FORMAT_AXIS, ())):
        try:
            axes.FORMAT.read(value)
        except ValueError as error:
            yield Problem(
                ("matrix", FORMAT_AXIS, index), f"{error} (expected {axes.FORMAT.expected})"
            )


def of_twins(
    twins: Mapping[str, str], dataset: str, found: Mapping[str, Sequence[Scalar]]
) -> Iterator[Problem]:
    """Each twin belongs to a value of the axis ``format`` and has something to be the twin of."""
    formats = found.get(FORMAT_AXIS, ())
    for name, twin in twins.items():
        path: Path = ("twins", name)
        if name not in formats:
            listed = ", ".join(repr(value) for value in formats) or "that axis is not there"
            yield Problem(path, f"is no value of the axis 'format' (expected one of: {listed})")
        elif not dataset:
            yield Problem(path, "is a twin of nothing: [test] dataset is empty")
        elif not re.fullmatch(NAME, twin):
            yield Problem(path, f"{twin!r} is no name of a dataset")


def of_metrics(names: Sequence[str]) -> Iterator[Problem]:
    """A test's own metrics have proper names that the catalogue does not use."""
    for name in names:
        if name in BY_NAME:
            yield Problem(("metrics", name), "is a name of the catalogue (expected another name)")
        elif not re.fullmatch(axes.AXIS_NAME, name):
            yield Problem(
                ("metrics", name),
                "is no name for a metric (expected up to 30 of a-z, 0-9 and _, a letter first)",
            )


def of_settings(value: Any, path: Path = ("settings",)) -> Iterator[Problem]:
    """What is handed to the payload must survive as JSON."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from of_settings(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from of_settings(item, (*path, index))
    elif isinstance(value, float) and not math.isfinite(value):
        yield Problem(path, f"{value!r} cannot be handed on (expected a finite number)")
    elif not isinstance(value, str | int | float):
        yield Problem(path, "a date or time cannot be handed on (expected text in quotes)")


def of_file(folder: FilePath, name: str, path: Path) -> Iterator[Problem]:
    """A file that the test names lies in the test's folder, or is a link to one of a test beside."""
    pure = PurePosixPath(name)
    inside = f"(expected a file in {folder.name}/)"
    if pure.is_absolute() or ".." in pure.parts or "\\" in name or not name.isprintable():
        yield Problem(path, f"{name!r} is not a path below the test's folder {inside}")
        return
    target = folder / pure
    if not _belongs(target.resolve(), folder.resolve()):
        yield Problem(
            path, f"{name!r} is a link to neither this test's folder nor one beside it {inside}"
        )
    elif target.is_dir():
        yield Problem(path, f"{name!r} is a folder (expected its files, one by one)")
    elif not target.is_file():
        there = sorted(item.name for item in folder.iterdir()) if folder.is_dir() else []
        yield Problem(path, f"there is no file {name!r} {inside}{nearest(name, there)}")
    elif not os.access(target, os.R_OK):
        yield Problem(path, f"{name!r} cannot be read")
    else:
        with target.open("rb") as stream:
            pointer = stream.read(len(LFS_POINTER)) == LFS_POINTER
        if pointer:
            yield Problem(
                path,
                f"{name!r} is a Git LFS pointer, not the file itself (expected the file; in a "
                "working tree 'git lfs pull' fetches it, from a commit it cannot be had)",
            )


def _belongs(target: FilePath, folder: FilePath) -> bool:
    """Whether a file is one of this test or, where a link leads there, one of a test beside it."""
    if target.is_relative_to(folder):
        return True
    if not target.is_relative_to(folder.parent):
        return False
    neighbour = target.relative_to(folder.parent).parts[0]
    return (folder.parent / neighbour / "test.toml").is_file()


def of_executable(folder: FilePath, payload: str) -> Iterator[Problem]:
    """A payload that is neither Python nor a macro can be started."""
    target = folder / payload
    if target.is_file() and not os.access(target, os.X_OK):
        yield Problem(
            ("test", "payload"),
            f"{payload!r} is neither .py nor .C and cannot be executed (run 'chmod +x {payload}', "
            "or 'git update-index --chmod=+x' for a committed file)",
        )
