"""Check the lines of Python in each room against ``budgets.toml``; ``--write`` lowers its numbers.

A room is a folder of one or two levels, tests included.  A number is raised only with a new section of the
decision on such rooms, titled as beside it, that says which user needs the lines.
"""

from __future__ import annotations

import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
BUDGETS_FILE = "budgets.toml"
RECORDS_FILE = "docs/decisions/0072-rooms-that-rose.md"
#: Budgets are multiples of this number of lines, so that a small change does not touch them.
STEP = 50
#: Smaller folders of the second level have no budget of their own.
MIN_ROOM_LINES = 100

Budget = dict[str, int | str]


def count_lines() -> Counter[str]:
    """Count the lines of Python in Git's files by room."""
    lines: Counter[str] = Counter()
    for name in _run_git("ls-files", "*.py").splitlines():
        path = REPOSITORY / name
        if path.is_symlink() or not path.exists():
            continue
        count = len(path.read_text(encoding="utf-8").splitlines())
        folders = Path(name).parts[:-1]
        for level in (1, 2):
            if len(folders) >= level:
                lines["/".join(folders[:level])] += count
    return Counter({room: n for room, n in lines.items() if "/" not in room or n >= MIN_ROOM_LINES})


def find_problems(
    lines: Counter[str], budgets: dict[str, Budget], earlier: dict[str, Budget]
) -> list[str]:
    """Find rooms above their budget or without one, and budgets raised without a new record.

    Args:
        lines: lines of each room.
        budgets: room -> ``lines``, and ``record`` where it was raised.
        earlier: the budgets of the commit before.
    """
    records = (REPOSITORY / RECORDS_FILE).read_text(encoding="utf-8").splitlines()
    problems = []
    for room, count in sorted(lines.items()):
        if room not in budgets:
            problems.append(f"{room}: {count} lines without a budget")
        elif count > int(budgets[room]["lines"]):
            problems.append(f"{room}: {count} lines, {budgets[room]['lines']} in the budget")
    for room, budget in budgets.items():
        before, record = earlier.get(room), str(budget.get("record", ""))
        if before is None or int(budget["lines"]) <= int(before["lines"]):
            continue
        if f"## {record}" not in records or record == before.get("record"):
            problems.append(f"{room}: raised without a new section of {RECORDS_FILE}")
    return problems


def _run_git(*words: str) -> str:
    command = ["git", "-C", str(REPOSITORY), *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def _load_earlier(text: str) -> dict[str, Budget]:
    """Load the budgets of the last commit, or, if they are unchanged, of the one before."""
    for revision in ("HEAD", "HEAD^"):
        try:
            earlier = _run_git("show", f"{revision}:{BUDGETS_FILE}")
        except (
            subprocess.CalledProcessError
        ):  # the file, or in a shallow clone the commit, is missing
            return {}
        if earlier != text:
            return tomllib.loads(earlier)
    return {}


def _write_budgets(path: Path, lines: Counter[str], budgets: dict[str, Budget]) -> None:
    rooms = []
    for room, count in sorted(lines.items()):
        needed = -(-count // STEP) * STEP
        budget = budgets.get(room, {"lines": needed})
        record = f', record = "{budget["record"]}"' if "record" in budget else ""
        rooms.append(f'"{room}" = {{ lines = {min(needed, int(budget["lines"]))}{record} }}\n')
    path.write_text("".join(rooms), encoding="utf-8")


def main() -> int:
    """Check the budgets; return 1 if one is exceeded, or raised without a record."""
    path, lines = REPOSITORY / BUDGETS_FILE, count_lines()
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    budgets: dict[str, Budget] = tomllib.loads(text)
    if "--write" in sys.argv:
        _write_budgets(path, lines, budgets)
        return 0
    problems = find_problems(lines, budgets, _load_earlier(text))
    for problem in problems:
        print(f"{BUDGETS_FILE}: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
