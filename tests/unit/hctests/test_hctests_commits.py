"""The axis ``commit``: one test at several commits, each with its own payload."""

from __future__ import annotations

from pathlib import Path

import git
import pytest

from treehammer.config import Settings, load_settings
from treehammer.errors import DefinitionError, NothingToDoError, SourceError
from treehammer.hctests.definition.matrix import group_variants
from treehammer.hctests.definition.model import PinnedTest, compute_test_hash
from treehammer.hctests.pinned_tests import load_pinned_test

TEST_TOML = """
[test]
name = "mine"
payload = "{payload}"
seed = 7
[matrix]
root = ["6.38.00", "6.40.00"]
branches = [{branches}]
bundle = ["root"]
[settings]
block = {block}
"""


class TestRepository:
    """A repository with the test ``tests/read`` at tag ``v1`` and on branch ``main``."""

    __test__ = False

    def __init__(self, folder: Path) -> None:
        self.settings: Settings = load_settings(
            {"cache_dir": folder / "cache"}, environ={}, folder=folder
        )
        self.top = folder / "repository"
        self.test = self.top / "tests" / "read"
        self.test.mkdir(parents=True)
        self.repo = git.Repo.init(self.top, initial_branch="main")
        self.write("read.py", 1)
        self.commit()
        self.repo.git.tag("v1")
        self.write("scan.C", 2)
        self.commit()

    def write(self, payload: str, block: int, content: str = "", branches: str = "1.0") -> None:
        text = TEST_TOML.format(payload=payload, block=block, branches=branches)
        (self.test / "test.toml").write_text(text)
        (self.test / payload).write_text(content)

    def commit(self) -> None:
        self.repo.git.add(".")
        options = ("-c", "user.name=a", "-c", "user.email=a")
        self.repo.git.execute(["git", *options, "commit", "--quiet", "--message", "Change"])

    def pin(self, *commits: str, spec: str = "", **overrides: str) -> PinnedTest:
        named = {f"settings.{key}": value for key, value in overrides.items()}
        axes = {"commit": commits} if commits else {}
        return load_pinned_test(spec or str(self.test), axes, named, self.settings)


@pytest.fixture
def tests(tmp_path: Path) -> TestRepository:
    return TestRepository(tmp_path)


def test_commits_have_their_own_payload_and_settings(tests: TestRepository) -> None:
    pinned = tests.pin("v1", "main")
    first, second = pinned.commits.values()
    assert [*pinned.commits] == [tests.repo.git.rev_parse(ref) for ref in ("v1", "main")]
    assert pinned.definition.axes["commit"] == tuple(pinned.commits)
    assert (first.definition.payload, second.definition.payload) == ("read.py", "scan.C")
    assert [test.definition.settings["block"] for test in (first, second)] == [1, 2]
    assert (first.folder / "read.py").is_file()
    pinned = tests.pin("v1", "main", spec=f"{tests.top}@main:tests/read", block="5")
    assert {test.definition.settings["block"] for test in pinned.commits.values()} == {5}


def test_commits_are_of_the_series_that_they_form_alone(tests: TestRepository) -> None:
    pinned = tests.pin("v1", "main")
    hashes = [compute_test_hash(test) for test in pinned.commits.values()]
    alone = [tests.pin(spec=f"{tests.top}@{ref}:tests/read") for ref in ("v1", "main")]
    assert hashes == [compute_test_hash(test) for test in alone]
    group, _ = group_variants(pinned.definition, "file")
    assert len({variant.canonical_json for variant in group.variants}) == 1
    assert {variant.commit for variant in group.variants} == set(pinned.commits)


def test_commits_take_turns_and_releases_do_not(tests: TestRepository) -> None:
    groups = group_variants(tests.pin("v1", "main").definition, "file")
    assert [[variant["root"] for variant in group.variants] for group in groups] == [
        ["6.38.00"] * 2,
        ["6.40.00"] * 2,
    ]


def test_working_tree_is_compared_with_a_commit(tests: TestRepository) -> None:
    with pytest.raises(NothingToDoError, match="commit main and the working tree hold the same"):
        tests.pin("main", ".")
    tests.write("scan.C", 2, content="changed")
    pinned = tests.pin("main", ".")
    head, tree = pinned.commits.items()
    assert tree[0].startswith(f"{head[0]}+")
    assert (head[1].dirty, tree[1].dirty) == (False, True)
    with pytest.raises(SourceError, match="no working tree"):
        tests.pin("main", ".", spec=f"{tests.top}@main:tests/read")


def test_mistakes_name_the_commit(tests: TestRepository) -> None:
    with pytest.raises(SourceError, match="v2"):
        tests.pin("v1", "v2")
    (tests.test / "branches.txt").write_text("Muon_pt\n")
    tests.write("scan.C", 2, branches='"@branches.txt"')
    with pytest.raises(DefinitionError, match=r"commit v1: tests/read: there is no file 'branches"):
        tests.pin("v1", ".")


def test_outside_git_there_are_no_commits(tests: TestRepository, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    tests.test.rename(outside)
    with pytest.raises(SourceError, match="not committed"):
        tests.pin("v1", "main", spec=str(outside))
