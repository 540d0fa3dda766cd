"""Rucio without a server: credentials and sessions, uploads, polling of rules, translation of errors."""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
import zlib
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import MagicMock

import pytest
import requests
from credential_factory import write_proxy, write_token
from local_servers import CONTENT, SIZE, LyingDoor, send_answer, serve_http
from rucio.common import exception as rucios

from treehammer import config
from treehammer.collectors import http_requests
from treehammer.datasets.manifest import MANIFEST_NAME, RAW_LAYOUT, Manifest, ManifestFile
from treehammer.datasets.rucio import rucio_upload
from treehammer.datasets.rucio.rucio_client import RucioClient
from treehammer.datasets.rucio.rucio_conversions import (
    AccountQuota,
    DidFile,
    DidNames,
    ReplicationRule,
    Rse,
    RseExpressionError,
    RucioDeniedError,
    RucioNotFoundError,
    RucioSilentError,
    RuleOptions,
    parse_rule,
    translate_error,
)
from treehammer.datasets.rucio.rucio_datasets import RucioCatalogue, _path_below_prefix
from treehammer.datasets.rucio.rucio_login import RucioLogin, check_answer, find_login, make_session
from treehammer.datasets.rucio.rucio_replication import (
    COMPLETE,
    COPYING,
    DENIED,
    STUCK,
    WAITING,
    ReplicationStatus,
    poll_replication,
)
from treehammer.datasets.rucio.rucio_upload import upload_dataset
from treehammer.errors import CatalogueError, ConfigError, DatasetError, TreehammerError
from treehammer.text_formatting import no_progress

CONFIG = "/etc/rucio.cfg"


def find(environment: Mapping[str, str] = {}, /, **options: str) -> RucioLogin:
    return find_login(lambda name: options.get(name, ""), environment, CONFIG)


def test_variables_precede_options() -> None:
    options = {"auth_type": "x509", "client_cert": "/c", "client_key": "/k", "account": "me"}
    login = find({}, **options)
    assert (login.credential, login.private_key, login.account) == ("/c", "/k", "me")
    assert login.describe() == f"{CONFIG}: client_cert = /c"
    variables = {"RUCIO_CLIENT_CERT": "/d", "RUCIO_CLIENT_KEY": "/l", "RUCIO_ACCOUNT": "you"}
    login = find(variables, **options)
    assert (login.credential, login.private_key, login.account) == ("/d", "/l", "you")
    assert login.describe() == "RUCIO_CLIENT_CERT=/d"


@pytest.mark.parametrize(
    ("variables", "options", "expected"),
    [
        ({"X509_USER_PROXY": "/env"}, {"client_x509_proxy": "/cfg"}, "/cfg"),
        ({"X509_USER_PROXY": "/env"}, {}, "/env"),
        ({"RUCIO_CLIENT_PROXY": "/first", "X509_USER_PROXY": "/env"}, {}, "/first"),
    ],
)
def test_proxy_is_found_in_the_order_of_the_client(
    variables: dict[str, str], options: dict[str, str], expected: str
) -> None:
    assert find(variables, auth_type="x509_proxy", **options).credential == expected


def test_token_is_found_in_the_order_of_the_client(tmp_path: Path) -> None:
    usual = tmp_path / f"bt_u{os.geteuid()}"
    usual.write_text("from-folder\n")
    variables = {"XDG_RUNTIME_DIR": str(tmp_path)}
    assert find(variables, auth_type="oidc").read_token() == "from-folder"
    named = tmp_path / "named"
    named.write_text("named\n")
    variables["BEARER_TOKEN_FILE"] = str(named)
    assert find(variables, auth_type="oidc").read_token() == "named"
    assert find({**variables, "BEARER_TOKEN": "t"}, auth_type="oidc").describe() == "BEARER_TOKEN"


def test_missing_credentials_have_remedies() -> None:
    with pytest.raises(ConfigError, match=r"no valid certificate.*\n.*client_cert and client_key"):
        find(auth_type="x509").check()
    with pytest.raises(ConfigError, match=r"cannot be read \(No such file or directory\)"):
        find(auth_type="x509_proxy", client_x509_proxy="/none").check()
    for kind, word in (("oidc", "BEARER_TOKEN_FILE"), ("ssh", "with this ssh key: refused")):
        with pytest.raises(ConfigError, match=word):
            RucioLogin(kind).explain_refusal("refused")


