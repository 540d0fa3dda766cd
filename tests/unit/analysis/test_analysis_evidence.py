"""Evidence of a verdict as text."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import pytest

from treehammer.analysis.statistics.verdict import VerdictEvidence

WORK: dict[str, str | int] = {"dataset": "events", "instrument_version": 1, "site": "A"}


@pytest.mark.parametrize(
    ("of_a", "of_b"),
    [
        ({**WORK, "root": "6.38"}, {**WORK, "root": "6.40"}),
        ({**WORK, "door": "root"}, {**WORK, "host": "b"}),
        (WORK, WORK),
        (WORK, {}),
        ({}, WORK),
        ({"site": "A"}, {"site": "B"}),
        ({}, {}),
    ],
)
def test_values_of_both_sides_are_kept_once(of_a: dict[str, Any], of_b: dict[str, Any]) -> None:
    evidence = VerdictEvidence(of_a=of_a, of_b=of_b)
    text = evidence.to_json()
    assert VerdictEvidence.from_json(text) == evidence
    shared = of_a.items() & of_b.items()
    assert all(text.count(f'"{name}"') == 1 for name, _ in shared)


def test_evidence_of_earlier_versions_is_read() -> None:
    old: dict[str, Any] = asdict(VerdictEvidence(of_a=WORK, of_b={"site": "A"}))
    del old["unit"], old["better"]
    evidence = VerdictEvidence.from_json(json.dumps(old))
    assert (evidence.unit, evidence.better) == ("s", "lower")
    assert (evidence.of_a, evidence.of_b) == (WORK, {"site": "A"})


@pytest.mark.parametrize("text", ['{"why":"x"} y', '{"why":"x"}{}', "{", '{"of_next":1}'])
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises((ValueError, TypeError)):
        VerdictEvidence.from_json(text)
