"""Completion of names in the shell."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.shell_completion import ShellComplete

from treehammer.cli import cli
from treehammer.sql.core.rows import CampaignRow
from treehammer.sql.write.store import Store


def complete(*words: str, begun: str = "") -> list[str]:
    completion = ShellComplete(cli, {}, "treehammer", "_TREEHAMMER_COMPLETE")
    return [item.value for item in completion.get_completions([*words], begun)]


@pytest.fixture
def _empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    # Neither the results nor the datasets of the user.
    monkeypatch.setenv("TREEHAMMER_DATA_DIR", str(tmp_path / "none"))
    monkeypatch.setenv("TREEHAMMER_CACHE_DIR", str(tmp_path / "none"))


@pytest.mark.usefixtures("_empty_folder")
def test_campaigns_are_completed_by_identity_and_name(tmp_path: Path) -> None:
    campaign = CampaignRow("c0ffee", "nightly", 1, "", "", "", False, "ttree-read", "", "{}", 1, 1)
    with Store.open(f"sqlite:///{tmp_path / 'mine' / 'results.db'}") as store:
        store.add_campaign(campaign, [])
    flags = ("--data-dir", str(tmp_path / "mine"))
    assert complete(*flags, "status") == ["last", "c0ffee", "nightly"]
    assert complete(*flags, "compare", "1", "2", "--campaign", begun="n") == ["nightly"]
    assert complete(*flags, "export", "x.root", "--campaign", begun="c") == ["c0ffee"]


@pytest.mark.usefixtures("_empty_folder")
def test_tests_datasets_and_sites_are_completed() -> None:
    assert complete("submit", begun="open-") == ["open-rate"]
    assert complete("datasets", "show", begun="reference-s") == ["reference-small"]
    assert complete("submit", "ttree-read", "--sites", begun="lo") == ["local"]


@pytest.mark.usefixtures("_empty_folder")
def test_last_of_several_sites_is_completed() -> None:
    assert complete("submit", "ttree-read", "--sites", begun="OTHER,lo") == ["OTHER,local"]


@pytest.mark.usefixtures("_empty_folder")
def test_unusable_settings_propose_nothing(tmp_path: Path) -> None:
    assert complete("status") == []
    assert complete("--config", str(tmp_path / "none.toml"), "status") == []
