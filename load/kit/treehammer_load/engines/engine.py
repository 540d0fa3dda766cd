"""Interface of other load generators as engines of the same tests.

They are compiled and reach higher rates than the generator in Python.  The definition of a load
becomes an engine's arguments, and the engine's report becomes rows of operations.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Callable, Iterator, List, Mapping, NamedTuple, Sequence, Tuple

from .....collectors.kit.treehammer_kit.payload_task import PayloadError
from .....collectors.record.latency_histograms import LatencyHistogram
from .....collectors.shared_files import local_path
from ..load_driver import LoadTimer
from ..load_task import TIMEOUT_S, LoadTask

#: Seconds beside the load until an engine must have ended, and after a signal to stop.
ENGINE_GRACE_S, _STOP_S = 30.0, 3.0
_POLL_S = 0.05
#: Characters of an engine's errors that a message repeats.
_MAX_ERROR = 500


@dataclass(frozen=True)
class EngineLoad:
    """A load that an engine performs.

    Attributes:
        task: the task.
        operation: ``open`` or ``read``.
        clients: clients at a time.
        rate_hz: operations per second of each client; 0 for as many as possible.
        block: bytes of the shortest and the longest read.
        is_random: whether reads are at random positions, not consecutive.
        reads: reads of each client; 0 for as many as the load's time allows.
        is_bounded: whether the rate is the door's ceiling, less than the test asks for.
    """

    task: LoadTask
    operation: str
    clients: int
    rate_hz: float = 0.0
    block: Tuple[int, int] = (0, 0)
    is_random: bool = True
    reads: int = 0
    is_bounded: bool = False


class EngineStep(NamedTuple):
    """Operations of one span of an engine's time.

    Attributes:
        start_s: seconds since the engine began.
        seconds: length.
        done: operations that succeeded.
        bytes: that they moved.
        failures: failed ones by class.
        latency: of the successful ones, from sending; empty where the engine measures none.
    """

    start_s: float
    seconds: float
    done: int
    bytes: int
    failures: Mapping[str, int]
    latency: LatencyHistogram


def make_error(message: str, kind: str = "bad-load") -> PayloadError:
    """Make the error of a load that an engine cannot perform, or of a missing engine."""
    failure_class = "payload" if kind != "missing" else "software-setup"
    return PayloadError(failure_class, kind, "setup", message)


#: Receives the number of a step, from 0, and the step, while an engine runs.
Report = Callable[[int, EngineStep], None]


class Engine:
    """A program that performs a load.

    Args:
        load: the load.

    Attributes:
        name: of engine and program.
        schemes: schemes of URLs; '' for paths.
        operations: operations that it performs.
        paces: whether it keeps rates.
        version_program: program beside it that states its version; '' for itself.
    """

    name = ""
    package = ""
    schemes: Sequence[str] = ()
    operations: Sequence[str] = ()
    paces = True
    version_program = ""

    def __init__(self, load: EngineLoad) -> None:
        self.load, self.task = load, load.task
        self.folder = os.path.join(os.getcwd(), f"{self.name}-files")
        program = shutil.which(self.name)
        if program is None:
            raise make_error(
                f"engine = {self.name!r}: this node has no program {self.name!r} ({self.package}); "
                "install it, or set engine = 'generator'",
                "missing",
            )
        self.program = program
        self._check()

    def _check(self) -> None:
        load, url = self.load, self.task.files[0].url
        scheme = "" if local_path(url) is not None else url.partition("://")[0]
        reason = ""
        if scheme not in self.schemes:
            reason = f"reads no {scheme}://" if scheme else "reads no paths"
        elif load.operation not in self.operations:
            reason = f"has no operation {load.operation!r}"
        elif load.rate_hz and not self.paces:
            reason = "keeps no times; use the test read-pattern, which reads as fast as it can"
        if reason:
            raise make_error(f"engine = {self.name!r}: {self.name} {reason}")

    @property
    def timeout_s(self) -> float:
        """Time limit of an operation."""
        return self.task.read_number("timeout_s", TIMEOUT_S, (0, 3600))

    @property
    def inventory(self) -> str:
        """JSON of the engine's version."""
        program = os.path.join(os.path.dirname(self.program), self.version_program or self.name)
        version = "unknown"
        if os.path.exists(program):
            words = [program, "--version"]
            completed = subprocess.run(
                words, capture_output=True, text=True, timeout=60, check=False
            )
            match = re.search(r"\d+\.\d+(\.\d+)*", completed.stdout + completed.stderr)
            version = match[0] if match else version
        return json.dumps({"packages": {self.name: version}})

    def run(self, timer: LoadTimer, report: Report) -> str:
        """Run the engine to its end, its time limit or a signal; return its output.

        Args:
            timer: clock of the load.
            report: called with each step that the engine states while it runs.
        """
        os.makedirs(self.folder, exist_ok=True)
        try:
            return self._run(timer, report)
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _run(self, timer: LoadTimer, report: Report) -> str:
        command = self.build_command()
        outputs = [os.path.join(self.folder, name) for name in ("stdout", "stderr")]
        end_s = self.task.duration_s + self.timeout_s + ENGINE_GRACE_S
        with open(outputs[0], "wb") as stdout, open(outputs[1], "wb") as stderr:
            process = subprocess.Popen(command, stdout=stdout, stderr=stderr)
            try:
                while process.poll() is None and not timer.stopped and timer.now() < end_s:
                    timer.wait(_POLL_S)
                    for number, part in self.read_new_steps(outputs[0]):
                        report(number, part)
                with suppress(subprocess.TimeoutExpired):
                    process.send_signal(signal.SIGINT)  # nothing happens if it has ended
                    process.wait(_STOP_S)
            finally:
                process.kill()
                process.wait()
        output, errors = (Path(path).read_text("utf-8", "replace") for path in outputs)
        if process.returncode and not timer.stopped and not self.has_report(output):
            message = f"{self.name} ended with {process.returncode}: {errors.strip()[-_MAX_ERROR:]}"
            raise PayloadError("payload", "exit", "load", message)
        self.read_files()
        return output

    def build_command(self) -> List[str]:
        """Write the engine's files and build its command line."""
        raise NotImplementedError

    def has_report(self, output: str) -> bool:
        """Return whether the output of an engine that failed has a report nevertheless."""
        return False

    def read_new_steps(self, output: str) -> Iterator[Tuple[int, EngineStep]]:
        """Iterate over the steps, with their numbers, that the file of its output states anew.

        Engines that report at their end only have none.
        """
        return iter(())

    def read_files(self) -> None:
        """Read files that the engine wrote, before they are removed."""

    def parse(self, output: str) -> List[EngineStep]:
        """Convert the engine's report."""
        raise NotImplementedError
