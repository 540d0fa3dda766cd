"""Requeued jobs: rebuilt from the folder of their submission."""

from __future__ import annotations

import re
from collections.abc import Collection

from treehammer.submit.batch.htcondor.submission_folder import Submission
from treehammer.submit.batch.htcondor.submit_description import PREVIOUS_ATTEMPTS_ATTRIBUTE
from treehammer.submit.batch.interface import InputReplacement, JobDescription


def rebuild_descriptions(
    submission: Submission,
    job_ids: Collection[str],
    previous_attempts: int,
    inputs: InputReplacement,
) -> list[JobDescription]:
    """Rebuild the descriptions of jobs with the number of their previous attempts.

    Args:
        submission: their last submission.
        job_ids: selected jobs of it.
        previous_attempts: number of the last attempt of any of them; the next continues from there.
        inputs: gives the new inputs of each.

    Raises:
        BatchError: the folder is damaged.
    """
    pattern = rf"^My\.{PREVIOUS_ATTEMPTS_ATTRIBUTE} = .*\n?"
    text = re.sub(pattern, "", submission.description_text, flags=re.MULTILINE).rstrip("\n")
    text += f"\nMy.{PREVIOUS_ATTEMPTS_ATTRIBUTE} = {previous_attempts}\n"
    return [
        JobDescription(job_id, text, inputs(job_id, submission.inputs(job_id)))
        for job_id in submission.job_ids
        if job_id in job_ids
    ]
