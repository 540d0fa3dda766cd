"""HTTP doors of one file that break the rules, and doors that redirect to a pool."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler

CONTENT = bytes(os.urandom(1 << 14))
SIZE = len(CONTENT)


class LyingDoor(BaseHTTPRequestHandler):
    """A door with one file; the first folder of a path selects the misbehavior."""

    protocol_version = "HTTP/1.1"

    def answer(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content_Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        with suppress(ConnectionError):
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

    def do_HEAD(self) -> None:
        kind = self.path.split("/")[1]
        if kind == "moved":
            self.answer(307, b"", Location="/here/f")
        elif kind == "digest":
            self.answer(200, CONTENT, digest="ADLER32=1A2B3C,SHA-256=" + "ab" * 32)
        elif kind == "repr":
            self.answer(200, CONTENT, REPR_DIGEST="adler=:ABorPA==:")
        elif kind == "lengthless":
            self.answer(200, CONTENT, Content_Length="", Transfer_Encoding="chunked")
        elif kind == "circle":
            self.answer(302, b"", Location=self.path)
        else:
            self.answer(200, CONTENT)

    def do_GET(self) -> None:  # noqa: PLR0912
        kind = self.path.split("/")[1]
        asked = self.headers["Range"]
        first, last = map(int, asked.removeprefix("bytes=").split("-")) if asked else (0, SIZE - 1)
        body, stated = CONTENT[first : last + 1], f"bytes {first}-{last}/{SIZE}"
        size = last - first + 1
        match kind:
            case "circle":
                return self.answer(302, b"", Location=self.path)
            case "endless":
                return self.answer(302, b"", Location=self.path + "x")
            case "elsewhere":
                return self.answer(302, b"", Location="file:///etc/passwd")
            case "first":  # whatever was asked for
                body, stated = CONTENT[:size], f"bytes 0-{size - 1}/{SIZE}"
            case "other":  # the right range by the header only
                body = CONTENT[:size]
            case "star":
                stated = f"bytes {first}-{last}/*"
            case "total":
                stated = f"bytes {first}-{last + 1}/{size}"
            case "unstated":
                return self.answer(206, body)
            case "units":
                stated = f"lines {first}-{last}/{SIZE}"
            case "parts":
                return self.answer(206, body, Content_Type="multipart/byteranges; boundary=x")
            case "cut":
                return self.cut(str(SIZE))
            case "unframed":
                return self.cut("")
            case "partial":
                return self.answer(206, CONTENT[:10], Content_Range=f"bytes 0-9/{SIZE}")
            case "drip-body":
                return self.drip(body, f"bytes {first}-{last}/{SIZE}")
            case "drip":
                return self.drip(body)
            case "slow-headers":
                return self.drip(b"HTTP/1.1 200 OK\r\nX-Filler: " + bytes(1000))
            case "infinite":
                return self.pour()
            case _:
                pass
        status = 206 if asked else 200
        return self.answer(status, body, **({"Content_Range": stated} if asked else {}))

    def cut(self, length: str) -> None:
        self.send_response(200)
        if length:
            self.send_header("Content-Length", length)
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(CONTENT[: SIZE // 2])
        self.close_connection = True

    def drip(self, body: bytes, stated: str = "") -> None:
        if not body.startswith(b"HTTP"):
            self.send_response(206 if stated else 200)
            if stated:
                self.send_header("Content-Range", stated)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
        with suppress(ConnectionError):
            for byte in body[:600]:
                self.wfile.write(bytes([byte]))
                time.sleep(0.05)

    def pour(self) -> None:
        self.send_response(200)
        self.end_headers()
        with suppress(ConnectionError):
            while True:
                self.wfile.write(CONTENT * 64)


class Pool(BaseHTTPRequestHandler):
    """A pool that notes the tokens that it gets."""

    requests: list[tuple[str, str | None]] = []

    def handle_request(self) -> None:
        self.requests.append((self.command, self.headers["Authorization"]))
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        asked = self.headers["Range"]
        body = CONTENT if self.command == "GET" else b""
        self.send_response(206 if asked else 201 if self.command == "PUT" else 200)
        if asked:
            first, last = map(int, asked.removeprefix("bytes=").split("-"))
            body = CONTENT[first : last + 1]
            self.send_header("Content-Range", f"bytes {first}-{last}/{SIZE}")
        self.send_header("Content-Length", str(SIZE if self.command == "HEAD" else len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_HEAD = do_PUT = do_DELETE = do_PROPFIND = handle_request  # noqa: N815


class Redirector(Pool):
    """A door that redirects every request to ``target``, without reading it."""

    requests: list[tuple[str, str | None]] = []
    target = ""

    def handle_request(self) -> None:
        self.requests.append((self.command, self.headers["Authorization"]))
        self.send_response(307)
        self.send_header("Location", self.target + self.path)
        self.send_header("Content-Length", "0")
        self.send_header("Connection", "close")
        self.end_headers()

    do_GET = do_HEAD = do_PUT = do_DELETE = do_PROPFIND = handle_request  # noqa: N815
