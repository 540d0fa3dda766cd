"""Tests of commands: their definition, options of ``treehammer run``, and what pages say of them."""

from __future__ import annotations

import codecs
import ctypes
import json
import os
import shutil
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from measurement_factory import make_campaign_row, make_job_row, make_measurement
from repository_code import invoke_command
from service_thread import ServiceThread

from treehammer.collectors.kit.treehammer_kit.payload_report import PayloadReport
from treehammer.collectors.kit.treehammer_kit.payload_task import PayloadError, PayloadTask
from treehammer.collectors.worker.child_processes import ForkedCall
from treehammer.config import load_settings
from treehammer.errors import ConfigError, DefinitionError
from treehammer.hctests.definition.test_identity import get_payload_hash
from treehammer.hctests.pinned_tests import load_pinned_test
from treehammer.submit.planning.job_planner import make_payload_spec
from treehammer.tracer.cli import describe_sides
from treehammer.tracer.command_test import CommandRequest, format_test, written_test
from treehammer.tracer.kit.treehammer_tracer import command_payload
from treehammer.tracer.kit.treehammer_tracer.command_payload import short_name
from treehammer.tracer.kit.treehammer_tracer.process_tree import run_command
from treehammer.tracer.trace_summary import describe_run, list_files, parse_trace


def make_task(folder: Path, **settings: Any) -> PayloadTask:
    """Make the task of a command that runs three times."""
    return PayloadTask(
        kind="timed",
        tree="",
        urls=[],
        adler32s=[],
        passes=3,
        seed=1,
        branches=1.0,
        cache_bytes=0,
        events=1.0,
        settings={"folder": str(folder), "record_reads": False, **settings},
        folder=str(folder),
        variant={"root": "none", "environment": "B"},
    )


def perform(task: PayloadTask, **variables: str) -> PayloadReport:
    """Run the command of a task in a child, which ends all processes below its own."""

    def perform_task() -> PayloadReport:
        os.chdir(task.folder)
        os.environ.update(variables)
        report = PayloadReport()
        try:
            command_payload.perform_task(task, report)
        except PayloadError as error:
            report.values["failure"] = error.document
        return report

    report: PayloadReport = ForkedCall(perform_task).result()
    return report


def test_test_of_two_commands_compares_them_in_turns(tmp_path: Path) -> None:
    request = CommandRequest(["cat 'a b' \"c\"", "sort\té😀\x7f"], folder=tmp_path, prepare="rm x")
    with written_test(request, tmp_path / "tests", {"SECRET": "x", "SHLVL": "1"}) as folder:
        variables = folder / "environment.json"
        assert json.loads(variables.read_text()) == {"SECRET": "x"}
        assert stat.S_IMODE(variables.stat().st_mode) == 0o600
        definition = load_pinned_test(
            str(folder), {}, {}, load_settings({"data_dir": tmp_path})
        ).definition
    assert not variables.exists()
    assert definition.test.description == "Runs A: cat 'a b' \"c\"; B: sort\té😀\x7f"
    assert (definition.test.name, definition.test.mode) == ("run-cat", "paired")
    assert definition.axes["command"] == ("A", "B")
    assert definition.matrix.bundle == ("command",)
    assert definition.settings["commands"] == {"A": "cat 'a b' \"c\"", "B": "sort\té😀\x7f"}
    assert "SECRET" not in str(definition.describe())


def test_only_one_thing_is_compared() -> None:
    assert "wall_limit_s = 604800\n" in format_test(CommandRequest(["true"]), "")
    assert CommandRequest(["true"], ("6.38.00", "6.40.00")).compared_axis == "root"
    assert CommandRequest(["true"], environments=({}, {"A": "1"})).compared_axis == "environment"
    with pytest.raises(ConfigError, match="command and root differ"):
        _ = CommandRequest(["true", "false"], ("6.38.00", "6.40.00")).compared_axis


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "there is no command"),
        (["--a", " ", "--b", " "], "there is no command"),
        (["--a", "true"], "needs both"),
        (["--a", "true", "--b", "true", "--", "true"], "are those of --a and --b"),
        (["--", "cat", "caf\udce9"], "'utf-8' codec can't encode"),
        (["--env-a", "A=caf\udce9", "--", "true"], "in position 3:"),
        (["--", "hadd", *50_000 * ["a"]], "the command has 100,004 characters"),
        (["--a", 50_000 * "a", "--b", 50_000 * "b"], "the commands have 100,000 characters"),
        (["--env-a", "1X=2", "--", "true"], "expected NAME=VALUE"),
        (["--runs", "3", "--a", "true", "--b", "false"], "runs until it is decided"),
    ],
)
def test_wrong_options_are_refused(tmp_path: Path, words: list[str], message: str) -> None:
    assert message in str(invoke_command("run", tmp_path, *words).exception)


