"""Turn protocol of paired mode: the worker lets two live payloads read by turns.

One command and one answer a line, over two named pipes:

==================  =================================================================================
``open FILE``       opens file number FILE of the pass, from 0; answer: number of entries to read
``run FIRST LAST``  reads the entries at positions [FIRST, LAST); answer: nanoseconds of CPU and wall
                    time, bytes, voluntary and involuntary context switches, bytes from devices
``close``           closes the file and counts it
``discard``         closes the file and forgets all of this pass
``finish``          ends the execution, without an answer
==================  =================================================================================

The payload begins with the answer ``ready``, once nothing is left to compile or load.
"""

from __future__ import annotations

import os
from typing import IO, Callable, Dict, List, Optional, Protocol, Sequence, Tuple

from .pass_summary import FileRead, PassRead
from .payload_task import PayloadError

#: Variable with the prefix of both pipes' paths.
TURNS_VARIABLE = "TREEHAMMER_TURNS"


class TurnReader(Protocol):
    """Reads the files of an execution in turns, which follow one another without gaps.

    A reader of coarser steps reads in a turn the steps that begin in it, the same ones on both sides.
    """

    def open_turns(self, number: int) -> int:
        """Open file ``number`` of a pass; return the number of entries to read in turns."""

    def run_turn(self, first: int, last: int) -> str:
        """Read the entries at positions [first, last); return the answer to ``run``."""

    def close_turns(self) -> Sequence[FileRead]:
        """Close the file; return the reads that ended with it."""

    def discard_turns(self) -> None:
        """Close the file, of which any part was read, and forget this pass."""


def open_pipes() -> Optional[Tuple[IO[str], IO[str]]]:
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


class TurnServer:
    """Answers the worker's commands with the turns of one execution."""

    def __init__(self, reader: TurnReader, file_count: int) -> None:
        self._reader = reader
        self._file_count = file_count
        self._number = 0
        self._files: List[FileRead] = []
        self._done: List[PassRead] = []

    def serve(self, commands: IO[str], answers: IO[str]) -> List[PassRead]:
        """Serve until ``finish``; return the complete passes.

        Raises:
            PayloadError: a file cannot be read, the loop ignores its entries, or the worker left.
        """
        actions: Dict[str, Callable[..., object]] = {
            "open": self._open,
            "run": self._reader.run_turn,
            "close": self._close,
            "discard": self._discard,
        }
        answers.write("ready\n")
        for line in commands:
            word, *numbers = line.split()
            if word == "finish":
                return self._done
            answers.write(f"{actions[word](*map(int, numbers))}\n")
        raise PayloadError("payload", "turns", "loop", "the worker ended the turns early")

    def _open(self, number: int) -> int:
        self._number = number
        return self._reader.open_turns(number)

    def _close(self) -> int:
        self._files.extend(self._reader.close_turns())
        if self._number + 1 == self._file_count:
            self._done.append(PassRead(self._files, in_turns=True))
            self._files = []
        return 0

    def _discard(self) -> int:
        self._reader.discard_turns()
        self._files = []
        return 0
