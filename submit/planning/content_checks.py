"""Checks of a test against the contents of its datasets, before anything is sent."""

from __future__ import annotations

from collections.abc import Iterable

from treehammer.collectors.kit.treehammer_kit.branch_selection import READABLE, select_branches
from treehammer.collectors.kit.treehammer_kit.payload_task import PayloadError
from treehammer.datasets.model.manifest import Manifest
from treehammer.errors import DefinitionError, suggest_word
from treehammer.hctests.matrix.definition import TestDefinition


def check_contents(definition: TestDefinition, manifests: Iterable[Manifest]) -> None:
    """Refuse a tree or branches that a dataset does not have, as far as its manifest lists them.

    Raises:
        DefinitionError: with the dataset and the nearest names.
    """
    for manifest in manifests:
        _check_tree(definition, manifest)
        if definition.tree in ("", manifest.tree):
            _check_branches(definition, manifest)


def _check_tree(definition: TestDefinition, manifest: Manifest) -> None:
    trees = manifest.trees
    if definition.tree and trees and definition.tree not in trees:
        raise DefinitionError(
            f"dataset {manifest.name!r} has no tree {definition.tree!r}",
            where=f"{definition.name}: tree",
            hint=f"{suggest_word(definition.tree, trees)}It has: {', '.join(trees)}.",
        )


def _check_branches(definition: TestDefinition, manifest: Manifest) -> None:
    names = manifest.branches
    for request in definition.axes.get("branches", ()):
        if not names or not isinstance(request, str) or request.startswith("@"):
            continue
        # Whether 'readable' leaves any depends on the unreadable ones alone.
        unreadable = tuple(manifest.unreadable_branches) if request == READABLE else ()
        try:
            select_branches(names, {}, request, seed=0, folder="", unreadable=unreadable)
        except PayloadError as error:
            raise DefinitionError(
                f"dataset {manifest.name!r}: {error}", where=f"{definition.name}: matrix.branches"
            ) from error
