"""Tests from Git: local repositories, working trees, mirrors, and remotes with authentication."""

from __future__ import annotations

import base64
import hashlib
import http.server
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest
from captured_runs import commit_all, make_repository, run_git
from git.exc import GitCommandError
from local_servers import send_answer, serve_http

from treehammer.config import Settings
from treehammer.errors import DefinitionError, ExitCode, SourceError, SourceUnreachableError
from treehammer.hctests import git_repository, pinned_tests
from treehammer.hctests.definition.test_identity import PinnedTest

Address = Callable[[Path], str]

ADDRESSES: dict[str, Address] = {"path": str, "url": lambda folder: folder.as_uri()}


@pytest.fixture(params=ADDRESSES.values(), ids=list(ADDRESSES))
def address(request: pytest.FixtureRequest) -> Address:
    """Address of the repository: its path, read directly, or a URL, read through the mirror."""
    chosen: Address = request.param
    return chosen


def commit(folder: Path, name: str, content: str) -> str:
    path = folder / "tests" / "read" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    return commit_all(folder, f"change {name}")


def payload(pinned: PinnedTest) -> str:
    return (pinned.folder / "read.py").read_text()


@pytest.mark.parametrize("ref", ["HEAD", "feature/x", "light", "v1.0", "refs/heads/main"])
def test_every_kind_of_ref_pins_its_commit(
    origin: Path, settings: Settings, address: Address, ref: str
) -> None:
    first = run_git(origin, "rev-parse", "HEAD")
    pinned = pinned_tests.pin_test(f"{address(origin)}@{ref}:tests/read", settings)
    assert (pinned.commit, pinned.ref, pinned.path) == (first, ref, "tests/read")
    assert (pinned.repository, pinned.dirty) == (address(origin), False)
    assert pinned.hashes == {
        name: hashlib.sha256((origin / "tests" / "read" / name).read_bytes()).hexdigest()
        for name in ("test.toml", "read.py", "sub/helper.h")
    }


@pytest.mark.parametrize("digits", [7, 40])
def test_full_and_short_hashes_pin_their_commit(
    origin: Path, settings: Settings, address: Address, digits: int
) -> None:
    first = run_git(origin, "rev-parse", "HEAD")
    commit(origin, "read.py", "print('two')\n")
    pinned = pinned_tests.pin_test(f"{address(origin)}@{first[:digits]}:tests/read", settings)
    assert pinned.commit == first
    assert payload(pinned) == "print('one')\n"


def test_moved_branch_is_followed_and_pins_remain(origin: Path, settings: Settings) -> None:
    spec = f"{origin.as_uri()}@main:tests/read"
    before = pinned_tests.pin_test(spec, settings)
    second = commit(origin, "read.py", "print('two')\n")
    after = pinned_tests.pin_test(spec, settings)
    assert after.commit == second
    assert (payload(before), payload(after)) == ("print('one')\n", "print('two')\n")


def test_rewritten_branch_is_followed(origin: Path, settings: Settings) -> None:
    spec = f"{origin.as_uri()}@main:tests/read"
    first = pinned_tests.pin_test(spec, settings)
    (origin / "tests" / "read" / "read.py").write_text("print('rewritten')\n")
    run_git(origin, "commit", "--quiet", "--all", "--amend", "-m", "rewritten")
    assert payload(pinned_tests.pin_test(spec, settings)) == "print('rewritten')\n"
    # A commit that was pinned before stays available without a branch.
    repeated = pinned_tests.pin_test(f"{origin.as_uri()}@{first.commit}:tests/read", settings)
    assert payload(repeated) == "print('one')\n"


def test_branch_may_replace_a_folder_of_branches(origin: Path, settings: Settings) -> None:
    pinned_tests.pin_test(f"{origin.as_uri()}@feature/x:tests/read", settings)
    run_git(origin, "branch", "-D", "feature/x")
    run_git(origin, "branch", "feature")
    pinned = pinned_tests.pin_test(f"{origin.as_uri()}@feature:tests/read", settings)
    assert pinned.ref == "feature"