def test_private_key_of_everyone_is_refused(tmp_path: Path) -> None:
    path = write_proxy(tmp_path / "both", time.time() + 900)
    path.chmod(0o644)
    login = find(auth_type="x509", client_cert=str(path), client_key=str(path))
    with pytest.raises(
        ConfigError, match=rf"client_key {path}: .* mode is 644\n.*chmod 600 {path}"
    ):
        login.check()
    path.chmod(0o600)
    login.check()


def test_missing_authorities_are_named_for_https_only() -> None:
    options = {"auth_type": "userpass", "ca_cert": "/none/ca.pem"}
    find({}, rucio_host="http://server", **options).check()
    with pytest.raises(ConfigError, match=r"authorities /none/ca\.pem do not exist\n.*ca_cert"):
        find({}, rucio_host="https://server", **options).check()


def test_expiry_explains_refusals(tmp_path: Path) -> None:
    path = write_token(tmp_path / "token", time.time() - 5)
    login = find({"BEARER_TOKEN_FILE": str(path)}, auth_type="oidc")
    with pytest.raises(ConfigError, match="the token expired at") as caught:
        login.explain_refusal("Traceback")
    assert "Traceback" not in str(caught.value)
    path = write_proxy(tmp_path / "proxy", time.time() - 5)
    login = find(auth_type="x509_proxy", client_x509_proxy=str(path))
    with pytest.raises(ConfigError, match=f"client_x509_proxy = {path}: the x509 proxy expired"):
        login.explain_tls("SSLError: sslv3 alert certificate expired")


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("SSLCertVerificationError: certificate verify failed", "not trust the certificate of"),
        ("[SSL: TLSV1_ALERT_UNKNOWN_CA] tlsv1 alert unknown ca", "server does not trust this x509"),
        ("Connection refused", ""),
    ],
)
def test_tls_failures_are_told_from_silence(tmp_path: Path, message: str, expected: str) -> None:
    path = write_proxy(tmp_path / "proxy", time.time() + 900)
    login = find(auth_type="x509_proxy", client_x509_proxy=str(path))
    with pytest.raises(ConfigError, match=expected) if expected else nullcontext():
        login.explain_tls(message)


def test_dripping_server_ends_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    start = time.monotonic()
    with serve_http(LyingDoor) as port, make_session() as session:
        with monkeypatch.context() as patch:
            patch.setattr(http_requests, "TRANSFER_START_S", 0.5)
            for kind in ("slow-headers", "drip"):
                with pytest.raises(requests.RequestException):
                    session.get(f"http://127.0.0.1:{port}/{kind}/f", timeout=60)
        with session.get(f"http://127.0.0.1:{port}/right/f", timeout=60) as answer:
            assert answer.content == CONTENT
        with session.get(f"http://127.0.0.1:{port}/right/f", timeout=60, stream=True) as answer:
            assert sum(map(len, answer.iter_content(1000))) == SIZE
    assert time.monotonic() - start < 25, "both whole answers take 60 s"


def test_token_stays_at_the_server() -> None:
    tokens: list[str | None] = []

    class Server(BaseHTTPRequestHandler):
        target = ""

        def do_GET(self) -> None:
            tokens.append(self.headers["X-Rucio-Auth-Token"])
            send_answer(self, 302 if self.path == "/from" else 200, Location=f"{self.target}/to")

    headers = {"X-Rucio-Auth-Token": "secret"}
    with serve_http(Server) as other, serve_http(Server) as port, make_session() as session:
        for target in (other, port):
            Server.target = f"http://127.0.0.1:{target}"
            session.get(f"http://127.0.0.1:{port}/from", headers=headers, timeout=10).close()
    assert tokens == ["secret", None, "secret", "secret"]


UPLOADED_CONTENT = b"some bytes"
PATTERNS = {"DATASET": r"/[A-Za-z]+/[a-z-]+/USER(#\w+)?", "FILE": r"/store/user/.+"}


RULE_ROW = {
    "id": "r1",
    "rse_expression": "A_DATA",
    "account": "me",
    "state": "STUCK",
    "locks_ok_cnt": 1,
    "locks_replicating_cnt": 0,
    "error": "RequestErrMsg.TRANSFER_FAILED:Run: [FATAL]\n Socket timeout",
    "expires_at": "Thu, 01 Jan 1970 00:01:00 UTC",
}