def test_command_runs_as_often_as_planned(tmp_path: Path) -> None:
    task = make_task(
        tmp_path,
        command="echo $WHO >> runs.txt",
        prepare="echo - >> runs.txt",
        environments={"B": {"WHO": "b"}},
    )
    values = perform(task).values
    assert (tmp_path / "runs.txt").read_text() == "-\nb\n" * 3
    assert (values["passes_done"], values["passes_counted"], values["events_read"]) == (3, 2, 1)
    assert len(values["pass_loop_wall_s"]) == 3
    assert 0 < values["cpu_per_event_s"] < values["wall_per_event_s"] * (os.cpu_count() or 1)
    assert values["file_reads_missing"] == "recording of reads is turned off"
    assert not [name for name in values if "open" in name or "get_tree" in name]


def test_node_without_a_compiler_has_the_figures_of_the_kernel(tmp_path: Path) -> None:
    task = make_task(tmp_path, command=f"/bin/cat {__file__}", record_reads=True)
    values = perform(task, PATH="").values
    assert "the node has no C compiler" in values["file_reads_missing"]
    assert values["kernel_read_chars"] >= Path(__file__).stat().st_size
    assert "bytes_read" not in values


def test_ordinary_users_have_the_figures_of_the_kernel() -> None:
    codecs.lookup("ascii")  # while its module is in reach

    def read_as_nobody() -> int | None:
        if os.getuid() == 0:
            os.setuid(65534)
            ctypes.CDLL(None).prctl(4, 1)  # PR_SET_DUMPABLE, which a change of the user clears
        command = ["/bin/sh", "-c", "/bin/cat /etc/passwd; /bin/sleep 0.5"]
        return run_command(command, {}, "/", is_sampled=False).count_io("rchar")

    assert ForkedCall(read_as_nobody).result() >= Path("/etc/passwd").stat().st_size


@pytest.mark.skipif(not shutil.which("cc"), reason="there is no C compiler")
def test_folders_whose_name_has_a_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "a b"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))  # of TMPDIR
    task = make_task(folder, command=f"/bin/cat {__file__}", record_reads=True)
    assert "file_reads_missing" not in perform(task).values


@pytest.mark.parametrize(
    ("command", "kind", "message"),
    [
        ("sh -c 'exit 7'", "exit", "sh ended with exit code 7"),
        ("sh -c 'kill -9 $$'", "killed", "sh ended with signal 9"),
        ("sh -c 'exit 137'", "killed", "sh ended with exit code 137"),
        ("no-such-program", "start", "no-such-program cannot be started"),
        ("./script", "start", "Exec format error. A script names its interpreter"),
        ("cat 'x", "start", "No closing quotation"),
        ("", "bad-job", "names no command"),
    ],
)
def test_failing_command_is_recorded(tmp_path: Path, command: str, kind: str, message: str) -> None:
    (tmp_path / "script").touch(0o755)
    values = perform(make_task(tmp_path, command=command)).values
    document = values["failure"]
    assert (document["kind"], message in document["message"]) == (kind, True)
    assert ('"processes":1' in values.get("file_reads", "")) == ("ended with" in message)
    assert "passes_counted" not in values


@pytest.mark.parametrize(
    ("command", "program"),
    [("awk '{print $1}' 'a b'", "awk"), ("A=1 sort x", "/bin/sh"), ('cat "$A"', "/bin/sh")],
)
def test_shell_runs_what_only_a_shell_understands(command: str, program: str) -> None:
    assert command_payload.split_command(command)[0] == program


