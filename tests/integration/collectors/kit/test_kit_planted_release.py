"""A release of ROOT that nobody has seen: installed and measured, or refused with one class."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cached_software import prepare_cached
from planted_release import LOST_VARIABLE, RELEASE, install_from, write_planted_wheels

from treehammer.collectors.software import providers

KIT = Path(providers.__file__).parents[1] / "kit"
Run = Callable[..., Any]


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> providers.SoftwareSetup:
    """The planted release, set up from the package index by its number alone."""
    folder = tmp_path_factory.mktemp("planted")
    write_planted_wheels(folder, Path(prepare_cached("6.40.00").location))

    with pytest.MonkeyPatch.context() as patch:
        install_from(folder, patch)
        request = providers.prepare_software(
            providers.parse_software_request(RELEASE), folder / "software"
        )
    assert providers.list_prepared_wheels(folder / "software") == [RELEASE]
    return providers.setup_software(request, os.environ, KIT)


def test_planted_release_is_measured(
    planted: providers.SoftwareSetup,
    latest_release: providers.SoftwareSetup,
    tree_file: Path,
    run_payload: Run,
) -> None:
    """By cling, as it has no root-config, and with the same values and reads."""
    done = run_payload(planted, tree_file, fresh=True)
    assert (done.failure, done.code) == (None, 0), done.log
    assert done.values["root_version"] == RELEASE
    usual = run_payload(latest_release, tree_file)
    for name in ("events_read", "bytes_read", "read_calls", "loop_unzipped_bytes"):
        assert done.values[name] == usual.values[name]


@pytest.mark.parametrize("lost", ["gInterpreter.Declare", "gSystem.Load"])
def test_release_without_a_needed_name_is_not_supported(
    planted: providers.SoftwareSetup, tree_file: Path, run_payload: Run, lost: str
) -> None:
    done = run_payload(planted, tree_file, fresh=True, variables={LOST_VARIABLE: lost})
    assert (done.failure["failure_class"], done.failure["kind"]) == (
        "software-setup",
        "not-supported",
    )
    assert done.failure["message"].endswith(f"is not supported: it has no {lost}")
