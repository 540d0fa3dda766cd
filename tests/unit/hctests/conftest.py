"""Fixture that writes test folders."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

MINIMAL_TEST_TOML = '[test]\nname = "mine"\npayload = "read.py"\n'

WriteTest = Callable[..., Path]


@pytest.fixture
def write_test(tmp_path: Path) -> WriteTest:
    """Write a test folder; the text follows a minimal [test] table unless it has one itself.

    Scripts are executable.
    """

    def write(text: str = "", **files: str) -> Path:
        folder = tmp_path / "mine"
        folder.mkdir(exist_ok=True)
        whole = text if "[test]" in text else MINIMAL_TEST_TOML + text
        (folder / "test.toml").write_text(whole, encoding="utf-8")
        for name, content in {"read_py": "print()\n", **files}.items():
            path = folder / name.replace("_", ".")
            path.write_text(content, encoding="utf-8")
            path.chmod(0o755 if content.startswith("#!") else 0o644)
        return folder

    return write
