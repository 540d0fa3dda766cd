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
    first, *others = rows
    documents = tuple(asdict(one) for one in controls)
    evidence = replace(VerdictEvidence.from_json(first.evidence), controls=documents)
    return (replace(first, evidence=evidence.to_json()), *others)


def stored_controls(rows: Iterable[VerdictRow]) -> list[ControlCheck]:
    """Collect the controls that :func:`attach_controls` added to a comparison's rows."""
    return [
        ControlCheck(**document)
        for row in rows
        for document in VerdictEvidence.from_json(row.evidence).controls
    ]