class Server:
    """A Rucio server with names by a schema, as its client shows it."""

    host, account = "https://rucio", "me"

    def __init__(self, storage: Path, patterns: dict[str, str]) -> None:
        self.storage, self.patterns = storage, patterns
        self.calls: list[str] = []
        self.datasets: set[str] = set()
        self.replicas: dict[str, dict[str, Any]] = {}
        self.refusal: Exception | None = None
        self.kind, self.is_open, self.rse_type = "DATASET", False, "DISK"
        self.rses = {"tier=2": "AB", "*\\(tier=2)": "C", None: "ABC", "*": "ABC"}

    def add_did(self, scope: str, name: str, did_type: str, dids: object = None) -> None:
        self.calls.append(f"{did_type} {name}")
        self.check(name, did_type)
        raise rucios.DataIdentifierNotFound if dids else rucios.UnsupportedOperation

    def check(self, name: str, did_type: str) -> None:
        pattern = self.patterns.get(did_type, ".*")
        if not re.fullmatch(pattern, name):
            raise rucios.InvalidObject(
                f"Problem validating did: {name!r} does not match {pattern!r}"
            )

    def add_dataset(self, scope: str, name: str) -> None:
        self.check(name, "DATASET")
        self.datasets.add(name)

    def get_did(self, scope: str, name: str, dynamic_depth: str = "") -> dict[str, Any]:
        if name not in self.datasets:
            raise rucios.DataIdentifierNotFound
        return {"type": self.kind, "open": self.is_open, "length": len(self.replicas)}

    def set_status(self, scope: str, name: str, **_: bool) -> None:
        self.is_open = False
        raise rucios.UnsupportedOperation("cannot be changed: it is closed by the first try")

    def add_replication_rule(self, *_: object, **__: object) -> list[str]:
        raise rucios.DuplicateRule("made by the first try")

    def list_did_rules(self, scope: str, name: str) -> list[dict[str, Any]]:
        return [RULE_ROW, RULE_ROW | {"id": "r2", "rse_expression": "A"}]

    def list_files(self, scope: str, name: str) -> list[dict[str, Any]]:
        return [{**row, "md5": None} for row in self.replicas.values()]

    def get_metadata_bulk(self, dids: list[dict[str, str]]) -> list[dict[str, Any]]:
        self.calls.append(f"metadata of {len(dids)}")
        for did in dids:
            self.check(did["name"], "FILE")
        return [self.replicas[did["name"]] for did in dids if did["name"] in self.replicas]

    def list_replicas(self, dids: list[Any], *, resolve_archives: bool, **words: Any) -> list[Any]:
        self.calls.append(f"replicas of {len(dids)}")
        return [
            {
                **self.replicas[did["name"]],
                "pfns": {self.url(did["name"]): {"rse": "A", "priority": 1, "type": self.rse_type}}
                if words.get("schemes")  # otherwise those of the first protocol, such as SRM
                else {},
            }
            for did in dids
            if did["name"] in self.replicas
        ]

    def url(self, name: str) -> str:
        return (self.storage / name.replace("/", "_")).as_uri()

    def lfns2pfns(self, rse: str, dids: list[str], scheme: str, **_: Any) -> dict[str, str]:
        if scheme == "root":  # no server answers there
            return {did: f"root://127.0.0.1:1//{did}" for did in dids}
        if scheme == "xroot":
            raise rucios.ReplicaNotFound
        self.calls.append(f"urls of {len(dids)}")
        return {did: self.url(did.partition(":")[2]) for did in dids}

    def add_replicas(self, rse: str, files: list[dict[str, Any]], **_: Any) -> None:
        self.calls.append(f"registration at {rse} of {len(files)}")
        if self.refusal:
            raise self.refusal
        for file in files:
            self.check(file["name"], "FILE")
            self.replicas[file["name"]] = file

    def list_rses(self, expression: str | None = None) -> list[dict[str, str]]:
        if expression not in self.rses:
            raise rucios.InvalidRSEExpression("it selects none")
        return [{"rse": name} for name in self.rses[expression]]

    def get_local_account_usage(self, _account: str) -> list[dict[str, Any]]:
        return []

    def add_files_to_datasets(self, attachments: list[dict[str, Any]], **_: Any) -> None:
        self.calls.append(f"attachment of {len(attachments[0]['dids'])}")


