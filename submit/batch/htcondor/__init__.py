"""Batch system HTCondor; the only package that imports ``htcondor2`` and ``classad2``.

A *submission* is one cluster: the jobs of one campaign with the same submit description.  Values that
differ between jobs are derived from the item ``$(job_id)``.

Templates
---------
A description is written in HTCondor's submit language without a ``queue`` statement.  It may use

``$(job_id)``
    Treehammer's id of the job;
``$(treehammer_attempt)``
    number of this start of the job (:data:`~.submit_description.ATTEMPT_VARIABLE`): from 1, growing,
    unique, with gaps if a shadow was restarted without the job;
``$(treehammer_output)``
    folder in the job's sandbox, ``output/attempt-N``, for the output of this start.  ``output``
    exists; the job creates the folder in it and redirects its standard streams there, to
    ``worker.out`` and ``worker.err``.  With ``when_to_transfer_output = ON_EXIT_OR_EVICT`` the
    output of an evicted start is returned with that of the next.

``htcondor.sub.j2`` is a complete example.

Other batch systems behind the grid universe transfer plain files only and do not expand ``$$(…)``.
A template that uses

``$(treehammer_start)``
    script that unpacks the inputs, runs the worker, numbers the start and archives ``output``
    (:data:`~.submit_description.START_VARIABLE`), to be run by ``/bin/sh``

makes the job receive the archive ``inputs.tar`` and the script, and return ``output.tar``, which is
unpacked on arrival.

Keys that Treehammer sets are refused in a description.  All others belong to the template:
``max_materialize`` (dropped for a pool with ``spool``, which HTCondor cannot combine),
``when_to_transfer_output``, ``requirements``, ``batch_name``, the retry limits, and so on.

The sandbox contains the description's inputs under their names (``worker.pyz``, ``payload/``,
``job.json``) and the output of earlier starts.  An input that is the same file for all jobs is stored
once per cluster, and once per campaign where the file system has hard links.

Files
-----
::

    ROOT/                        the pool's submit_dir, else a folder below data_dir
      CAMPAIGN/
        TAG/                     one submission; created by one rename
          submission.json        job ids in order: job N of the list is proc N of the cluster
          cluster.json           the schedd and the resulting cluster; 0: perhaps not queued
          submit.txt             the submitted description
          cancelled              exists once the submission was cancelled
          events.log             HTCondor's event log, from which states are read
          shared/                inputs that all jobs share
          packed/                their archive, and the start script, if the template uses it
          jobs/JOBID/job.json    inputs of one job
          jobs/JOBID/output/attempt-N/  output of its start number N

A job's state comes from the event log alone.  The schedd submits, removes, holds and releases jobs, and
explains why they wait.  It is asked for states only where the log is missing, damaged, or silent for a
minute, and always of spooled jobs, whose logs arrive with their output.
"""
