"""Statements sent to an Oracle server of either version equal the golden file."""

from __future__ import annotations

import os

import pytest
from h2_oracle import VERSIONS, H2Server
from oracle_golden import GOLDEN_FILE, record_statements


@pytest.mark.parametrize("version", VERSIONS)
def test_statements_equal_golden_file(
    h2_server: H2Server, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(h2_server, "version", VERSIONS[version])
    sent = record_statements(h2_server)
    if os.environ.get("RENEW_GOLDEN"):
        GOLDEN_FILE.write_text(sent, encoding="utf-8")
    assert sent.splitlines() == GOLDEN_FILE.read_text(encoding="utf-8").splitlines()
