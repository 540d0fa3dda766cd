"""Builds and options of a search."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from captured_runs import run_git
from measured_tests import make_library
from measurement_factory import build_verdict
from plan_factory import make_pinned_test, make_settings
from repository_code import invoke_command

from treehammer.collectors.json_documents import format_json
from treehammer.collectors.record.outcome import ExecutionError
from treehammer.collectors.software import providers
from treehammer.collectors.software.wheels import find_release
from treehammer.errors import ConfigError, SoftwareError, SourceError
from treehammer.hctests.git_repository import Repository
from treehammer.hctests.pinned_tests import open_repository
from treehammer.sql.core.evidence import VerdictEvidence
from treehammer.sql.core.watch_rows import PatrolStartRow, ReleaseCheck
from treehammer.sql.write.store import Store
from treehammer.watch.alarms.alarm_overview import CheckState
from treehammer.watch.bisection.bisection_state import (
    BisectionState,
    BuildFailedError,
    CommitBuilder,
    CommitSource,
    check_builds,
    list_builds,
    list_commits,
    list_states,
)
from treehammer.watch.patrol.campaign_starts import PatrolRequest
from treehammer.watch.patrol.patrol_file import ReleaseSource
from treehammer.watch.patrol.release_searches import ReleaseSearches
from treehammer.watch.store.alarms import ReleaseCheckTable


def test_builds_of_a_list_or_a_file_are_cut_to_good_and_bad(tmp_path: Path) -> None:
    builds = list_builds("6.38.00", "6.40.00", "6.36.00, 6.38.00,6.39.01,6.40.00,current")
    assert [build.name for build in builds] == ["6.38.00", "6.39.01", "6.40.00"]
    path = tmp_path / "builds.txt"
    path.write_text("# nightlies\npath:/a\n\npath:/b  # Tuesday\npath:/c\n")
    builds = list_builds("path:/a", "path:/c", str(path))
    assert [build.name for build in builds] == ["path:/a", "path:/b", "path:/c"]


def test_unknown_and_reversed_builds_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"6\.40\.01 is not among the builds\n.*6\.40\.00"):
        list_builds("6.38.00", "6.40.01", "6.38.00,6.40.00")
    with pytest.raises(ConfigError, match="does not stand before"):
        list_builds("b", "a", "a,b")
    builds = list_builds("6.38.00", "6.40.00", "6.38.00,6.38.04,6.39.02,6.40.00")
    with pytest.raises(ConfigError, match=r"ROOT 6\.38\.04; .*\n.*ROOT 6\.39\.02; did you mean"):
        check_builds(builds, tmp_path)
    check_builds([build for build in builds if build.name in ("6.38.00", "6.40.00")], tmp_path)


def answer_index(status: int, printed: str, errors: str = "") -> object:
    def run(*_arguments: object, **_options: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess([], status, printed, errors)

    return run


def test_releases_of_a_package_are_listed_by_version(monkeypatch: pytest.MonkeyPatch) -> None:
    printed = "uproot (5.3.0)\nAvailable versions: 5.3.0, 5.2.10, 5.2.9, 5.1.2, 4.3.7\n"
    monkeypatch.setattr(subprocess, "run", answer_index(0, printed))
    builds = list_builds("5.1.2", "5.3.0", "pypi:uproot awkward<2.7")
    assert [build.title for build in builds] == ["5.1.2", "5.2.9", "5.2.10", "5.3.0"]
    assert builds[1].name == "pypi:uproot==5.2.9 awkward<2.7"
    monkeypatch.setattr(subprocess, "run", answer_index(1, "", "ERROR: no network"))
    with pytest.raises(SoftwareError, match="no network"):
        list_builds("1", "2", "pypi:uproot")


def test_commits_are_listed_and_built_once(tmp_path: Path) -> None:
    commits = make_library(tmp_path / "library", 4, changed=2, broken=3)
    command = f"echo x >> {tmp_path}/built; sh build.sh"
    source = CommitSource(str(tmp_path / "library"), command, "build:{build}")
    settings = make_settings(tmp_path)
    builds = list_commits(commits[1][:9], "main", source, settings)
    assert [build.name for build in builds] == commits[1:]
    assert builds[1].title.endswith("Revise library, part 2")
    repository, _ = open_repository(source.url, "main", settings.git_dir)
    builder = CommitBuilder(repository, command, settings.builds_dir)
    folder = builder.build(commits[2])
    assert "1.3" in (folder / "library.py").read_text()
    assert not (folder / ".git").exists()
    assert builder.build(commits[2]) == folder
    for _ in range(2):
        with pytest.raises(BuildFailedError, match="failed with status 1"):
            builder.build(commits[3])
    assert (tmp_path / "built").read_text() == "x\nx\n", "neither was built twice"


def test_interrupted_build_starts_afresh(tmp_path: Path) -> None:
    commits = make_library(tmp_path / "library", 1, changed=0)
    repository = Repository.open_local(tmp_path / "library")
    builder = CommitBuilder(repository, "test ! -e left && sh build.sh", tmp_path / "builds")
    builder.locate(commits[0]).mkdir(parents=True)
    (builder.locate(commits[0]) / "left").touch()
    assert (builder.build(commits[0]) / "library.py").is_file()


def test_commits_of_other_branches_are_refused(tmp_path: Path) -> None:
    make_library(tmp_path / "library", 2, changed=1)
    run_git(tmp_path / "library", "checkout", "--quiet", "-b", "other", "HEAD~1")
    run_git(tmp_path / "library", "commit", "--quiet", "--allow-empty", "--message", "Go on")
    source = CommitSource(str(tmp_path / "library"), "true", "build:{build}")
    with pytest.raises(SourceError, match="does not descend"):
        list_commits("other", "main", source, make_settings(tmp_path))


def test_build_provider_offers_programs_and_libraries(tmp_path: Path) -> None:
    request = providers.parse_software_request(f"build:{tmp_path}")
    prepared = providers.prepare_software(request, tmp_path)
    setup = providers.setup_software(prepared, {"PATH": "/bin", "PYTHONPATH": "/x"}, tmp_path)
    assert setup.env["TREEHAMMER_SOFTWARE"] == str(tmp_path)
    assert setup.env["PATH"] == f"{tmp_path}/bin:/bin"
    assert setup.env["LD_LIBRARY_PATH"] == f"{tmp_path}/lib"
    assert "/x" not in setup.env["PYTHONPATH"]
    missing = providers.parse_software_request(f"build:{tmp_path}/none")
    with pytest.raises(ExecutionError, match="there is no folder"):
        providers.prepare_software(missing, tmp_path)


def test_package_provider_pins_one_version() -> None:
    plain = find_release(providers.parse_software_request("pypi:uproot==5.1.2"))
    assert (plain.folder_name, plain.further_packages) == ("uproot-5.1.2", ("uproot==5.1.2",))
    pinned = find_release(providers.parse_software_request("pypi:uproot==5.1.2 awkward<2.7"))
    assert pinned.further_packages == ("awkward<2.7", "uproot==5.1.2")
    assert pinned.folder_name.startswith("uproot-5.1.2-")
    for wrong in ("pypi:uproot", "pypi:uproot>=5", "pypi:uproot==5.1.2 --index-url=x"):
        with pytest.raises(ValueError, match="NAME==VERSION"):
            providers.parse_software_request(wrong)


TEST_TOML = """
[test]
name = "fixed"
payload = "run.sh"
[matrix]
root = ["none"]
"""


class SearchStarted(Exception):
    """Ends a command when its search begins."""


@pytest.mark.parametrize(
    ("options", "sites", "from_sites"),
    [([], ("local",), ()), (["--site", "FAR", "--from", "local"], ("FAR",), ("local",))],
)
def test_a_site_may_read_the_storage_of_another(
    options: list[str],
    sites: tuple[str, ...],
    from_sites: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make_pinned_test(tmp_path, TEST_TOML)
    begun: list[BisectionState] = []

    def begin(state: BisectionState, *_others: object) -> None:
        begun.append(state)
        raise SearchStarted

    monkeypatch.setattr("treehammer.watch.bisection.bisection_run.BisectionRun", begin)
    arguments = ["path:/a", "path:/b", str(tmp_path), "--over", "path:/a,path:/b", *options]
    result = invoke_command("bisect", make_settings(tmp_path), *arguments)
    assert isinstance(result.exception, SearchStarted), result.output
    assert (begun[0].question.sites, begun[0].question.from_sites) == (sites, from_sites)


def test_several_series_are_refused_before_anything_is_submitted(tmp_path: Path) -> None:
    make_pinned_test(tmp_path, TEST_TOML + 'size = ["small", "large"]\n')
    builds = [f"build:{tmp_path / name}" for name in ("a", "b")]
    for build in builds:
        Path(build.removeprefix("build:")).mkdir()
    arguments = [*builds, str(tmp_path), "--over", ",".join(builds), "--exact"]
    result = invoke_command("bisect", make_settings(tmp_path), *arguments)
    message = str(result.exception)
    assert "2 series of each build: size=small; size=large" in message, result.output
    assert not (tmp_path / "data" / "spool").exists()


@pytest.mark.parametrize(
    ("versions", "site", "remark"),
    [
        ("6.38.00,6.40.00", "A", "Not bisected: no build lies between 6.38.00 and 6.40.00"),
        ("6.38.00", "A", "Not bisected: --over: 6.40.00 is not among the builds"),
        ("6.38.00,6.39.01,6.40.00", "", "Not bisected: the slowdown is certain over several sites"),
        ("6.38.00,6.39.01,6.40.00", "A", ""),
    ],
)
def test_confirmed_regression_is_bisected_or_says_why_not(
    tmp_path: Path, versions: str, site: str, remark: str
) -> None:
    pinned = make_pinned_test(tmp_path, TEST_TOML)
    (tmp_path / "releases.txt").write_text(versions.replace(",", "\n"))
    source = ReleaseSource(source=str(tmp_path / "releases.txt"), compare=True).complete(tmp_path)
    request = PatrolRequest(str(tmp_path), sites=("A",), overrides={"repeats": "6", "rounds": "3"})
    start = PatrolStartRow(
        "daily", "release:6.40.00", "c", "finished", 1, 1, 1, 1, "", format_json(request), ""
    )
    starts: Any = SimpleNamespace(find_campaign=lambda _: start, find_start=lambda *_: None)
    side = {"variant": '{"root":"6.40.00"}', "test_name": pinned.definition.test.name}
    verdict = build_verdict(
        "cmp", verdict="slower", scope="site", site=site, effect=0.1,
        evidence=VerdictEvidence(of_a=side, of_b=side),
    )  # fmt: skip
    check = ReleaseCheck(
        "c" * 32, "c", "fixed", "6.38.00", "6.40.00", CheckState.CONFIRMED, "cmp", changed_us=1
    )
    settings = make_settings(tmp_path)
    with Store.open(settings.database) as store:
        store.replace_comparison("cmp", [], [verdict])
        ReleaseCheckTable(store).add_checks([check])
        searches = ReleaseSearches(settings, store, starts, source)
        occasions = searches.find_probes(2)
        assert searches.find_probes(2).keys() == occasions.keys()
    (state,) = list_states(settings.bisections_dir)
    assert state.remark.startswith(remark)
    assert (state.is_finished, searches.ended) == (bool(remark), int(bool(remark)))
    if not remark:
        (probe,) = occasions["daily"]
        assert (probe.name, probe.site) == (f"bisect:{'c' * 12}:1", "A")
        assert probe.axes["root"] == ("6.38.00", "6.40.00")
        assert probe.overrides == {"repeats": "1", "rounds": "3", "mode": "paired"}
