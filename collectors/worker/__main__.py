"""``python worker.pyz run job.json``: runs a job on any node and prints a table.

``python worker.pyz upload SANDBOX…`` sends what stayed behind to a results service.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import List, Optional

from ..job_spec import RETRY_EXIT_CODE
from ..shared_files import DISK_FULL_ERRNOS
from .bounded_log import print_line
from .run.job_loading import JobFileError, load_job
from .run.job_runner import run_job
from .run.payload_process import FORK_FAILURE_ERRNOS
from .upload import upload_command
from .upload.service_client import ServiceConfigError

DONE, FAILED, INVALID_INPUT = 0, 1, 2


def main(arguments: Optional[List[str]] = None) -> int:
    """Run what the command line says.

    Returns:
        0 when every execution ended without failure, 1 when some failed or were not started (the
        records of those that ran are written), 2 when job.json or the output folder is unusable, 75
        when records cannot be kept because the disk is full.  Of an upload, 0 when nothing is left,
        1 when something is, or was refused, 2 when nothing can be sent.
    """
    options = build_parser().parse_args(arguments)
    if options.verb == "upload":
        return _upload_sandboxes(options)
    return _run_job(options)


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        prog="worker.pyz", description="Runs a job on any node; sends what it measured."
    )
    verbs = made.add_subparsers(dest="verb", required=True)
    verb = verbs.add_parser(
        "run", help="run a job", epilog="example: python worker.pyz run job.json"
    )
    verb.add_argument("job", help="job.json; the payload's folder lies beside it")
    verb.add_argument(
        "--attempt", type=_parse_positive_int, default=1, help="which execution of the job this is"
    )
    verb.add_argument("--output", default=".", help="folder for records/, logs/ and attempt.json")
    upload_command.add_upload_command(verbs)
    return made


def _upload_sandboxes(options: argparse.Namespace) -> int:
    try:
        return upload_command.upload_sandboxes(options)
    except ServiceConfigError as error:
        print_line(str(error), "stderr")
        return INVALID_INPUT
    except KeyboardInterrupt:
        print_line("interrupted; what is not acknowledged stays, type it again", "stderr")
        return FAILED


def _run_job(options: argparse.Namespace) -> int:
    try:
        job = load_job(options.job)
        good = run_job(job, os.path.dirname(options.job) or ".", options.output, options.attempt)
    except JobFileError as error:
        print_line(str(error), "stderr")
        return INVALID_INPUT
    except OSError as error:
        print_line(f"{options.output}: the worker cannot go on: {error}", "stderr")
        return (
            RETRY_EXIT_CODE
            if error.errno in (*DISK_FULL_ERRNOS, *FORK_FAILURE_ERRNOS)
            else INVALID_INPUT
        )
    return DONE if good else FAILED


def _parse_positive_int(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("attempts are counted from 1")
    return number


if __name__ == "__main__":
    sys.exit(main())
