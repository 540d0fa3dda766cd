"""What an Oracle server of either version is sent is what the golden files say."""

from __future__ import annotations

import difflib

import oracle_golden
import pytest
from h2_oracle import VERSIONS, H2Server


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", oracle_golden.GOLDEN_FILES)
def test_nothing_else_is_sent(
    h2_server: H2Server, name: str, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(h2_server, "version", VERSIONS[version])
    expected = (oracle_golden.GOLDEN_FOLDER / name).read_text(encoding="utf-8")
    found = oracle_golden.GOLDEN_FILES[name](h2_server)
    changes = list(
        difflib.unified_diff(
            expected.splitlines(), found.splitlines(), f"golden/{name}", f"sent to {version}", n=3
        )
    )
    shown = "\n".join(changes[:200])
    assert not changes, f"\n{shown}\nRenew the files if this is meant: see oracle_golden."
