"""Jobs of the Slurm cluster of this machine."""

from __future__ import annotations

import re
import shlex
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path

from treehammer.collectors.job_spec import JobState
from treehammer.collectors.shared_files import hold_lock, write_atomically
from treehammer.config import Settings
from treehammer.errors import BatchError, ConfigError
from treehammer.slurm.slurm_arrays import (
    ArrayFolder,
    TaskRecord,
    load_accounting,
    load_queue,
    quote_option,
    read_end,
    run_command,
)
from treehammer.submit.batch.interface import (
    AttemptStatus,
    BatchDeclaration,
    BatchEvent,
    BatchSite,
    Hold,
    InputReplacement,
    JobDescription,
    JobStatus,
    LoadPools,
    ProbeResult,
    run_probe,
)
from treehammer.submit.batch.submission_folder import FolderBatch
from treehammer.text_formatting import pluralize

#: State in Slurm -> state, event and reason; other states are ends.
_STATES: Mapping[str, tuple[JobState, BatchEvent | None, str]] = {
    **dict.fromkeys(
        ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT"),
        (JobState.QUEUED, None, ""),
    ),
    **dict.fromkeys(
        ("RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "STAGE_OUT", "SIGNALING", "RESIZING"),
        (JobState.RUNNING, None, ""),
    ),
    **dict.fromkeys(("COMPLETED", "FAILED"), (JobState.DONE, None, "")),
    "TIMEOUT": (JobState.LOST, BatchEvent.EVICTED, "over the time limit of the job"),
    "DEADLINE": (JobState.LOST, BatchEvent.EVICTED, "over the deadline of the job, a time limit"),
    "OUT_OF_MEMORY": (JobState.LOST, BatchEvent.EVICTED, "over the memory limit of the job"),
    "PREEMPTED": (JobState.LOST, BatchEvent.EVICTED, "preempted by another job"),
    "NODE_FAIL": (JobState.LOST, BatchEvent.LOST, "its node failed"),
    "CANCELLED": (JobState.LOST, BatchEvent.LOST, "removed from the queue"),
    # By its files, for one that Slurm no longer knows.
    "REMOVED": (JobState.LOST, BatchEvent.LOST, "without a file: removed before it started"),
    "FORGOTTEN": (JobState.LOST, BatchEvent.LOST, "Slurm no longer knows why it ended"),
}
_OTHER_END = (JobState.LOST, BatchEvent.LOST, "ended by Slurm")
#: Jobs that one command names; the kernel limits the bytes of its arguments.
_MAX_ARGUMENTS = 10_000
#: Reasons for which jobs wait as planned.
_PLANNED_REASONS = ("None", "JobArrayTaskLimit", "Dependency")
#: Options that Treehammer sets.
_RESERVED_OPTIONS = frozenset(
    ("array", "chdir", "clusters", "dependency", "error", "export", "job-name", "output", "requeue")
)
_OPTION_NAME = re.compile(r"[a-z][a-z-]+")
_ARRAY_LIMIT = re.compile(r"^MaxArraySize\s*= ([1-9]\d*)$", re.MULTILINE)
_BATCH_ID = re.compile(r"(\d+)_(\d+)@([A-Za-z0-9_-]+)\.([0-9a-f]+)")


class SlurmBatch(FolderBatch[ArrayFolder]):
    """Jobs of this user in the Slurm cluster of this machine.

    Args:
        root: folder of submissions, which nodes see under the same path.
    """

    name = "slurm"
    folder_type = ArrayFolder

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self._find_folder = cache(partial(ArrayFolder, self.root))

    def submit(self, campaign_id: str, jobs: Sequence[JobDescription]) -> Mapping[str, str]:
        """Queue the jobs in this order; jobs already queued keep their batch id."""
        self.root.mkdir(parents=True, exist_ok=True)
        with hold_lock(self.root / f".{campaign_id}.lock"):
            batch_ids = {**self.find(job.job_id for job in jobs)}
            before: dict[str, str] = {}
            limit = _ARRAY_LIMIT.search(run_command("scontrol", "show", "config"))
            for group in self.group_jobs(jobs, batch_ids, int(limit[1]) if limit else len(jobs)):
                text = group[0].text
                ids = self._add_array(campaign_id, group, before.get(text, ""))
                batch_ids |= ids
                # The limit of concurrent jobs holds for each array.
                before[text] = f"afterany:{next(iter(ids.values())).partition('_')[0]}"
        return batch_ids

    def _add_array(
        self,
        campaign: str,
        jobs: Sequence[JobDescription],
        dependency: str = "",
        previous_attempts: int = 0,
    ) -> dict[str, str]:
        ids, text = [job.job_id for job in jobs], jobs[0].text
        key = f"{text}\n{previous_attempts}" if previous_attempts else text
        folder = ArrayFolder.for_jobs(self.root, campaign, key, ids)
        if not folder.path.exists():
            folder.stage(text, jobs, previous_attempts)
        array = folder.array or self._find_array(folder) or self._queue_array(folder, dependency)
        write_atomically(folder.path / "array.json", str(array))
        return folder.batch_ids(array)

    def _queue_array(self, folder: ArrayFolder, dependency: str) -> int:
        """Queue an array and return its number; one that is refused is removed.

        Raises:
            BatchError: it is not queued, or Slurm does not answer.
        """
        options = ["--parsable", *([f"--dependency={dependency}"] if dependency else [])]
        try:
            answer = run_command("sbatch", *options, str(folder.path / "slurm.sbatch"))
            return int(answer.split()[-1].partition(";")[0])  # after what a site's sbatch prints
        except BatchError as error:
            # It may be queued all the same, also later; without an answer, another call resolves it.
            if array := self._find_array(folder):
                return array
            if not error.hint:
                folder.remove()
            hint = error.hint or "Correct the site's submit and submit again, or send fewer jobs."
            raise BatchError(error.message, where=error.where, hint=hint) from error

    def _find_array(self, folder: ArrayFolder) -> int | None:
        """Find the number of an array by its name, or by what its jobs left."""
        arrays = [array for name, array, _ in load_queue() if name == folder.name]
        nodes = folder.path.glob("jobs/*/output/attempt-*/node")
        return next(iter([*arrays, *(int(path.read_text().split()[1]) for path in nodes)]), None)

    def find(self, job_ids: Iterable[str]) -> Mapping[str, str]:
        """Return job id -> batch id of jobs that are or were in the queue."""
        return self.find_submitted(job_ids, lambda folder: folder.array or self._find_array(folder))

    def locate(self, batch_id: str) -> tuple[ArrayFolder, int, int] | None:
        """Return folder, array and task of a job; None for the id of another batch system."""
        if not (match := _BATCH_ID.fullmatch(batch_id)):
            return None
        array, task, campaign, tag = match.groups()
        return self._find_folder(campaign, tag), int(array), int(task)

    def requeue(self, earlier: Mapping[str, int], inputs: InputReplacement) -> Mapping[str, str]:
        """Queue final jobs again; a second call queues nothing."""
        groups: dict[ArrayFolder, list[tuple[str, int]]] = defaultdict(list)
        for batch_id, folder, _, task in self.locate_all(self.find_kept(earlier)):
            groups[folder].append((batch_id, task))
        requeued: dict[str, str] = {}
        for folder, tasks in groups.items():
            job_ids, text = folder.job_ids, folder.text
            jobs = []
            for _, task in tasks:
                folders = (folder.path / "shared", folder.job_folder(task) / "inputs")
                sent_files = {item.name: item for path in folders for item in path.iterdir()}
                jobs.append(JobDescription(job_ids[task], text, inputs(job_ids[task], sent_files)))
            last = max(earlier[batch_id] for batch_id, _ in tasks)
            new_ids = self._add_array(folder.campaign, jobs, previous_attempts=last)
            requeued |= {batch_id: new_ids[job_ids[task]] for batch_id, task in tasks}
        return requeued

    def describe(self, campaign_id: str, jobs: Sequence[JobDescription]) -> str:
        """Return the script of an array."""
        folder = ArrayFolder.for_group(self.root, campaign_id, jobs)
        return folder.render_script(jobs[0].text, len(jobs))

    def stage(self, campaign_id: str, jobs: Sequence[JobDescription], folder: Path) -> None:
        """Write an array below a folder, with a ``slurm.sbatch`` for sbatch."""
        array = ArrayFolder.for_group(folder.resolve() / self.name, campaign_id, jobs)
        array.stage(jobs[0].text, jobs, 0)
        array.incoming.parent.rmdir()

    def query(self, batch_ids: Iterable[str]) -> Mapping[str, JobStatus]:
        """Return the status of each known job."""
        jobs = [*self.locate_all(batch_ids)]
        if not jobs:
            return {}
        records = load_queue()
        if missing := {a for _, folder, a, task in jobs if (folder.name, a, task) not in records}:
            records = load_accounting(missing) | records
        statuses = {}
        for batch_id, folder, array, task in jobs:
            record = records.get((folder.name, array, task)) or read_end(folder, task)
            if record is not None:
                statuses[batch_id] = _make_status(batch_id, folder, task, record)
        return statuses

    def sandboxes(self, batch_id: str) -> Mapping[int, Path]:
        """Return attempt -> output folder."""
        sandboxes = (folder.sandboxes(task) for _, folder, _, task in self.locate_all([batch_id]))
        return next(sandboxes, {})

    def explain_waiting(self, batch_ids: Iterable[str]) -> list[str]:
        """State Slurm's reasons for waiting jobs, a line each."""
        jobs = {(folder.name, array, task) for _, folder, array, task in self.locate_all(batch_ids)}
        reasons = Counter(
            record.reason
            for job, record in load_queue().items()
            if job in jobs and record.state == "PENDING" and not _is_held(record)
        )
        return [
            f"{pluralize(count, 'job')} pending in Slurm: {reason}"
            for reason, count in reasons.most_common()
            if reason not in _PLANNED_REASONS
        ]

    def cancel(self, batch_ids: Iterable[str]) -> int:
        """Cancel jobs that are not final and return their number."""
        open_ids = sorted(self.find_open(batch_ids))
        for _, folder, _, task in self.locate_all(open_ids):
            (folder.job_folder(task) / "cancelled").touch()
        self._act(["scancel"], open_ids)
        return len(open_ids)

    def release(self, batch_ids: Iterable[str]) -> int:
        """Release held jobs and return their number."""
        held_ids = self.find_held(batch_ids)
        self._act(["scontrol", "release"], held_ids)
        return len(held_ids)

    def _act(self, command: Sequence[str], batch_ids: Sequence[str]) -> None:
        for first in range(0, len(batch_ids), _MAX_ARGUMENTS):
            ids = batch_ids[first : first + _MAX_ARGUMENTS]
            run_command(*command, *(batch_id.partition("@")[0] for batch_id in ids))

    def probe(self, sites: Sequence[BatchSite]) -> Iterator[ProbeResult]:
        """Probe Slurm's controller, and whether each site's partition would start its jobs."""
        yield run_probe(self.name, "controller", partial(run_command, "scontrol", "ping"))
        for site in sites:
            yield run_probe(site.name, "nodes", partial(_probe_nodes, site.submit))


def _probe_nodes(options: Mapping[str, str]) -> str:
    """Describe the nodes of a partition, by default of Slurm's default.

    Raises:
        BatchError: no job with these options would start there.
    """
    partition = options.get("partition", "")
    words = ["--partition", partition] if partition else []
    text = run_command("sinfo", "--noheader", "--format", "%P (%a): %D nodes %t", *words)
    finding = text if partition else "".join(re.findall(r".*\* \(.*\n", text))
    try:
        if finding and "(up)" not in finding:
            raise BatchError(f"no job starts in {', '.join(finding.splitlines())}")
        words = [f"--{name}={value}" for name, value in options.items()]
        run_command("sbatch", "--test-only", "--time=1", *words, "--wrap=true")
    except BatchError as error:
        hint = error.hint or "Correct the site's submit, or wait for its nodes (sinfo)."
        raise BatchError(error.message, hint=hint) from error
    return finding


def _is_held(record: TaskRecord) -> bool:
    return record.state == "REQUEUE_HOLD" or "held" in record.reason.lower()


def _classify_record(
    record: TaskRecord, *, is_cancelled: bool
) -> tuple[JobState, BatchEvent | None, str]:
    """Return state, event and reason; ``is_cancelled`` if Treehammer cancelled the job."""
    if record.state == "FAILED" and not record.node:
        reason = f"Slurm did not start it ({record.reason or record.state})"
        return JobState.LOST, BatchEvent.SUBMISSION, reason
    state, event, reason = _STATES.get(record.state, _OTHER_END)
    if state is JobState.QUEUED and _is_held(record):
        return JobState.HELD, BatchEvent.HELD, ""
    if state is JobState.LOST and is_cancelled:
        return JobState.CANCELLED, None, "cancelled"
    return state, event, f"{reason} ({record.state})" if state is JobState.LOST else reason


def _make_status(batch_id: str, folder: ArrayFolder, task: int, record: TaskRecord) -> JobStatus:
    """Derive the status of a job from its record."""
    is_cancelled = (folder.job_folder(task) / "cancelled").exists()
    state, event, reason = _classify_record(record, is_cancelled=is_cancelled)
    first = folder.previous_attempts + 1
    # The accounting does not count restarts, of which each has left a folder.
    sandboxes = folder.sandboxes(task) if state.is_final else {}
    number = max([first + record.restarts, *sandboxes])
    if state is JobState.DONE and record.exit_code and not sandboxes:
        event, reason = BatchEvent.LOST, f"it left no file in {folder.path}: do nodes see it?"
    attempts = [
        AttemptStatus(n, JobState.LOST, 0, 0, None, "Slurm started it again", BatchEvent.LOST)
        for n in range(first, number)
    ]
    if state is JobState.RUNNING or sandboxes or (state.is_final and record.node):
        ended_us = record.ended_us if state.is_final else 0
        code = record.exit_code if state is JobState.DONE else None
        times = (record.started_us, ended_us)
        attempts.append(AttemptStatus(number, state, *times, code, reason, event, record.node))
    hold = Hold(record.reason) if state is JobState.HELD else None
    return JobStatus(batch_id, state, tuple(attempts), event, reason, hold)


def _refuse_delay(delay: str) -> str:
    """Refuse a spread or ramp of job starts, which arrays do not have.

    Raises:
        ValueError: there is one.
    """
    if delay != "0":
        raise ValueError("Slurm starts the jobs of an array without delays; limit --in-flight")
    return ""


def _check_option(name: str, value: str, _names: Iterable[str]) -> None:
    """Check an option of sbatch that a site adds.

    Raises:
        ConfigError: Treehammer sets it, or it cannot be written into a script.
    """
    if name in _RESERVED_OPTIONS or not _OPTION_NAME.fullmatch(name):
        raise ConfigError(
            f"{name!r} is set by Treehammer or is no option of sbatch",
            hint="Write long options without dashes, such as account, partition and qos.",
        )
    quote_option(value)


def _open_slurm(argument: str, settings: Settings, _load_pools: LoadPools) -> SlurmBatch:
    if argument:
        raise ConfigError(f"slurm@{argument}: Slurm has no argument", hint='Write batch = "slurm".')
    batch = SlurmBatch(settings.data_dir / "slurm")
    try:
        quote_option(batch.root)
    except ConfigError as error:
        raise ConfigError(f"{error}; choose another --data-dir", where="data_dir") from error
    return batch


BATCH = BatchDeclaration(
    _open_slurm,
    Path(__file__).with_name("slurm.sbatch.j2"),
    {"option": quote_option, "word": shlex.quote, "refuse_delay": _refuse_delay},
    is_per_cluster=True,
    check_command=_check_option,
)
