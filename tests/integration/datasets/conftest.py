"""Datasets written by real ROOT releases, which are downloaded to the user's cache."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tiny_dataset import TINY_SPEC, load_generated_spec
from warm_root import WarmDatasetRoots

from treehammer import config
from treehammer.collectors.job_spec import SoftwareRequest
from treehammer.config import Settings
from treehammer.datasets import root_process
from treehammer.datasets.specs import dataset_specs
from treehammer.text_formatting import no_progress


@pytest.fixture(scope="session")
def settings() -> Settings:
    """Return the user's settings, to use the cached software."""
    return config.load_settings()


@pytest.fixture(scope="session")
def software(settings: Settings) -> Callable[[str], SoftwareRequest]:
    """Return a function that prepares a ROOT release."""
    return lambda version: root_process.prepare_dataset_root(
        version, settings.software_dir, no_progress
    )


@pytest.fixture(scope="session")
def warm_dataset_roots() -> Iterator[WarmDatasetRoots]:
    """Return ROOT releases that are warm for the actions of datasets."""
    roots = WarmDatasetRoots(root_process.GENERATE_SCRIPT)
    yield roots
    roots.close()


@contextmanager
def fork_actions(roots: WarmDatasetRoots) -> Iterator[None]:
    """Fork the processes of datasets from ones that have loaded ROOT.

    A process of its own takes two seconds of CPU for each action. Only its files are byte for byte
    the same as a user's: ROOT writes the descriptions of classes in the order of their first use.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(root_process, "subprocess", roots)
        yield


@pytest.fixture(scope="module")
def warm_actions(warm_dataset_roots: WarmDatasetRoots) -> Iterator[None]:
    """Fork all processes of the module and its fixtures."""
    with fork_actions(warm_dataset_roots):
        yield


@pytest.fixture
def warm_actions_of_test(warm_dataset_roots: WarmDatasetRoots) -> Iterator[None]:
    """Fork the processes of one test."""
    with fork_actions(warm_dataset_roots):
        yield


@pytest.fixture(scope="session")
def tiny() -> dataset_specs.GeneratedSpec:
    """Return a spec with all types and shapes and three clusters, generated in about a second."""
    return load_generated_spec(TINY_SPEC)


@pytest.fixture
def shared_data() -> Path:
    """Return the folder of real files of experiments; skip the test without it."""
    folder = os.environ.get("TREEHAMMER_SHARED_DATA")
    if not folder:
        pytest.skip("TREEHAMMER_SHARED_DATA names no folder with experiments' files")
    return Path(folder)
