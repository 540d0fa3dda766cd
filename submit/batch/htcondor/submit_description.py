"""What a template may use and must leave alone, and the submit description made of both."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from treehammer.errors import BatchError

#: In a template: number of this start of the job.
ATTEMPT_VARIABLE = "$(treehammer_attempt)"
#: In a template: folder in the sandbox for the output of this start.
OUTPUT_VARIABLE = "$(treehammer_output)"
#: Folder of the sandbox that comes back, with that of every start.
OUTPUT_FOLDER = "output"
#: HTCondor's event log: of a submission, or of a job that is spooled.
EVENT_LOG_NAME = "events.log"
#: Name of the folder of one start in it.
ATTEMPT_PREFIX = "attempt-"

#: Attributes of a job of ours.
CAMPAIGN_ATTRIBUTE = "TreehammerCampaign"
SUBMISSION_ATTRIBUTE = "TreehammerSubmission"
JOB_ATTRIBUTE = "TreehammerJob"
ATTEMPT_ATTRIBUTE = "TreehammerAttempt"
#: Of a job that was queued anew: number of its last attempt before.
EARLIER_ATTRIBUTE = "TreehammerEarlier"

# The schedd counts the starts of shadows durably; NumJobStarts falls back when it is killed, and a
# later start would overwrite the output of an earlier one.  Expanded as a shadow starts, and kept
# when it reconnects.  Without spaces: inside quoted arguments HTCondor would quote them.
_ATTEMPT_VALUE = f"$$([(NumShadowStarts?:1)+({EARLIER_ATTRIBUTE}?:0)])"

#: Keys that are filled in here, in lower case.
RESERVED_KEYS = frozenset(
    {
        "initialdir",
        "log",
        "transfer_input_files",
        "transfer_output_files",
        "transfer_output_remaps",
        "should_transfer_files",
        "job_ad_information_attrs",
        "treehammer_attempt",
        "treehammer_output",
        "queue",
        *(
            prefix + name.lower()
            for prefix in ("my.", "+")
            for name in (
                CAMPAIGN_ATTRIBUTE,
                SUBMISSION_ATTRIBUTE,
                JOB_ATTRIBUTE,
                ATTEMPT_ATTRIBUTE,
            )
        ),
    }
)
#: Keys of late materialisation, which HTCondor cannot combine with spooling.
_MATERIALIZATION_KEYS = frozenset({"max_materialize", "max_idle", "materialize_max_idle"})

_KEY_PATTERN = re.compile(r"\s*([+\w.]+)")


def build_description(
    text: str, *, folder: str, campaign: str, submission: str, inputs: Sequence[str], spool: bool
) -> str:
    """The whole submit description of a cluster, but for its ``queue`` statement.

    Args:
        text: what the template gave.
        folder: of the submission; absolute.
        campaign: its identity.
        submission: unique name of the submission.
        inputs: of a job, relative to its folder.
        spool: whether input goes to the schedd, and output is fetched from it.

    Raises:
        BatchError: the text has a key that is filled in here, or the folder's name cannot be said.
    """
    if re.search(r'[$"\n]', folder):
        raise BatchError(
            "HTCondor cannot be told of a folder with $ or a quotation mark in its name",
            where=folder,
            hint="Choose another submit_dir for this pool, or another --data-dir.",
        )
    kept = []
    for key, statement in _split_statements(text):
        if key in RESERVED_KEYS:
            raise BatchError(
                f"{key!r} is filled in when the job is submitted",
                where="submit description",
                hint="Take it out of the template.",
            )
        if not (spool and key in _MATERIALIZATION_KEYS):
            kept.append(statement)
    return "\n".join(
        [
            *kept,
            f"initialdir = {folder}/jobs/$(job_id)",
            # The log of a spooled job lies at the schedd and comes home with its output.
            f"log = {EVENT_LOG_NAME}" if spool else f"log = {folder}/{EVENT_LOG_NAME}",
            "should_transfer_files = YES",
            f"transfer_input_files = {','.join(inputs)}",
            f"transfer_output_files = {OUTPUT_FOLDER}",
            f"treehammer_attempt = {_ATTEMPT_VALUE}",
            f"treehammer_output = {OUTPUT_FOLDER}/{ATTEMPT_PREFIX}{ATTEMPT_VARIABLE}",
            f'My.{CAMPAIGN_ATTRIBUTE} = "{campaign}"',
            f'My.{SUBMISSION_ATTRIBUTE} = "{submission}"',
            f'My.{JOB_ATTRIBUTE} = "$(job_id)"',
            f'My.{ATTEMPT_ATTRIBUTE} = "{ATTEMPT_VARIABLE}"',
            # So that each event tells to which start it belongs.
            f"job_ad_information_attrs = {ATTEMPT_ATTRIBUTE}",
            "",
        ]
    )


def _split_statements(text: str) -> Iterator[tuple[str, str]]:
    """Key in lower case, '' for none, and text of each statement, with the lines it goes on over."""
    lines = iter(text.splitlines())
    for line in lines:
        parts = [line]
        while parts[-1].endswith("\\") and not line.lstrip().startswith("#"):
            parts.append(next(lines, ""))
        found = _KEY_PATTERN.match(line)
        yield found.group(1).lower() if found else "", "\n".join(parts)
