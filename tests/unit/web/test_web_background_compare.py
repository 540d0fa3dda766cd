"""Comparisons that run in the background."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from polling import wait_until
from service_thread import ServiceThread

from treehammer.web.pages import compare_query, comparison_list_page


def test_too_many_measurements_are_refused(
    filled_service: ServiceThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compare_query, "MAX_READ", 10)
    monkeypatch.setattr(comparison_list_page, "MAX_BACKGROUND_READ", 20)
    answer = filled_service.client.get("/compare?a=6.38.00&b=6.40.00&recompute=1")
    assert answer.status_code == 400
    assert "the limit here is 20" in answer.json()["error"]


@pytest.fixture
def paused_comparisons(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Every comparison runs in the background, and only once the event is set."""
    event = threading.Event()
    compare = compare_query.compare_now

    def compare_later(*args: Any, **kwargs: Any) -> Any:
        kwargs["on_progress"](7)
        assert event.wait(60)
        kwargs["on_progress"](8)
        return compare(*args, **kwargs)

    monkeypatch.setattr(compare_query, "MAX_READ", 10)
    monkeypatch.setattr(comparison_list_page, "compare_now", compare_later)
    yield event
    event.set()
    for thread in _list_comparisons():
        thread.join(60)


def test_large_comparisons_run_in_background(
    filled_service: ServiceThread, paused_comparisons: threading.Event
) -> None:
    address = "/compare?a=6.38.00&b=6.40.00&recompute=1"
    document = _wait_for(lambda: _read_progress(filled_service, address))
    assert document["count"] > 10
    page = filled_service.client.get(address, headers={"Accept": "text/html"})
    assert page.status_code == 202
    assert "Read 7 of up to" in page.text
    assert '<meta http-equiv="refresh" content="2">' in page.text
    # Two others wait for it, a fourth one fits, and a fifth one is refused.
    others = [filled_service.client.get(f"{address}&delta=0.0{n}").status_code for n in range(3, 7)]
    assert others == [202, 202, 202, 503]
    paused_comparisons.set()
    found = _wait_for(lambda: _read_result(filled_service, address))
    expected = filled_service.client.get("/compare?a=6.38.00&b=6.40.00&format=json").json()
    assert found["tables"].keys() == expected["tables"].keys()
    assert found["tables"]["by_site"]
    # Its result is kept.
    assert filled_service.client.get(address, headers={"Accept": "text/html"}).status_code == 200


def test_background_comparison_that_nobody_awaits_ends(
    filled_service: ServiceThread,
    paused_comparisons: threading.Event,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    address = "/compare?a=6.38.00&b=6.40.00&recompute=1&delta=0.011"
    _wait_for(lambda: _read_progress(filled_service, address))
    (thread,) = _list_comparisons()
    monkeypatch.setattr(comparison_list_page, "ABANDONED_AFTER_S", -1.0)
    paused_comparisons.set()
    thread.join(60)
    monkeypatch.undo()
    # Nothing is kept of it: the same query is computed anew, at once.
    assert filled_service.client.get(address).status_code == 200


def _read_progress(service: ServiceThread, address: str) -> dict[str, Any] | None:
    answer = service.client.get(f"{address}&format=json")
    assert (answer.status_code, answer.headers["Retry-After"]) == (202, "2")
    document: dict[str, Any] = answer.json()
    return document if document["read"] else None


def _read_result(service: ServiceThread, address: str) -> dict[str, Any] | None:
    answer = service.client.get(f"{address}&format=json")
    document: dict[str, Any] = answer.json()
    return document if answer.status_code == 200 else None


def _list_comparisons() -> list[threading.Thread]:
    return [one for one in threading.enumerate() if one.name == "comparison"]


def _wait_for(read: Callable[[], dict[str, Any] | None]) -> dict[str, Any]:
    found: list[dict[str, Any]] = []

    def has_found() -> bool:
        document = read()
        if document is not None:
            found.append(document)
        return document is not None

    wait_until(has_found, "no response")
    return found[0]
