"""The printed output in the documentation: run it, compare it, renew it.

A ``console`` block of a page holds commands after ``$ `` (continued after ``> ``) and what they
printed.  The commands of a page run in order in one folder.  When compared, numbers, identities,
the width of columns and lines of progress may differ, words may not; ``...`` stands for any text.

    python docs/console.py --folder DIR docs/first-run.md            # compare
    python docs/console.py --folder DIR --update docs/first-run.md   # write what was printed
"""

from __future__ import annotations

import argparse
import doctest
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

FENCE = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
#: How far something had come, in normalised text: how often it is said depends on the machine.
PROGRESS = re.compile(r"^[A-Z][^:]*: 0/0\b")
TIMEOUT_S = 900


@dataclass(frozen=True)
class Command:
    """One command of a page, what the page says it prints, and where that stands in the page."""

    text: str
    expected: str
    line: int
    start: int
    end: int


def commands(page: str) -> list[Command]:
    """The commands of a page in order; ``start`` and ``end`` bound the expected output."""
    found: list[Command] = []
    for fence in FENCE.finditer(page):
        offset = fence.start(1)
        text, start, line = "", 0, 0
        for row in fence.group(1).splitlines(keepends=True):
            if row.startswith("$ "):
                if text:
                    found.append(_command(page, text, line, start, offset))
                text, line = row[2:], page.count("\n", 0, offset) + 1
                start = offset + len(row)
            elif row.startswith((">\n", "> ")) and start == offset:
                text += row[2:] if row.startswith("> ") else row[1:]
                start = offset + len(row)
            offset += len(row)
        if text:
            found.append(_command(page, text, line, start, offset))
    return found


def _command(page: str, text: str, line: int, start: int, end: int) -> Command:
    return Command(text.rstrip("\n"), page[start:end], line, start, end)


def normalise(text: str) -> str:
    """What must agree: words stay, numbers and identities become ``0``, rules and blanks shrink."""
    text = re.sub(r"\b[0-9a-f]{7,64}\b", "0", text)
    text = re.sub(r"[0-9][0-9.,:]*(e[+-]?[0-9]+)?", "0", text)
    text = re.sub(r"[-+−]0", "0", text)
    text = re.sub(r"[-─━=]{3,}", "-", text)
    lines = (" ".join(line.split()) for line in text.splitlines())
    return "\n".join(line for line in lines if line and not PROGRESS.match(line))


def agrees(expected: str, printed: str) -> bool:
    """Whether what was printed is what the page says, numbers apart."""
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    return doctest.OutputChecker().check_output(normalise(expected), normalise(printed), flags)


def run(command: Command, folder: Path, environment: Mapping[str, str] | None = None) -> str:
    """Run one command in a shell and return standard output and error as printed.

    The folder and the home of whoever runs it are shown as a reader would have them.
    """
    done = subprocess.run(
        ["bash", "-c", command.text],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    shown = done.stdout
    for place in (folder, Path(__file__).resolve().parents[1]):
        shown = shown.replace(str(place), "~/treehammer")
    lines = shown.replace(str(Path.home()), "~").splitlines()
    return "".join(f"{line.rstrip()}\n" for line in lines)


def main() -> int:
    """Compare or renew the pages named on the command line; 1 when one differs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("pages", nargs="+", type=Path)
    parser.add_argument("--folder", type=Path, required=True, help="where the commands run")
    parser.add_argument("--update", action="store_true", help="write what was printed")
    options = parser.parse_args()
    differing = 0
    for path in options.pages:
        page = path.read_text(encoding="utf-8")
        results = [(command, run(command, options.folder)) for command in commands(page)]
        for command, printed in reversed(results):
            if not agrees(command.expected, printed):
                differing += 1
                print(f"{path}:{command.line}: $ {command.text}\n{printed}", file=sys.stderr)
                page = page[: command.start] + printed + page[command.end :]
        if options.update:
            path.write_text(page, encoding="utf-8")
    return int(bool(differing) and not options.update)


if __name__ == "__main__":
    sys.exit(main())