def test_second_run_of_a_command_leaves_the_first_its_environment(tmp_path: Path) -> None:
    is_waiting = threading.Event()

    def run_again() -> dict[str, str]:
        with written_test(CommandRequest(["true"]), tmp_path, {"A": "2"}, is_waiting.set) as path:
            return dict(json.loads((path / "environment.json").read_text()))

    with ThreadPoolExecutor() as pool:
        with written_test(CommandRequest(["true"]), tmp_path, {"A": "1"}) as folder:
            second = pool.submit(run_again)
            assert is_waiting.wait(10)
            assert json.loads((folder / "environment.json").read_text()) == {"A": "1"}
        assert second.result(10) == {"A": "2"}
    task = make_task(tmp_path, environment_file=f"{folder}/environment.json")
    with pytest.raises(PayloadError, match="environment of the command is gone"):
        command_payload.compose_environment(task, {})


def test_requested_root_replaces_that_of_the_user(tmp_path: Path) -> None:
    users = {"PATH": "/user", "PYTHONPATH": "/user", "TOKEN": "x"}
    (tmp_path / "variables.json").write_text(json.dumps(users))
    task = make_task(tmp_path, environment_file=str(tmp_path / "variables.json"))
    payload_environment = {"PATH": "/root/bin", "PYTHONNOUSERSITE": "1", "TREEHAMMER_JOB": "x"}
    assert command_payload.compose_environment(task, payload_environment) == users
    task.variant["root"] = "6.40.00"  # type: ignore[index]
    composed = command_payload.compose_environment(task, payload_environment)
    assert composed == {"PATH": "/root/bin", "PYTHONNOUSERSITE": "1", "TOKEN": "x"}


TRACE: dict[str, Any] = {
    "command": "reader data.root",
    "processes": 2,
    "cpu_s": 1.5,
    "wall_s": 3.0,
    "switches_voluntary": 1000,
    "switches_involuntary": 20,
    "faults_minor": 500,
    "faults_major": 0,
    "peak_bytes": 100_000_000,
    "files": [
        {
            "path": "/data/data.root",
            "opens": 1,
            "size": 9_000_000,
            "calls": 40,
            "bytes": 4_000_000,
            "read_s": 0.5,
            "touched": 3_000_000,
            "sequential": 10,
            "median": 65_536,
            "map": {
                "branches": 9,
                "branches_read": 2,
                "branches_most": 2,
                "branches_spanned": 1,
                "names": ["x", "y"],
                "baskets_read": 20,
                "baskets_repeated": 5,
                "over_read_bytes": 700_000,
                "compression": 2.5,
            },
        },
        {"path": "/data/mapped.bin", "opens": 1, "size": 100, "mapped": 4096},
    ],
}
VALUES: dict[str, Any] = {
    "file_reads": json.dumps(TRACE),
    "files_read": 1,
    "bytes_read": 4_000_000,
    "read_calls": 40,
    "mapped_bytes": 4096,
    "threads_mean": 4.0,
    "threads_idle": 3.5,
}


def test_sentences_name_repeated_reads_branches_and_idle_threads() -> None:
    text = " ".join(describe_run(VALUES, TRACE))
    assert "3.5 of them idle, 100.0 MB of memory (pages that processes share in each), 1,0" in text
    assert "Read: 4.0 MB in 40 reads of 1 file or connection." in text
    assert "data.root: 1.0 MB of 4.0 MB were read again, with 5 baskets." in text
    assert "2 of 9 branches, 20 baskets, compressed 2.50 times: x, y." in text
    assert "over-read: 700.0 kB of 1 other branch." in text
    file_map = {**TRACE["files"][0]["map"], "branches_spanned": 0, "names": []}
    part = {**TRACE, "files": [{**TRACE["files"][0], "map": file_map}]}
    text = " ".join(describe_run(VALUES, part))
    assert "2.50 times. data.root: over-read: 700.0 kB of incomplete baskets." in text
    assert "Mapped to memory: 4.1 kB" in text
    root, mapped = list_files(TRACE)
    assert (root["times_read"], mapped["calls"]) == (pytest.approx(4 / 3), None)


def test_what_is_not_known_is_named_and_never_zero() -> None:
    row = {
        "file_reads_missing": "statically linked",
        "kernel_read_chars": 5_000_000,
        "kernel_read_calls": 70,
    }
    lines = [*describe_run(row, {**TRACE, "files": []})]
    assert "By the kernel's account: 5.0 MB in 70 reads." in lines
    assert "Not known: statically linked." in lines
    assert "threads" not in lines[0]
    row |= {"variant": '{"command": "A"}', "cpu_per_event_s": 1.0, "wall_per_event_s": 2.0}
    assert describe_sides([row], "command")[2:] == ["Not known of A: statically linked."]
    assert "s/run" not in str(describe_sides([row], "command")), "the verdict has the times"
    assert parse_trace({"file_reads": None}) == {}
    assert [*describe_run(row, {})] == []


