"""Order of a job's executions: balanced rounds in solo mode, launches in paired mode."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from treehammer.collectors.job_spec import (
    BASE_SIDE,
    CONTROL,
    OTHER_SIDE,
    PAIRED,
    SOLO,
    TIMED,
)
from treehammer.hctests.matrix.definition import TestDefinition, Variant, VariantGroup
from treehammer.hctests.matrix.variant_expansion import order_executions, shuffle_items


@dataclass(frozen=True)
class OrderedExecution:
    """One execution of a job: round and position count from 1."""

    round: int
    position: int
    variant: Variant
    kind: str = TIMED
    mode: str = SOLO
    side: str = ""


@dataclass(frozen=True)
class _PlannedLaunch:
    kind: str
    base: Variant
    other: Variant
    base_first: bool


@dataclass(frozen=True)
class LaunchCounts:
    """Launches of a job in paired mode for each variant beside the base, and their A/A launches."""

    timed: int
    controls: int = 1


def order_job(
    definition: TestDefinition,
    group: VariantGroup,
    seed: int,
    launch_counts: LaunchCounts | None = None,
) -> tuple[OrderedExecution, ...]:
    """Order the executions of one job.

    In paired mode the group's first variant is the base.  Each other variant is compared with it in
    some launches, begun by either side in turn, and has A/A launches of the base as controls.  The
    launches have a random order.

    Args:
        definition: the test.
        group: variants of the job.
        seed: of the job.
        launch_counts: in paired mode; by default ``rounds`` launches and one A/A launch.
    """
    if definition.mode != PAIRED or len(group.variants) < 2:
        rounds = order_executions(group, definition.rounds, seed)
        return tuple(OrderedExecution(*place) for place in rounds)
    counts = launch_counts or LaunchCounts(definition.rounds)
    launches = shuffle_items(tuple(_plan_launches(counts, group, seed)), seed, "launches")
    return tuple(
        execution
        for round_, launch in enumerate(launches, 1)
        for execution in _order_launch(round_, launch)
    )


def _plan_launches(
    counts: LaunchCounts, group: VariantGroup, seed: int
) -> Iterator[_PlannedLaunch]:
    base = group.variants[0]
    for number, other in enumerate(group.variants[1:]):
        starts = shuffle_items((True, False), seed, f"starts {number}")
        for round_ in range(counts.timed):
            yield _PlannedLaunch(TIMED, base, other, starts[round_ % 2])
        starts = shuffle_items((True, False), seed, f"control {number}")
        for round_ in range(counts.controls):
            yield _PlannedLaunch(CONTROL, base, base, starts[round_ % 2])


def _order_launch(round_: int, launch: _PlannedLaunch) -> Iterator[OrderedExecution]:
    sides = [(BASE_SIDE, launch.base), (OTHER_SIDE, launch.other)]
    ordered = sides if launch.base_first else sides[::-1]
    for position, (side, variant) in enumerate(ordered, 1):
        yield OrderedExecution(round_, position, variant, launch.kind, PAIRED, side)
