"""Commits of a test as sides of a comparison."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import git
import pytest
from click.testing import CliRunner, Result
from simulated_campaign import START_US, SimulatedCampaign

from treehammer import config
from treehammer.analysis.cli.compare_command import compare_command
from treehammer.analysis.comparison import commit_comparison
from treehammer.analysis.statistics.sample import Sample, comparison_key
from treehammer.collectors.record.measurement_record import Measurement
from treehammer.config import Settings
from treehammer.errors import ConfigError, ExitCode, NothingToDoError, SourceError
from treehammer.hctests.definition.model import compute_setup
from treehammer.sql.core.rows import CampaignRow
from treehammer.sql.read.query_model import Selection
from treehammer.sql.write.store import Store


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    flags = {"data_dir": tmp_path / "data", "cache_dir": tmp_path / "cache"}
    return config.load_settings(flags, environ={}, folder=tmp_path)


@pytest.fixture
def repository(tmp_path: Path) -> git.Repo:
    """A repository with two commits: ``v1`` and ``main``."""
    repo = git.Repo.init(tmp_path / "repository", initial_branch="main")
    author = {"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a", "GIT_COMMITTER_NAME": "a"}
    with repo.git.custom_environment(**author, GIT_COMMITTER_EMAIL="a"):
        repo.git.commit("--allow-empty", "--message", "first")
        repo.git.tag("v1")
        repo.git.commit("--allow-empty", "--message", "second")
    return repo


def measured_rows(commit: str, *, effect: float = 0.0, **changes: Any) -> Iterator[dict[str, Any]]:
    """Measurements of a test at a commit, which has a payload of its own."""
    name = str(changes.pop("name", commit))
    campaign = SimulatedCampaign(
        name=name, roots=("6.40.00",), hosts=1, job_noise=0.001, loop_s=10 * (1 + effect)
    )
    test_hash = hashlib.sha256(commit.encode()).hexdigest()
    for row in campaign.rows():
        own = {"commit_id": commit, "test_hash": test_hash, "test_path": "tests/read"}
        yield row | own | {"dirty": False} | changes


def remember(stored: Settings, rows: Iterator[dict[str, Any]], **definition: Any) -> None:
    measurements = list(rows)
    first = measurements[0]
    with Store.open(stored.database) as store:
        row = CampaignRow(
            id=first["campaign_id"],
            name=first["campaign_name"],
            created_us=START_US,
            repository=first["repository"],
            ref=first["ref"],
            commit_id=first["commit_id"],
            dirty=False,
            test_name=first["test_name"],
            test_path=first["test_path"],
            plan=json.dumps({"definition": definition}),
            planned_jobs=8,
            planned_measurements=len(measurements),
        )
        store.add_campaign(row, [])
        store.add(map(Measurement, measurements))


def compare(settings: Settings, *arguments: str) -> tuple[int, Result]:
    result = CliRunner().invoke(
        compare_command,
        (*arguments, "--axis", "commit"),
        obj=settings,
        standalone_mode=False,
        catch_exceptions=False,
    )
    return result.return_value, result


def sample(commit: str, **changes: Any) -> Sample:
    return replace(Sample.from_row(next(measured_rows(commit))), **changes)


def resolve(settings: Settings, *texts: str) -> list[str]:
    with Store.open(settings.database) as store:
        return list(commit_comparison.resolve_commits(store, Selection(), texts, settings))


def test_branches_and_tags_of_separate_campaigns_are_compared(
    settings: Settings, repository: git.Repo
) -> None:
    folder = str(repository.working_dir)
    first, second = repository.git.rev_parse("v1"), repository.git.rev_parse("main")
    remember(settings, measured_rows(first, repository=folder))
    remember(settings, measured_rows(second, effect=0.1, repository=folder))
    code, result = compare(settings, "v1", "main")
    assert code == ExitCode.REGRESSION
    assert f"main ({second[:10]}) needs 10" in result.stdout
    assert f"than v1 ({first[:10]})" in result.stdout
    code, result = compare(settings, first[:7], second[:8])
    assert code == ExitCode.REGRESSION
    assert f"commit {second[:10]} needs 10" in result.stdout


def test_commits_measured_in_another_way_exit_with_3(settings: Settings) -> None:
    a, b = "a" * 40, "b" * 40
    remember(settings, measured_rows(a), seed=1)
    remember(settings, measured_rows(b), seed=2)
    code, result = compare(settings, a, b)
    assert code == ExitCode.NOTHING
    assert "only in" in result.stdout
    assert "seed: 1 at aaaaaaaaaa, 2 at bbbbbbbbbb" in result.stderr


def test_comparison_key_of_commits_omits_the_payload() -> None:
    a, b = sample("a" * 40), sample("b" * 40)
    assert comparison_key(a, "root") != comparison_key(b, "root")
    assert comparison_key(a, "commit") == comparison_key(b, "commit")
    for change in ({"test_path": "other"}, {"setup": "other"}, {"dataset_hash": "other"}):
        assert comparison_key(a, "commit") != comparison_key(replace(b, **change), "commit")  # type: ignore[arg-type]


def test_setup_omits_payload_libraries_and_matrix() -> None:
    definition = {"payload": "a.py", "libraries": ["libA"], "axes": {}, "mode": "solo", "tree": "t"}
    other = definition | {
        "payload": "b.C",
        "libraries": [],
        "axes": {"root": ["1"]},
        "record": False,
    }
    assert compute_setup(definition) == compute_setup(other)
    assert compute_setup(definition) != compute_setup({**other, "mode": "paired"})


def test_states_of_a_working_tree_are_values_of_their_own(settings: Settings) -> None:
    commit = "c0ffee" + 34 * "0"
    remember(settings, measured_rows(commit))
    remember(settings, measured_rows(commit, name="one", dirty=True, test_hash="12345678" * 8))
    tree = f"{commit}+123456781234"
    assert resolve(settings, "c0ffee", "c0ffee+dirty") == [commit, tree]
    remember(settings, measured_rows(commit, name="other", dirty=True, test_hash="9abcdef0" * 8))
    assert resolve(settings, "c0ffee+1234", "c0ffee+9") == [tree, f"{commit}+9abcdef09abc"]
    with pytest.raises(ConfigError, match="fits 2 measured commits"):
        resolve(settings, "c0ffee+dirty")


def test_unknown_commits_are_named(settings: Settings, repository: git.Repo) -> None:
    first, second = (repository.git.rev_parse(ref) for ref in ("v1", "main"))
    remember(settings, measured_rows(first, repository=str(repository.working_dir)))
    with pytest.raises(NothingToDoError, match=f"commit main .{second[:10]}"):
        resolve(settings, "main")
    with pytest.raises(SourceError, match="v2"):
        resolve(settings, "v2")
    with pytest.raises(ConfigError, match="both sides"):
        resolve(settings, "v1", first[:9])
