"""Remotes with authentication: HTTP with a password, SSH."""

from __future__ import annotations

import base64
import http.server
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from local_servers import serve_http

from treehammer.config import Settings
from treehammer.errors import SourceError, SourceUnreachableError
from treehammer.hctests import pinned_tests

Git = Callable[..., str]
SECRET = "s3cr3t/word"
QUOTED = "s3cr3t%2Fword"


class PasswordHandler(http.server.SimpleHTTPRequestHandler):
    """Serve files with HTTP basic authentication."""

    wanted = "Basic " + base64.b64encode(f"reader:{SECRET}".encode()).decode()

    def do_GET(self) -> None:
        if self.headers.get("Authorization") == self.wanted:
            super().do_GET()
            return
        self.send_response(401)
        self.send_header("WWW-Authenticate", 'Basic realm="tests"')
        self.send_header("Content-Length", "0")
        self.end_headers()


@pytest.fixture
def port(origin: Path, git: Git, tmp_path: Path) -> Iterator[int]:
    served = tmp_path / "served"
    git(tmp_path, "clone", "--quiet", "--bare", str(origin), str(served / "o.git"))
    git(served / "o.git", "update-server-info")
    with serve_http(PasswordHandler, served) as port:
        yield port


def test_credentials_are_used_and_not_stored(
    port: int, settings: Settings, capfd: pytest.CaptureFixture[str]
) -> None:
    spec = f"http://reader:{QUOTED}@127.0.0.1:{port}/o.git@main:tests/read"
    pinned = pinned_tests.pin_test(spec, settings)
    assert pinned.repository == f"http://127.0.0.1:{port}/o.git"
    assert (pinned.folder / "read.py").read_text() == "print('one')\n"
    printed = "".join(capfd.readouterr())
    needles = (SECRET, QUOTED, base64.b64encode(f"reader:{SECRET}".encode()).decode())
    kept = [path for path in settings.cache_dir.rglob("*") if path.is_file()]
    assert kept
    for needle in needles:
        assert needle not in repr(pinned) + printed
        assert not [path for path in kept if needle.encode() in path.read_bytes()]


def test_wrong_credentials_are_refused_without_prompt(port: int, settings: Settings) -> None:
    for user_info in ("reader:wr0ng@", ""):
        with pytest.raises(SourceUnreachableError) as caught:
            pinned_tests.pin_test(
                f"http://{user_info}127.0.0.1:{port}/o.git@main:tests/read", settings
            )
        assert "wr0ng" not in str(caught.value)
        assert "Passwords are never asked for" in str(caught.value)


@pytest.mark.parametrize(
    "spec",
    [
        "nowhere://a:s3cr3t@b/c@main:x",
        "https://a:s3cr3t@b/c",
        "https://a:b/s3cr3t@b/c@main:x",
        "https://[a:s3cr3t@b/c@main:x",
    ],
)
def test_credentials_are_masked_in_errors(settings: Settings, spec: str) -> None:
    with pytest.raises(SourceError) as caught:
        pinned_tests.pin_test(spec, settings)
    assert "s3cr3t" not in str(caught.value)


@pytest.mark.parametrize("form", ["git@host.example:{path}", "ssh://git@host.example{path}"])
def test_ssh_address(
    origin: Path,
    settings: Settings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    form: str,
) -> None:
    # A substitute for ssh that runs the remote command here and records the host.
    stand_in = tmp_path / "ssh-stand-in"
    stand_in.write_text(
        '#!/bin/sh\n[ "$1" = -G ] && exit 1\n'
        f'echo "$@" >> {tmp_path}/asked\nfor last; do :; done\nexec sh -c "$last"\n'
    )
    stand_in.chmod(0o755)
    monkeypatch.setenv("GIT_SSH_COMMAND", str(stand_in))
    address = form.format(path=origin)
    pinned = pinned_tests.pin_test(f"{address}@main:tests/read", settings)
    assert pinned.repository == address
    assert "git@host.example git-upload-pack" in (tmp_path / "asked").read_text()
