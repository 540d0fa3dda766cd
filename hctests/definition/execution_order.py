"""Variants of a test, and the order of a job's executions.

Solo mode runs balanced rounds, paired mode launches.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

from treehammer.collectors.job_spec import BASE_SIDE, CONTROL, OTHER_SIDE, PAIRED, SOLO, TIMED
from treehammer.hctests.definition.model import Scalar, Variant, VariantGroup
from treehammer.hctests.definition.toml_models import TestDefinition

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
                pair for pair in variant.values if pair[0] not in definition.matrix.bundle
            )
            member = replace(variant, door=door) if definition.bundles_doors else variant
            gathered.setdefault(shared_values, []).append(member)
    return tuple(VariantGroup(tuple(members)) for members in gathered.values())


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


@dataclass(frozen=True)
class OrderedExecution:
    """One execution of a job: round and position count from 1."""

    round: int
    position: int
    variant: Variant
    kind: str = TIMED
    mode: str = SOLO
    side: str = ""


class _PlannedLaunch(NamedTuple):
    kind: str
    sides: Sequence[tuple[str, Variant]]


@dataclass(frozen=True)
class LaunchDesign:
    """Launches of a job in paired mode for each variant beside the base, and their A/A launches.

    The side that begins alternates over the launches of all jobs, since it is slower by 0.15 %.  So
    ``timed_before`` and ``controls_before`` count the launches in earlier jobs, and ``seed``, which is
    common to these jobs, selects the side that begins the first one.
    """

    timed: int
    controls: int
    timed_before: int
    controls_before: int
    seed: int

    @classmethod
    def of_repeat(cls, rounds: int, repeat: int, seed: int) -> LaunchDesign:
        """Design the job of a repeat, counted from 1: some launches and one A/A launch."""
        return cls(rounds, 1, (repeat - 1) * rounds, repeat - 1, seed)


def order_job(
    definition: TestDefinition,
    group: VariantGroup,
    seed: int,
    design: LaunchDesign | None = None,
) -> tuple[OrderedExecution, ...]:
    """Order the executions of one job.

    In paired mode the group's first variant is the base.  Each other variant is compared with it in
    some launches, begun by either side in turn, and has A/A launches of the base as controls.  The
    launches have a random order.

    Args:
        definition: the test.
        group: variants of the job.
        seed: of the job.
        design: launches in paired mode; by default those of the first repeat.
    """
    if definition.test.mode != PAIRED or len(group.variants) < 2:
        rounds = order_executions(group, definition.test.rounds, seed)
        return tuple(OrderedExecution(*execution) for execution in rounds)
    design = design or LaunchDesign.of_repeat(definition.test.rounds, 1, seed)
    launches = shuffle_items(tuple(_plan_launches(design, group)), seed, "launches")
    return tuple(
        OrderedExecution(round_, position, variant, launch.kind, PAIRED, side)
        for round_, launch in enumerate(launches, 1)
        for position, (side, variant) in enumerate(launch.sides, 1)
    )


def _plan_launches(design: LaunchDesign, group: VariantGroup) -> Iterator[_PlannedLaunch]:
    base = group.variants[0]
    for number, other in enumerate(group.variants[1:]):
        for kind, purpose, second, before, count in (
            (TIMED, "starts", other, design.timed_before, design.timed),
            (CONTROL, "control", base, design.controls_before, design.controls),
        ):
            sides = [(BASE_SIDE, base), (OTHER_SIDE, second)]
            orders = shuffle_items((sides, sides[::-1]), design.seed, f"{purpose} {number}")
            for launch in range(before, before + count):
                yield _PlannedLaunch(kind, orders[launch % 2])
