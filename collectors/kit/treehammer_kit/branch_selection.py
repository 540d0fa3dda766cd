"""Selection of branches: a seeded fraction, patterns, or a list in a file."""

from __future__ import annotations

import difflib
import fnmatch
import hashlib
import math
import os
from typing import Dict, List, Mapping, Sequence, Union

from .payload_task import PayloadError

#: Value of the axis ``branches``: all branches that ROOT can read.
READABLE = "readable"


def select_branches(
    names: Sequence[str],
    counters: Mapping[str, Sequence[str]],
    request: Union[float, str],
    *,
    seed: int,
    folder: str,
    unreadable: Sequence[str] = (),
) -> List[int]:
    """Select the branches to read; return their positions, ascending.

    Args:
        names: top-level branches in the tree's order.
        counters: branch -> branches with the sizes of its arrays, which are read as well.
        request: fraction in (0, 1], patterns (``Muon_*,Jet_pt``) or ``@file`` with one pattern
            per line, or ``readable``. A pattern after ``!`` excludes branches; if all do, all other
            branches are read.
        seed: seed of a fraction.
        folder: base of ``@file``.
        unreadable: branches that ``readable`` leaves out.

    Raises:
        PayloadError: a pattern matches nothing, or the list cannot be read (class ``open``).
    """
    if request == READABLE:
        without = set(unreadable)
        chosen = dict.fromkeys(name for name in names if name not in without)
    elif isinstance(request, str):
        chosen = _match_patterns(names, _load_patterns(request, folder))
    else:
        chosen = select_fraction(names, request, seed)
    if not chosen:
        raise PayloadError(
            "open", "branch", "prepare", f"branches = {request!r} leaves none to read"
        )
    for name in list(chosen):
        chosen.update(dict.fromkeys(counters.get(name, ())))
    return [position for position, name in enumerate(names) if name in chosen]


def select_fraction(names: Sequence[str], share: float, seed: int) -> Dict[str, None]:
    """Select the ``max(1, round(share * n))`` names with the smallest seeded hashes.

    The selection depends on names alone, and a smaller share is a subset of a larger one.
    """
    count = min(len(names), max(1, math.floor(share * len(names) + 0.5)))
    ranked = sorted(names, key=lambda name: hashlib.sha256(f"{seed}:{name}".encode()).digest())
    return dict.fromkeys(ranked[:count])


def _load_patterns(request: str, folder: str) -> List[str]:
    if not request.startswith("@"):
        return [part.strip() for part in request.split(",") if part.strip()]
    path = os.path.join(folder, request[1:])
    try:
        with open(path, encoding="utf-8") as stream:
            lines = [line.split("#", 1)[0].strip() for line in stream]
    except (OSError, UnicodeDecodeError) as error:
        raise PayloadError(
            "open", "branch-list", "prepare", f"{path} cannot be read: {error}"
        ) from error
    return [line for line in lines if line]


def _match_patterns(names: Sequence[str], patterns: Sequence[str]) -> Dict[str, None]:
    if not patterns:
        raise PayloadError("open", "branch", "prepare", "the list of branches is empty")
    chosen: Dict[str, None] = {}
    if all(pattern.startswith("!") for pattern in patterns):
        chosen = dict.fromkeys(names)
    for pattern in patterns:
        if pattern.startswith("!"):
            for name in _match_pattern(names, pattern[1:]):
                chosen.pop(name, None)
        else:
            chosen.update(dict.fromkeys(_match_pattern(names, pattern)))
    return chosen


def _match_pattern(names: Sequence[str], pattern: str) -> List[str]:
    # A literal name takes precedence: names may contain brackets.
    matches = [pattern] if pattern in names else fnmatch.filter(names, pattern)
    if matches:
        return matches
    near = difflib.get_close_matches(pattern, names, n=3)
    hint = f"; near: {', '.join(near)}" if near else ""
    message = f"no branch matches {pattern!r}{hint} (the tree has {len(names)})"
    raise PayloadError("open", "branch", "prepare", message)
