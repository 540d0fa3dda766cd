"""Fixture that writes test folders."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

MINIMAL_TEST_TOML = '[test]\nname = "mine"\npayload = "read.py"\n'

WriteTest = Callable[..., Path]


@pytest.fixture
def write_test(tmp_path: Path) -> WriteTest:
    """Write a test folder; the text follows a minimal [test] table unless it has one itself."""

    def write(text: str = "", **files: str) -> Path:
        folder = tmp_path / "mine"
        folder.mkdir(exist_ok=True)
        whole = text if "[test]" in text else MINIMAL_TEST_TOML + text
        (folder / "test.toml").write_text(whole, encoding="utf-8")
        for name, content in {"read_py": "print()\n", **files}.items():
            (folder / name.replace("_", ".")).write_text(content, encoding="utf-8")
        return folder

    return write
