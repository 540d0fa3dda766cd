"""Turns of paired mode in the payload: the worker's protocol.

One command and one answer a line, over two named pipes:

==================  =================================================================================
``open FILE``       opens file number FILE of the pass, from 0; answer: number of entries to read
``run FIRST LAST``  reads the entries at positions [FIRST, LAST); answer: nanoseconds of CPU and wall
                    time, bytes, voluntary and involuntary context switches, bytes from devices
``close``           closes the file and counts it
``discard``         closes the file and forgets all of this pass; answer: bytes of program text in pages of
                    this process alone from now on, 0 if none
``finish``          ends the execution, without an answer
==================  =================================================================================

The payload begins with the answer ``ready``, once nothing is left to compile or load.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Callable, Dict, List, Optional, Protocol, Sequence, Tuple

from .pass_summary import FileRead, PassRead
from .payload_task import PRIME, PRIMED_SHARE, PayloadError, PayloadTask
from .program_text import move_program_text

if TYPE_CHECKING:
    from .payload_report import PayloadReport

#: Pipes of commands and answers.
Pipes = Tuple[IO[str], IO[str]]


@dataclass(frozen=True)
class TurnFigures:
    """Figures of one turn, or of all turns of a loop."""

    cpu_ns: int = 0
    system_ns: int = 0
    wall_ns: int = 0
    switches_voluntary: int = 0
    switches_involuntary: int = 0
    device_bytes: int = 0

    def write_answer(self, read_bytes: int) -> str:
        """Write the answer of the turn protocol."""
        switches = f"{self.switches_voluntary} {self.switches_involuntary}"
        return f"{self.cpu_ns} {self.wall_ns} {read_bytes} {switches} {self.device_bytes}"


#: Variable with the prefix of both pipes' paths.
TURNS_VARIABLE = "TREEHAMMER_TURNS"


class PassReader(Protocol):
    """Reads the files of an execution whole, or in turns, which follow one another without gaps.

    A reader of coarser steps reads in a turn the steps that begin in it, the same ones on both sides.
    """

    def run_pass(self) -> PassRead:
        """Read every file once."""

    def open_turns(self, number: int) -> int:
        """Open file ``number`` of a pass; return the number of entries to read in turns."""

    def run_turn(self, first: int, last: int) -> str:
        """Read the entries at positions [first, last); return the answer to ``run``."""

    def close_turns(self) -> Sequence[FileRead]:
        """Close the file; return the reads that ended with it."""

    def discard_turns(self) -> None:
        """Close the file, of which any part was read, and forget this pass."""


def prime_cache(reader: PassReader, task: PayloadTask) -> Dict[str, float]:
    """Read all, or a share of the entries of each file, unmeasured; return the share by its name.

    Raises:
        PayloadError: a file cannot be read, or a loop that reads a part ignores its entries.
    """
    share = task.primed_share
    if share == 1:
        reader.run_pass()
        return {PRIMED_SHARE: share}
    for number in range(len(task.urls)):
        entries = reader.open_turns(number)
        if entries:
            reader.run_turn(0, math.ceil(share * entries))
        reader.discard_turns()
    return {PRIMED_SHARE: share}


def perform_passes(
    reader: PassReader,
    task: PayloadTask,
    report: PayloadReport,
    pipes: Optional[Pipes],
    prepare_pass: Callable[[int], object] = lambda _number: None,
) -> List[PassRead]:
    """Read all passes, one after the other or in turns; none where nothing is measured.

    Args:
        reader: reads the files.
        task: the execution.
        report: receives the number of passes, or the share that was read of a cache.
        pipes: from :func:`open_pipes`.
        prepare_pass: called with the number of each pass before it, from 1.

    Raises:
        PayloadError: a file cannot be read.
    """
    if task.kind == PRIME:
        report.extras.update(prime_cache(reader, task))
        return []
    if pipes:
        # A payload without files may make its own data, which the worker counts as one.
        return serve_turns(reader, max(1, len(task.urls)), *pipes)
    pass_reads = []
    for number in range(1, task.passes + 1):
        prepare_pass(number)
        read = reader.run_pass()
        pass_reads.append(read)
        report.values["passes_done"] = number
        seconds = f"{read.loop_wall_s:.3f} s"
        print(f"pass {number}/{task.passes}: {read.events} events in {seconds}", flush=True)
    return pass_reads


def open_pipes() -> Optional[Pipes]:
    """Open the pipes of commands and answers; None where no worker waits at their other ends."""
    prefix = os.environ.get(TURNS_VARIABLE)
    if not prefix:
        return None
    try:
        commands = os.open(f"{prefix}.commands", os.O_RDONLY)
        answers = os.open(f"{prefix}.answers", os.O_WRONLY)
        return os.fdopen(commands), os.fdopen(answers, "w", 1)
    except OSError:
        return None


def serve_turns(
    reader: PassReader, file_count: int, commands: IO[str], answers: IO[str]
) -> List[PassRead]:
    """Answer the worker's commands with the turns of one execution; return the complete passes.

    Raises:
        PayloadError: a file cannot be read, the loop ignores its entries, or the worker left.
    """
    number = 0
    files: List[FileRead] = []
    passes: List[PassRead] = []
    answers.write("ready\n")
    for line in commands:
        word, *numbers = line.split()
        answer: object = 0
        if word == "finish":
            return passes
        if word == "open":
            number = int(numbers[0])
            answer = reader.open_turns(number)
        elif word == "run":
            answer = reader.run_turn(*map(int, numbers))
        elif word == "close":
            files += reader.close_turns()
            if number + 1 == file_count:
                passes.append(PassRead(files, in_turns=True))
                files = []
        elif word == "discard":
            reader.discard_turns()
            files = []
            # The calibration has loaded whatever a turn needs.
            answer = move_program_text()
        answers.write(f"{answer}\n")
    raise PayloadError("payload", "turns", "loop", "the worker ended the turns early")
