"""Comment of a code review: its text, and its update through stand-ins of GitHub and GitLab."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from comment_server import OTHER, CommentServer
from limited_campaign import fill_with_limits
from local_servers import serve_http
from measurement_factory import make_campaign_row
from repository_code import REPOSITORY, call_command, find_command

from treehammer.errors import ConfigError, NothingToDoError, StoreError
from treehammer.sql.write.store import Store

LIMIT = {"metric": "cpu_per_event_s", "at_most": 1.02, "base": "first"}


@pytest.fixture(params=["github", "gitlab"])
def service(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[str, CommentServer]]:
    """A stand-in, and the variables that a pipeline of the service sets; GitHub's token has no user."""
    is_github = request.param == "github"
    server = CommentServer(author="user" if is_github else "author", knows_user=not is_github)
    with serve_http(server.handler) as port:
        address = f"http://127.0.0.1:{port}"
        variables = (
            {
                "GITHUB_API_URL": address,
                "GITHUB_REPOSITORY": "reader/muons",
                "GITHUB_REF": "refs/pull/12/merge",
                "GITHUB_TOKEN": "secret",
                "GITHUB_SERVER_URL": "https://code.example.org",
                "GITHUB_RUN_ID": "99",
            }
            if is_github
            else {
                "CI_API_V4_URL": address,
                "CI_PROJECT_ID": "5",
                "CI_MERGE_REQUEST_IID": "12",
                "GITLAB_TOKEN": "secret",
                "CI_JOB_URL": "https://code.example.org/jobs/99",
            }
        )
        monkeypatch.delenv("GITHUB_RUN_ID", raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        yield request.param, server


def test_comment_has_verdict_table_limits_and_link(store: Store, tmp_path: Path) -> None:
    fill_with_limits(store, LIMIT, ratio=1.1)
    text = call_command("review", tmp_path, "--site", "https://example.org/root/").output
    heading, sentence = text.splitlines()[0], text.splitlines()[2]
    assert heading == "## Treehammer: x"
    assert sentence.startswith("**On this host,")
    assert "ROOT 6.40.00 needs 9.8 %" in sentence
    assert "| x | local | CPU | this host (4 jobs) | 0.00200 | 0.00220 | +9.8 % |" in text
    assert "### ❌ Limits of x: 1 missed" in text
    link = text.partition("(https://example.org/root/compare/")[2].partition(".html)")[0]
    assert {row.comparison_id for row in store.verdicts(link)} == {link}


def test_one_comment_is_updated(
    store: Store, tmp_path: Path, service: tuple[str, CommentServer]
) -> None:
    """Also behind a hundred others, and beside one that copies its mark."""
    name, server = service
    fill_with_limits(store, LIMIT, ratio=1.1)
    call_command("review", tmp_path, "--comment", name)
    before = server.comments[0]["body"]
    server.comments.insert(
        0, {**server.comments[0], "id": 1, server.author: {"id": OTHER, "type": "User"}}
    )
    for number in range(100):
        server.comments.insert(1, {"id": 0, "body": f"talk {number}", server.author: None})
    for number, comment in enumerate(server.comments, 1):
        comment["id"] = number
    done = call_command("review", tmp_path, "--comment", name, "--site", "https://example.org")
    assert "comment written: https://code.example.org/7" in done.output
    assert len(server.comments) == 102
    assert server.comments[0]["body"] == before
    after = server.comments[-1]["body"]
    assert after != before
    assert after.startswith("<!-- treehammer ")
    assert "example.org/compare/" in after
    assert "[Run and report](https://code.example.org/" in after
    assert server.requests[-1][0] == ("PATCH" if name == "github" else "PUT")


@pytest.mark.parametrize(
    ("status", "headers", "kind", "message"),
    [
        (
            401,
            {},
            ConfigError,
            r"token is not valid \(status 401: Bad luck\)\n.*(permission|scope)",
        ),
        (403, {}, ConfigError, r"may not comment \(status 403: Bad luck\)"),
        (403, {"X-RateLimit-Remaining": "0"}, StoreError, "takes no more requests for now"),
        (429, {"Retry-After": "60"}, StoreError, "Run this job again later"),
        (302, {}, StoreError, "302"),
        (500, {}, StoreError, "500"),
    ],
)
def test_refusal_names_the_remedy(
    store: Store,
    tmp_path: Path,
    service: tuple[str, CommentServer],
    status: int,
    headers: dict[str, str],
    kind: type[Exception],
    message: str,
) -> None:
    fill_with_limits(store, LIMIT)
    name, server = service
    server.status, server.refusal, server.refusal_headers = status, {"message": "Bad luck"}, headers
    with pytest.raises(kind, match=message) as caught:
        call_command("review", tmp_path, "--comment", name)
    assert "secret" not in str(caught.value)


def test_pipeline_without_request_is_refused(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill_with_limits(store, LIMIT)
    monkeypatch.setenv("GITHUB_REF", "refs/heads/main")
    with pytest.raises(ConfigError, match="is no pull request"):
        call_command("review", tmp_path, "--comment", "github")
    monkeypatch.delenv("CI_PROJECT_ID", raising=False)
    with pytest.raises(ConfigError, match="CI_PROJECT_ID"):
        call_command("review", tmp_path, "--comment", "gitlab")


def test_campaign_without_verdict_is_refused(store: Store, tmp_path: Path) -> None:
    store.add_campaign(make_campaign_row(), [])
    with pytest.raises(NothingToDoError, match="compares nothing and states no limit"):
        call_command("review", tmp_path)


@pytest.mark.parametrize("service_name", ["github", "gitlab"])
def test_example_pipeline_comments(service_name: str) -> None:
    """The examples of the documentation parse, and call commands that exist."""
    text = (REPOSITORY / "docs" / "ci" / f"{service_name}.yml").read_text(encoding="utf-8")
    commands = re.findall(r"treehammer (?:--\S+ )?([a-z]+)", "\n".join(list_commands(text)))
    assert [find_command(name).name for name in commands] == commands
    assert "review" in commands


def list_commands(text: str) -> list[str]:
    (job,) = (
        document
        for document in [
            *yaml.safe_load(text).values(),
            *yaml.safe_load(text).get("jobs", {}).values(),
        ]
        if isinstance(document, dict) and ("steps" in document or "script" in document)
    )
    steps = [step["run"] for step in job.get("steps", ()) if "run" in step]
    return steps + [
        line for key in ("before_script", "script", "after_script") for line in job.get(key, ())
    ]
