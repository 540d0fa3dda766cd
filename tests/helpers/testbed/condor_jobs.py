"""Cheap jobs for an HTCondor pool, passed like rendered ones, and a SciToken issuer.

The issuer needs no web server; its keys are copied to HTCondor's cache.
"""

from __future__ import annotations

import ctypes
import json
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import htcondor2
import jwt
from cryptography.hazmat.primitives.asymmetric import ec
from grid_fixtures import Grid
from jwt.algorithms import ECAlgorithm

from treehammer.collectors.job_spec import JobState
from treehammer.submit.batch.htcondor.htcondor_batch import HTCondorBatch
from treehammer.submit.batch.htcondor.pool import HTCondorPool
from treehammer.submit.batch.interface import JobDescription, JobStatus
from treehammer.testbed.components.condor_pool import ISSUER, SCITOKEN_USER, CondorPool
from treehammer.testbed.workspace import write_secret

SUBMIT_TEXT = """
universe = vanilla
executable = /bin/sh
transfer_executable = false
arguments = "-c '/bin/mkdir $(treehammer_output) && exec /bin/sh payload/run.sh $(treehammer_attempt) $(treehammer_output) {what} >$(treehammer_output)/worker.out 2>$(treehammer_output)/worker.err'"
when_to_transfer_output = ON_EXIT_OR_EVICT
request_cpus = 1
request_memory = 100 MB
request_disk = 10 MB
max_materialize = {at_once}
job_lease_duration = 20
on_exit_remove = (ExitBySignal =!= true && ExitCode =!= 75) || NumShadowStarts >= 3
requirements = TARGET.GLIDEIN_Site == "{site}"
"""

# Arguments: number of the attempt, output folder, action.
PAYLOAD = """
PATH=/usr/bin:/bin
mkdir "$2/records" && cp job.json "$2/records/r.json" && cp job.json "$2/seen.json"
echo "attempt $1"
case $3-$1 in
  temporary-1) exit 75 ;;
  signal-1) kill -9 $$ ;;
  once-1) sleep 300 ;;
  nap-*) sleep 3 ;;
esac
exit 0
"""


def pool_from_sites_file(grid: Grid, second: bool = False, **changes: Any) -> HTCondorPool:
    """Return a pool of a testbed as in its sites file."""
    env = grid.second.client_env if second else grid.env
    name = "second" if second else "first"
    defaults = {"submit_dir": grid.submit_dir, "config": Path(env["CONDOR_CONFIG"])}
    return HTCondorPool(name=name, **defaults | changes)


class CondorJobs:
    """Campaign of cheap jobs in one pool.

    Args:
        batch: Batch system.
        folder: Folder for the inputs.
    """

    def __init__(self, batch: HTCondorBatch, folder: Path) -> None:
        self.batch = batch
        self.folder = folder
        self.campaign = uuid.uuid4().hex[:16]
        self.ids: dict[str, str] = {}
        (folder / "payload").mkdir(parents=True, exist_ok=True)
        (folder / "payload" / "run.sh").write_text(PAYLOAD)
        (folder / "worker.pyz").write_text("worker")

    def describe_jobs(self, prefix: str, count: int, text: str) -> list[JobDescription]:
        """Describe jobs with one description, named by a prefix and their number."""
        jobs = []
        for number in range(count):
            job_id = f"{prefix}{number}"
            job = self.folder / f"{job_id}.json"
            job.write_text(f'"{job_id}"')
            inputs = {
                "job.json": job,
                "worker.pyz": self.folder / "worker.pyz",
                "payload": self.folder / "payload",
            }
            jobs.append(JobDescription(job_id, text, inputs))
        return jobs

    def submit(self, jobs: Iterable[JobDescription]) -> Mapping[str, str]:
        """Queue jobs of this campaign and return job id -> batch id."""
        batch_ids = self.batch.submit(self.campaign, list(jobs))
        self.ids |= batch_ids
        return batch_ids

    def restart_client(self) -> None:
        """Forget what was read of the jobs, as another process does."""
        self.batch = HTCondorBatch(self.batch.pool, self.batch.root)

    def statuses(self) -> dict[str, JobStatus]:
        """Return job id -> status of all submitted jobs."""
        by_batch_id = self.batch.query(self.ids.values())
        return {job_id: by_batch_id[batch_id] for job_id, batch_id in self.ids.items()}

    def wait_until(
        self,
        condition: Callable[[Mapping[str, JobStatus]], bool],
        description: str,
        patience_s: float = 90,
    ) -> dict[str, JobStatus]:
        """Query until the statuses fulfill a condition."""
        end = time.monotonic() + patience_s
        while not condition(statuses := self.statuses()):
            assert time.monotonic() < end, (
                f"not true after {patience_s} s: {description}\n{statuses}"
            )
            time.sleep(0.3)
        return statuses

    def wait_until_final(self, patience_s: float = 90) -> dict[str, JobStatus]:
        """Wait until all jobs are final."""
        return self.wait_until(
            lambda statuses: all(status.state.is_final for status in statuses.values()),
            "all jobs have ended",
            patience_s,
        )

    def wait_until_running(self, *job_ids: str) -> dict[str, JobStatus]:
        """Wait until these jobs run."""

        def execute(statuses: Mapping[str, JobStatus]) -> bool:
            return all(
                statuses[job_id].state is JobState.RUNNING and statuses[job_id].attempts
                for job_id in job_ids
            )

        return self.wait_until(execute, f"{job_ids} execute")

    def queued_ads(self) -> list[Mapping[str, Any]]:
        """Return the job and cluster ads of the campaign in the queue."""
        attributes = ["ClusterId", "ProcId", "TreehammerJob", "TreehammerSubmission"]
        constraint = f'TreehammerCampaign == "{self.campaign}"'
        return self.batch.connection.query_ads(constraint, attributes)

    def output_files(self, job_id: str) -> dict[int, set[str]]:
        """Return attempt -> names of a job's output files."""
        return {
            number: {str(file.relative_to(path)) for file in path.rglob("*") if file.is_file()}
            for number, path in self.batch.sandboxes(self.ids[job_id]).items()
        }


