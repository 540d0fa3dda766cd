"""Command line of the worker.

``python worker.pyz run job.json`` runs a job on any node and prints a table;
``python worker.pyz upload SANDBOX…`` sends records that are still pending to a results service;
``python worker.pyz bench PATH_OR_URL`` measures one storage;
``python worker.pyz log FILE`` writes the calls in a server's log as CSV.
"""

from __future__ import annotations

import argparse
import errno
import os
import sys
from typing import List, Optional

from ...verticals import import_parts
from ..job_spec import NODE_EXIT_CODE, RETRY_EXIT_CODE
from ..record.node_needs import SCRATCH, describe_lack
from ..shared_files import DISK_FULL_ERRNOS
from . import uploader
from .child_processes import print_line
from .run.job_runner import JobFileError, end_like_earlier_attempt, load_job, run_job
from .run.payload_process import FORK_FAILURE_ERRNOS
from .service_client import ServiceConfigError

#: Errors of a folder in which the job may not write.
_UNWRITABLE_ERRNOS = (errno.EACCES, errno.EPERM, errno.EROFS)
DONE, FAILED, INVALID_INPUT, BUG = 0, 1, 2, 70


def main(arguments: Optional[List[str]] = None) -> int:
    """Run the command line.

    Returns:
        the exit code; 70 for a bug.  Of ``run``: 0 when every execution ended without failure, 1 when
        some failed or were not started (records of the others are written), 2 when job.json or the
        output folder is unusable, 75 when the node lacks disk space or processes, 78 when it lets the
        job write nowhere.  Of ``upload``: 0 when no record is pending, 1 when some are pending or
        refused, 2 when nothing can be sent.  Of ``bench``: 0 with a score, 1 when a part failed, 2 when
        it cannot run, 130 after Ctrl-C.  Of ``log``: 0, or 2 when the log or its format cannot be used.
    """
    words = sys.argv[1:] if arguments is None else arguments
    options = build_parser(for_jobs=words[:1] in (["run"], ["upload"])).parse_args(words)
    try:
        if options.verb == "run":
            return _run_job(options)
        if options.verb == "upload":
            return uploader.upload_sandboxes(options)
        return int(options.perform(options))  # a vertical's verb
    except (JobFileError, ServiceConfigError) as error:
        print_line(str(error), "stderr")
        return INVALID_INPUT
    except KeyboardInterrupt:  # of an upload; the other verbs handle it
        print_line("interrupted; repeat the command to send the pending records", "stderr")
        return FAILED
    except Exception as error:
        sys.excepthook(type(error), error, error.__traceback__)
        print_line("this is a bug of Treehammer; report it with the lines above", "stderr")
        return BUG


def build_parser(*, for_jobs: bool = False) -> argparse.ArgumentParser:
    """Build the argument parser; ``for_jobs`` leaves out the verbs for people.

    Their modules include the payload kit and the load generator, of which a job needs nothing before
    its payload. Python compiles a packed module at each import: these took 40 % of a job's start.
    """
    parser = argparse.ArgumentParser(
        prog="worker.pyz",
        description="Run a job on any node, send its measurements, and measure a storage.",
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    verb = verbs.add_parser(
        "run", help="run a job", epilog="example: python worker.pyz run job.json"
    )
    verb.add_argument("job", help="job.json; the payload's folder lies beside it")
    verb.add_argument(
        "--attempt", type=uploader.parse_count, default=1, help="number of this attempt, from 1"
    )
    verb.add_argument("--output", default=".", help="folder for records/, logs/ and attempt.json")
    verb.add_argument(
        "--work", default="", help="folder for temporary files [default: work in the output]"
    )
    verb.add_argument(
        "--once",
        action="store_true",
        help="measure nothing if an earlier attempt, whose folder lies beside the output, has ended",
    )
    uploader.add_upload_command(verbs)
    if not for_jobs:
        for part in import_parts("worker"):
            part.add_verbs(verbs)
    return parser


def _run_job(options: argparse.Namespace) -> int:
    try:
        job = load_job(options.job)
        succeeded = (
            end_like_earlier_attempt(job, options.output, options.attempt) if options.once else None
        )
        if succeeded is None:
            folder = os.path.dirname(options.job) or "."
            succeeded = run_job(job, folder, options.output, options.attempt, options.work)
    except OSError as error:
        if error.errno in _UNWRITABLE_ERRNOS:
            print_line(describe_lack(SCRATCH, str(error), job.site), "stderr")
            return NODE_EXIT_CODE
        print_line(f"{options.output}: the worker cannot continue: {error}", "stderr")
        is_temporary = error.errno in (*DISK_FULL_ERRNOS, *FORK_FAILURE_ERRNOS)
        return RETRY_EXIT_CODE if is_temporary else INVALID_INPUT
    return DONE if succeeded else FAILED


if __name__ == "__main__":
    sys.exit(main())
