"""Slurm batch system: jobs are tasks of arrays, in a folder that nodes and this machine share.

::

    DATA_DIR/slurm/
      CAMPAIGN/
        TAG/                      one array: jobs of a campaign with one description
          slurm.sbatch            the script, rendered from ``slurm.sbatch.j2``
          submission.json         job ids in order: number N of the list is task N
          array.json              number of the array; absent: it may or may not be queued
          previous_attempts       number of the last attempt before the jobs were requeued
          shared/                 inputs that all jobs share
          jobs/N/inputs/          inputs of task N
          jobs/N/output/attempt-K/  output of its start K, with ``node`` and ``exit_code``
          jobs/N/cancelled        exists once Treehammer cancelled it

States come from ``squeue``, which knows ended jobs for some minutes (``MinJobAge``), then from ``sacct``
where Slurm has an accounting database, and without one from the files of the job: its exit code, and in
``slurm.out`` why Slurm ended it.
"""
