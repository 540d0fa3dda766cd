"""Controls of a comparison, kept with the evidence of its first row."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace

from treehammer.analysis.statistics.control import ControlCheck
from treehammer.analysis.statistics.verdict import VerdictEvidence
from treehammer.sql.core.rows import VerdictRow


def attach_controls(
    rows: Sequence[VerdictRow], controls: Iterable[ControlCheck]
) -> tuple[VerdictRow, ...]:
    """Add the controls to the evidence of the first row."""
    if not rows:
        return ()
    first, *following = rows
    documents = tuple(asdict(control) for control in controls)
    evidence = replace(VerdictEvidence.from_json(first.evidence), controls=documents)
    return (replace(first, evidence=evidence.to_json()), *following)


def stored_controls(rows: Sequence[VerdictRow]) -> list[ControlCheck]:
    """Return the controls that :func:`attach_controls` added to a comparison's first row."""
    documents = VerdictEvidence.from_json(rows[0].evidence).controls if rows else ()
    return [ControlCheck(**document) for document in documents]