def make_rucio(server: Server, folder: Path, **options: str) -> RucioCatalogue:
    settings = config.load_settings(
        {"cache_dir": folder / "cache", "rucio_scope": "cms", **options}, environ={}
    )
    rucio = RucioClient(settings, sleep=lambda _: None)
    vars(rucio)["_client"], vars(rucio)["_login"] = server, RucioLogin("userpass")
    return RucioCatalogue(settings, rucio)


@pytest.fixture
def manifest(tmp_path: Path) -> Manifest:
    adler32 = f"{zlib.adler32(UPLOADED_CONTENT):08x}"
    sha256 = hashlib.sha256(UPLOADED_CONTENT).hexdigest()
    file = ManifestFile("a.bin", len(UPLOADED_CONTENT), adler32, sha256, RAW_LAYOUT)
    manifest = Manifest("my-set", (file,), {})
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "a.bin").write_bytes(UPLOADED_CONTENT)
    (tmp_path / "set" / MANIFEST_NAME).write_text(manifest.to_json())
    return manifest


@pytest.fixture
def server(tmp_path: Path) -> Server:
    (tmp_path / "storage").mkdir()
    return Server(tmp_path / "storage", PATTERNS)


NAMES = {
    "rucio_dataset_name": "/TreeHammer/{dataset}/USER",
    "rucio_file_name": "/store/user/me/{dataset}/{file}",
}
THROUGH = [Rse(name, "SITE_A", "DISK", True, False) for name in ("A", "B")]


def upload(server: Server, manifest: Manifest, folder: Path, **names: str) -> str:
    catalogue = make_rucio(server, folder, **names)
    return upload_dataset(manifest, folder / "set", catalogue, THROUGH)


def test_names_follow_templates(server: Server, manifest: Manifest, tmp_path: Path) -> None:
    assert upload(server, manifest, tmp_path, **NAMES) == "A"
    assert DidNames("", "/s/{dataset}/{file}").file("{file}", "{dataset}") == "/s/{file}/{dataset}"
    assert server.datasets == {"/TreeHammer/my-set/USER"}
    assert set(server.replicas) == {
        f"/store/user/me/my-set/{name}" for name in ("a.bin", MANIFEST_NAME)
    }
    assert make_rucio(server, tmp_path, **NAMES).manifest("my-set").hash == manifest.hash
    assert upload(server, manifest, tmp_path, **NAMES) == ""
    for_both = [call for call in server.calls if call.endswith("of 2")]
    assert for_both[:4] == ["replicas of 2", "metadata of 2", "urls of 2", "registration at A of 2"]
    server.rse_type = "TAPE"
    elsewhere = make_rucio(server, tmp_path / "elsewhere", **NAMES)
    assert upload_dataset(manifest, tmp_path / "set", elsewhere, THROUGH) == "A", (
        "also a lost manifest"
    )


def test_paths_follow_the_prefix_of_a_storage(server: Server, tmp_path: Path) -> None:
    protocols = [
        {"scheme": scheme, "hostname": "h", "port": port, "prefix": "//d/"}
        for scheme, port in (("file", 1), ("davs", 0), ("root", 1094))
    ]
    rse = {"rse_type": "DISK", "availability_write": True, "protocols": protocols}
    vars(server).update(get_rse=lambda _: rse, list_rse_attributes=lambda _: {})
    prefixes = make_rucio(server, tmp_path).rucio.fetch_rse("A").prefixes
    for url in ("file://h//d/u/f", "davs://h//d/u/f", "root://h:1094//d/u/f"):
        assert _path_below_prefix(url, prefixes) == "u/f"


def test_many_files_take_one_request_per_thousand(server: Server, tmp_path: Path) -> None:
    server.patterns = {}
    rucio = make_rucio(server, tmp_path).rucio
    bars = vars(rucio)["_bars"] = MagicMock()
    names = [f"f{number}" for number in range(2001)]
    rucio.attach_files("my-set", names)
    register(server, "f7", b"content", adler32="0" * 8)
    assert [*rucio.find_files(names)] == ["f7"]
    assert [location.file for location in rucio.list_locations(names)] == ["f7"]
    rows = [f"{kind} of {n}" for n in (1000, 1000, 1) for kind in ("replicas", "metadata")]
    assert server.calls == [*(f"attachment of {n}" for n in (1000, 1000, 1)), *rows, *rows]
    assert [call.args[1] for call in bars.call_args_list] == [2001] * 3
    server.calls.clear()
    rucio.check_names(None, names)
    assert server.calls == ["FILE f9", "FILE f99", "FILE f999", "FILE f2000"]


