"""Mistakes of a user before anything runs: one message, exit code 2, nothing stored."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from file_mistakes import BROKEN_DEFINITIONS, DEFINITION_MISTAKES, TEST_HEADER

TOO_MANY = (
    TEST_HEADER + "[matrix]\n" + "".join(f"axis_{n} = {list(range(20))}\n" for n in range(10))
)


def write_test(folder: Path, text: str | bytes) -> Path:
    folder.mkdir(parents=True)
    content = text.encode() if isinstance(text, str) else text
    (folder / "test.toml").write_bytes(content)
    (folder / "read.py").write_text("print()\n")
    return folder


def test_every_mistake_is_reported_with_file_line_and_key(user: Any) -> None:
    """Check all at once, like a repository of tests."""
    good = write_test(user.folder / "good", TEST_HEADER)
    expected: list[tuple[str, str]] = []
    for number, (text, line, key, part) in enumerate(DEFINITION_MISTAKES):
        folder = write_test(
            user.folder / f"m{number}", text if "[test]" in text else TEST_HEADER + text
        )
        expected.append((f"{folder / 'test.toml'}:{line}: {key}: ", part))
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
    done = user.run_command("tests", "check", *folders, str(good))
    assert done.returncode == 2
    assert done.stderr == ""
    *lines, last = done.stdout.splitlines()
    assert last.startswith(f"ok {good}: mine")
    assert len(lines) == len(expected), "one line for each mistake"
    for line, (start, part) in zip(lines, expected, strict=True):
        assert line.startswith(start)
        assert part in line


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("-S", "dataset=reference-smal"), "Did you mean 'reference-small'?"),
        (("-P", "root=path:/nonexistent"), "/nonexistent does not exist; name the folder"),
        (("-P", "root=6.40"), "did you mean '6.40.00'?"),
        (("-P", "cachemb=1"), "did you mean 'cache_mb'?"),
        (("--sites", "locale"), "Did you mean 'local'?"),
    ],
)
def test_invalid_request_is_a_usage_error(user: Any, words: tuple[str, ...], expected: str) -> None:
    folder = user.folder / "request"
    if not folder.exists():
        write_test(folder, TEST_HEADER)
    done = user.run_command("submit", str(folder), *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert expected in done.stderr
    assert "Traceback" not in done.stderr
    assert not user.settings.data_dir.exists()


@pytest.fixture(scope="module")
def repository(user: Any) -> Path:
    """A repository with a test, links inside and out of its folder, and a file."""
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


def test_every_invalid_source_is_one_message(user: Any, repository: Path) -> None:
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
    done = user.run_command("tests", "check", *wrong, f"{repository}@main:tests/read")
    assert done.returncode == 2
    messages = [line for line in done.stdout.splitlines() if not line.startswith("  ")]
    assert messages[-1].startswith("ok ")
    for message, expected in zip(messages[:-1], wrong.values(), strict=True):
        assert expected in message


def test_unreachable_repository_is_an_infrastructure_error(user: Any) -> None:
    """Exit code 4 means that a retry may help; other tests are still checked."""
    good = write_test(user.folder / "beside", TEST_HEADER)
    done = user.run_command("tests", "check", "https://127.0.0.1:9/tests.git@main:read", str(good))
    assert done.returncode == 4
    refused, hint, last = done.stdout.splitlines()
    assert refused.startswith("https://127.0.0.1:9/tests.git: cannot be fetched: ")
    assert "Check the address and the network" in hint
    assert last.startswith("ok ")
