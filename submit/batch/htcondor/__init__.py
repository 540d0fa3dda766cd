"""The batch system HTCondor; the only package that imports ``htcondor2`` and ``classad2``.

A *submission* is one cluster: the jobs of one campaign whose submit descriptions are the same text.
What differs between its jobs follows from the item ``$(job_id)``.

For templates
-------------
The text of a description is HTCondor's submit language without a ``queue`` statement.  It may use

``$(job_id)``
    our identity of the job;
``$(treehammer_attempt)``
    number of this start of the job (:data:`~.keys.ATTEMPT`): from 1, growing, never used twice,
    with gaps where a shadow was started anew without the job;
``$(treehammer_output)``
    path in the job's sandbox, ``output/attempt-N``, of what comes back of this start
    (:data:`~.keys.OUTPUT`).  ``output`` is there; the job makes the folder in it, and says what it
    says there too, in ``worker.out`` and ``worker.err``.  With ``when_to_transfer_output =
    ON_EXIT_OR_EVICT`` the output of an evicted start comes home with that of the next.

so that a template says, in full::

    executable = /bin/sh
    transfer_executable = false
    arguments = "-c 'mkdir $(treehammer_output) && exec /usr/bin/python3 worker.pyz run job.json \
        --attempt $(treehammer_attempt) --output $(treehammer_output) \
        >$(treehammer_output)/worker.out 2>$(treehammer_output)/worker.err'"

These keys are filled in here and refused in a text (:data:`~.keys.OWNED`): ``initialdir``, ``log``,
``transfer_input_files``, ``transfer_output_files``, ``transfer_output_remaps``,
``should_transfer_files``, ``job_ad_information_attrs``, ``treehammer_attempt``,
``treehammer_output``, ``queue``, ``My.TreehammerCampaign``, ``My.TreehammerSubmission``,
``My.TreehammerJob`` and ``My.TreehammerAttempt``.  All others are the
template's: ``max_materialize`` (taken out for a pool with ``spool``, which HTCondor cannot combine),
``when_to_transfer_output``, ``requirements``, ``batch_name``, the retry budget …

In the sandbox lie the description's inputs under their names (``worker.pyz``, ``payload/``,
``job.json``).  An input that is the same file for all jobs is stored once for the cluster.

On disk
-------
::

    ROOT/                        the pool's submit_dir, else a folder below data_dir
      CAMPAIGN/
        TAG/                     one submission; made by one rename
          submission.json        job ids in order: job N of the list is proc N of the cluster
          cluster.json           the cluster it became; absent: it may or may not be queued
          submit.txt             exactly what was submitted
          cancelled              exists once we asked for its end
          events.log             HTCondor's event log
          seen.json              what was read of it so far; can be made again
          shared/                inputs that all jobs share
          jobs/JOBID/job.json    inputs of one job
          jobs/JOBID/output/attempt-N/  of its start number N

``TAG`` is computed from campaign, text and job ids: who submits the same again, after whatever
happened, asks the schedd for that tag first.
"""

from treehammer.submit.batch.htcondor.htcondor_batch import HTCondorBatch
from treehammer.submit.batch.htcondor.match_diagnosis import ScheddIdentity

__all__ = ["HTCondorBatch", "ScheddIdentity"]
