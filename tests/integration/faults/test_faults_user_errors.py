"""What a user can get wrong before anything runs: one clear message, exit code 2, nothing stored."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from definition_mistakes import BROKEN_DEFINITIONS, DEFINITION_MISTAKES, TEST_HEADER

TOO_MANY = (
    TEST_HEADER + "[matrix]\n" + "".join(f"axis_{n} = {list(range(20))}\n" for n in range(10))
)


def write_test(folder: Path, text: str | bytes) -> Path:
    folder.mkdir(parents=True)
    content = text.encode() if isinstance(text, str) else text
    (folder / "test.toml").write_bytes(content)
    (folder / "read.py").write_text("print()\n")
    return folder


def test_every_kind_of_mistake_is_named_with_file_line_and_key(user: Any) -> None:
    """All of them in one go, as somebody checks a repository of tests."""
    good = write_test(user.folder / "good", TEST_HEADER)
    expected: list[tuple[str, str]] = []
    for number, (text, line, key, said) in enumerate(DEFINITION_MISTAKES):
        folder = write_test(
            user.folder / f"m{number}", text if "[test]" in text else TEST_HEADER + text
        )
        expected.append((f"{folder / 'test.toml'}:{line}: {key}: ", said))
    for number, (text, line) in enumerate(BROKEN_DEFINITIONS):
        folder = write_test(user.folder / f"b{number}", text)
        expected.append((f"{folder / 'test.toml'}:{line}: not valid TOML: ", ""))
    folder = write_test(user.folder / "many", TOO_MANY)
    expected.append(
        (f"{folder / 'test.toml'}:4: matrix: ", "combinations (expected at most 10000)")
    )
    folder = write_test(user.folder / "bytes", b"\xff\xfe[test]")
    expected.append((f"{folder / 'test.toml'}: ", "is not UTF-8 text"))

    folders = [start.partition("/test.toml")[0] for start, _ in expected]
    done = user.types("tests", "check", *folders, str(good))
    assert done.returncode == 2
    assert done.stderr == ""
    *lines, last = done.stdout.splitlines()
    assert last.startswith(f"ok {good}: mine")
    assert len(lines) == len(expected), "one line for each mistake"
    for line, (start, said) in zip(lines, expected, strict=True):
        assert line.startswith(start)
        assert said in line


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("-S", "dataset=reference-smal"), "Did you mean 'reference-small'?"),
        (("-P", "root=path:/nonexistent"), "/nonexistent does not exist; name the folder"),
        (("-P", "root=6.40"), "did you mean '6.40.00'?"),
        (("-P", "cachemb=1"), "did you mean 'cache_mb'?"),
        (("--sites", "locale"), "Did you mean 'local'?"),
    ],
)
def test_a_wrong_request_is_a_usage_error_and_stores_nothing(
    user: Any, words: tuple[str, ...], said: str
) -> None:
    folder = user.folder / "request"
    if not folder.exists():
        write_test(folder, TEST_HEADER)
    done = user.types("submit", str(folder), *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert not user.settings.data_dir.exists()


@pytest.fixture(scope="module")
def repository(user: Any) -> Path:
    """A repository with a test, links to its folder and out of it, and a file."""
    top: Path = user.folder / "repository"
    write_test(top / "tests" / "read", TEST_HEADER)
    (top / "tests" / "alias").symlink_to("read")
    write_test(top / "tests" / "leaves", TEST_HEADER)
    (top / "tests" / "leaves" / "out").symlink_to("../../../elsewhere")
    author = ("-c", "user.name=Tester", "-c", "user.email=tester@example.org")
    env = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    env |= {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    for command in (
        ("init", "--quiet", "--initial-branch=main"),
        ("add", "."),
        (*author, "commit", "--quiet", "-m", "first"),
    ):
        subprocess.run(["git", *command], cwd=top, env=env, check=True)
    return top


def test_every_kind_of_wrong_source_is_one_clear_message(user: Any, repository: Path) -> None:
    wrong = {
        f"{repository}@mian:tests/read": "no branch, tag or commit 'mian'",
        f"{repository}@main:tests/raed": "no such folder in that commit",
        f"{repository}@main:../tests/read": "the path leaves the repository",
        f"{repository}@main:/etc": "the path leaves the repository",
        f"{repository}@main:tests/alias": "tests/alias is a symbolic link",
        f"{repository}@main:tests/leaves": "the link 'out' leads out of the test's folder",
        f"{repository}@main:tests/read/read.py": "is a file, not a folder",
        f"{user.folder}/nothing@main:x": "no such repository",
    }
    done = user.types("tests", "check", *wrong, f"{repository}@main:tests/read")
    assert done.returncode == 2
    messages = [line for line in done.stdout.splitlines() if not line.startswith("  ")]
    assert messages[-1].startswith("ok ")
    for message, said in zip(messages[:-1], wrong.values(), strict=True):
        assert said in message


def test_an_unreachable_repository_is_no_fault_of_the_user(user: Any) -> None:
    """Trying again may help, which is what exit code 4 says; the other tests are checked too."""
    good = write_test(user.folder / "beside", TEST_HEADER)
    done = user.types("tests", "check", "https://127.0.0.1:9/tests.git@main:read", str(good))
    assert done.returncode == 4
    refused, hint, last = done.stdout.splitlines()
    assert refused.startswith("https://127.0.0.1:9/tests.git: cannot be fetched: ")
    assert "Check the address and the network" in hint
    assert last.startswith("ok ")
