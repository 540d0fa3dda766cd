"""Printed output in the documentation: run the commands, compare, update.

A ``console`` block holds commands after ``$ `` (continued after ``> ``) and their output. The
commands of a page run in order in one folder. A comparison ignores numbers, identities, column
widths, progress lines and verdicts on times, which depend on the machine; ``...`` matches any text.

    python docs/console.py --folder DIR docs/first-run.md            # compare
    python docs/console.py --folder DIR --update docs/first-run.md   # update
"""

from __future__ import annotations

import argparse
import doctest
import itertools
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

FENCE = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
#: Progress lines in normalized text; their number depends on the machine.
PROGRESS = re.compile(r"^[A-Z][^:]*: 0/0\b|^Fetching ROOT 0 |^0 0 \w[^:]*: 0 of 0 measured")
#: End of a row with a verdict in normalized text, and sentences that depend on verdicts.
VERDICT = re.compile(r"(?<=\(0 launches\)) .*")
VERDICT_NOTE = re.compile(
    r"^(Controls are |Different|Do not trust|On this host, |Undecided)|, (CPU|wall): |points at|by phase, in % of "
    r"|^(0 )?(new )?(jobs? )?(would )?decide$"  # rest of a wrapped verdict
)
TIMEOUT_S = 900


@dataclass(frozen=True)
class Command:
    """One command of a page, its expected output, and their position in the page."""

    text: str
    expected: str
    line: int
    start: int
    end: int


def commands(page: str) -> list[Command]:
    """Find the commands of a page; ``start`` and ``end`` bound the expected output."""
    parsed: list[Command] = []
    for fence in FENCE.finditer(page):
        offset = fence.start(1)
        text, start, line = "", 0, 0
        for row in fence.group(1).splitlines(keepends=True):
            if row.startswith("$ "):
                if text:
                    parsed.append(_command(page, text, line, start, offset))
                text, line = row[2:], page.count("\n", 0, offset) + 1
                start = offset + len(row)
            elif row.startswith((">\n", "> ")) and start == offset:
                text += row[2:] if row.startswith("> ") else row[1:]
                start = offset + len(row)
            offset += len(row)
        if text:
            parsed.append(_command(page, text, line, start, offset))
    return parsed


def _command(page: str, text: str, line: int, start: int, end: int) -> Command:
    return Command(text.rstrip("\n"), page[start:end], line, start, end)


def normalize(text: str) -> str:
    """Replace numbers and identities by ``0``, omit verdicts, and shorten rules and blanks."""
    text = re.sub(r"\b[0-9a-f]{7,64}\b", "0", text)
    text = re.sub(r"[0-9][0-9.,:]*(e[+-]?[0-9]+)?", "0", text)
    text = re.sub(r"[-+−]0", "0", text)
    text = re.sub(r"[-─━=]{3,}", "-", text)
    lines = (VERDICT.sub("", " ".join(line.split())) for line in text.splitlines())
    omitted = (PROGRESS.match, VERDICT_NOTE.search)
    kept_lines = (line for line in lines if line and not any(omit(line) for omit in omitted))
    # The heading stands before the progress and after it.
    return "\n".join(line for line, _ in itertools.groupby(kept_lines))


def agrees(expected: str, printed: str) -> bool:
    """Return whether the output matches the page, except for numbers."""
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    return doctest.OutputChecker().check_output(normalize(expected), normalize(printed), flags)


def run(command: Command, folder: Path, environment: Mapping[str, str] | None = None) -> str:
    """Run a command in a shell; return standard output and error.

    The working folder and the home are replaced by the reader's.
    """
    result = subprocess.run(
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
    output = result.stdout
    for private_folder in (folder, Path(__file__).resolve().parents[1]):
        output = output.replace(str(private_folder), "~/treehammer")
    lines = output.replace(str(Path.home()), "~").splitlines()
    return "".join(f"{line.rstrip()}\n" for line in lines)


def main() -> int:
    """Compare or update the given pages; return 1 if one differs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("pages", nargs="+", type=Path)
    parser.add_argument("--folder", type=Path, required=True, help="working folder of the commands")
    parser.add_argument("--update", action="store_true", help="write the actual output")
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
