"""Libraries and modules that a test loads."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import MagicMock

import pytest

from treehammer.collectors.kit.treehammer_kit.payload_task import PayloadError
from treehammer.collectors.kit.treehammer_kit.root_engine import load_extensions


@pytest.mark.parametrize(
    ("libraries", "imports", "expected"),
    [
        (["/nowhere/libX.so"], [], r"load = \['/nowhere/libX.so'\] of test.toml: there is no file"),
        (["libText.so"], [], r"too short.*Build the library with ROOT 6.40.00"),
        ([], ["no_such_module_here"], r"imports = .* No module named 'no_such_module_here'\. Name"),
    ],
)
def test_missing_extension_is_named_with_key_and_remedy(
    tmp_path: Path, libraries: list[str], imports: list[str], expected: str
) -> None:
    (tmp_path / "libText.so").write_text("text")
    root = MagicMock()
    root.gSystem.Load.return_value = -1
    root.gROOT.GetVersion.return_value = "6.40.00"
    with pytest.raises(PayloadError, match=expected) as caught:
        load_extensions(root, libraries, imports, str(tmp_path))
    assert caught.value.document["failure_class"] == "software-setup"
