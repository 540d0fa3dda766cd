"""Payload that runs a command: once, several times, or in turns with another one.

The first run is recorded: its reads, threads and memory. If there are several it also warms up, and is
not counted, so that the recorder costs the counted runs nothing.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import tempfile
import threading
from contextlib import suppress
from signal import SIGKILL
from typing import Any, Dict, List, Mapping, NoReturn, Optional, Sequence, Tuple

from ....collectors.kit.treehammer_kit.pass_summary import (
    PASS_PHASES,
    FileRead,
    PassRead,
    summarize_times,
)
from ....collectors.kit.treehammer_kit.payload_report import PayloadReport, report_job
from ....collectors.kit.treehammer_kit.payload_task import PayloadError, PayloadTask
from ....collectors.kit.treehammer_kit.turn_server import TurnFigures, open_pipes, perform_passes
from . import recorder
from .command_trace import CommandTrace
from .process_tree import Command, CommandRun, run_command

_LINE = re.compile(rb"^(RNTuple\w+(?:\.\w+)+)\|([^|]*)\|([^|]*)\|(-?[\d.]+(?:e[-+]?\d+)?)$")
#: Beginnings of the names of rates and ratios, which do not add up.
_RATES = ("bw", "rt")
_MAX_COUNTERS = 200
_MAX_LINE = 4096


class OutputReader:
    """Passes a command's output on, line by line, and notes the counters in it.

    Attributes:
        descriptor: the command's standard output; its own copy is closed by :meth:`finish`.
    """

    def __init__(self) -> None:
        self._source, self.descriptor = os.pipe()
        self._counters: Dict[str, Dict[str, Any]] = {}
        self._thread = threading.Thread(target=self._copy, daemon=True)
        self._thread.start()

    def _copy(self) -> None:
        rest = b""
        while True:
            chunk = os.read(self._source, 65536)
            if not chunk:
                break
            with suppress(OSError):  # nobody reads: the command shall end as it would
                os.write(1, chunk)
            *lines, rest = (rest + chunk).split(b"\n")
            rest = rest[-_MAX_LINE:]
            for line in lines:
                if line.startswith(b"RNTuple"):
                    self._add(line)
        os.close(self._source)

    def _add(self, line: bytes) -> None:
        match = _LINE.match(line.strip())
        if match is None or len(self._counters) >= _MAX_COUNTERS:
            return
        name, unit, meaning, text = (part.decode("utf-8", "replace") for part in match.groups())
        counter = self._counters.setdefault(
            name, {"name": name, "unit": unit, "meaning": meaning, "value": 0.0, "readers": 0}
        )
        counter["readers"] += 1
        counter["value"] += float(text)

    def finish(self) -> List[Dict[str, Any]]:
        """Return the counters, summed over all readers that printed them; call it when all have ended."""
        os.close(self.descriptor)
        self._thread.join()
        return [
            counter
            for counter in self._counters.values()
            if counter["readers"] == 1 or not short_name(counter["name"]).startswith(_RATES)
        ]


def short_name(name: str) -> str:
    """Return the last word of a counter's name."""
    return name.rpartition(".")[2]


def metric_name(name: str) -> str:
    """Return the name by which a test declares a counter as a metric: ``sz_read_payload``."""
    return re.sub(r"(?<=.)(?=[A-Z])", "_", short_name(name)).lower()


#: Axes whose values select a command and variables.
COMMAND_AXIS, ENVIRONMENT_AXIS = "command", "environment"
#: What only a shell understands: characters outside of quotes, and a variable before the program.
_SHELL_CHARACTERS = frozenset("|&;<>()$`*?[~\n")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
#: Variables of this payload that a command must not obey.
_OWN_VARIABLES = (
    "TREEHAMMER_TURNS",
    "TREEHAMMER_JOB",
    "TREEHAMMER_RESULT",
    "TREEHAMMER_LOOP_BUILD",
    "TREEHAMMER_PADDING",
    recorder.TRACE_VARIABLE,
)
#: Variables that make a ROOT or Python load the modules of another one.
_FOREIGN_VARIABLES = (
    "PYTHONPATH",
    "PYTHONHOME",
    "LD_LIBRARY_PATH",
    "ROOTSYS",
    "ROOT_INCLUDE_PATH",
    "CLING_STANDARD_PCH",
)


