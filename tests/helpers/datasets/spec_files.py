"""Specs of one kind."""

from __future__ import annotations

from pathlib import Path

from treehammer.datasets.specs import dataset_specs
from treehammer.datasets.specs.dataset_specs import MergedSpec


def load_generated_spec(path: Path) -> dataset_specs.GeneratedSpec:
    """The spec of random values in a file."""
    plan = dataset_specs.load_spec(path)
    assert isinstance(plan, dataset_specs.GeneratedSpec)
    return plan


def load_merged_spec(path: Path) -> MergedSpec:
    """The spec of real events in a file."""
    plan = dataset_specs.load_spec(path)
    assert isinstance(plan, MergedSpec)
    return plan
