"""``python worker.pyz run job.json``: runs a job on any node and prints a table.

``python worker.pyz upload SANDBOX…`` sends what stayed behind to a results service.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import List, Optional

from ..files import NO_ROOM
from ..job import TEMPORARY
from . import resend
from .child import NO_PROCESS
from .load import UnusableJob, load
from .logs import say
from .posting import UnusableService
from .runner import run

DONE, FAILED, UNUSABLE = 0, 1, 2


def main(arguments: Optional[List[str]] = None) -> int:
    """Run what the command line says.

    Returns:
        0 when every execution ended without failure, 1 when some failed or were not started (the
        records of those that ran are written), 2 when job.json or the output folder is unusable, 75
        when records cannot be kept because the disk is full.  Of an upload, 0 when nothing is left,
        1 when something is, or was refused, 2 when nothing can be sent.
    """
    options = parser().parse_args(arguments)
    if options.verb == "upload":
        return _upload(options)
    return _run(options)


def parser() -> argparse.ArgumentParser:
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
        "--attempt", type=_from_one, default=1, help="which execution of the job this is"
    )
    verb.add_argument("--output", default=".", help="folder for records/, logs/ and attempt.json")
    resend.add_verb(verbs)
    return made


def _upload(options: argparse.Namespace) -> int:
    try:
        return resend.upload(options)
    except UnusableService as error:
        say(str(error), "stderr")
        return UNUSABLE
    except KeyboardInterrupt:
        say("interrupted; what is not acknowledged stays, type it again", "stderr")
        return FAILED


def _run(options: argparse.Namespace) -> int:
    try:
        job = load(options.job)
        good = run(job, os.path.dirname(options.job) or ".", options.output, options.attempt)
    except UnusableJob as error:
        say(str(error), "stderr")
        return UNUSABLE
    except OSError as error:
        say(f"{options.output}: the worker cannot go on: {error}", "stderr")
        return TEMPORARY if error.errno in (*NO_ROOM, *NO_PROCESS) else UNUSABLE
    return DONE if good else FAILED


def _from_one(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("attempts are counted from 1")
    return number


if __name__ == "__main__":
    sys.exit(main())
