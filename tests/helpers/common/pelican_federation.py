"""A small server that is federation, director and cache of Pelican in one."""

from __future__ import annotations

import json
from http.server import BaseHTTPRequestHandler

CONTENT = bytes(range(256)) * 8
OBJECTS = "/api/v1.0/director/object"


class Federation(BaseHTTPRequestHandler):
    """The namespace ``/vo`` has the object ``/vo/file``; ``asked`` notes paths and tokens."""

    asked: list[tuple[str, str, str | None]] = []
    endpoint = ""
    is_cache_plain = False

    def do_GET(self) -> None:
        self.asked.append((self.command, self.path, self.headers["Authorization"]))
        host = f"https://{self.headers['Host']}"
        if self.path == "/.well-known/pelican-configuration":
            endpoint = self.endpoint or host
            self.answer(200, json.dumps({"director_endpoint": f"{endpoint}/"}).encode())
        elif self.path.startswith(f"{OBJECTS}/vo/"):
            cache = host.replace("https:", "http:") if self.is_cache_plain else host
            location = f"{cache}/cache{self.path.removeprefix(OBJECTS)}"
            namespace = "namespace=/vo, require-token=false"
            headers = {"Location": location, "X-Pelican-Namespace": namespace}
            self.answer(307, b"", **headers)
        elif self.path != "/cache/vo/file":
            self.answer(404, b"no such object")
        elif "Range" in self.headers:
            first, last = map(int, self.headers["Range"].removeprefix("bytes=").split("-"))
            stated = {"Content-Range": f"bytes {first}-{last}/{len(CONTENT)}"}
            self.answer(206, CONTENT[first : last + 1], **stated)
        else:
            self.answer(200, CONTENT)

    def do_HEAD(self) -> None:
        self.do_GET()

    def answer(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
