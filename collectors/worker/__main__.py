"""``python worker.pyz run job.json``: runs a job on any node and prints a table."""

from __future__ import annotations

import argparse
import os
import sys
from typing import List, Optional

from ..files import NO_ROOM
from ..job import TEMPORARY
from .load import UnusableJob, load
from .logs import say
from .runner import run

DONE, FAILED, UNUSABLE = 0, 1, 2


def main(arguments: Optional[List[str]] = None) -> int:
    """Run what the command line says.

    Returns:
        0 when every execution ended without failure, 1 when some failed or were not started (the
        records of those that ran are written), 2 when job.json or the output folder is unusable, 75
        when records cannot be kept because the disk is full.
    """
    parser = argparse.ArgumentParser(prog="worker.pyz", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    verb = verbs.add_parser(
        "run", help="run a job", epilog="example: python worker.pyz run job.json"
    )
    verb.add_argument("job", help="job.json; the payload's folder lies beside it")
    verb.add_argument(
        "--attempt", type=_from_one, default=1, help="which execution of the job this is"
    )
    verb.add_argument("--output", default=".", help="folder for records/, logs/ and attempt.json")
    options = parser.parse_args(arguments)
    try:
        job = load(options.job)
        good = run(job, os.path.dirname(options.job) or ".", options.output, options.attempt)
    except UnusableJob as error:
        say(str(error), "stderr")
        return UNUSABLE
    except OSError as error:
        say(f"{options.output}: the worker cannot go on: {error}", "stderr")
        return TEMPORARY if error.errno in NO_ROOM else UNUSABLE
    return DONE if good else FAILED


def _from_one(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("attempts are counted from 1")
    return number


if __name__ == "__main__":
    sys.exit(main())
