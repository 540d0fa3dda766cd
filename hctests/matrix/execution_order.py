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
    if definition.mode != PAIRED or len(group.variants) < 2:
        rounds = order_executions(group, definition.rounds, seed)
        return tuple(OrderedExecution(*execution) for execution in rounds)
    design = design or LaunchDesign.of_repeat(definition.rounds, 1, seed)
    launches = shuffle_items(tuple(_plan_launches(design, group)), seed, "launches")
    return tuple(
        execution
        for round_, launch in enumerate(launches, 1)
        for execution in _order_launch(round_, launch)
    )


def _plan_launches(design: LaunchDesign, group: VariantGroup) -> Iterator[_PlannedLaunch]:
    base = group.variants[0]
    for number, other in enumerate(group.variants[1:]):
        starts = shuffle_items((True, False), design.seed, f"starts {number}")
        for launch in range(design.timed_before, design.timed_before + design.timed):
            yield _PlannedLaunch(TIMED, base, other, starts[launch % 2])
        starts = shuffle_items((True, False), design.seed, f"control {number}")
        for launch in range(design.controls_before, design.controls_before + design.controls):
            yield _PlannedLaunch(CONTROL, base, base, starts[launch % 2])


def _order_launch(round_: int, launch: _PlannedLaunch) -> Iterator[OrderedExecution]:
    sides = [(BASE_SIDE, launch.base), (OTHER_SIDE, launch.other)]
    ordered = sides if launch.base_first else sides[::-1]
    for position, (side, variant) in enumerate(ordered, 1):
        yield OrderedExecution(round_, position, variant, launch.kind, PAIRED, side)