@pytest.mark.parametrize(
    ("setting", "name"),
    [("rucio_file_name", "my-set.manifest.json"), ("rucio_dataset_name", "my-set")],
)
def test_refused_names_are_found_before_the_first_byte(
    server: Server, manifest: Manifest, tmp_path: Path, setting: str, name: str
) -> None:
    names = {key: value for key, value in NAMES.items() if key != setting}
    with pytest.raises(ConfigError, match=f"does not accept the name '{name}'") as caught:
        upload(server, manifest, tmp_path, **names)
    assert caught.value.where == setting
    assert setting in caught.value.hint
    assert not any(server.storage.iterdir())
    assert not server.datasets


@pytest.mark.parametrize(
    ("refusal", "message"),
    [
        (rucios.InvalidObject("bad checksum"), "^Rucio: Provided object does not match .* bad"),
        (rucios.CannotAuthenticate("expired"), "password: Cannot auth.*expired\n  Check account"),
        (rucios.DatabaseException("deadlock"), "no storage takes the files"),
    ],
)
def test_refused_registration_leaves_no_file(
    server: Server, manifest: Manifest, tmp_path: Path, refusal: Exception, message: str
) -> None:
    server.refusal = refusal
    with pytest.raises(TreehammerError, match=message):
        upload(server, manifest, tmp_path, **NAMES)
    assert not any(server.storage.iterdir())
    assert not server.datasets


def test_silent_server_may_have_registered_the_file(
    server: Server, manifest: Manifest, tmp_path: Path
) -> None:
    server.refusal = rucios.ServerConnectionException("no answer")
    with pytest.raises(CatalogueError, match="does not answer"):
        upload(server, manifest, tmp_path, **NAMES)
    assert len(list(server.storage.iterdir())) == 2
    assert "registration at B of 2" not in server.calls, "they may be registered at A"
    server.refusal = None
    assert upload(server, manifest, tmp_path, **NAMES) == "A"


@pytest.mark.parametrize("method", ["list_files", "get_metadata_bulk", "list_replicas"])
def test_list_that_is_cut_between_rows_brings_no_second_copy(
    server: Server, manifest: Manifest, tmp_path: Path, method: str
) -> None:
    upload(server, manifest, tmp_path, **NAMES)
    whole = getattr(server, method)
    vars(server)[method] = lambda *words, **options: whole(*words, **options)[:-1]
    with pytest.raises(RucioSilentError, match="sends no whole answer: it lists"):
        upload(server, manifest, tmp_path, **NAMES)


def test_lost_answers_are_found_out(server: Server, tmp_path: Path) -> None:
    rucio = make_rucio(server, tmp_path).rucio
    server.datasets.add("my-set")
    server.is_open = True
    rules = MagicMock(return_value=[RULE_ROW, {"id": "r2"}])
    vars(server)["list_replication_rules"] = rules
    register(server, "of-others", b"", scope="others")
    assert rucio.list_files("my-set") == {}
    rucio.close_dataset("my-set")
    assert rucio.add_rule("my-set", "A", RuleOptions(None, "", "")) == "r2"
    with pytest.raises(RucioSilentError, match="no whole answer: no rule"):
        rucio.add_rule("my-set", "B", RuleOptions(None, "", ""))
    rules.return_value = [RULE_ROW]
    with pytest.raises(RucioSilentError, match="no whole answer: it lists 2 and 1 rules of my-set"):
        rucio.list_rules("my-set")
    vars(server).update(is_open=True, set_status=MagicMock(side_effect=rucios.AccessDenied))
    with pytest.raises(RucioDeniedError):
        rucio.close_dataset("my-set")
    vars(server)["lfns2pfns"] = lambda *_, **__: {"cms:f": "https://a/f"}
    with pytest.raises(RucioSilentError, match="no URL for cms:g at A"):
        rucio.find_upload_urls("A", ["f", "g"], "https")
    race = rucios.RucioException("duplicate key value violates unique constraint: another process")
    vars(server)["add_replicas"] = registration = MagicMock(side_effect=[race, None])
    rucio.register_replicas("A", [])
    assert registration.call_count == 2


