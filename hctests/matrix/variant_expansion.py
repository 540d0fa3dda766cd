"""Expansion of axes to variants, grouping of variants into jobs, and balanced orders."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from treehammer.hctests.matrix.definition import Scalar, TestDefinition, Variant, VariantGroup

T = TypeVar("T")


def expand_variants(definition: TestDefinition, door: str) -> tuple[Variant, ...]:
    """Expand the variants for one door, in matrix order: the last axis varies fastest.

    ``exclude`` removes every variant with all values of a rule; then ``include`` adds the variants
    with all values of a rule, with all values of the axes that it does not name.
    A test that names its doors has no variant for others.
    """
    doors = definition.axes.get("door", (door,))
    axes = {name: values for name, values in definition.axes.items() if name != "door"}
    points = [
        point
        for point in _expand_points(axes, doors, door)
        if not any(rule.items() <= point.items() for rule in definition.exclude)
    ]
    for rule in definition.include:
        fixed = {name: (value,) for name, value in rule.items()}
        rule_doors = fixed.pop("door", doors)
        points += _expand_points({**axes, **fixed}, rule_doors, door)
    variants = (Variant(tuple((name, point[name]) for name in axes)) for point in points)
    return tuple(dict.fromkeys(variants))


def _expand_points(
    axes: Mapping[str, Sequence[Scalar]], doors: Iterable[Scalar], door: str
) -> list[dict[str, Scalar]]:
    if door not in doors:
        return []
    combinations = itertools.product(*axes.values())
    return [{**dict(zip(axes, values, strict=True)), "door": door} for values in combinations]


def group_variants(definition: TestDefinition, *doors: str) -> tuple[VariantGroup, ...]:
    """Group the variants for one door, or for several if the test bundles them.

    Members of a group differ only in the bundled axes.
    """
    gathered: dict[tuple[tuple[str, Scalar], ...], list[Variant]] = {}
    for door in doors:
        for variant in expand_variants(definition, door):
            shared_values = tuple(
                pair for pair in variant.values if pair[0] not in definition.bundle
            )
            member = replace(variant, door=door) if definition.bundles_doors else variant
            gathered.setdefault(shared_values, []).append(member)
    return tuple(VariantGroup(tuple(members)) for members in gathered.values())


def find_label_axes(definition: TestDefinition) -> tuple[str, ...]:
    """Find the axes that distinguish the test's variants, for :meth:`Variant.label`."""
    named = [
        (name, {*values, *(rule[name] for rule in definition.include if name in rule)})
        for name, values in definition.axes.items()
        if name != "door"
    ]
    return tuple(name for name, values in named if len(values) > 1)


def derive_job_seed(seed: int, *parts: str | int) -> int:
    """Derive a job's seed from the test's seed and parts that identify the job."""
    text = "\0".join(str(part) for part in (seed, *parts))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7])


def order_executions(
    group: VariantGroup, rounds: int, seed: int
) -> tuple[tuple[int, int, Variant], ...]:
    """Order the executions of one job as (round, position, variant), both counted from 1.

    Two variants alternate AB, BA, AB, …; more follow a Williams design, in which each variant is
    equally often at each position and behind each other one.  Every second round mirrors the one
    before, so that a steady drift of the node cancels within two rounds.  The job's seed assigns
    variants to letters and selects the first pair of rounds.

    Source: E. J. Williams, Aust. J. Sci. Res. A 2 (1949) 149.
    """
    letters = shuffle_items(group.variants, seed, "letters")
    pairs = shuffle_items(_build_mirrored_rows(len(letters)), seed, "rows")
    rows = itertools.islice(itertools.cycle(itertools.chain.from_iterable(pairs)), rounds)
    return tuple(
        (round_, position, letters[letter])
        for round_, row in enumerate(rows, 1)
        for position, letter in enumerate(row, 1)
    )


def _build_mirrored_rows(count: int) -> list[tuple[tuple[int, ...], ...]]:
    """Build the rows of a Williams design for ``count`` letters, each with its mirror image.

    The first row is 0, 1, n-1, 2, n-2, …; the others add a constant.  For an even number of letters
    the mirror images are rows of the same design, for an odd one they complete it.
    """
    if count == 1:
        return [((0,),)]
    first = [0]
    for step in range(1, count):
        first.append((step + 1) // 2 if step % 2 else count - step // 2)
    shifts = count // 2 if count % 2 == 0 else count
    rows = [tuple((letter + shift) % count for letter in first) for shift in range(shifts)]
    return [(row, row[::-1]) for row in rows]


def shuffle_items(items: Sequence[T], seed: int, purpose: str) -> list[T]:
    """Return a seeded permutation that does not depend on Python's version."""
    ranked = sorted(enumerate(items), key=lambda item: derive_job_seed(seed, purpose, item[0]))
    return [item for _, item in ranked]