def test_page_of_a_measurement_shows_the_command(pages: ServiceThread) -> None:
    measurement = make_measurement(kind="timed", plausible=True, **VALUES)
    pages.store.add([measurement])
    campaign = make_campaign_row(str(measurement.values["campaign_id"]))
    pages.store.add_campaign(campaign, [make_job_row("job", campaign_id=campaign.id)])
    page = pages.read(f"/measurements/{measurement.id}")
    assert "reader data.root" in page.text
    assert "1.0 MB of 4.0 MB were read again" in page.text
    rows = pages.load_tables(f"/measurements/{measurement.id}")["files"]
    assert [row["path"] for row in rows] == ["/data/data.root", "/data/mapped.bin"]


def write_any(folder: Path, settings: str) -> Path:
    """Write a test of any command."""
    folder.mkdir()
    (folder / "count.sh").write_text("echo $1")
    text = f'[test]\nname = "x"\npayload = "any"\nfiles = ["count.sh"]\n[settings]\n{settings}\n'
    (folder / "test.toml").write_text(text)
    return folder


def test_any_command_is_a_payload_without_a_file(tmp_path: Path) -> None:
    settings = load_settings({"data_dir": tmp_path})
    first, second = (
        load_pinned_test(
            str(write_any(tmp_path / name, f'command = "sh count.sh {name}"')), {}, {}, settings
        )
        for name in ("a", "b")
    )
    spec = make_payload_spec(first.definition)
    assert (spec.kind, first.definition.axes["root"]) == ("command", ("none",))
    assert {*first.hashes} == {"test.toml", "count.sh"}
    assert get_payload_hash(first) != get_payload_hash(second)
    with pytest.raises(DefinitionError, match="payload = 'any' measures a command"):
        load_pinned_test(str(write_any(tmp_path / "c", "")), {}, {}, settings)


def test_counters_that_root_prints_are_taken_from_the_output(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    lines = [
        "RNTupleReader.RPageSourceFile.nReadV||number of vector read requests|3",
        "RNTupleReader.RPageSourceFile.bwRead|MB/s|bandwidth|793.971025",
        "RNTupleReader.RPageSourceFile.nReadV||number of vector read requests|4",
        "RNTupleReader.RPageSourceFile.bwRead|MB/s|bandwidth|1.5",
        "RNTupleReader.RPageSourceFile.szReadPayload|B|volume read|44117",
        "RNTupleReader.RPageSourceFile.nothing||none|–",
    ]
    (tmp_path / "lines.txt").write_text("\n".join(lines) + "\n")
    task = replace(make_task(tmp_path, command="cat lines.txt"), passes=1)
    counters = json.loads(perform(task).values["file_reads"])["counters"]
    values = [(short_name(c["name"]), c["value"], c["unit"]) for c in counters]
    assert values == [("nReadV", 7, ""), ("szReadPayload", 44117, "B")]
    assert capfd.readouterr().out.startswith("\n".join(lines) + "\n")
    text = " ".join(describe_run(VALUES, TRACE | {"counters": counters}))
    assert "ROOT's own counters: nReadV 7, szReadPayload 44,117 B." in text


def test_declared_counter_of_root_is_a_metric(tmp_path: Path) -> None:
    (tmp_path / "lines.txt").write_text(
        "RNTupleReader.RPageSourceFile.szReadPayload|B|volume read|44117\n"
        "RNTupleReader.RPageSourceFile.nRead||number of reads|3\n"
    )
    text = 'command = "cat lines.txt"\n[metrics.sz_read_payload]\nunit = "B"'
    settings = load_settings({"data_dir": tmp_path})
    test = load_pinned_test(str(write_any(tmp_path / "test", text)), {}, {}, settings)
    task = make_task(tmp_path, **test.definition.settings)
    report = perform(replace(task, metrics=tuple(test.definition.metrics)))
    assert report.extras == {"sz_read_payload": 44117}
