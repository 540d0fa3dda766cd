"""Comments of a pull request of GitHub or a merge request of GitLab, by the API with the job's token."""

from __future__ import annotations

import http.client
import json
import re
import urllib.error
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from http.client import FORBIDDEN, NOT_FOUND, TOO_MANY_REQUESTS, UNAUTHORIZED
from typing import Any

from treehammer.collectors.http_requests import Deadline, send_request
from treehammer.collectors.json_documents import decode_json
from treehammer.errors import ConfigError, StoreError, TreehammerError

GITHUB, GITLAB = "github", "gitlab"
_TIMEOUT_S = 30.0
_PAGE_SIZE, _MAX_PAGES = 100, 30
_MAX_ANSWER_BYTES = 20_000_000
#: Bytes of a refusal that are read, and characters of its message.
_MAX_MESSAGE_BYTES, _MAX_MESSAGE = 20_000, 200
_PULL_REQUEST = re.compile(r"refs/pull/(\d+)/")


@dataclass(frozen=True)
class CommentThread:
    """Comments of one request.

    Attributes:
        api: address of the API.
        comments: path of the list of comments, to which new ones are sent.
        comment: path below which a comment is changed by its number.
        method: method of a change.
        headers: with the token.
        author: key of a comment's author.
        remedy: what to do where the token may not write.
    """

    api: str
    comments: str
    comment: str
    method: str
    headers: Mapping[str, str]
    author: str
    remedy: str

    @classmethod
    def open(cls, service: str, environment: Mapping[str, str]) -> CommentThread:
        """Open the thread of the request that a pipeline runs for.

        Raises:
            ConfigError: a variable of the service is missing.
        """
        return _open_github(environment) if service == GITHUB else _open_gitlab(environment)

    def write(self, mark: str, text: str) -> str:
        """Update the own comment that begins with a mark, or add it; return its address.

        Raises:
            ConfigError: the token may not.
            StoreError: the service does not answer, or not as expected.
        """
        body = {"body": f"{mark}\n{text}"}
        number = self._find_comment(mark)
        if number is None:
            comment = self._send("POST", self.comments, body)
        else:
            comment = self._send(self.method, f"{self.comment}/{number}", body)
        return str(comment.get("html_url") or "")

    def _find_comment(self, mark: str) -> int | None:
        """Find the comment; marks that others wrote into theirs do not count."""
        own_number = self._load_own_number()
        for comment in self._list_comments():
            author = comment.get(self.author) or {}
            is_own = (
                author.get("id") == own_number if own_number else author.get("type", "Bot") == "Bot"
            )
            if is_own and str(comment.get("body", "")).startswith(mark):
                return int(comment["id"])
        return None

    def _load_own_number(self) -> int | None:
        """Load the number of the token's user; a job's token has none that it could ask for."""
        try:
            return int(self._send("GET", "/user")["id"])
        except (ConfigError, StoreError, KeyError):
            return None

    def _list_comments(self) -> Iterator[dict[str, Any]]:
        for page in range(1, _MAX_PAGES + 1):
            path = f"{self.comments}?per_page={_PAGE_SIZE}&page={page}"
            comments: list[dict[str, Any]] = self._send("GET", path)
            yield from comments
            if len(comments) < _PAGE_SIZE:
                return

    def _send(self, method: str, path: str, document: Any = None) -> Any:
        body = None if document is None else json.dumps(document).encode()
        headers = {**self.headers, "Content-Type": "application/json"}
        try:
            # The token stays with the configured address.
            with send_request(
                method, self.api + path, Deadline(_TIMEOUT_S), headers, body=body, follows=False
            ) as answer:
                return decode_json(answer.read(_MAX_ANSWER_BYTES))
        except urllib.error.HTTPError as error:
            with error:
                raise self._explain(error, path) from error
        except (OSError, http.client.HTTPException, ValueError) as error:
            reason = getattr(error, "reason", error)
            raise StoreError(f"no usable answer: {reason}", where=self.api + path) from error

    def _explain(self, error: urllib.error.HTTPError, path: str) -> TreehammerError:
        """Explain a refusal: by a bad token, by missing rights or a lock, or by a limit of requests."""
        answer = f"status {error.code}{_read_message(error)}"
        where = self.api + path
        is_limited = error.headers.get("x-ratelimit-remaining") == "0"
        if error.code == TOO_MANY_REQUESTS or is_limited or "retry-after" in error.headers:
            hint = "Run this job again later; the comment of the earlier run stays."
            return StoreError(f"takes no more requests for now ({answer})", where=where, hint=hint)
        if error.code == UNAUTHORIZED:
            return ConfigError(f"the token is not valid ({answer})", where=where, hint=self.remedy)
        if error.code in (FORBIDDEN, NOT_FOUND):
            return ConfigError(
                f"the token may not comment ({answer})", where=where, hint=self.remedy
            )
        return StoreError(f"answered with {answer}", where=where)


def _read_message(error: urllib.error.HTTPError) -> str:
    """Read the reason that the service states; '' without one."""
    try:
        document = decode_json(error.read(_MAX_MESSAGE_BYTES))
    except (OSError, http.client.HTTPException, ValueError):
        return ""
    message = document.get("message") if isinstance(document, dict) else None
    return f": {message}"[:_MAX_MESSAGE] if isinstance(message, str) else ""


def _open_github(environment: Mapping[str, str]) -> CommentThread:
    reference = _require(environment, "GITHUB_REF")
    pull_request = _PULL_REQUEST.match(reference)
    if pull_request is None:
        raise ConfigError(f"{reference!r} is no pull request", where="GITHUB_REF")
    issues = f"/repos/{_require(environment, 'GITHUB_REPOSITORY')}/issues"
    token = _require(environment, "GITHUB_TOKEN")
    return CommentThread(
        environment.get("GITHUB_API_URL", "https://api.github.com"),
        f"{issues}/{pull_request[1]}/comments",
        f"{issues}/comments",
        "PATCH",
        {"Authorization": f"Bearer {token}", "Accept": "application/vnd.github+json"},
        "user",
        "Give the job the permission pull-requests: write; a fork's token never has it.",
    )


def _open_gitlab(environment: Mapping[str, str]) -> CommentThread:
    project = _require(environment, "CI_PROJECT_ID")
    notes = (
        f"/projects/{project}/merge_requests/{_require(environment, 'CI_MERGE_REQUEST_IID')}/notes"
    )
    if own_token := environment.get("GITLAB_TOKEN"):
        headers = {"PRIVATE-TOKEN": own_token}
    else:
        headers = {"JOB-TOKEN": _require(environment, "CI_JOB_TOKEN")}
    return CommentThread(
        _require(environment, "CI_API_V4_URL"),
        notes,
        notes,
        "PUT",
        headers,
        "author",
        "Put a project access token with the scope api into the masked variable GITLAB_TOKEN.",
    )


def _require(environment: Mapping[str, str], name: str) -> str:
    value = environment.get(name, "")
    if not value:
        raise ConfigError("is not set: run this in a pipeline of the service", where=name)
    return value


def describe_run(environment: Mapping[str, str]) -> str:
    """Return the address of the pipeline's run; '' if unknown."""
    if environment.get("GITHUB_RUN_ID"):
        names = ("GITHUB_SERVER_URL", "GITHUB_REPOSITORY", "GITHUB_RUN_ID")
        server, repository, run = (environment.get(name, "") for name in names)
        return f"{server}/{repository}/actions/runs/{run}"
    return environment.get("CI_JOB_URL", "")
