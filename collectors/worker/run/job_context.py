"""State shared by all executions of a job."""

from __future__ import annotations

import os
from typing import Dict, Optional

from ...job_spec import JOB_MARK_VARIABLE, ExecutionSpec, JobSpec
from ...record.failures import Failure
from ..probes import authority_folder, credential_checks, node_facts
from ..probes.cgroup import Cgroup
from ..start.common_start import CommonStart
from ..stop_signals import StopSignals


class JobContext:
    """State shared by all executions of a job.

    Attributes:
        job: the whole job.
        job_folder: absolute folder of ``job.json``; the payload's folder is relative to it.
        output: absolute folder for ``work/``, ``logs/`` and ``records/``.
        kit: absolute folder of the payload kit.
        attempt: number of the attempt, from 1.
        signals: the worker's signals.
        common_start: lets executions of a load test start together; None for other tests.
        builds: failures of the builds in folders, None for success.
        loops: folders of the libraries of compiled loops, '' for none.
    """

    def __init__(
        self,
        job: JobSpec,
        job_folder: str,
        output: str,
        kit: str,
        attempt: int,
        signals: StopSignals,
        common_start: Optional[CommonStart] = None,
    ) -> None:
        self.common_start = common_start
        self.builds: Dict[str, Optional[Failure]] = {}
        self.loops: Dict[str, str] = {}
        self.job = job
        self.job_folder = job_folder
        self.output = output
        self.kit = kit
        self.attempt = attempt
        self.signals = signals
        self.cgroup = Cgroup()
        self.facts = node_facts.collect_node_facts(self.cgroup)
        # Payloads must not see the worker's own settings, such as a database's password.
        self.base_env = {
            name: value
            for name, value in os.environ.items()
            if name == JOB_MARK_VARIABLE or not name.startswith("TREEHAMMER_")
        }
        credential_checks.resolve_credentials(self.base_env, os.path.abspath(job_folder))
        authority_folder.unpack_authorities(
            self.base_env,
            os.path.abspath(job_folder),
            os.path.join(os.path.abspath(output), "work", "authorities"),
        )
        for name in ("work", "logs", "records"):
            os.makedirs(os.path.join(output, name), exist_ok=True)

    def locate_payload(self, spec: Optional[ExecutionSpec] = None) -> str:
        """Return the folder with the test's files for an execution, by default those of the job."""
        payload = self.job.payload_of(spec) if spec else self.job.payload
        return os.path.join(self.job_folder, payload.folder)
