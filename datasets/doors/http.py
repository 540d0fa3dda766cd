"""A door that speaks HTTP."""

from __future__ import annotations

import hashlib
import os
import re
import ssl
import zlib
from collections.abc import Callable, Mapping
from html import unescape
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote, unquote, urlsplit
from urllib.request import HTTPSHandler, Request, build_opener

from treehammer.datasets.doors.probe import (
    NOT_ALLOWED,
    NOTHING_TO_READ,
    SAMPLE,
    Probe,
    Target,
    first_file,
    read_sample,
)
from treehammer.datasets.doors.seen import (
    BROKEN,
    MISSING,
    REFUSED,
    SILENT,
    Advance,
    Seen,
    adler32_of,
)
from treehammer.version import __version__

#: Seconds that a server may take for any one answer.
LIMIT_S = 10.0
#: Seconds that it may take to read a file for its checksum.
CHECKSUM_S = 600.0
#: Bytes of a folder's listing that are looked at.
LISTING = 1_000_000
#: Bytes that are read at a time.
BLOCK = 1 << 20

_RESPONSE = re.compile(r"<(?:\w+:)?response\b.*?</(?:\w+:)?response>", re.DOTALL)
_HREF = re.compile(r"<(?:\w+:)?href>([^<]*)</")
_FOLDER = re.compile(r"<(?:\w+:)?collection\b")


def probe(prefix: str, target: Target) -> Probe:
    """Read a file by a range request, as ROOT does."""
    try:
        session = _Session(prefix)
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "is none"
        return Probe(
            f"what you show it cannot be used: {why}", "Correct X509_USER_PROXY, BEARER_TOKEN_FILE."
        )
    try:
        try:
            return session.read(target)
        except HTTPError as error:
            with error:
                return _refused(error, target, session.server(error.headers))
    except URLError as error:
        return _unanswered(error.reason)
    except (OSError, HTTPException, ValueError) as error:
        return _unanswered(error)


def stat(url: str) -> Seen:
    """Size and adler32 as the server tells them."""

    def head(session: _Session) -> Seen:
        asked = {"Want-Digest": "adler32"}
        with session.ask("HEAD", url, asked, limit_s=CHECKSUM_S) as answer:
            length = answer.headers.get("Content-Length", "")
            digests = answer.headers.get("Digest", "")
        if not length.isdigit():
            return Seen(trouble=BROKEN, message="does not tell how long the file is")
        told = re.search(r"\badler32=([0-9a-fA-F]{1,8})\b", digests)
        return Seen(int(length), adler32_of(told[1]) if told else "")

    return _seen(url, head)


def read(url: str, advance: Advance | None = None, copy_to: Path | None = None) -> Seen:
    """Read every byte, and keep them in a file if one is given."""

    def get(session: _Session) -> Seen:
        size, adler, sha = 0, 1, hashlib.sha256()
        with session.ask("GET", url, {}) as answer, Path(copy_to or os.devnull).open("wb") as kept:
            length = answer.headers.get("Content-Length", "")
            while block := answer.read(BLOCK):
                size += len(block)
                adler = zlib.adler32(block, adler)
                sha.update(block)
                kept.write(block)
                if advance:
                    advance(len(block))
        if length.isdigit() and size < int(length):
            return Seen(trouble=SILENT, message=f"the connection ended after {size} bytes")
        return Seen(size, f"{adler:08x}", sha.hexdigest())

    return _seen(url, get)


def _seen(url: str, ask: Callable[[_Session], Seen]) -> Seen:
    try:
        return ask(_Session(url))
    except HTTPError as error:
        with error:
            trouble = {401: REFUSED, 403: REFUSED, 404: MISSING}.get(error.code, BROKEN)
            return Seen(trouble=trouble, message=f"{error.code} {error.reason}")
    except URLError as error:
        return Seen(trouble=SILENT, message=_unanswered(error.reason).problem)
    except (OSError, HTTPException, ValueError) as error:
        return Seen(trouble=SILENT, message=_unanswered(error).problem)


