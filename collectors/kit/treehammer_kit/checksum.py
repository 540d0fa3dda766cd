"""The untimed execution that proves that two releases or doors delivered the same values."""

from __future__ import annotations

import hashlib
import json
from typing import Any, Dict

from .passes import open_tree
from .task import Task, Trouble


def checksum(root: Any, task: Task) -> Dict[str, Any]:
    """Hash every value that can be hashed, of all files in order.

    Covered are leaves of fundamental types with fixed and variable lengths, text, and top-level
    ``std::string`` and ``std::vector`` of numbers or strings.  What is not covered is listed.

    Raises:
        Trouble: a file or tree is not there, a read failed, or nothing can be covered.
    """
    sums = root.treehammer.Checksum()
    values: Dict[str, Any] = {}
    for url in task.urls:
        reader = open_tree(root, url, task.tree)
        values.setdefault("file_class", str(reader.file_class))
        values.setdefault("branches_total", len(reader.current.tree.GetListOfBranches()))
        if not sums.Read(reader.current.tree):
            raise Trouble("read", "entry", "checksum", f"{url}: {sums.message}")
        reader.Close()
    lines = [str(line) for line in sums.Lines()]
    if not lines:
        raise Trouble("payload", "checksum", "checksum", f"no leaf of {task.tree!r} can be hashed")
    values.update(
        events_total=int(sums.entries),
        value_checksum=hashlib.sha256("\n".join(lines).encode()).hexdigest(),
        checksum_leaves=len(lines),
        checksum_uncovered=json.dumps([str(name) for name in sums.uncovered]),
    )
    return values