def test_unreachable_commit_is_fetched_by_its_full_hash(origin: Path, settings: Settings) -> None:
    run_git(origin, "checkout", "--quiet", "--detach")
    lone = commit(origin, "read.py", "print('lone')\n")
    run_git(origin, "update-ref", "refs/changes/1", lone)
    run_git(origin, "checkout", "--quiet", "main")
    pinned = pinned_tests.pin_test(f"{origin.as_uri()}@{lone}:tests/read", settings)
    assert payload(pinned) == "print('lone')\n"
    by_name = pinned_tests.pin_test(f"{origin.as_uri()}@refs/changes/1:tests/read", settings)
    assert by_name.commit == lone


def test_tag_takes_precedence_over_a_branch(origin: Path, settings: Settings) -> None:
    first = run_git(origin, "rev-parse", "HEAD")
    second = commit(origin, "read.py", "print('two')\n")
    run_git(origin, "branch", "light")
    pinned = pinned_tests.pin_test(f"{origin.as_uri()}@light:tests/read", settings)
    assert pinned.commit == first
    branch = pinned_tests.pin_test(f"{origin.as_uri()}@refs/heads/light:tests/read", settings)
    assert branch.commit == second


def test_unknown_ref_lists_similar_names(
    origin: Path, settings: Settings, address: Address
) -> None:
    with pytest.raises(SourceError, match=r"'featur/x'(.|\n)*feature/x"):
        pinned_tests.pin_test(f"{address(origin)}@featur/x:tests/read", settings)
    for missing in ("0" * 40, "deadbeef"):
        with pytest.raises(SourceError, match="no branch, tag or commit"):
            pinned_tests.pin_test(f"{address(origin)}@{missing}:tests/read", settings)


def test_shallow_clone_says_so(origin: Path, settings: Settings, tmp_path: Path) -> None:
    commit(origin, "read.py", "print('two')\n")
    run_git(tmp_path, "clone", "--quiet", "--depth=1", origin.as_uri(), "shallow")
    with pytest.raises(SourceError, match=r"shallow and does not have 'HEAD\^1'(.|\n)*--unshallow"):
        pinned_tests.pin_test(f"{tmp_path / 'shallow'}@HEAD^1:tests/read", settings)


@pytest.mark.parametrize("ref", ["--upload-pack=x", "a b", "main..main", "\x1b[0m"])
def test_ref_is_never_an_option_or_expression(
    origin: Path, settings: Settings, address: Address, ref: str
) -> None:
    with pytest.raises(SourceError):
        pinned_tests.pin_test(f"{address(origin)}@{ref}:tests/read", settings)


def test_fetched_full_hash_needs_no_connection(
    origin: Path, settings: Settings, tmp_path: Path
) -> None:
    url = origin.as_uri()
    first = pinned_tests.pin_test(f"{url}@main:tests/read", settings)
    origin.rename(tmp_path / "away")
    repeated = pinned_tests.pin_test(f"{url}@{first.commit}:tests/read", settings)
    assert repeated.hashes == first.hashes
    with pytest.raises(SourceUnreachableError) as caught:
        pinned_tests.pin_test(f"{url}@main:tests/read", settings)
    assert caught.value.exit_code == ExitCode.INFRASTRUCTURE
    assert url in str(caught.value)


def test_unresponsive_host_is_one_error(settings: Settings) -> None:
    url = "http://127.0.0.1:9/authentication-403.git"
    with pytest.raises(SourceUnreachableError, match=f"{url}: cannot be fetched.*\n.*the network"):
        pinned_tests.pin_test(f"{url}@main:tests/read", settings)


