"""The service, and packages outside Treehammer that extend it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from service_thread import start_service
from store_helpers import export_rows, write

from treehammer.submit.batch.interface import find_batch

__all__ = ["export_rows", "install_package", "start_service", "write"]

#: Adds a module with entry points: name of the module, its text, and lines by group.
InstallPackage = Callable[[str, str, dict[str, str]], Path]


@pytest.fixture
def install_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[InstallPackage]:
    """Install a module with entry points into a folder on Python's path, until the test has ended."""

    def install(name: str, text: str, entry_points: dict[str, str]) -> Path:
        (tmp_path / f"{name}.py").write_text(text)
        (metadata := tmp_path / f"{name}-1.0.dist-info").mkdir()
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        groups = "\n".join(f"[{group}]\n{line}\n" for group, line in entry_points.items())
        (metadata / "entry_points.txt").write_text(groups)
        monkeypatch.syspath_prepend(tmp_path)
        return tmp_path

    yield install
    find_batch.cache_clear()
