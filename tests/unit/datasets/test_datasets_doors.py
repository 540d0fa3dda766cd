"""Doors against small test servers: failures and answers that break the rules are reported within seconds."""

from __future__ import annotations

import hashlib
import socket
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock
from urllib.parse import unquote, unquote_to_bytes

import pytest
from local_servers import CONTENT, SIZE, LyingDoor, Pool, send_answer, serve_http, serve_tcp

from treehammer.collectors import http_requests
from treehammer.datasets import doors
from treehammer.datasets.doors import (
    ProbeResult,
    ProbeTarget,
    http_door,
    s3_door,
    xrootd_door,
    xrootd_process,
)
from treehammer.datasets.doors.observations import (
    FAILED,
    MISSING,
    NO_RESPONSE,
    REFUSED,
    FileObservation,
    find_first_file,
)

STORED_CONTENT = bytes(range(256)) * 8
LISTING = """<?xml version="1.0"?><D:multistatus xmlns:D="DAV:">
<D:response><D:href>/store/</D:href><D:prop><D:collection/></D:prop></D:response>
<D:response><D:href>/store/my%20file</D:href><D:prop/></D:response></D:multistatus>"""

FORBIDDEN = b"<d:status>HTTP/1.1 403 Forbidden</d:status>"
FILE = "<d:propstat><d:prop><d:resourcetype/></d:prop></d:propstat>"
FOLDER = FILE.replace("<d:resourcetype/>", "<d:resourcetype><d:collection/></d:resourcetype>")


def list_as(*hrefs: str) -> bytes:
    """Write a listing: addresses that end with a slash are folders, others are files."""
    responses = "".join(
        f"<d:response><d:href>{href}</d:href>{FOLDER if href.endswith('/') else FILE}</d:response>"
        for href in hrefs
    )
    return f'<d:multistatus xmlns:d="DAV:">{responses}</d:multistatus>'.encode()


LISTINGS = {
    "apache": list_as("/store/", "/store/my%20file")
    .replace(b"d:resourcetype", b"lp1:resourcetype")
    .replace(b"<d:response>", b"<d:response xmlns:lp1='DAV:' xmlns:lp2='http://apache.org/x/'>"),
    "default-namespace": list_as("/store/my%20file").replace(b"d:", b"").replace(b":d=", b"="),
    "no-namespace": list_as("/store/my%20file").replace(b"d:", b""),
    "wrong-namespace": list_as("/store/my%20file").replace(b"DAV:", b"DAV"),
    "undeclared-namespace": list_as("/store/my%20file").replace(b"xmlns:d", b"d"),
    "latin-1": list_as("/store/my%20file", "/store/é").decode().encode("latin-1"),
    "folder-last": list_as("/store/my%20file", "/store/"),
    "folder-without-slash": list_as("/store/", "/store/my%20file").replace(b"/store/<", b"/store<"),
    "absolute": list_as("http://other.example:8443/store/", "https://x//store//my%20file"),
    "relative-to-root": list_as("store/", "store/my%20file"),
    "relative-to-itself": list_as("./", "./my%20file"),
    "whole-path-encoded": list_as("%2fstore%2f", "%2Fstore%2Fmy%20file"),
    "double-slash": list_as("//store//", "//store//my%20file"),
    "another-root": list_as("/pnfs/cern.ch/store/my%20file", "/pnfs/cern.ch/store/"),
    "another-root-without-folder": list_as("/pnfs/cern.ch/store/my%20file"),
    "white-space": list_as("\n  /store/my%20file\n "),
    "query": list_as("/store/my%20file?authz=x"),
    "errors": list_as("/store/", "/store/a").replace(
        b"/store/a</d:href>", b"/store/a</d:href>" + FORBIDDEN
    )[: -len("</d:multistatus>")]
    + list_as("/store/my%20file").partition(b">")[2],
    "empty-file-first": list_as("/store/", "/store/a", "/store/my%20file").replace(
        b"<d:resourcetype/>", b"<d:resourcetype/><d:getcontentlength>0</d:getcontentlength>", 1
    ),
    "all-properties-refused": list_as("/store/", "/store/a", "/store/my%20file").replace(
        b"<d:resourcetype/></d:prop>", b"<d:resourcetype/></d:prop>" + FORBIDDEN, 1
    ),
    "closed-folder-first": list_as("/store/", "/store/closed/", "/store/my%20file"),
}
NAMES = [
    "a&amp;b.root",
    "a&b.root",
    "a&copy;b.root",
    "c++.root",
    "a%2520b.root",
    "é.root",
    "Z%E9.root",
    "x:y;b=c,d",
]


