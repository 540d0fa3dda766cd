"""Command ``python worker.pyz upload SANDBOX…``: send pending records to a results service."""

from __future__ import annotations

import argparse
import os
import time
from typing import Any, Mapping

from ...service_spec import DEFAULT_WAIT_S, TOKEN_FILE, TOKEN_VARIABLE
from ..bounded_log import print_line
from .outbox import Outbox, describe_upload_problems, read_last_service
from .outbox_sender import SendStatus, send_outbox
from .service_client import ServiceConfigError, ServiceEndpoint
from .uploader import find_ca_file, read_service_spec


def add_upload_command(verbs: Any) -> None:
    """Add the command to a parser's sub-parsers."""
    verb = verbs.add_parser(
        "upload",
        help="send the records of sandboxes to a results service",
        epilog="example: python worker.pyz upload attempt-1 --token-file token",
    )
    verb.add_argument(
        "sandboxes", metavar="SANDBOX", nargs="+", help="a folder that contains records/"
    )
    verb.add_argument(
        "--service",
        metavar="URL",
        default="",
        help="results service [default: the one that the sandbox names or last used]",
    )
    verb.add_argument(
        "--ca",
        metavar="FILE",
        default="",
        help="certificate authorities of the service "
        "[default: service-ca.pem in the sandbox, else the node's own]",
    )
    verb.add_argument(
        "--token-file",
        metavar="FILE",
        default="",
        help="a key with role submit, or the jobs' own token "
        f"[default: {TOKEN_VARIABLE}, else {TOKEN_FILE} in the sandbox]",
    )
    verb.add_argument(
        "--wait",
        metavar="S",
        type=_parse_seconds,
        default=DEFAULT_WAIT_S,
        help="maximum seconds for each sandbox [default: %(default)g]",
    )


def upload_sandboxes(options: argparse.Namespace) -> int:
    """Send the pending records of each sandbox; return the exit code.

    Raises:
        ServiceConfigError: a sandbox, its service or the token is unusable; earlier sandboxes are
            sent.
    """
    worst = SendStatus.DONE.value
    for folder in options.sandboxes:
        endpoint = _build_endpoint(folder, options)
        outbox = Outbox(folder, endpoint.url)
        before = len(outbox.acknowledged)
        result = send_outbox(outbox, endpoint, time.monotonic() + options.wait, patient=True)
        summary = outbox.summarize()
        print_line(_format_upload_line(folder, summary, before))
        if describe_upload_problems(summary):
            print_line(describe_upload_problems(summary), "stderr")
        worst = max(worst, result.value, 1 if summary["refused"] else 0)
    return 1 if worst else 0


def _format_upload_line(folder: str, summary: Mapping[str, Any], before: int) -> str:
    return (
        f"{folder}: {summary['acknowledged'] - before} sent, {before} sent before, "
        f"{len(summary['refused'])} refused, {summary['pending']} pending"
    )


def _build_endpoint(folder: str, options: argparse.Namespace) -> ServiceEndpoint:
    if not os.path.isdir(os.path.join(folder, "records")):
        raise ServiceConfigError(f"{folder}: no folder 'records'; name a job's sandbox")
    spec = read_service_spec(folder)
    url = options.service or (spec.url if spec else read_last_service(folder))
    if not url:
        raise ServiceConfigError(f"{folder}: no results service known; name one with --service URL")
    if not url.startswith(("https://", "http://")):
        raise ServiceConfigError(f"--service {url}: must begin with https://")
    token = _read_token(folder, options.token_file)
    if not token:
        raise ServiceConfigError(f"{folder}: no token; name one with --token-file FILE")
    return ServiceEndpoint(url, token, options.ca or find_ca_file(folder))


def _read_token(folder: str, file: str) -> str:
    """Read the token; '' for none."""
    path = file or os.path.join(folder, TOKEN_FILE)
    if not file and os.environ.get(TOKEN_VARIABLE):
        return os.environ[TOKEN_VARIABLE].strip()
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            return stream.read().strip()
    except OSError as error:
        if not file:
            return ""
        raise ServiceConfigError(
            f"--token-file {path}: cannot be read ({error.strerror})"
        ) from error


def _parse_seconds(text: str) -> float:
    number = float(text)
    if not number >= 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number
