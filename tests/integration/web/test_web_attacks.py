"""The attacks of docs/reference/attacks.md that a client can try, each through nginx and through Caddy.

The page shows the results that are measured here: a test compares them.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from client_attacks import ATTACKS
from monitoring_servers import CADDY, NGINX
from proxied_service import ProxiedService, run_both_proxies
from repository_code import REPOSITORY


def list_documented_results() -> dict[str, dict[str, str]]:
    """Read the results of the attacks on the page, by proxy."""
    results: dict[str, dict[str, str]] = {}
    header: list[str] = []
    for line in (
        (REPOSITORY / "docs" / "reference" / "attacks.md").read_text(encoding="utf-8").splitlines()
    ):
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("|"):
            header = []
        elif not header:
            header = cells
        elif "nginx" in header and not line.startswith("|-"):
            row = dict(zip(header, cells, strict=True))
            results[cells[0]] = {NGINX: row["nginx"], CADDY: row["Caddy"]}
    return results


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[ProxiedService]]:
    with run_both_proxies(tmp_path_factory.mktemp) as services:
        yield services


@pytest.mark.parametrize("name", ATTACKS)
def test_attack_has_the_documented_result(services: list[ProxiedService], name: str) -> None:
    with ThreadPoolExecutor() as pool:
        results = list(pool.map(ATTACKS[name], services))
    measured = {service.proxy: result for service, result in zip(services, results, strict=True)}
    assert measured == list_documented_results()[name]


def test_page_lists_these_attacks() -> None:
    assert list_documented_results().keys() == ATTACKS.keys()
