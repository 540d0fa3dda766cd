"""Specs of one kind."""

from __future__ import annotations

from pathlib import Path

from treehammer.datasets import spec
from treehammer.datasets.merged import MergedSpec


def generated(path: Path) -> spec.DatasetSpec:
    """The spec of random values in a file."""
    plan = spec.load(path)
    assert isinstance(plan, spec.DatasetSpec)
    return plan


def merged(path: Path) -> MergedSpec:
    """The spec of real events in a file."""
    plan = spec.load(path)
    assert isinstance(plan, MergedSpec)
    return plan
