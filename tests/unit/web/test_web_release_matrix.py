"""Matrix of ROOT releases on the page Compare."""

from __future__ import annotations

from collections.abc import Iterator
from html import unescape
from pathlib import Path

import pytest
from measurement_factory import build_verdict
from page_tables import read_tables
from service_thread import ServiceThread, run_service

from treehammer.analysis.statistics.verdict import VerdictEvidence
from treehammer.sql.core.rows import VerdictRow
from treehammer.sql.write.store import Store


def compare(
    a: str, b: str, *judged: tuple[str, float | None], scope: str = "sites", test: str = "read"
) -> list[VerdictRow]:
    sides = [{"test_name": test, "site": site} for site in "AB"]
    evidence = VerdictEvidence(of_a=sides[0], of_b=sides[1]).to_json()
    return [
        build_verdict(
            "x",
            a=a,
            b=b,
            scope=scope,
            site="" if scope == "sites" else "A",
            label=str(number),
            verdict=verdict,
            effect=effect,
            evidence=evidence,
        )
        for number, (verdict, effect) in enumerate(judged)
    ]


@pytest.fixture
def service(tmp_path: Path) -> Iterator[ServiceThread]:
    compared = {
        "old": compare("6.36", "6.38", ("slower", 0.5)),
        "new": compare("6.36", "6.38", ("faster", -0.05), ("faster", -0.03), ("same", 0.0)),
        "both": compare("6.38", "6.40", ("slower", 0.05), ("faster", -0.1), ("undecided", 0.01)),
        "site": compare("6.36", "6.40", ("same", 0.001), scope="site"),
        "other": compare("6.38", "6.40", ("slower", 0.2), test="lonely"),
    }
    with Store.open(f"sqlite:///{tmp_path / 'results.db'}") as store:
        for place, (identity, rows) in enumerate(compared.items()):
            changed = [
                VerdictRow(**{**vars(row), "comparison_id": identity, "created_us": place + 1})
                for row in rows
            ]
            store.replace_comparison(identity, [], changed)
    with run_service(tmp_path, reading_open=True) as running:
        yield running


def test_newest_comparison_of_each_pair_is_shown(service: ServiceThread) -> None:
    page = unescape(service.load_page("/compare"))
    assert page.count('class="matrix releases"') == 1, "one pair of a test is no matrix"
    (matrix,) = (table for name, table in read_tables(page).items() if name != "comparisons")
    assert [*matrix.columns.values()] == ["compared with", "6.38", "6.40"]
    assert matrix.column("base") == ["6.36", "6.38"]
    cells = [
        (cell.css_class, cell.tooltip, cell.link.rpartition("/")[2], cell.text)
        for row in matrix.cells
        for cell in row.values()
        if cell.link
    ]
    assert cells == [
        ("better-2", "6.38 against 6.36: 2 faster, 1 same over sites", "new", "−3.9 % in 2 of 3"),
        ("equal", "6.40 against 6.36: 1 same by site", "site", "same"),
        (
            "worse-2",
            "6.40 against 6.38: 1 faster, 1 slower, 1 undecided over sites",
            "both",
            "−9.5 % in 1 of 3, +5.1 % in 1 of 3",
        ),
    ]


def test_service_without_comparisons_has_no_matrix(filled_service: ServiceThread) -> None:
    assert "matrix releases" not in filled_service.load_page("/compare")
