"""ARC computing element of a testbed: requirements."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from treehammer.errors import TestbedError
from treehammer.testbed.components.arc_element import ArcElement
from treehammer.testbed.workspace import Workspace


def test_other_users_than_root_get_a_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    box = Workspace("t", tmp_path / "box", tmp_path / "cache", sites=("SITE_A",))
    with pytest.raises(TestbedError, match=r"needs root(?s:.*)leave ARC out"):
        ArcElement(box).install(print)
    assert not [*tmp_path.iterdir()]