def submit_text(what: str = "ok", site: str = "SITE_A", at_once: int = 10) -> str:
    """Return a submit description of jobs that perform an action at a site."""
    return SUBMIT_TEXT.format(what=what, site=site, at_once=at_once)


_KEY_ID, _ALGORITHM = "key-1", "ES256"
_DAY_S = 86400


class ScitokenIssuer:
    """Issuer with a key whose SciTokens a testbed's pools accept."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())

    def write_token(
        self, path: Path, scope: str = "condor:/READ condor:/WRITE", life_s: int = _DAY_S
    ) -> Path:
        """Write a token with a lifetime in seconds; return its path."""
        now_s = int(time.time())
        claims = {
            "iss": ISSUER,
            "sub": SCITOKEN_USER,
            "aud": "ANY",
            "ver": "scitoken:2.0",
            "scope": scope,
            "iat": now_s,
            "nbf": now_s - 200,
            "exp": now_s + life_s,
        }
        token = jwt.encode(claims, self._key, _ALGORITHM, headers={"kid": _KEY_ID})
        write_secret(path, f"{token}\n")
        return path

    def publish_keys(self, pool: CondorPool) -> None:
        """Put the key into the cache of a pool's daemons, valid for a day."""
        public = ECAlgorithm.to_jwk(self._key.public_key(), as_dict=True)
        keys = {"keys": [{**public, "alg": _ALGORITHM, "kid": _KEY_ID, "use": "sig"}]}
        (path,) = (Path(htcondor2.__file__).parents[1] / "htcondor.libs").glob("libSciTokens*")
        library, error = ctypes.CDLL(str(path)), ctypes.c_char_p()
        for function, *arguments in (
            ("scitoken_config_set_int", b"keycache.update_interval_s", _DAY_S),
            ("scitoken_config_set_str", b"keycache.cache_home", str(pool.key_cache).encode()),
            ("keycache_set_jwks", ISSUER.encode(), json.dumps(keys).encode()),
        ):
            failed = getattr(library, function)(*arguments, ctypes.byref(error))
            assert not failed, f"{function}: {(error.value or b'').decode()}"
        for path in (pool.key_cache, *pool.key_cache.rglob("*")):
            pool.box.change_owner(path)


def write_client_config(pool: CondorPool, folder: Path) -> Path:
    """Write an HTCondor configuration for a user of a pool with only a SciToken.

    HTCondor presents a SciToken only to a daemon whose certificate has the host name of the
    connection. HTCondor creates the certificates of its daemons.
    """
    authority = folder / "authority.pem"
    authority.write_bytes((pool.folder / "trust_domain_ca.pem").read_bytes())
    config = folder / "condor_config"
    config.write_text(
        f"""{pool.client_config.read_text(encoding="utf-8")}
COLLECTOR_HOST = <127.0.0.1:{pool.collector_port}?alias=127-0-0-1.{pool.domain}>
AUTH_SSL_CLIENT_CAFILE = {authority}
SEC_TOKEN_DIRECTORY = {folder}/none
SEC_TOKEN_SYSTEM_DIRECTORY = {folder}/none
""",
        encoding="utf-8",
    )
    return config
