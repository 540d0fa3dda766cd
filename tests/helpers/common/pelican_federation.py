"""A small server that is federation, director and two caches of Pelican in one."""

from __future__ import annotations

import itertools
import json
from http.server import BaseHTTPRequestHandler

from local_servers import send_answer

CONTENT = bytes(range(256)) * 8
OBJECTS = "/api/v1.0/director/object"


class Federation(BaseHTTPRequestHandler):
    """The namespace ``/vo`` has the object ``/vo/file``; ``asked`` notes paths and tokens.

    It answers as Pelican 7.20 did, which was tried by hand: ``docs/sites.md`` says how.
    """

    asked: list[tuple[str, str, str | None]] = []
    endpoint = ""
    is_cache_plain = False
    answer = send_answer
    orders = itertools.cycle(((1, 2), (2, 1)))

    def do_GET(self) -> None:
        self.asked.append((self.command, self.path, self.headers["Authorization"]))
        host = f"https://{self.headers['Host']}"
        if self.path == "/.well-known/pelican-configuration":
            endpoint = self.endpoint or host
            self.answer(200, json.dumps({"director_endpoint": f"{endpoint}/"}).encode())
        elif self.path.startswith(f"{OBJECTS}/vo/"):
            cache = host.replace("https:", "http:") if self.is_cache_plain else host
            path = self.path.removeprefix(OBJECTS)
            # As a real director does: caches in the order of the moment, the first as Location.
            caches = [f"{cache}/cache{number}{path}" for number in next(self.orders)]
            links = (f'<{url}>; rel="duplicate"; pri={i}' for i, url in enumerate(caches, 1))
            namespace = "namespace=/vo, require-token=false"
            headers = {"Location": caches[0], "Link": ", ".join(links)}
            self.answer(307, b"", **headers, **{"X-Pelican-Namespace": namespace})
        elif self.path not in ("/cache1/vo/file", "/cache2/vo/file"):
            self.answer(404, b"no such object")
        elif "Range" in self.headers:
            first, last = map(int, self.headers["Range"].removeprefix("bytes=").split("-"))
            stated = {"Content-Range": f"bytes {first}-{last}/{len(CONTENT)}"}
            self.answer(206, CONTENT[first : last + 1], **stated)
        else:
            self.answer(200, CONTENT)

    def do_HEAD(self) -> None:
        self.do_GET()