def run(files: str) -> NoReturn:
    """Run the command of ``[settings]``, write the result, and exit.

    Args:
        files: folder of the test's files.
    """

    def perform(job: str, report: PayloadReport) -> None:
        _link_files(files, os.getcwd())
        task = PayloadTask.read(job, files)
        perform_task(task, report)

    report_job("treehammer_tracer", perform)


def perform_task(task: PayloadTask, report: PayloadReport) -> None:
    """Run the command of a task as often as it says, or in turns.

    Raises:
        PayloadError: the command fails or does not start.
    """
    report.phase = "prepare"
    pipes = open_pipes()
    # The dynamic linker divides names of libraries at spaces and colons.
    folders = (os.getcwd(), tempfile.gettempdir(), "/tmp")
    base = next(folder for folder in folders if not {*" :"} & {*folder})
    with tempfile.TemporaryDirectory(prefix="treehammer-trace-", dir=base) as folder:
        runner = CommandRunner(task, folder)
        report.phase = "loop"
        try:
            passes = perform_passes(runner, task, report, pipes)
        finally:
            if runner.trace is not None:
                report.values.update(runner.trace.summarize())
                offered = {metric_name(c["name"]): c["value"] for c in runner.trace.counters}
                report.add_offered(offered, task.metrics)
        if passes:
            report.values.update(_summarize_passes(passes, task.threads))


def _link_files(source: str, target: str) -> None:
    """Link the test's files to the folder where the command runs, which its outputs leave with."""
    for name in os.listdir(source):
        with suppress(FileExistsError):
            os.symlink(os.path.join(source, name), os.path.join(target, name))


def _summarize_passes(passes: Sequence[PassRead], threads: int) -> Dict[str, Any]:
    """Summarize runs as passes with one event each; a command has no phases but its run."""
    values = summarize_times(passes)
    absent = [phase for phase in PASS_PHASES if phase != "loop"]
    values = {
        name: value
        for name, value in values.items()
        if value != ""
        and not name.startswith(tuple(f"{w}{p}_" for p in absent for w in ("", "pass_")))
    }
    for name in ("eff_loop", "eff_loop_corrected"):
        if name in values:
            values[name] /= threads
    return values


def split_command(text: str) -> List[str]:
    """Split a command to program and arguments; one that needs a shell gets it.

    Raises:
        PayloadError: a quotation has no end.
    """
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise PayloadError("payload", "start", "start", f"{text}: {error}") from error
    is_quoted = shlex.join(words) == text
    if _ASSIGNMENT.match(text) or (_SHELL_CHARACTERS.intersection(text) and not is_quoted):
        return ["/bin/sh", "-c", text]
    return words


def compose_environment(
    task: PayloadTask, payload_environment: Mapping[str, str]
) -> Dict[str, str]:
    """Compose the environment of the command.

    On the machine of the user it is the user's, with this ROOT's if one was requested; elsewhere that
    of the job.

    Args:
        task: ``[settings] environment_file`` names a file with the user's; ``environments`` has
            further variables by value of the axis ``environment``.
        payload_environment: this payload's environment, with the requested ROOT.

    Raises:
        PayloadError: the file is gone.
    """
    environment = dict(payload_environment)
    path = task.settings.get("environment_file")
    if path:
        try:
            with open(path, encoding="utf-8") as stream:
                users = json.load(stream)
        except OSError as error:
            message = f"the environment of the command is gone ({error.strerror}); run it again"
            raise PayloadError("payload", "start", "setup", message) from error
        if task.variant.get("root") == "none":
            environment = {k: v for k, v in environment.items() if k.startswith("TREEHAMMER_")}
        else:
            users = {k: v for k, v in users.items() if k not in _FOREIGN_VARIABLES}
        environment = {**users, **environment}
    name = str(task.variant.get(ENVIRONMENT_AXIS, ""))
    environment.update(task.settings.get("environments", {}).get(name, {}))
    return {k: v for k, v in environment.items() if k not in _OWN_VARIABLES}


