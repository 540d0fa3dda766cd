"""Stand-in for the comments of a pull request of GitHub, or of a merge request of GitLab."""

from __future__ import annotations

import json
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler
from typing import Any

from local_servers import send_answer

#: Number of the token's user; others have comments, too.
OWN, OTHER = 7, 8


class CommentServer:
    """State of a stand-in: comments in order, and requests."""

    def __init__(self, *, author: str, knows_user: bool) -> None:
        self.author, self.knows_user = author, knows_user
        self.comments: list[dict[str, Any]] = []
        self.requests: list[tuple[str, str]] = []
        self.headers: Mapping[str, str] = {}
        self.status = 200
        self.refusal: Mapping[str, str] = {}
        self.refusal_headers: Mapping[str, str] = {}

    def add(self, body: str, user: int = OWN) -> dict[str, Any]:
        kind = "Bot" if user == OWN else "User"
        comment = {
            "id": len(self.comments) + 1,
            "body": body,
            self.author: {"id": user, "type": kind},
            "html_url": "https://code.example.org/7",
        }
        self.comments.append(comment)
        return comment

    def answer(self, method: str, path: str, document: Any) -> tuple[int, Any]:
        self.requests.append((method, path))
        if self.status != 200:
            return self.status, self.refusal
        path, _, query = path.partition("?")
        if path.endswith("/user"):
            return (200, {"id": OWN}) if self.knows_user else (403, {})
        if method == "GET":
            page = int(query.rpartition("=")[2])
            return 200, self.comments[100 * (page - 1) : 100 * page]
        if method == "POST":
            return 201, self.add(document["body"])
        comment = self.comments[int(path.rpartition("/")[2]) - 1]
        comment["body"] = document["body"]
        return 200, comment

    @property
    def handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            def _answer(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                document = json.loads(self.rfile.read(length)) if length else None
                server.headers = dict(self.headers)
                status, answer = server.answer(self.command, self.path, document)
                send_answer(self, status, json.dumps(answer).encode(), **server.refusal_headers)

            do_GET = do_POST = do_PATCH = do_PUT = _answer  # noqa: N815

        return Handler
