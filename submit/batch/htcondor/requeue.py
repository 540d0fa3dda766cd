"""Jobs queued anew: as they were submitted before, from what lies in their submission's folder."""

from __future__ import annotations

import re
from collections.abc import Collection

from treehammer.submit.batch.htcondor.submission_folder import Submission
from treehammer.submit.batch.htcondor.submit_description import EARLIER_ATTRIBUTE
from treehammer.submit.batch.interface import InputReplacement, JobDescription


def rebuild_descriptions(
    submission: Submission, job_ids: Collection[str], earlier: int, inputs: InputReplacement
) -> list[JobDescription]:
    """The jobs as they were submitted, but for their attempts so far.

    Args:
        submission: where they were submitted last.
        job_ids: which of its jobs.
        earlier: number of the last attempt of any of them; the next is counted from there.
        inputs: gives what each is sent now.

    Raises:
        BatchError: the folder is damaged.
    """
    told = rf"^My\.{EARLIER_ATTRIBUTE} = .*\n?"
    text = re.sub(told, "", submission.description_text, flags=re.MULTILINE).rstrip("\n")
    text += f"\nMy.{EARLIER_ATTRIBUTE} = {earlier}\n"
    return [
        JobDescription(job_id, text, inputs(job_id, submission.inputs(job_id)))
        for job_id in submission.job_ids
        if job_id in job_ids
    ]