class Storage(BaseHTTPRequestHandler):
    """A storage with one file; the first folder of a path selects the misbehavior."""

    server_version, sys_version = "TestStore/1.2", ""
    asked: list[tuple[str, str | None]] = []
    listing = LISTING.encode()
    answer = send_answer

    def do_GET(self) -> None:
        self.asked.append((self.path, self.headers["Authorization"]))
        kind = self.path.split("/")[1]
        whole = len(STORED_CONTENT) + (kind == "longer")
        if kind.isdecimal():
            self.answer(int(kind), b"no such &lt;thing&gt;")
        elif kind in ("whole", "login"):
            self.answer(200, STORED_CONTENT, Content_Type="text/html" if kind == "login" else "")
        else:
            first, last = map(int, self.headers["Range"].removeprefix("bytes=").split("-"))
            stated = {"Content-Range": f"bytes {first}-{last}/{whole}"}
            self.answer(206, STORED_CONTENT[first : last + 1], **stated)

    def do_HEAD(self) -> None:
        self.asked.append((self.path, self.headers["Want-Digest"]))
        kind = self.path.split("/")[1]
        headers = {} if kind == "plain" else {"Digest": "adler32=1a2b3c,md5=xyz"}
        self.answer(int(kind) if kind.isdigit() else 200, STORED_CONTENT, **headers)

    def do_PROPFIND(self) -> None:
        kind = self.path.split("/")[1]
        if kind == "plain":
            self.answer(405, b"")
        elif self.path == "/store/closed/":
            self.answer(403, b"")
        else:
            self.answer(207, self.listing)


@pytest.fixture(scope="module")
def storage() -> Iterator[str]:
    with serve_http(Storage) as port:
        yield f"http://127.0.0.1:{port}"


@pytest.fixture
def secure(authority: Path) -> Iterator[str]:
    with serve_http(Storage, certificate=authority) as port:
        yield f"https://127.0.0.1:{port}"