class _Session:
    """Requests to one door, with what the environment has to show it."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        secure = urlsplit(prefix).scheme == "https"
        self.token = _token() if secure else ""  # never sent where others could read it
        self.opener = build_opener(HTTPSHandler(context=_context()) if secure else HTTPSHandler())

    def read(self, target: Target) -> Probe:
        path = target.path or first_file(self.entries)
        if not path:
            return Probe(found=NOTHING_TO_READ)
        with self.ask("GET", self.url(path), {"Range": f"bytes=0-{SAMPLE - 1}"}) as answer:
            server = self.server(answer.headers)
            content = answer.read(SAMPLE)
            whole = re.search(r"/(\d+)$", answer.headers.get("Content-Range", ""))
            if answer.status != 206 or not whole:
                return Probe(
                    "sends whole files where a part is asked for, which ROOT cannot use",
                    "Let the server honour Range.",
                    server=server,
                )
            sample = read_sample(target, path, content, int(whole[1]))
            host = urlsplit(answer.url).netloc
        return Probe(sample.problem, sample.remedy, f"{sample.found} at {host}", server)

    def entries(self, path: str) -> list[tuple[str, bool]]:
        """Names in a folder and whether each is a folder, by WebDAV."""
        with self.ask("PROPFIND", self.url(path).rstrip("/") + "/", {"Depth": "1"}) as answer:
            text = answer.read(LISTING).decode("utf-8", "replace")
        found = []
        for response in _RESPONSE.findall(text):
            href = _HREF.search(response)
            if href:
                name = unquote(urlsplit(href[1].strip()).path).rstrip("/").rpartition("/")[2]
                found.append((name, bool(_FOLDER.search(response))))
        return found[1:]  # the first is the folder itself

    def url(self, path: str) -> str:
        """What a path below the prefix is called."""
        return f"{self.prefix}/{quote(path)}"

    def ask(
        self, method: str, url: str, headers: Mapping[str, str], limit_s: float | None = None
    ) -> Any:
        request = Request(  # noqa: S310  # the sites file takes no other schemes
            url,
            method=method,
            headers={"User-Agent": f"treehammer/{__version__}", **headers},
        )
        if self.token:
            request.add_unredirected_header("Authorization", f"Bearer {self.token}")
        return self.opener.open(request, timeout=limit_s or LIMIT_S)

    @staticmethod
    def server(headers: Any) -> str:
        """What the server calls itself, as ``XRootD v5.5.3``."""
        return str(headers.get("Server", "")).replace("/", " ", 1).strip()


def _token() -> str:
    token = os.environ.get("BEARER_TOKEN", "")
    file = os.environ.get("BEARER_TOKEN_FILE", "")
    return token or (Path(file).read_text(encoding="utf-8").strip() if file else "")


def _context() -> ssl.SSLContext:
    authorities = os.environ.get("X509_CERT_DIR", "/etc/grid-security/certificates")
    context = ssl.create_default_context()
    if Path(authorities).is_dir():
        context.load_verify_locations(capath=authorities)
    proxy = os.environ.get("X509_USER_PROXY")
    if proxy:
        context.load_cert_chain(proxy)
    return context


def _refused(error: HTTPError, target: Target, server: str) -> Probe:
    said = error.read(200).decode("utf-8", "replace").strip().partition("\n")[0]
    is_text = said and "<" not in said
    message = f"{error.code} {error.reason}" + (f": {unescape(said)}" if is_text else "")
    if error.code in (401, 403):
        return Probe(message, NOT_ALLOWED, server=server)
    if error.code == 404:
        return Probe(message, target.missing, server=server)
    if error.code in (405, 501) and not target.path:
        return Probe(
            found="answers, and lists no folders: name a file to read with --dataset",
            server=server,
            tried=False,
        )
    return Probe(message, "Look into the server's log.", server=server)


def _unanswered(reason: object) -> Probe:
    if isinstance(reason, ssl.SSLCertVerificationError):
        return Probe(
            f"its certificate is not trusted: {reason.verify_message}",
            "Name the folder of the grid's authorities in X509_CERT_DIR.",
        )
    if isinstance(reason, ssl.SSLError):
        return Probe(
            f"no TLS connection: {reason.reason or reason}",
            "Check that the port speaks https, and your proxy in X509_USER_PROXY.",
        )
    if isinstance(reason, TimeoutError):
        return Probe(
            f"the server accepts connections and does not answer within {LIMIT_S:.0f} s",
            "Look into the server's log.",
        )
    what = getattr(reason, "strerror", None) or str(reason) or type(reason).__name__
    return Probe(f"does not answer as a web server: {what}", "Check the port of its prefix.")
