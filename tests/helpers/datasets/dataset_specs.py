"""Specs of one kind."""

from __future__ import annotations

from pathlib import Path

from treehammer.datasets.specs import generated_spec
from treehammer.datasets.specs.spec_schema import MergedSpec


def load_generated_spec(path: Path) -> generated_spec.GeneratedSpec:
    """The spec of random values in a file."""
    plan = generated_spec.load_spec(path)
    assert isinstance(plan, generated_spec.GeneratedSpec)
    return plan


def load_merged_spec(path: Path) -> MergedSpec:
    """The spec of real events in a file."""
    plan = generated_spec.load_spec(path)
    assert isinstance(plan, MergedSpec)
    return plan