@pytest.fixture
def short_window(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the XRootD client's timeout from three seconds to one."""
    monkeypatch.setitem(xrootd_door.CLIENT_TIMEOUTS, "XRD_CONNECTIONWINDOW", "1")


def probe(prefix: str, path: str = "", size: int = 0) -> ProbeResult:
    return doors.probe_door(prefix, ProbeTarget(path, size), is_local=True)


def test_web_door_is_listed_and_read(storage: str) -> None:
    result = probe(f"{storage}/store")
    assert result.details == f"read 1024 bytes of my file at {storage.removeprefix('http://')}"
    assert result.server == "TestStore 1.2"
    assert (result.rtt_s or 0) > 0


@pytest.mark.parametrize("listing", LISTINGS.values(), ids=LISTINGS)
def test_listings_are_read_as_servers_write_them(
    storage: str, listing: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Storage, "listing", listing)
    assert probe(f"{storage}/store").details.startswith("read 1024 bytes of my file at ")


@pytest.mark.parametrize("name", NAMES)
def test_names_are_decoded_once(storage: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Storage, "listing", list_as("/store/", f"/store/{name}"))
    Storage.asked.clear()
    decoded = name.replace("&amp;", "&")
    assert f"read 1024 bytes of {unquote(decoded)} at " in probe(f"{storage}/store").details
    addresses = {unquote_to_bytes(path) for path, _ in Storage.asked}
    assert addresses == {unquote_to_bytes(f"/store/{decoded}")}


@pytest.mark.parametrize(
    ("hrefs", "names"),
    [
        ((), []),
        (("/store/",), []),
        (("/dav/store/",), []),
        (("/store/sub/",), ["sub"]),
        (("/store/", "/store/sub/", "/store/sub/deep"), ["sub"]),
        (("/store/", "/store/../passwd", "/store/.."), []),
    ],
)
def test_folder_itself_is_no_entry(
    storage: str, hrefs: tuple[str, ...], names: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Storage, "listing", list_as(*hrefs))
    session = http_door.HttpSession(f"{storage}/store")
    assert [name for name, _ in session.list_entries("")] == names


def test_start_of_a_large_listing_is_enough(storage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    hrefs = (f"/store/{number:05}" for number in range(10_000))
    monkeypatch.setattr(Storage, "listing", list_as("/store/", *hrefs))
    assert "read 1024 bytes of 00000 at" in probe(f"{storage}/store").details


@pytest.mark.parametrize(
    ("listing", "problem"),
    [
        (b"<html><body>Index of /store</body></html>", "its listing is <html>"),
        (list_as("/").replace(FOLDER.encode(), FORBIDDEN), "403 Forbidden"),
        (list_as("/store/f")[:-9], "its listing is not valid XML"),
    ],
)
def test_other_listings_are_refused(
    storage: str, listing: bytes, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Storage, "listing", listing)
    result = probe(f"{storage}/store")
    assert problem in result.problem
    assert "--dataset" in result.remedy or "403" in problem


@pytest.mark.parametrize(
    ("kind", "problem", "remedy"),
    [
        ("401", "401 Unauthorized: no such <thing>", "BEARER_TOKEN_FILE"),
        ("404", "404 Not Found: no such", "Place the dataset there"),
        ("405", "405 Method Not Allowed", "permit HEAD, GET with Range"),
        ("501", "501 Not Implemented", "permit HEAD, GET with Range"),
        ("500", "500 Internal Server Error", "server's log"),
        ("429", "429 Too Many Requests", "fewer requests at once"),
        ("503", "503 Service Unavailable", "try again later"),
        ("longer", "has 2049 bytes there, and 2048 in the dataset", "Place the dataset"),
    ],
)
def test_web_door_errors_have_remedies(storage: str, kind: str, problem: str, remedy: str) -> None:
    result = probe(f"{storage}/{kind}", "f.root", len(STORED_CONTENT))
    assert problem in result.problem
    assert remedy in result.remedy


@pytest.mark.parametrize(
    ("title", "remedy"),
    [
        ("The plain HTTP request was sent to HTTPS port", "use https://"),
        ("No required SSL certificate was sent", "X509_USER_PROXY"),
    ],
)
def test_pages_of_proxies_name_the_cause(
    storage: str, title: str, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = f"<html><title>400 {title}</title>".encode()
    monkeypatch.setattr(Storage, "do_PROPFIND", lambda storage: storage.answer(400, page))
    result = probe(f"{storage}/store")
    assert (result.problem, remedy in result.remedy) == (f"400 Bad Request: {title}", True)


def test_reason_of_a_refused_token_is_named(storage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    challenge = {"WWW_Authenticate": 'Bearer error="invalid_token", error_description="It expired"'}
    monkeypatch.setattr(Storage, "do_PROPFIND", lambda storage: storage.answer(401, **challenge))
    assert probe(f"{storage}/store").problem == "401 Unauthorized: It expired"


def test_proxy_that_fails_is_named(storage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://me:secret@127.0.0.1:9")
    result = probe(f"{storage}/store")
    assert result.problem == "through proxy 127.0.0.1:9: does not answer: Connection refused"
    assert "no_proxy" in result.remedy


def test_web_door_without_listing_requires_dataset(storage: str) -> None:
    result = probe(f"{storage}/plain")
    assert not result.tried
    assert "--dataset" in result.details


def answer_as_store(code: str, status: int, text: str = "", **headers: str) -> type[Storage]:
    """Make a store that answers every request with an error; one to HEAD has no body."""
    body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{text}</Message></Error>"

    class Store(Storage):
        def do_GET(self) -> None:
            self.answer(status, body.encode(), **headers)

        do_HEAD = do_GET  # noqa: N815

        def do_PUT(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.do_GET()

    return Store


def test_store_errors_have_their_remedy_in_every_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "A")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    with serve_http(answer_as_store("ExpiredToken", 400, "It has expired.")) as port:
        url = f"s3://127.0.0.1:{port}/b/f"
        result = probe(url)
        observed = doors.read_file(url, 1)
        written = doors.probe_writing(url)
        headed = doors.stat_file(url)
    assert result.problem == observed.message == "400 Bad Request: ExpiredToken: It has expired"
    assert result.remedy == observed.remedy == written.remedy
    assert result.remedy.startswith("Renew the temporary keys")
    assert observed.failure == REFUSED
    assert headed == observed, "the code is requested by GET"


def test_redirect_to_another_region_is_not_followed() -> None:
    region = {"x_amz_bucket_region": "eu-x-1", "Location": "http://127.0.0.1:1/"}
    with serve_http(answer_as_store("PermanentRedirect", 301, **region)) as port:
        result = probe(f"s3://127.0.0.1:{port}/b/f")
    assert result.problem == "301 Moved Permanently: PermanentRedirect"
    assert "region = eu-x-1" in result.remedy


S3_LISTING = """<?xml version="1.0"?><x:ListBucketResult xmlns:x="http://doc.s3.example/2006-03-01/">
<x:Prefix>store/</x:Prefix><x:Contents><x:Size>0</x:Size><x:Key>store/</x:Key></x:Contents>
<x:Contents><x:ETag>&quot;e&quot;</x:ETag><x:Key>store/a&amp;b c</x:Key></x:Contents>
<x:Contents><x:Key>store/deep/f</x:Key></x:Contents><x:Contents><x:Key>store/deep/g</x:Key></x:Contents>
<x:CommonPrefixes><x:Prefix>store/sub/</x:Prefix></x:CommonPrefixes></x:ListBucketResult>"""


def test_objects_are_listed_by_the_names_of_elements(
    storage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Storage, "do_GET", lambda storage: storage.answer(200, S3_LISTING.encode()))
    session = s3_door.S3Session(f"{storage.replace('http', 's3')}/bucket/store")
    assert session.list_entries("") == [("a&b c", False), ("deep", True), ("sub", True)]


def test_untrusted_certificate_is_reported(
    secure: str, authority: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("X509_CERT_DIR", str(tmp_path))
    result = probe(f"{secure}/store", "f", len(STORED_CONTENT))
    assert "certificate is not trusted" in result.problem
    assert "X509_CERT_DIR" in result.remedy
    monkeypatch.setenv("X509_CERT_DIR", str(authority.parent))
    assert "host of" in probe(f"{secure.replace('127.0.0.1', 'localhost')}/s", "f").remedy


def test_secure_door_is_read_with_token_and_proxy(
    secure: str, authority: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token").write_text("secret\n")
    monkeypatch.setenv("X509_CERT_DIR", str(authority.parent))
    monkeypatch.setenv("X509_USER_PROXY", str(authority))
    monkeypatch.setenv("BEARER_TOKEN_FILE", str(tmp_path / "token"))
    Storage.asked.clear()
    assert probe(f"{secure}/store", "f", len(STORED_CONTENT)).problem == ""
    assert Storage.asked == [("/store/f", "Bearer secret")] * 2


@pytest.mark.parametrize("variable", ["X509_USER_PROXY", "BEARER_TOKEN_FILE"])
def test_missing_credential_file_is_reported(
    storage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, str(tmp_path / "none"))
    result = probe(f"{storage.replace('http:', 'https:')}/store")
    assert result.problem == "the credential cannot be used: No such file or directory"
    assert variable in result.remedy


def test_plain_port_behind_https_is_reported(storage: str, secure: str) -> None:
    assert "speaks https" in probe(storage.replace("http://", "https://")).remedy
    assert "scheme of its prefix" in probe(secure.replace("https://", "http://")).remedy


@pytest.mark.parametrize("protocol", ["root", "http", "https"])
def test_closed_port_is_reported(protocol: str) -> None:
    with serve_tcp() as port:
        pass
    url = f"{protocol}://127.0.0.1:{port}//store"
    result = probe(url)
    assert result.problem == "does not answer: Connection refused"
    assert "firewall" in result.remedy
    assert "does not answer: " in probe(f"{protocol}://no.such.host.invalid//store").problem
    unanswered = FileObservation(failure=NO_RESPONSE, message="Connection refused")
    assert doors.stat_file(url) == doors.read_file(url, 1) == unanswered
    if protocol != "root":
        written = doors.write_file(Path(__file__), f"{protocol}://no.such.host.invalid//store/f")
        assert written.message == "does not answer: Name or service not known"


@pytest.mark.usefixtures("short_window")
def test_wrong_protocol_is_reported(storage: str) -> None:
    result = probe(storage.replace("http://", "root://") + "//store")
    assert "another protocol" in result.remedy


@pytest.mark.parametrize(
    ("text", "errno", "hint"),
    [
        ("TLS error: resource temporarily unavailable", 11, "X509_CERT_DIR"),
        ("[3024] x", 3024, "fewer requests"),
        ("[3028] x", 3028, "use roots://"),
        ("Redirect limit has been reached", 0, "to which it redirects"),
    ],
)
def test_failures_of_an_xrootd_server_have_remedies(text: str, errno: int, hint: str) -> None:
    error = xrootd_process._XRootDError(SimpleNamespace(message=f"[FATAL] {text}", errno=errno))
    failure = xrootd_process._describe_failure(error, ProbeTarget(), "XRootD v5.6.1")
    assert (failure.problem, hint in failure.remedy) == (text, True)


def test_word_is_no_checksum_of_an_xrootd_server() -> None:
    system = SimpleNamespace(query=lambda *_, **__: (SimpleNamespace(ok=True), b"adler32 none\0"))
    assert xrootd_process._query_checksum(system, "/f") == ""


def test_silent_doors_end_at_their_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_door, "RESPONSE_TIMEOUT_S", 0.1)
    monkeypatch.setattr(xrootd_door, "SILENCE_TIMEOUT_S", 0.01)
    with serve_tcp() as port:
        silent = probe(f"http://127.0.0.1:{port}/s", "f", 1)
        assert "accepts connections: no answer within" in silent.problem
        assert "server's log" in silent.remedy
        assert "does not answer within" in probe(f"root://127.0.0.1:{port}//s").problem
        seen = doors.read_file(f"root://127.0.0.1:{port}//f", 1)
    assert seen.failure == NO_RESPONSE
    assert "does not answer within" in seen.message


def test_folder_is_read(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    assert probe(str(tmp_path)).details.endswith("holds no file in its first 3 levels")
    (tmp_path / "set" / "f.root").write_bytes(STORED_CONTENT)
    assert probe(str(tmp_path)) == ProbeResult(details="read 1024 bytes of set/f.root")
    assert probe(str(tmp_path), "set/f.root", len(STORED_CONTENT)).problem == ""


def test_remote_folder_is_not_probed(tmp_path: Path) -> None:
    folder = str(tmp_path / "nodes")
    result = doors.probe_door(folder, ProbeTarget(), is_local=False)
    assert not result.tried
    assert "there is no" in doors.probe_door(folder, ProbeTarget(), is_local=True).problem


def test_file_search_is_limited() -> None:
    tree = {"": [("a", True), (".h", False)], "a": [("b", True)], "a/b": [("c", True)]}
    asked = []

    def entries(path: str) -> list[tuple[str, bool]]:
        asked.append(path)
        return tree[path]

    assert find_first_file(entries) == ".h"
    assert asked == ["", "a", "a/b"]


def test_web_door_reports_size_and_checksum(storage: str) -> None:
    Storage.asked.clear()
    assert doors.stat_file(f"{storage}/store/f") == FileObservation(len(STORED_CONTENT), "001a2b3c")
    assert Storage.asked == [("/store/f", "adler32")]
    assert doors.stat_file(f"{storage}/plain/f") == FileObservation(len(STORED_CONTENT))
    for status, failure in {404: MISSING, 410: MISSING, 403: REFUSED, 202: FAILED}.items():
        assert doors.stat_file(f"{storage}/{status}/f").failure == failure


def test_web_file_is_read_and_copied(storage: str, tmp_path: Path) -> None:
    blocks: list[int] = []
    seen = doors.read_file(
        f"{storage}/whole/f", len(STORED_CONTENT), blocks.append, copy_to=tmp_path / "kept"
    )
    assert (tmp_path / "kept").read_bytes() == STORED_CONTENT
    assert "a web page" in doors.read_file(f"{storage}/login/f", 1).message
    assert sum(blocks) == len(STORED_CONTENT)
    assert seen == FileObservation(
        len(STORED_CONTENT),
        f"{zlib.adler32(STORED_CONTENT):08x}",
        hashlib.sha256(STORED_CONTENT).hexdigest(),
    )


@pytest.mark.usefixtures("short_window")
def test_silent_xrootd_door_gives_no_observation() -> None:
    with serve_tcp() as port:
        seen = doors.read_file(f"root://127.0.0.1:{port}//f", 1)
    assert seen.failure == NO_RESPONSE
    assert "does not answer within" not in seen.message, "the client gives up by itself"


def test_client_is_kept_until_it_crashes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client = tmp_path / "python"
    client.write_text("#!/bin/sh\necho '{\"done\": 5}'\necho no memory >&2\nexit 3\n")
    client.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(client))
    done: list[int] = []
    with serve_tcp() as port:
        seen = doors.read_file(f"root://127.0.0.1:{port}//f", 1, done.append)
    assert (seen.failure, done) == (FAILED, [5, -5])
    assert seen.message == "XRootD's client ended with 3: no memory"
    client.write_text(f"""#!/bin/sh
echo start >> {tmp_path}/starts
for rest in '"size": 1' '"failure": "missing"' '"failure": "refused"'; do read line; echo "{{$rest}}"; done""")
    connect = MagicMock(wraps=socket.create_connection)
    monkeypatch.setattr(socket, "create_connection", connect)
    with serve_tcp() as port:
        observations = [doors.stat_file(f"root://127.0.0.1:{port}//f") for _ in range(3)]
        monkeypatch.setenv("X509_USER_PROXY", "of another")
        observations.append(doors.stat_file(f"root://127.0.0.1:{port}//f"))
    assert [seen.size for seen in observations] == [1, None, 1, 1], "a new client decides"
    assert (tmp_path / "starts").read_text() == "start\n" * 3
    assert connect.call_count == 4, "one for each file: this machine's ports are few"


def test_folder_failures_are_reported(tmp_path: Path) -> None:
    assert doors.stat_file(str(tmp_path / "none")).failure == MISSING
    assert doors.read_file(str(tmp_path), 1).failure == FAILED
    assert doors.stat_file("gsiftp://host/f").message == "protocol gsiftp is not supported"


@pytest.fixture(scope="module")
def lying_door() -> Iterator[str]:
    with serve_http(LyingDoor) as port:
        yield f"http://127.0.0.1:{port}"


@pytest.mark.parametrize(
    ("kind", "problem"),
    [
        ("first", "sends bytes 0-1023 instead of the requested 512-1535"),
        ("other", "sends other bytes than it states in Content-Range"),
        ("total", "contradicts itself: a file of 1024 bytes has no bytes 0 to 1024"),
        ("unstated", "answers a range request with no Content-Range"),
        ("units", "answers a range request with invalid Content-Range 'lines 0-1023"),
        ("parts", "answers one range with several parts"),
        ("cut", "sends the whole file instead of the requested range"),
        ("empty", "f has 0 bytes there, and 16384 in the dataset"),
        ("no-range-of-empty", "f has 0 bytes there, and 16384 in the dataset"),
        ("closed", "redirects to 127.0.0.1:9: does not answer: Connection refused"),
        ("circle", "redirects in a circle, to http://127.0.0.1"),
        ("endless", "redirects more than 8 times"),
        ("elsewhere", "redirects to 'file:///etc/passwd', which is no http or https URL"),
    ],
)
def test_probe_names_broken_rule(lying_door: str, kind: str, problem: str) -> None:
    result = doors.probe_door(f"{lying_door}/{kind}", ProbeTarget("f", SIZE), is_local=True)
    assert problem in result.problem
    assert result.remedy
    assert "--dataset" not in result.remedy, "the file is named"


def test_door_may_omit_size_of_file(lying_door: str) -> None:
    result = doors.probe_door(f"{lying_door}/star", ProbeTarget("f", SIZE), is_local=True)
    assert result.problem == ""
    assert "(the door does not state its size)" in result.details


read_file = partial(doors.read_file, size=SIZE)


@pytest.mark.parametrize("kind", ["slow-headers", "drip"])
def test_dripping_answer_ends_at_deadline(
    lying_door: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_door, "RESPONSE_TIMEOUT_S", 0.5)
    monkeypatch.setattr(http_requests, "TRANSFER_START_S", 0.5)
    start = time.monotonic()
    if kind == "slow-headers":
        problem = doors.probe_door(f"{lying_door}/{kind}", ProbeTarget("f", SIZE), is_local=True)
        assert "the answer was not complete after" in problem.problem
    observed = doors.read_file(f"{lying_door}/{kind}/f", SIZE)
    assert observed.failure == NO_RESPONSE
    assert "the answer was not complete after" in observed.message
    assert time.monotonic() - start < 20, "the whole answer takes 30 s"


@pytest.mark.parametrize(
    ("request_file", "kind", "failure", "message"),
    [
        (read_file, "cut", NO_RESPONSE, f"the connection ended after {SIZE // 2} of {SIZE} bytes"),
        (read_file, "unframed", NO_RESPONSE, "the server states no length"),
        (read_file, "partial", FAILED, "status 206 instead of the file"),
        (read_file, "compressed", FAILED, "compresses its answer unasked (Content-Encoding: gzip)"),
        (read_file, "circle", FAILED, "redirects in a circle"),
        (read_file, "elsewhere", FAILED, "no http or https URL"),
        (doors.stat_file, "lengthless", FAILED, "no Content-Length"),
        (read_file, "brackets", FAILED, "redirects to 'http://[::1/f', which is no http"),
    ],
)
def test_requests_name_the_broken_rule(
    lying_door: str,
    request_file: Callable[[str], FileObservation],
    kind: str,
    failure: str,
    message: str,
) -> None:
    observed = request_file(f"{lying_door}/{kind}/ü +%20")
    assert observed.failure == failure
    assert message in observed.message


class Upload:
    """A server of one upload, which sends ``interim`` after the headers, and ``answer`` after the body."""

    def __init__(self, *interim: bytes, answer: bytes = b"") -> None:
        self._interim, self._answer = interim, answer
        self.received = 0

    def __call__(self, connection: socket.socket) -> None:
        head = b""
        while b"\r\n\r\n" not in head:
            head += connection.recv(65536)
        self.received = len(head.partition(b"\r\n\r\n")[2])
        for part in self._interim:
            connection.sendall(part)
            time.sleep(0.02)
        while self.received < SIZE or not self._answer:
            block = connection.recv(1 << 20)
            self.received += len(block)
            if not block:
                return
        connection.sendall(self._answer)


CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
CREATED = b"HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n"


@pytest.mark.parametrize(
    "interim",
    [
        (),
        (CONTINUE,),
        (CONTINUE[:7], CONTINUE[7:20], CONTINUE[20:]),
        (b"HTTP/1.1 102 Processing\r\nX: y\r\n\r\n", CONTINUE),
        (CONTINUE, CONTINUE, b"HTTP/1.1 103 Early Hints\r\n\r\n"),
    ],
    ids=["none", "consent", "consent-in-pieces", "other-first", "several"],
)
def test_upload_waits_for_consent_of_any_form(
    interim: tuple[bytes, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_requests, "_CONSENT_WAIT_S", 0.5)
    (tmp_path / "file").write_bytes(CONTENT)
    server = Upload(*interim, answer=CREATED)
    with serve_tcp(server) as port:
        observed = doors.write_file(tmp_path / "file", f"http://127.0.0.1:{port}/f")
    assert (observed, server.received) == (FileObservation(SIZE), SIZE)


@pytest.mark.parametrize(
    ("interim", "failure"),
    [
        ((), NO_RESPONSE),
        ((CONTINUE,), NO_RESPONSE),
        ((CONTINUE[:7],), NO_RESPONSE),
        ((CONTINUE,) * 30, FAILED),
    ],
    ids=["silent", "silent-after-consent", "half-a-consent", "endless"],
)
def test_upload_without_answer_ends_at_deadline(
    interim: tuple[bytes, ...], failure: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was sent prolongs the deadline by no more than the server needs to check it."""
    monkeypatch.setattr(http_requests, "TRANSFER_START_S", 1.5)
    monkeypatch.setattr(http_requests, "_CONSENT_WAIT_S", 0.5)
    (tmp_path / "file").write_bytes(bytes(20_000_000))
    start = time.monotonic()
    with serve_tcp(Upload(*interim)) as port:
        observed = doors.write_file(tmp_path / "file", f"http://127.0.0.1:{port}/f")
    assert observed.failure == failure
    assert time.monotonic() - start < 20, "the slowest transfer permitted takes five minutes"


def test_endless_answer_is_another_file(lying_door: str) -> None:
    observed = doors.read_file(f"{lying_door}/infinite/f", SIZE)
    assert observed.failure == ""
    assert SIZE < (observed.size or 0) <= SIZE + http_door.READ_BLOCK_BYTES


def test_token_stays_at_door(door: str, tmp_path: Path) -> None:
    """The door redirects every request; its fixture looks at the tokens that servers get."""
    (tmp_path / "source").write_bytes(CONTENT)
    assert doors.stat_file(door).size == SIZE
    assert doors.read_file(door, SIZE).size == SIZE
    assert doors.write_file(tmp_path / "source", door).failure == ""
    assert doors.remove_file(door).failure == ""
    prefix, _, name = door.rpartition("/")
    assert probe(prefix, name, SIZE).problem == ""
    methods = [method for method, _ in Pool.requests]
    assert methods == ["HEAD", "GET", "PUT", "DELETE", "GET", "GET"]
