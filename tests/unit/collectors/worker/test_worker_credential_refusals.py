"""Failures that become failures of credentials, by the messages of real clients."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from credential_factory import write_token

from treehammer.collectors.record.outcome import Failure
from treehammer.collectors.software.providers import parse_software_request
from treehammer.collectors.worker.probes.credential_checks import (
    PROXY_VARIABLE,
    TOKEN_FILE_VARIABLE,
    ProxyDetails,
)
from treehammer.collectors.worker.run import payload_failures
from treehammer.collectors.worker.run.payload_failures import classify_refusal

ROOTS, HTTPS = "roots://se.example//a.root", "https://se.example/a.root"
NO_PROTOCOL = "cannot open a (TNetXNGFile::Open: [FATAL] Auth failed: No protocols left to try)"
NO_SCOPE = "cannot open a ([3010] Unable to open /store/a.root; permission denied)"
ROOT_640 = parse_software_request("6.40.00")


def classify(
    message: str,
    env: dict[str, str],
    url: str = ROOTS,
    failure: Failure | None = None,
    excerpt: str = "",
    root: str = "6.40.00",
) -> Failure:
    given = failure or Failure("open", "file", "open", message, transient=True)
    return classify_refusal(given, env, [url], parse_software_request(root), excerpt)


@pytest.fixture
def valid(tmp_path: Path) -> dict[str, str]:
    return {TOKEN_FILE_VARIABLE: str(write_token(tmp_path / "valid", time.time() + 900))}


@pytest.fixture
def expired(tmp_path: Path) -> dict[str, str]:
    return {TOKEN_FILE_VARIABLE: str(write_token(tmp_path / "expired", time.time() - 9))}


def test_refusals_of_xrootd_are_distinguished(
    valid: dict[str, str], expired: dict[str, str]
) -> None:
    kinds = [classify(NO_PROTOCOL, env).kind for env in ({}, expired, valid)]
    assert kinds == ["missing", "expired", "refused"]
    found = classify(NO_SCOPE, valid)
    assert (found.failure_class, found.kind, found.transient) == (
        "credential",
        "not-permitted",
        False,
    )
    assert "scope" in found.message
    assert "3010" in found.message
    assert classify(NO_SCOPE, {}).kind == "missing"


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("a cannot be copied to the node: HTTP Error 401: Unauthorized.", "refused"),
        ("a cannot be copied to the node: HTTP Error 403: Forbidden.", "not-permitted"),
        ("[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: self-signed", "untrusted"),
    ],
)
def test_refusals_while_staging(message: str, kind: str, valid: dict[str, str]) -> None:
    failure = Failure("stage-in", "copy", "stage-in", message, transient=True)
    found = classify("", valid, HTTPS, failure)
    assert (found.failure_class, found.kind) == ("credential", kind)
    assert not found.transient


def test_refusal_of_a_root_without_tokens_is_not_supported(valid: dict[str, str]) -> None:
    message = "cannot open a (TWebFile::GetHead: https://se.example/a.root: Forbidden (403))"
    found = classify(message, valid, HTTPS, root="6.38.00")
    assert (found.failure_class, found.kind) == ("software-setup", "not-supported")
    assert "Stage the files" in found.message
    built = classify(message, valid, HTTPS, root="path:/opt/root")
    assert (built.failure_class, built.kind) == ("software-setup", "not-supported")
    davix = message.replace("TWebFile", "TDavixFile")
    assert classify(davix, valid, HTTPS, root="path:/opt/root").failure_class == "credential"


def test_output_explains_an_exit_code(valid: dict[str, str]) -> None:
    exited = Failure("payload", "exit", "payload", "The payload ended with exit code 1.")
    assert classify("", valid, failure=exited, excerpt=NO_PROTOCOL).kind == "refused"
    assert classify("", valid, failure=exited, excerpt="Segmentation fault") == exited


@pytest.mark.parametrize(
    "message",
    [
        "cannot open a ([3011] No such file or directory)",
        "cannot open root://se.example//run403/event4010.root (connection reset)",
        "size 13010 differs",
    ],
)
def test_other_failures_are_kept(message: str, valid: dict[str, str]) -> None:
    assert classify(message, valid).kind == "file"


def test_local_files_need_no_credential(valid: dict[str, str]) -> None:
    given = Failure("open", "file", "open", "403 forbidden")
    assert classify_refusal(given, valid, ["/data/a.root"], ROOT_640) == given


def test_server_without_trust_is_not_a_refusal(valid: dict[str, str]) -> None:
    excerpt = "security protocol 'ztn' disallowed for non-TLS connections."
    assert classify(NO_PROTOCOL, valid, excerpt=excerpt).kind == "untrusted"


def test_proxy_is_described_by_its_attributes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    end = time.time() + 900
    member = ProxyDetails("/CN=me", end, ("/vo/Role=pilot", "/vo"), end)
    for proxy, expected in {
        ProxyDetails("/CN=me", end): ("refused", "x509 proxy (no VOMS attributes)"),
        member: ("refused", "x509 proxy (/vo/Role=pilot, /vo)"),
        member._replace(attributes_expire_at=1.0): (
            "expired",
            "x509 proxy's VOMS attributes expired at 1970-01-01 00:00:01 UTC",
        ),
    }.items():
        monkeypatch.setattr(payload_failures, "read_proxy", lambda path, found=proxy: found)
        failure = classify(NO_PROTOCOL, {PROXY_VARIABLE: str(tmp_path)})
        assert failure.kind == expected[0]
        assert expected[1] in failure.message
