"""Jobs in Slurm, by the answers of its commands."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from plan_factory import SHELL_TEST, make_grid_plan

from treehammer.config import load_settings
from treehammer.errors import BatchError, ConfigError
from treehammer.slurm import slurm_arrays, slurm_batch
from treehammer.slurm.slurm_batch import SlurmBatch
from treehammer.submit.batch import interface
from treehammer.submit.batch.interface import JobDescription, JobStatus, find_batch
from treehammer.submit.campaigns.attempt_rows import describe_holds, explain_end
from treehammer.submit.campaigns.job_rendering import render_jobs, write_preview
from treehammer.submit.planning.submission_options import Pace, SubmissionOptions
from treehammer.submit.sites.sites_file import read_sites_file

_SITES = """
[sites.HPC]
batch = "slurm"
submit = {options}
[[sites.HPC.doors]]
name = "root"
protocol = "root"
prefix = "root://hpc.example//store"
"""


class SlurmAnswers:
    """A Slurm whose commands answer with texts; one that is None is refused."""

    def __init__(self, root: Path) -> None:
        self.batch = SlurmBatch(root)
        self.texts: dict[str, str | None] = {"squeue": "", "sacct": None, "sbatch": "Welcome\n7\n"}
        self.commands: list[tuple[str, ...]] = []
        self.hint = ""

    def run(self, *command: str) -> str:
        self.commands.append(command)
        text = self.texts.get(command[0], "")
        if text is None:
            raise BatchError(f"{command[0]} fails: no answer", where="slurm", hint=self.hint)
        return text

    def submit(self, count: int = 1, text: str = "#!/bin/sh\n#SBATCH --array=0-9%2\n") -> list[str]:
        file = self.batch.root / "job.json"
        file.parent.mkdir(exist_ok=True)
        file.write_text("{}")
        jobs = [JobDescription(f"job{n}", text, {"job.json": file}) for n in range(count)]
        return [*self.batch.submit("c", jobs).values()]

    def set_queue(self, *rows: str) -> None:
        """Set what squeue says: task, state, reason, exit code, start, end, node, restarts."""
        (folder,) = self.batch.root.glob("c/*")
        other = "7|0|PENDING|Priority|0:0|N/A|N/A||7|other|job\n of 2 lines\n"
        self.texts["squeue"] = "".join(f"7|{row}|c.{folder.name}\n{other}" for row in rows)

    def query_status(self, batch_id: str) -> JobStatus:
        return self.batch.query([batch_id])[batch_id]


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SlurmAnswers:
    answers = SlurmAnswers(tmp_path / "slurm")
    for module in (slurm_batch, slurm_arrays):
        monkeypatch.setattr(module, "run_command", answers.run)
    monkeypatch.setattr(slurm_batch, "_MAX_ARGUMENTS", 2)
    return answers


@pytest.mark.parametrize(
    ("row", "state", "failure", "attempts"),
    [
        ("0|PENDING|JobHeldAdmin|0:0|N/A|N/A||0", "held", "held", 0),
        ("0|RUNNING|None|0:0|100|160|n1|0", "running", "", 1),
        ("0|COMPLETING|None|0:0|100|160|n1|1", "running", "", 2),
        ("0|FAILED|NonZeroExitCode|768|100|160|n1|0", "done", "lost", 1),
        ("0|FAILED|BadConstraints|0:1|100|100||0", "lost", "submission", 0),
        ("0|TIMEOUT|TimeLimit|0:0|100|160|n1|0", "lost", "evicted", 1),
        ("0|OUT_OF_MEMORY|OutOfMemory|0:125|100|160|n1|0", "lost", "evicted", 1),
        ("0|CANCELLED|None|0:0|100|160||0", "lost", "lost", 0),
        ("0|SOMETHING|None|0:0|100|160|n1|0", "lost", "lost", 1),
    ],
)
def test_state_of_job_follows_queue(
    slurm: SlurmAnswers, row: str, state: str, failure: str, attempts: int
) -> None:
    (batch_id,) = slurm.submit()
    slurm.set_queue(row)
    status = slurm.query_status(batch_id)
    assert (status.state.value, explain_end(status)[0]) == (state, failure)
    assert [attempt.number for attempt in status.attempts] == [*range(1, attempts + 1)]
    assert state != "done" or status.attempts[0].exit_code == 3
    if attempts:
        assert (status.attempts[-1].started_us, status.attempts[-1].host) == (100_000_000, "n1")
    words = {"lost": (row.split("|")[1], "BadConstraints"), "done": ("do nodes see it?",)}
    assert any(word in status.reason for word in words.get(state, [""]))


def test_waiting_and_held_jobs_are_explained(slurm: SlurmAnswers) -> None:
    ids = slurm.submit(3)
    slurm.set_queue(
        "0|PENDING|JobArrayTaskLimit|0:0|N/A|N/A||0",
        "1|PENDING|PartitionTimeLimit|0:0|N/A|N/A||0",
        "2|PENDING|JobHeldUser|0:0|N/A|N/A||0",
    )
    assert slurm.batch.explain_waiting(ids) == ["1 job pending in Slurm: PartitionTimeLimit"]
    (line,) = describe_holds(slurm.batch.query(ids).values())
    assert line.startswith("1 job is held, e.g.: JobHeldUser. Release the job (treehammer resume)")
    assert slurm.batch.release(ids) == 1
    assert slurm.commands[-1] == ("scontrol", "release", "7_2")
    assert slurm.batch.cancel(ids) == 3
    assert slurm.commands[-2:] == [("scancel", "7_0", "7_1"), ("scancel", "7_2")]
    slurm.texts["squeue"] = ""
    assert slurm.query_status(ids[0]).state.value == "cancelled", "whether or not Slurm knows it"


def test_job_that_queue_forgot_is_found_in_accounting_or_its_files(slurm: SlurmAnswers) -> None:
    (batch_id,) = slurm.submit()
    assert "removed before it started" in slurm.query_status(batch_id).reason
    (folder,) = slurm.batch.root.glob("c/*/jobs/0")
    sandbox = folder / "output/attempt-2"
    sandbox.mkdir(parents=True)
    (sandbox / "node").write_text("n1 7\n")
    os.utime(sandbox / "node", (100, 100))
    assert "no longer knows why" in slurm.query_status(batch_id).reason
    (sandbox / "exit_code").write_text("3\n")
    (folder / "slurm.out").write_text("*** CANCELLED AT 2026-12-01T00:48 DUE TO TIME LIMIT ***\n")
    assert "over the time limit" in slurm.query_status(batch_id).reason
    (folder / "slurm.out").write_text("prolog of the site\n")
    for accounting, answer in (
        (None, ("done", "", [1, 2], 3, 100, "n1")),
        ("FAILED|4:0|100|160|n2", ("done", "", [1, 2], 4, 100, "n2")),
        ("CANCELLED by 0|0:15|100|160|n2", ("lost", "lost", [1, 2], None, 100, "n2")),
        ("FAILED|0:1|None|160|None assigned", ("lost", "submission", [1, 2], None, 0, "")),
    ):
        name = f"c.{folder.parents[1].name}"
        slurm.texts["sacct"] = accounting and f"7_0|{accounting}|{name}\n"
        status = slurm.query_status(batch_id)
        numbers, last = [attempt.number for attempt in status.attempts], status.attempts[-1]
        ends = (last.exit_code, last.started_us // 1_000_000, last.host)
        assert (status.state.value, explain_end(status)[0], numbers, *ends) == answer


def test_submission_without_answer_is_found_or_undone(slurm: SlurmAnswers) -> None:
    slurm.texts["sbatch"], slurm.hint = None, "It may be queued later."
    with pytest.raises(BatchError):
        slurm.submit()
    (folder,) = slurm.batch.root.glob("c/*")
    slurm.texts["squeue"] = f"9|0|PENDING|None|0:0|N/A|N/A||0|c.{folder.name}\n"
    assert slurm.submit() == [f"9_0@c.{folder.name}"]
    assert [command[0] for command in slurm.commands if command[0] == "sbatch"] == ["sbatch"]
    slurm.texts["squeue"], slurm.hint = "", ""
    with pytest.raises(BatchError, match=r"no answer\n.*or send fewer jobs"):
        slurm.submit(2)
    assert [*slurm.batch.root.glob("c/*")] == [folder], "nothing of the second is left"


def test_large_arrays_follow_each_other(slurm: SlurmAnswers) -> None:
    slurm.texts["scontrol"] = "MaxArraySize            = 2\nMaxJobCount = 9\n"
    assert len({*slurm.submit(3)}) == 3
    options = [command[2:-1] for command in slurm.commands if command[0] == "sbatch"]
    assert options == [(), ("--dependency=afterany:7",)]
    scripts = slurm.batch.root.glob("c/*/slurm.sbatch")
    ranges = [line for path in scripts for line in path.read_text().split() if "--array" in line]
    assert sorted(ranges) == ["--array=0-0%2", "--array=0-1%2"]


def test_script_has_options_of_its_site_and_no_delays(tmp_path: Path) -> None:
    options = '{account = "physics", partition = "long", comment = "a b"}'
    (tmp_path / "sites.toml").write_text(_SITES.format(options=options))
    site = read_sites_file(tmp_path / "sites.toml").sites["HPC"]
    plan = make_grid_plan(tmp_path / "test", SHELL_TEST, site)
    delayed = replace(plan, options=SubmissionOptions(pace=Pace(spread_s=60)))
    with pytest.raises(ConfigError, match="without delays"):
        list(render_jobs(delayed, tmp_path, environ={}))
    jobs = list(render_jobs(plan, tmp_path, environ={}))
    assert len({job.text for job in jobs}) == 1
    settings = load_settings({}, environ={}, folder=tmp_path)
    write_preview(plan, jobs, settings, tmp_path / "jobs")
    (script,) = (tmp_path / "jobs").glob("slurm/*/*/slurm.sbatch")
    lines = script.read_text().splitlines()
    assert {
        "#SBATCH --account=physics",
        "#SBATCH --partition=long",
        '#SBATCH --comment="a b"',
        f"#SBATCH --chdir={script.parent}",
    } <= {*lines}
    assert sum("--array=" in line for line in lines) == 1
    assert lines.index(f"#SBATCH --chdir={script.parent}") > lines.index('#SBATCH --comment="a b"')
    variables = {"SLURM_ARRAY_TASK_ID": "0", "TMPDIR": "/proc/none", "PATH": "/usr/bin:/bin"}
    subprocess.run(["sh", script], cwd=script.parent, env=variables, check=False)
    (output,) = script.parent.glob("jobs/0/output/attempt-1")
    assert (output / "exit_code").read_text() == "126\n", "a node without room"
    assert "mktemp" in (output / "worker.err").read_text()


def test_commands_get_no_defaults_and_are_named_if_missing_silent_or_failing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripts: Mapping[str, str] = {
        "sinfo": "echo 'no more jobs now' >&2; sleep 5",
        "sacct": "echo 'no account here: please contact us'; exit 1",
        "squeue": "printf '%s\\351' $SQUEUE_NAMES $SLURM_CLUSTERS $SLURM_CONF",
        "scancel": "echo 'Munge encode failed; Protocol authentication error' >&2; exit 1",
        "scontrol": "echo 'scontrol: error: Unable to contact slurm controller' >&2; exit 1",
    }
    for name, script in scripts.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setattr(slurm_arrays, "COMMAND_TIMEOUT_S", 0.2)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("SQUEUE_NAMES", "defaults of the user")
    monkeypatch.setenv("SLURM_CLUSTERS", "other")
    monkeypatch.setenv("SLURM_CONF", "slurm.conf")
    assert slurm_arrays.run_command("squeue") == "slurm.conf\ufffd"
    for command, message in (
        ("sbatch", "there is no sbatch on this machine"),
        ("sinfo", "sinfo fails: no more jobs now; timed out\n.*Queued jobs continue"),
        ("sacct", "sacct fails: no account here: please contact us$"),
        ("scancel", "Munge encode failed.*error\n.*Queued jobs continue"),
        ("scontrol", "scontrol fails: Unable to contact slurm controller\n.*Queued jobs continue"),
    ):
        with pytest.raises(BatchError, match=message):
            slurm_arrays.run_command(command)


def test_bytecode_that_git_left_hides_no_batch_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slurm has moved; an update keeps its former folder for the bytecode in it."""
    (tmp_path / "slurm" / "__pycache__").mkdir(parents=True)
    monkeypatch.setattr(interface, "__file__", str(tmp_path / "interface.py"))
    find_batch.cache_clear()
    assert find_batch("slurm") is slurm_batch.BATCH