@pytest.mark.parametrize("cut", ["tier=2", "*\\(tier=2)", None])
def test_list_of_rses_that_is_cut_between_rows_is_noticed(
    server: Server, tmp_path: Path, cut: str | None
) -> None:
    rucio = make_rucio(server, tmp_path).rucio
    vars(rucio)["fetch_rse"] = fetch_rse = MagicMock()
    rucio.find_rses("*")
    assert [call.args for call in fetch_rse.call_args_list] == [("A",), ("B",), ("C",)]
    server.rses[cut] = server.rses[cut][:-1]
    with pytest.raises(RucioSilentError, match=r"no whole answer: it lists \d RSEs in tier=2, "):
        rucio.find_rses("tier=2")


def test_dataset_that_another_process_closes_has_all_files_or_is_refused(
    server: Server, manifest: Manifest, tmp_path: Path
) -> None:
    vars(server)["add_files_to_datasets"] = MagicMock(side_effect=rucios.UnsupportedOperation)
    assert upload(server, manifest, tmp_path, **NAMES) == "A"
    empty = {"type": "DATASET", "open": True, "length": 0}
    vars(server).update(list_files=lambda *_: [], get_did=lambda *_, **__: empty)
    with pytest.raises(RucioDeniedError):
        upload(server, manifest, tmp_path, **NAMES)


@pytest.mark.parametrize(
    ("kind", "problem"),
    [
        ("CONTAINER", "is a container, and not a dataset"),
        ("DATASET", "is closed and lacks 2 files: my-set.manifest.json"),
    ],
)
def test_name_in_use_is_refused_before_the_first_byte(
    server: Server, manifest: Manifest, tmp_path: Path, kind: str, problem: str
) -> None:
    server.kind, server.patterns = kind, {}
    server.datasets.add("my-set")
    with pytest.raises(DatasetError, match=f"cms:my-set {problem}"):
        upload(server, manifest, tmp_path)
    assert not any(server.storage.iterdir())


PAGE = {"Content-Type": "text/html; charset=utf-8"}


@pytest.mark.parametrize(
    ("status", "headers", "text", "error"),
    [
        (200, PAGE, "<html>sign in", rucios.ServerConnectionException),
        (500, PAGE, "<html>", rucios.ServerConnectionException),
        (503, {}, "", rucios.ServiceUnavailable),
        (429, {}, "", rucios.ServiceUnavailable),
        (200, {}, '{"reason": "<html>"}', None),
        (201, PAGE, "Created", None),
        (200, {"Content-Type": "application/json"}, "null", rucios.ServerConnectionException),
        (404, {}, " -1.5\n", rucios.ServerConnectionException),
        (500, {"ExceptionClass": "ConfigNotFound"}, "", rucios.RucioException),
        (500, {"ExceptionClass": "PolicyPackageVersionError"}, "", rucios.RucioException),
        (503, {"ExceptionClass": "DatabaseException"}, "", None),
    ],
)
def test_answers_of_proxies_are_not_those_of_rucio(
    status: int, headers: dict[str, str], text: str, error: type[Exception] | None
) -> None:
    answer = SimpleNamespace(status_code=status, headers=headers, text=text, ok=status < 400)
    with pytest.raises(error, match=str(status)) if error else nullcontext():
        check_answer(cast(requests.Response, answer))


def register(server: Server, name: str, content: bytes, **checksums: str | None) -> None:
    row = {"scope": "cms", "name": name, "bytes": len(content), "adler32": None, "md5": None}
    server.replicas[name] = {**row, **checksums}
    Path(server.url(name).removeprefix("file://")).write_bytes(content)


