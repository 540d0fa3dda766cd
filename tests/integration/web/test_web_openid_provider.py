"""Sign-in to a real service by a certified OpenID provider, each in its own process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from openid_provider import CLIENT_SECRET, serve_with_provider, sign_in_at_provider

BROWSER = {"Accept": "text/html,*/*"}


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    with serve_with_provider(tmp_path) as address:
        yield address


def test_provider_signs_members_of_group_in(address: str, tmp_path: Path) -> None:
    with httpx.Client(headers=BROWSER, trust_env=False) as alice:
        assert alice.get(address).status_code == 401
        answer = sign_in_at_provider(alice, f"{address}/sign-in/openid?next=/campaigns", "alice")
        assert (answer.status_code, answer.url.path) == (200, "/campaigns"), answer.text
        assert "Sign out" in answer.text
        assert alice.post(f"{address}/sign-out").status_code == 303
        assert alice.get(address).status_code == 401
    with httpx.Client(headers=BROWSER, trust_env=False) as eve:
        answer = sign_in_at_provider(eve, f"{address}/sign-in/openid", "eve")
        assert answer.status_code == 403
        assert "none of their groups has a role" in answer.text
        assert eve.get(address).status_code == 401
    log = (tmp_path / "serve.log").read_text()
    for secret in (CLIENT_SECRET, "code=", "state="):
        assert secret not in log