class CommandRunner:
    """Runs a command as a reader of one file with one entry.

    Args:
        task: ``[settings]`` has the ``command``, or ``commands`` by value of the axis ``command``; the
            ``folder`` it runs in; and ``prepare``, a command before each run that is not measured.
        folder: folder for the notes of the first run.

    Attributes:
        trace: what the first run did; None before it.
    """

    def __init__(self, task: PayloadTask, folder: str) -> None:
        settings = task.settings
        commands = settings.get("commands", {})
        text = commands.get(str(task.variant.get(COMMAND_AXIS, "")), settings.get("command", ""))
        if not text:
            raise PayloadError("payload", "bad-job", "setup", "[settings] names no command")
        self.trace: Optional[CommandTrace] = None
        self._command = Command(text, split_command(text), compose_environment(task, os.environ))
        self._prepare: str = settings.get("prepare", "")
        self._folder: str = settings.get("folder") or os.getcwd()
        self._cores = None if task.threads == 1 else range(os.cpu_count() or 1)
        self._notes = folder
        self._is_recorded: bool = settings.get("record_reads", True)
        self._runs: List[CommandRun] = []

    def run_pass(self) -> PassRead:
        """Run the command once."""
        self.run_turn(0, 1)
        return PassRead(self.close_turns())

    def open_turns(self, number: int) -> int:
        """Return the number of entries: one run."""
        return 1

    def run_turn(self, first: int, last: int) -> str:
        """Run the command once; return the answer to ``run``."""
        is_first = self.trace is None
        if self._prepare:
            prepare = self._command._replace(words=split_command(self._prepare))
            _require_success(prepare, self._run(prepare, None, is_sampled=False))
        command, missing = self._add_recorder() if is_first else (self._command, "")
        output = OutputReader() if is_first else None
        try:
            run = self._run(command, output, is_sampled=is_first)
        finally:
            counters = output.finish() if output else []
        if is_first:  # of a failing command, too
            self.trace = CommandTrace(self._command, run, self._notes, missing, counters)
        _require_success(command, run)
        self._runs.append(run)
        return TurnFigures(
            round(1e9 * run.cpu_s),
            round(1e9 * run.system_s),
            run.wall_ns,
            run.switches_voluntary,
            run.switches_involuntary,
            run.count_io("read_bytes") or 0,
        ).write_answer(run.count_io("rchar") or 0)

    def _add_recorder(self) -> Tuple[Command, str]:
        """Return the command with the recorder of reads, or with the reason why it has none."""
        if not self._is_recorded:
            return self._command, "recording of reads is turned off"
        environment = self._command.environment
        try:
            library = recorder.build_recorder(self._notes)
            variables = recorder.preload_variables(library, self._notes, environment)
        except recorder.RecorderError as error:
            return self._command, str(error)
        return self._command._replace(environment={**environment, **variables}), ""

    def _run(
        self, command: Command, output: Optional[OutputReader], *, is_sampled: bool
    ) -> CommandRun:
        program = command.words[0]
        path = shutil.which(program, path=command.environment.get("PATH")) or program
        try:
            return run_command(
                [path, *command.words[1:]],
                command.environment,
                self._folder,
                self._cores,
                is_sampled=is_sampled,
                output=output.descriptor if output else None,
            )
        except OSError as error:
            is_executable = os.access(os.path.join(self._folder, path), os.X_OK)
            hint = ". A script names its interpreter in the first line (#!)"
            reason = f"{error.strerror}{hint if is_executable else ''}"
            message = f"{program} cannot be started in {self._folder}: {reason}"
            raise PayloadError("payload", "start", "start", message) from error

    def close_turns(self) -> List[FileRead]:
        """Return the runs since the last call, as reads of a file with one event."""
        runs, self._runs = self._runs, []
        return [_describe_run(run) for run in runs]

    def discard_turns(self) -> None:
        """Forget the runs since the last call."""
        self._runs = []


def _require_success(command: Command, run: CommandRun) -> None:
    if run.status:
        end = f"exit code {run.status}" if run.status > 0 else f"signal {-run.status}"
        kind = "killed" if SIGKILL in (-run.status, run.status - 128) else "exit"
        raise PayloadError("payload", kind, "loop", f"{command.words[0]} ended with {end}")


def _describe_run(run: CommandRun) -> FileRead:
    times = (run.wall_ns / 1e9, run.user_s, run.system_s)
    return FileRead(
        phases={**dict.fromkeys(PASS_PHASES, (0.0, 0.0, 0.0)), "loop": times},
        events=1,
        unzipped_bytes=-1,
        file_size=-1,
        file_class="",
        cached=False,
        first_byte_s=-1,
        run_queue_s=-1,
        counters={},
    )
