"""Pinned tests, and the content hash that identifies a test independent of its name.

:mod:`treehammer.hctests.pinned_tests` loads a :class:`PinnedTest` from a Git repository.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from treehammer.collectors.job_spec import SOLO
from treehammer.hctests.definition.model import ANY_COMMAND, TEST_FILE_NAME, hash_document
from treehammer.hctests.definition.toml_models import TestDefinition


@dataclass(frozen=True)
class PinnedTest:
    """A test pinned to a commit, or to a working tree, marked ``dirty`` if modified.

    Attributes:
        repository: URL or absolute path, without credentials.
        ref: the ref after ``@`` as typed ('' for a bare path).
        commit: full hash, '' outside Git.
        path: path of the test inside the repository.
        folder: local, read-only copy (or the working tree itself) with the test's files.
        hashes: relative name -> sha256 of each of the test's files.
        commits: value of the axis ``commit`` -> the test there; empty without this axis.
    """

    definition: TestDefinition
    repository: str
    ref: str
    commit: str
    dirty: bool
    path: str
    folder: Path
    hashes: Mapping[str, str] = field(default_factory=dict)
    commits: Mapping[str, PinnedTest] = field(default_factory=dict)


def compute_test_hash(pinned: PinnedTest) -> str:
    """Hash the parts of a test that determine a single measurement (SHA-256, hex).

    These are the content of every file except test.toml, and from test.toml payload, tree, seed,
    settings, environment, recording, the shape of its load and the units of its own metrics.  Matrix,
    numbers of repeats, rounds and passes, limits, name and description may change within a series; the
    dataset enters the series by its own hash.
    """
    definition, test = pinned.definition, pinned.definition.test
    load, before, build = definition.load, definition.before, definition.build
    # A key that a test does not use is left out, so that new keys change no older series.
    optional = {
        # Executions that take turns form other series than undisturbed ones.
        "mode": test.mode if test.mode != SOLO else "",
        # Waits and ceilings of a load determine no measurement.
        "load": load
        and load.model_dump(include={"together", "ramp", "step_s", "duration_s", "writes"}),
        "before": before and {"command": before.command, "settings": sorted(before.settings)},
        "record": test.record,
        "environment": definition.environment,
        "libraries": test.load,
        "imports": test.imports,
        "build": build and build.model_dump(include={"command", "outputs", "preload"}),
    }
    return hash_document(
        {
            "files": {name: sha for name, sha in pinned.hashes.items() if name != TEST_FILE_NAME},
            "payload": test.payload,
            "tree": test.tree,
            "seed": test.seed,
            "settings": definition.settings,
            "metrics": {name: metric.unit for name, metric in definition.metrics.items()},
            **{name: value for name, value in optional.items() if value},
        }
    )


def get_payload_hash(pinned: PinnedTest) -> str:
    """Return the SHA-256 (hex) of the payload file alone, or of the settings of any command."""
    if pinned.definition.test.payload == ANY_COMMAND:
        return hash_document(pinned.definition.settings)
    return pinned.hashes[pinned.definition.test.payload]
