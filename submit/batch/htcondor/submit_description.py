"""Submit descriptions: keys of the template and keys that Treehammer adds."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from treehammer.errors import BatchError
from treehammer.submit.batch.archives import OUTPUT_ARCHIVE

#: Placeholder in a template: number of this start of the job.
ATTEMPT_VARIABLE = "$(treehammer_attempt)"
#: Placeholder in a template: the start script and its first argument, for jobs of plain files.
START_VARIABLE = "$(treehammer_start)"
#: Name of the start script in the job's sandbox.
START_SCRIPT = "treehammer-start.sh"
#: Sandbox folder that is transferred back, with a folder for every start.
OUTPUT_FOLDER = "output"
#: HTCondor's event log of a submission, or of a spooled job.
EVENT_LOG_NAME = "events.log"
#: Prefix of the folder of one start.
ATTEMPT_PREFIX = "attempt-"

#: ClassAd attributes of Treehammer's jobs.
CAMPAIGN_ATTRIBUTE = "TreehammerCampaign"
SUBMISSION_ATTRIBUTE = "TreehammerSubmission"
JOB_ATTRIBUTE = "TreehammerJob"
ATTEMPT_ATTRIBUTE = "TreehammerAttempt"
#: Number of the last attempt of a requeued job before it was requeued.
PREVIOUS_ATTEMPTS_ATTRIBUTE = "TreehammerPreviousAttempts"

# The schedd counts shadow starts durably; NumJobStarts falls back when the schedd is killed, and a
# later start would overwrite the output of an earlier one.  It is expanded when a shadow starts and
# kept when it reconnects.  No spaces: HTCondor would quote them inside quoted arguments.
_ATTEMPT_VALUE = f"$$([(NumShadowStarts?:1)+({PREVIOUS_ATTEMPTS_ATTRIBUTE}?:0)])"

#: Keys that Treehammer sets, in lower case.
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
        "treehammer_start",
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
#: Keys of late materialization, which HTCondor cannot combine with spooling.
_MATERIALIZATION_KEYS = frozenset({"max_materialize", "max_idle", "materialize_max_idle"})

_PREVIOUS_ATTEMPTS = re.compile(rf"^My\.{PREVIOUS_ATTEMPTS_ATTRIBUTE} = (\d+)$", re.MULTILINE)
_KEY_PATTERN = re.compile(r"\s*([+\w.]+)")


def build_description(
    text: str, *, folder: str, campaign: str, submission: str, inputs: Sequence[str], spool: bool
) -> str:
    """Build the submit description of a cluster, without its ``queue`` statement.

    Args:
        text: the rendered template.
        folder: absolute path of the submission.
        campaign: id of the campaign.
        submission: unique name of the submission.
        inputs: inputs of a job, relative to its folder.
        spool: whether inputs are sent to the schedd and outputs fetched from it.

    Raises:
        BatchError: the text sets a reserved key, or the folder's name cannot be expressed.
    """
    if re.search(r'[$"\n]', folder):
        raise BatchError(
            "HTCondor does not support folder names with $, quotation marks or line breaks",
            where=folder,
            hint="Choose another submit_dir for this pool, or another --data-dir.",
        )
    statements = []
    for key, statement in _split_statements(text):
        if key in RESERVED_KEYS:
            raise BatchError(
                f"{key!r} is set by Treehammer",
                where="submit description",
                hint="Remove it from the template.",
            )
        if not (spool and key in _MATERIALIZATION_KEYS):
            statements.append(statement)
    return "\n".join(
        [
            *statements,
            f"initialdir = {folder}/jobs/$(job_id)",
            # The log of a spooled job is written at the schedd and returned with the output.
            f"log = {EVENT_LOG_NAME}" if spool else f"log = {folder}/{EVENT_LOG_NAME}",
            "should_transfer_files = YES",
            f"transfer_input_files = {','.join(inputs)}",
            *_output_statements(text),
            f'My.{CAMPAIGN_ATTRIBUTE} = "{campaign}"',
            f'My.{SUBMISSION_ATTRIBUTE} = "{submission}"',
            f'My.{JOB_ATTRIBUTE} = "$(job_id)"',
            "",
        ]
    )


def parse_previous_attempts(text: str) -> int:
    """Return the number of the last attempt before a template's jobs were requeued; 0 for new ones."""
    match = _PREVIOUS_ATTEMPTS.search(text)
    return int(match[1]) if match else 0


def uses_archives(text: str) -> bool:
    """Return whether the jobs of a template receive and return plain files only."""
    return START_VARIABLE in text


def _output_statements(text: str) -> Iterator[str]:
    """Yield the statements that number the starts and return their output."""
    # Adds the number of the start to each event.
    yield f"job_ad_information_attrs = {ATTEMPT_ATTRIBUTE}"
    if uses_archives(text):
        # The other batch system counts the starts; their output shows the number.
        yield f'My.{ATTEMPT_ATTRIBUTE} = "unknown"'
        yield f"transfer_output_files = {OUTPUT_ARCHIVE}"
        yield f"treehammer_start = {START_SCRIPT} {parse_previous_attempts(text)}"
        return
    yield f"transfer_output_files = {OUTPUT_FOLDER}"
    yield f"treehammer_attempt = {_ATTEMPT_VALUE}"
    yield f"treehammer_output = {OUTPUT_FOLDER}/{ATTEMPT_PREFIX}{ATTEMPT_VARIABLE}"
    yield f'My.{ATTEMPT_ATTRIBUTE} = "{ATTEMPT_VARIABLE}"'


def _split_statements(text: str) -> Iterator[tuple[str, str]]:
    """Yield key (lower case, '' for none) and text of each statement with its continuation lines."""
    lines = iter(text.splitlines())
    for line in lines:
        parts = [line]
        while parts[-1].endswith("\\") and not line.lstrip().startswith("#"):
            parts.append(next(lines, ""))
        match = _KEY_PATTERN.match(line)
        yield match.group(1).lower() if match else "", "\n".join(parts)