def test_md5_identifies_files_without_adler32(
    server: Server, manifest: Manifest, tmp_path: Path
) -> None:
    server.patterns = {}
    text = manifest.to_json().encode()
    register(server, "my-set.manifest.json", text, md5=hashlib.md5(text).hexdigest().upper())
    register(
        server, "my-set.a.bin", UPLOADED_CONTENT, md5=hashlib.md5(UPLOADED_CONTENT).hexdigest()
    )
    server.datasets.add("my-set")
    assert make_rucio(server, tmp_path).manifest("my-set").hash == manifest.hash
    assert upload(server, manifest, tmp_path) == ""
    register(server, "my-set.a.bin", UPLOADED_CONTENT, md5=hashlib.md5(b"other").hexdigest())
    with pytest.raises(DatasetError, match="is another file: 10 bytes with md5"):
        upload(server, manifest, tmp_path)
    register(server, "my-set.manifest.json", text)
    with pytest.raises(CatalogueError, match="without a checksum, and cannot be verified"):
        make_rucio(server, tmp_path / "other").manifest("my-set")


@pytest.mark.parametrize(
    "template",
    [
        "",
        "{dataset}",
        "{file}.{dataset} ",
        "{dataset}{file}{site}",
        "{dataset}{file}}",
        "{dataset.__class__}{file}",
    ],
)
def test_templates_need_their_placeholders(template: str) -> None:
    with pytest.raises(ConfigError, match=r"rucio_file_name.*\{dataset\} and \{file\}"):
        config.load_settings({"rucio_file_name": template}, environ={})


RULE = ReplicationRule("r1", "A_DATA", "me", "REPLICATING", 0, 2, "", None)
OK = replace(RULE, state="OK", locks_ok=2, locks_copying=0)
HUNG = replace(RULE, state="STUCK", locks_copying=0, error="Hangs: a/checksum")
SPOILT = replace(HUNG, error="SOURCE CHECKSUM mismatch")
ASKED = ReplicationStatus("A", "A_DATA", files_total=2, rule_id="r1")


class Played:
    """Scripted Rucio that repeats its last answer; sleeping advances its clock."""

    def __init__(self, *answers: ReplicationRule | None, may_boost: bool = True) -> None:
        self.answers = list(answers)
        self.may_boost = may_boost
        self.boosts: list[float] = []
        self.now = 0.0

    def fetch_rule(self, rule_id: str) -> ReplicationRule:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if answer is None:
            raise RucioNotFoundError(f"no rule {rule_id}")
        return answer

    def update_rule(self, rule_id: str, *, boost_rule: bool) -> None:
        if not self.may_boost:
            raise RucioDeniedError("not you")
        self.boosts.append(self.now)

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def follow(
        self, *standings: ReplicationStatus, patience_s: float = 100.0
    ) -> list[list[ReplicationStatus]]:
        rucio = cast(RucioClient, self)
        looks = poll_replication(
            standings or [ASKED], rucio, patience_s, sleep=self.sleep, clock=lambda: self.now
        )
        return [list(look) for look in looks]


def test_poll_replication_ends_when_all_files_are_complete() -> None:
    looks = Played(replace(RULE, locks_copying=0), RULE, replace(OK, locks_ok=1), OK).follow()
    assert [look[0].state for look in looks] == [WAITING, COPYING, STUCK, COMPLETE]
    assert [look[0].files_complete for look in looks] == [0, 0, 1, 2]


def test_stuck_rules_are_boosted_with_growing_pauses() -> None:
    rucio = Played(HUNG)
    looks = rucio.follow(patience_s=300)
    assert looks[-1][0] == replace(ASKED, state=STUCK, reason="Hangs: a/checksum")
    assert rucio.boosts == pytest.approx([0, 30, 90, 210], abs=15)
    assert 300 <= rucio.now < 330


@pytest.mark.parametrize("rucio", [Played(SPOILT), Played(HUNG, may_boost=False)])
def test_hopeless_rules_are_not_boosted(rucio: Played) -> None:
    assert rucio.follow()[-1][0].state == STUCK
    assert not rucio.boosts


def test_denied_and_deleted_rules_end_polling() -> None:
    refused = replace(ASKED, state=DENIED, reason="no quota", rule_id="")
    (look,) = Played(None).follow(ASKED, refused)
    expected = [(DENIED, "its rule was deleted"), (DENIED, "no quota")]
    assert [(status.state, status.reason) for status in look] == expected


def test_stuck_rule_does_not_block_others() -> None:
    other = replace(ASKED, rse="B_DATA", rule_id="r2")
    looks = Played(HUNG, RULE, HUNG, OK).follow(ASKED, other, patience_s=0)
    assert [status.state for status in looks[-1]] == [STUCK, COMPLETE]


