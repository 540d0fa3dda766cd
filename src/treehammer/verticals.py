"""Verticals: folders that the core asks for parts instead of importing them.

They enter by the modules whose names :func:`import_parts` is given.  This module travels to the node.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

VERTICALS = (
    "load",
    "watch",
    "reproduce",
    "prediction",
    "publish",
    "benchtools",
    "tracer",
    "codereview",
    "slurm",
    "explore",
    "cric",
    "doctor",
    "testbed",
)


def import_parts(name: str) -> list[ModuleType]:
    """Import the module or package of this name of each vertical that is there and has it."""
    modules = (f"{__package__}.{part}.{name}" for part in VERTICALS if has_vertical(part))
    return [import_module(module) for module in modules if find_spec(module)]


def has_vertical(name: str) -> bool:
    """Return whether the folder of a vertical is there."""
    return find_spec(f"{__package__}.{name}") is not None