def test_old_git_reads_local_repositories_only(
    origin: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(git_repository, "FIRST_REMOTE_GIT", (99, 0))
    assert pinned_tests.pin_test(f"{origin}@main:tests/read", settings).ref == "main"
    with pytest.raises(SourceError, match=r"git version [\d.]+ is too old.*\n.*2\.31 or later"):
        pinned_tests.pin_test(f"{origin.as_uri()}@main:tests/read", settings)


def test_full_disk_of_the_mirrors_is_one_error(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = GitCommandError("git", 128, "fatal: cannot copy '/x/y': No space left on device")
    monkeypatch.setattr(git_repository.Repository, "_run_git", Mock(side_effect=error))
    with pytest.raises(SourceUnreachableError, match=r"'/x/y': No space left.*\n.*--cache-dir"):
        pinned_tests.pin_test("file:///nowhere@main:tests/read", settings)


@pytest.mark.parametrize(
    "spec",
    [
        "ext::/bin/sh@main:tests",
        "ftp://example.org/x@main:tests",
        "nowhere@main:tests",
        "/proc@main:tests",
        "git@example.org:group/repo.git",
        "--upload-pack=touch@main:tests",
    ],
)
def test_invalid_address_is_refused(settings: Settings, spec: str) -> None:
    with pytest.raises(SourceError) as caught:
        pinned_tests.pin_test(spec, settings)
    assert not isinstance(caught.value, SourceUnreachableError)
    assert caught.value.hint


def test_copy_is_read_only_with_modes_and_links(origin: Path, settings: Settings) -> None:
    folder = pinned_tests.pin_test(f"{origin.as_uri()}@main:tests/read", settings).folder
    assert stat.S_IMODE((folder / "read.py").stat().st_mode) == 0o444
    assert stat.S_IMODE((folder / "run.sh").stat().st_mode) == 0o555
    assert (folder / "link.py").is_symlink()
    assert (folder / "link.py").read_text() == "#pragma once\n"
    assert not (folder / ".git").exists()


def test_attributes_have_no_effect(origin: Path, settings: Settings) -> None:
    commit(origin, ".gitattributes", "*.py text eol=crlf\nsub export-ignore\n")
    pinned = pinned_tests.pin_test(f"{origin.as_uri()}@main:tests/read", settings)
    assert (pinned.folder / "read.py").read_bytes() == b"print('one')\n"
    assert (pinned.folder / "sub" / "helper.h").exists()


def test_top_folder_and_path_of_test_toml(origin: Path, settings: Settings) -> None:
    spec = f"{origin.as_uri()}@main:tests/read/test.toml"
    assert pinned_tests.pin_test(spec, settings).path == "tests/read"
    (origin / "test.toml").write_text('[test]\nname = "top"\npayload = "p.py"\n')
    (origin / "p.py").write_text("")
    commit_all(origin, "a test at the top")
    top = pinned_tests.pin_test(f"{origin.as_uri()}@main:", settings)
    assert (top.path, top.definition.test.name) == (".", "top")


def test_damaged_copy_is_exported_again(origin: Path, settings: Settings) -> None:
    spec = f"{origin}@main:tests/read"
    first = pinned_tests.pin_test(spec, settings)
    (first.folder / "read.py").chmod(0o644)
    (first.folder / "read.py").write_text("print('forged')\n")
    (first.folder / "more.py").write_text("")
    repeated = pinned_tests.pin_test(spec, settings)
    assert repeated.hashes == first.hashes
    assert payload(repeated) == "print('one')\n"
    assert not (repeated.folder / "more.py").exists()


@pytest.mark.parametrize("target", ["/etc/hostname", "../../README", "sub/../../x"])
def test_link_out_of_the_folder_is_refused(origin: Path, settings: Settings, target: str) -> None:
    (origin / "tests" / "read" / "out").symlink_to(target)
    commit_all(origin, "a link that leaves")
    with pytest.raises(SourceError, match="the link 'out' leads out"):
        pinned_tests.pin_test(f"{origin.as_uri()}@main:tests/read", settings)


def test_link_to_a_test_beside_is_replaced_by_the_file(origin: Path, settings: Settings) -> None:
    other = origin / "tests" / "other"
    other.mkdir()
    text = (origin / "tests" / "read" / "test.toml").read_text()
    (other / "test.toml").write_text(text)
    (other / "read.py").symlink_to("../read/read.py")
    (other / "sub").symlink_to("../read/sub")
    commit_all(origin, "a shared payload")
    with pytest.raises(SourceError, match="the link 'sub' leads out"):
        pinned_tests.pin_test(f"{origin}@main:tests/other", settings)
    (other / "sub").unlink()
    shutil.copytree(origin / "tests" / "read" / "sub", other / "sub", symlinks=True)
    commit_all(origin, "no folder")
    pinned = pinned_tests.pin_test(f"{origin}@main:tests/other", settings)
    direct = pinned_tests.pin_test(f"{origin}@main:tests/read", settings)
    assert not (pinned.folder / "read.py").is_symlink()
    assert pinned.hashes["read.py"] == direct.hashes["read.py"]
    assert not pinned_tests.pin_test(str(other), settings).dirty
    (origin / "tests" / "read" / "read.py").write_text("print('changed')\n")
    assert pinned_tests.pin_test(str(other), settings).dirty
    assert pinned_tests.pin_test(f"{origin}@main:tests/other", settings).hashes == pinned.hashes


def test_indirect_link_out_of_the_folder_is_refused(origin: Path, settings: Settings) -> None:
    test = origin / "tests" / "read"
    (test / "top").mkdir()
    (test / "top" / "x").write_text("")
    (test / "sub" / "deep").symlink_to("../top")
    (test / "out").symlink_to("sub/deep/../../x")
    commit_all(origin, "links")
    with pytest.raises(SourceError, match="leads out"):
        pinned_tests.pin_test(f"{origin}@main:tests/read", settings)


def test_submodule_is_refused(origin: Path, settings: Settings, tmp_path: Path) -> None:
    other = tmp_path / "other"
    make_repository(other)
    commit_all(other)
    allow = ("-c", "protocol.file.allow=always")
    run_git(origin, *allow, "submodule", "--quiet", "add", str(other), "tests/read/module")
    commit_all(origin, "a submodule")
    with pytest.raises(SourceError, match=r"contains a submodule \(module\)"):
        pinned_tests.pin_test(f"{origin}@main:tests/read", settings)
    with pytest.raises(SourceError, match="tests/read/module is a submodule"):
        pinned_tests.pin_test(f"{origin}@main:tests/read/module/deep", settings)


@pytest.mark.parametrize("path", ["../outside", "/etc", "tests/../../x"])
def test_path_must_stay_in_the_repository(origin: Path, settings: Settings, path: str) -> None:
    with pytest.raises(SourceError, match="the path leaves the repository"):
        pinned_tests.pin_test(f"{origin.as_uri()}@main:{path}", settings)


def test_unknown_path_lists_the_tests(origin: Path, settings: Settings) -> None:
    (origin / "latest").symlink_to("tests/read")
    commit_all(origin, "a link")
    for path, reason in {
        "tests/raed": "no such folder",
        "tests": "contains no test.toml",
        "README": "README is a file",
        "latest": "latest is a symbolic link",
    }.items():
        with pytest.raises(SourceError, match=reason) as caught:
            pinned_tests.pin_test(f"{origin.as_uri()}@main:{path}", settings)
        assert "tests/read" in caught.value.hint


def test_large_folder_is_refused(
    origin: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pinned_tests, "MAX_TEST_BYTES", 10)
    with pytest.raises(SourceError, match="sent with each job"):
        pinned_tests.pin_test(f"{origin}@main:tests/read", settings)


def test_mistakes_name_the_file_in_the_repository(origin: Path, settings: Settings) -> None:
    commit(origin, "test.toml", '[test]\nname = "m"\npayload = "gone.py"\n')
    with pytest.raises(DefinitionError) as caught:
        pinned_tests.pin_test(f"{origin.as_uri()}@main:tests/read", settings)
    (problem,) = caught.value.problems
    assert problem.startswith(f"{origin.as_uri()}@main:tests/read/test.toml:3: test.payload: ")


def test_find_lists_the_tests_of_a_commit(origin: Path, settings: Settings) -> None:
    commit(origin, "more/test.toml", '[test]\nname = "m"\npayload = "p"\n')
    stem = f"{origin.as_uri()}@main:"
    read, more = f"{stem}tests/read", f"{stem}tests/read/more"
    assert pinned_tests.find_tests(stem, settings) == (read, more)
    assert pinned_tests.find_tests(more, settings) == (more,)
    folders = (str(origin / "tests/read"), str(origin / "tests/read/more"))
    assert pinned_tests.find_tests(str(origin), settings) == folders


PIN = """
import sys
from pathlib import Path
from treehammer.config import load_settings
from treehammer.hctests.pinned_tests import pin_test
pinned = pin_test(sys.argv[1], load_settings({"cache_dir": sys.argv[2]}, environ={}))
print(pinned.commit, pinned.folder, sorted(pinned.hashes.values()))
"""


def test_several_processes_share_an_empty_cache(origin: Path, settings: Settings) -> None:
    for number in range(20):
        commit(origin, f"sub/{number}.h", "x\n" * number)
    command = [sys.executable, "-c", PIN, f"{origin.as_uri()}@main:tests/read"]
    running = [
        subprocess.Popen([*command, str(settings.cache_dir)], stdout=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    outputs = {process.communicate(timeout=120)[0] for process in running}
    assert [process.returncode for process in running] == [0] * 4
    assert len(outputs) == 1
    assert run_git(origin, "rev-parse", "HEAD") in outputs.pop()
    left = [path.name for path in (settings.git_dir / "tests").iterdir()]
    assert not [name for name in left if name.startswith(".")]


def test_clean_working_tree_equals_its_commit(origin: Path, settings: Settings) -> None:
    pinned = pinned_tests.pin_test(str(origin / "tests" / "read"), settings)
    assert (pinned.repository, pinned.path, pinned.ref) == (str(origin), "tests/read", "")
    assert (pinned.commit, pinned.dirty) == (run_git(origin, "rev-parse", "HEAD"), False)
    committed = pinned_tests.pin_test(f"{origin}@HEAD:tests/read", settings)
    assert pinned.hashes == committed.hashes


def _modify(test: Path) -> None:
    (test / "read.py").write_text("print('changed')\n")


def _untracked(test: Path) -> None:
    (test / "new.h").write_text("")
    (test / "test.toml").write_text('[test]\nname = "m"\npayload = "read.py"\nfiles = ["new.h"]\n')
    subprocess.run(["git", "commit", "-qm", "names it", "test.toml"], cwd=test, check=True)


def _staged(test: Path) -> None:
    _modify(test)
    subprocess.run(["git", "add", "."], cwd=test, check=True)


def _executable(test: Path) -> None:
    (test / "read.py").chmod(0o755)


@pytest.mark.parametrize("change", [_modify, _untracked, _staged, _executable])
def test_changed_file_makes_the_test_dirty(
    origin: Path, settings: Settings, change: Callable[[Path], None]
) -> None:
    test = origin / "tests" / "read"
    change(test)
    assert pinned_tests.pin_test(str(test), settings).dirty


def test_moved_test_is_dirty(origin: Path, settings: Settings) -> None:
    (origin / "tests" / "read").rename(origin / "tests" / "moved")
    pinned = pinned_tests.pin_test(str(origin / "tests" / "moved"), settings)
    assert (pinned.dirty, pinned.path) == (True, "tests/moved")


def test_other_changes_do_not_make_the_test_dirty(origin: Path, settings: Settings) -> None:
    (origin / "README").write_text("changed\n")
    (origin / "tests" / "read" / "notes.txt").write_text("untracked, named by nothing\n")
    assert not pinned_tests.pin_test(str(origin / "tests" / "read"), settings).dirty


def test_outside_git_there_is_no_commit(settings: Settings, tmp_path: Path) -> None:
    folder = tmp_path / "plain"
    folder.mkdir()
    (folder / "test.toml").write_text('[test]\nname = "m"\npayload = "p.py"\n')
    (folder / "p.py").write_text("")
    pinned = pinned_tests.pin_test(str(folder), settings)
    assert (pinned.repository, pinned.commit, pinned.path) == (str(folder), "", ".")
    assert not pinned.dirty


def test_ignored_folder_is_outside_git(origin: Path, settings: Settings) -> None:
    # For example a package installed below an unrelated checkout.
    (origin / ".gitignore").write_text("site-packages/\n")
    run_git(origin, "add", ".gitignore")
    run_git(origin, "commit", "--quiet", "-m", "ignore")
    installed = origin / "site-packages" / "mine"
    installed.mkdir(parents=True)
    (installed / "test.toml").write_text('[test]\nname = "m"\npayload = "p.py"\n')
    (installed / "p.py").write_text("")
    pinned = pinned_tests.pin_test(str(installed), settings)
    assert (pinned.commit, pinned.repository) == ("", str(installed))


def test_uncommitted_test_is_dirty(settings: Settings, tmp_path: Path) -> None:
    (tmp_path / "test.toml").write_text('[test]\nname = "m"\npayload = "p.py"\n')
    (tmp_path / "p.py").write_text("")
    run_git(tmp_path, "init", "--quiet")
    pinned = pinned_tests.pin_test(str(tmp_path), settings)
    assert (pinned.commit, pinned.dirty) == ("", True)


def test_linked_worktree_and_bare_repository(
    origin: Path, settings: Settings, tmp_path: Path
) -> None:
    linked, bare = tmp_path / "linked", tmp_path / "bare.git"
    run_git(origin, "worktree", "add", "--quiet", "--detach", str(linked))
    second = commit(linked, "read.py", "print('linked')\n")
    assert pinned_tests.pin_test(f"{linked}@HEAD:tests/read", settings).commit == second
    assert pinned_tests.pin_test(str(linked / "tests" / "read"), settings).commit == second
    run_git(tmp_path, "clone", "--quiet", "--bare", str(origin), str(bare))
    assert payload(pinned_tests.pin_test(f"{bare}@main:tests/read", settings)) == "print('one')\n"


def test_git_hook_variables_are_overridden(
    origin: Path,
    settings: Settings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    address: Address,
) -> None:
    hooked = tmp_path / "hooked"
    make_repository(hooked)
    first = run_git(origin, "rev-parse", "HEAD")
    run_git(origin, "config", "core.fsmonitor", f"touch '{tmp_path}/started'")
    monkeypatch.setenv("GIT_DIR", str(hooked / ".git"))
    monkeypatch.setenv("GIT_WORK_TREE", str(hooked))
    assert pinned_tests.pin_test(f"{address(origin)}@main:tests/read", settings).commit == first
    pinned = pinned_tests.pin_test(str(origin / "tests" / "read"), settings)
    assert (pinned.commit, pinned.dirty, (tmp_path / "started").exists()) == (first, False, False)


def test_damaged_repository_is_one_error(origin: Path, settings: Settings) -> None:
    blob = run_git(origin, "rev-parse", "HEAD:tests/read/read.py")
    (origin / ".git" / "objects" / blob[:2] / blob[2:]).unlink()
    with pytest.raises(SourceError, match="Git cannot read the repository"):
        pinned_tests.pin_test(f"{origin}@main:tests/read", settings)
    (origin / ".git" / "HEAD").write_text("nonsense\n")
    with pytest.raises(SourceError, match="not a Git repository"):
        pinned_tests.pin_test(f"{origin}@main:tests/read", settings)


def test_missing_git_is_reported(
    origin: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(SourceError, match="the command 'git' is missing"):
        pinned_tests.pin_test(f"{origin}@main:tests/read", settings)
    done = subprocess.run(
        [sys.executable, "-c", "import treehammer.hctests.pinned_tests"],
        check=False,
        env={"PATH": ""},
    )
    assert done.returncode == 0


SECRET = "s3cr3t/word"
QUOTED = "s3cr3t%2Fword"


class PasswordHandler(http.server.SimpleHTTPRequestHandler):
    """Serve files with HTTP basic authentication."""

    header = "Basic " + base64.b64encode(f"reader:{SECRET}".encode()).decode()

    def do_GET(self) -> None:
        if self.headers.get("Authorization") == self.header:
            super().do_GET()
            return
        send_answer(self, 401, WWW_Authenticate='Basic realm="tests"')


@pytest.fixture
def port(origin: Path, tmp_path: Path) -> Iterator[int]:
    served = tmp_path / "served"
    run_git(tmp_path, "clone", "--quiet", "--bare", str(origin), str(served / "o.git"))
    run_git(served / "o.git", "update-server-info")
    with serve_http(PasswordHandler, served) as port:
        yield port


def test_credentials_are_used_and_not_stored(
    port: int, settings: Settings, capfd: pytest.CaptureFixture[str]
) -> None:
    spec = f"http://reader:{QUOTED}@127.0.0.1:{port}/o.git@main:tests/read"
    pinned = pinned_tests.pin_test(spec, settings)
    assert pinned.repository == f"http://127.0.0.1:{port}/o.git"
    assert (pinned.folder / "read.py").read_text() == "print('one')\n"
    printed = "".join(capfd.readouterr())
    needles = (SECRET, QUOTED, base64.b64encode(f"reader:{SECRET}".encode()).decode())
    files = [path for path in settings.cache_dir.rglob("*") if path.is_file()]
    assert files
    for needle in needles:
        assert needle not in repr(pinned) + printed
        assert not [path for path in files if needle.encode() in path.read_bytes()]


def test_wrong_credentials_are_refused_without_prompt(port: int, settings: Settings) -> None:
    for user_info in ("reader:wr0ng@", ""):
        with pytest.raises(SourceUnreachableError) as caught:
            pinned_tests.pin_test(
                f"http://{user_info}127.0.0.1:{port}/o.git@main:tests/read", settings
            )
        assert "wr0ng" not in str(caught.value)
        assert "Passwords are never asked for" in str(caught.value)


@pytest.mark.parametrize(
    "spec",
    [
        "nowhere://a:s3cr3t@b/c@main:x",
        "https://a:s3cr3t@b/c",
        "https://a:b/s3cr3t@b/c@main:x",
        "https://[a:s3cr3t@b/c@main:x",
    ],
)
def test_credentials_are_masked_in_errors(settings: Settings, spec: str) -> None:
    with pytest.raises(SourceError) as caught:
        pinned_tests.pin_test(spec, settings)
    assert "s3cr3t" not in str(caught.value)


@pytest.mark.parametrize("form", ["git@host.example:{path}", "ssh://git@host.example{path}"])
def test_ssh_address(
    origin: Path, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    # A substitute for ssh that runs the remote command here and records the host.
    stand_in = tmp_path / "ssh-stand-in"
    stand_in.write_text(
        '#!/bin/sh\n[ "$1" = -G ] && exit 1\n'
        f'echo "$@" >> {tmp_path}/asked\nfor last; do :; done\nexec sh -c "$last"\n'
    )
    stand_in.chmod(0o755)
    monkeypatch.setenv("GIT_SSH_COMMAND", str(stand_in))
    address = form.format(path=origin)
    pinned = pinned_tests.pin_test(f"{address}@main:tests/read", settings)
    assert pinned.repository == address
    assert "git@host.example git-upload-pack" in (tmp_path / "asked").read_text()