@pytest.mark.parametrize("state", ["WAITING_APPROVAL", "SUSPENDED"])
def test_suspended_rules_are_stuck(state: str) -> None:
    ((look,), *_) = Played(replace(RULE, state=state)).follow()
    assert look.state == STUCK
    assert look.reason == f"the rule is {state.lower().replace('_', ' for ')}"


def test_parse_rule_converts_row() -> None:
    rule = parse_rule(RULE_ROW)
    assert (rule.error, rule.expires_at) == ("Run: [FATAL] Socket timeout", 60.0)
    assert parse_rule(RULE_ROW | {"expires_at": None, "error": None}).expires_at is None


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (rucios.InsufficientAccountLimit("full"), RucioDeniedError, "full"),
        (rucios.InvalidRSEExpression("(("), RseExpressionError, "(("),
        (json.JSONDecodeError("cut", "{", 1), CatalogueError, "sends no whole answer: cut"),
        (rucios.RucioException("odd"), CatalogueError, "RucioException: "),
        (KeyError("rse"), RucioSilentError, "does not answer in Rucio's form (KeyError): 'rse'"),
        (RuntimeError("ours"), RuntimeError, "ours"),
    ],
)
def test_rucio_exceptions_are_translated(
    error: Exception, kind: type[Exception], message: str
) -> None:
    settings = config.load_settings({}, environ={"TREEHAMMER_RUCIO_ACCOUNT": "me"})
    translated = translate_error(error, settings)
    assert isinstance(translated, kind)
    assert message in str(translated)


def test_transient_errors_are_retried(server: Server, tmp_path: Path) -> None:
    rucio = make_rucio(server, tmp_path).rucio
    vars(rucio)["_sleep"] = sleep = MagicMock()
    answers = [rucios.ServiceUnavailable("wait"), {"error": "of a proxy"}, []]
    vars(server)["get_local_account_usage"] = MagicMock(side_effect=answers)
    assert rucio.list_quotas() == {}
    assert [call.args for call in sleep.call_args_list] == [(1.0,), (4.0,)]


def test_missing_rucio_cfg_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUCIO_CONFIG", "")  # restores the variable after the test
    for path, name in ((tmp_path / "none.cfg", "none.cfg"), (tmp_path / "empty.cfg", "empty.cfg")):
        (tmp_path / "empty.cfg").write_text("[client]\n")
        settings = config.load_settings({"cache_dir": tmp_path, "rucio_config": path}, environ={})
        with pytest.raises(ConfigError, match=rf"{name}: .*\n.*TREEHAMMER_RUCIO_CONFIG"):
            RucioClient(settings).account  # noqa: B018


def test_files_are_written_to_one_storage_only(monkeypatch: pytest.MonkeyPatch) -> None:
    def write_file(_file: DidFile, _path: Path, url: str, _advance: object) -> bool:
        if url == "A/two":
            raise CatalogueError("the disk is full")
        return True

    monkeypatch.setattr(rucio_upload, "_write_file", write_file)
    missing = [(DidFile(name, 1, "0" * 8), Path(name)) for name in ("one", "two", "three")]
    through = [Rse(name, "", "DISK", name != "SHUT", False) for name in ("SHUT", "SMALL", "A", "B")]
    rucio, bars = MagicMock(), MagicMock()
    rucio.list_quotas.return_value = {"SMALL": AccountQuota(1, 0), "A": AccountQuota(100, 0)}
    rucio.find_upload_urls = lambda rse, names, _: [f"{rse}/{name}" for name in names]
    assert rucio_upload._upload_files(missing, through, rucio, bars) == "B"
    assert [call.args for call in bars.call_args_list] == [
        ("Writing to A (files)", 3),
        ("Writing to B (files)", 2),
    ], "bytes of small files say nothing of the remaining time"
    calls = [call.args for call in rucio.register_replicas.call_args_list]
    registered = {rse: [file.name for file in files] for rse, files in calls}
    assert registered == {"A": ["one"], "B": ["two", "three"]}
    with pytest.raises(CatalogueError) as refused:
        rucio_upload._upload_files(missing, through[:3], rucio, no_progress)
    assert [line.strip() for line in refused.value.message.splitlines()[1:]] == [
        "SHUT: accepts no files now",
        "SMALL: the account's quota has no room for 3 bytes more",
        "A: the disk is full",
    ]
