"""Tests of ROOT files of selected measurements, and of the search."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from measurement_factory import make_campaign_row, make_job_row, make_measurement
from page_database import HOSTILE_TEXTS, fill_database
from service_thread import BROWSER, ServiceThread, run_service

from treehammer.collectors.software import providers
from treehammer.sql.read.query_model import Selection
from treehammer.sql.read.reader import MAX_HITS
from treehammer.sql.transfer import file_writers
from treehammer.sql.write.store import Store
from treehammer.web.core.responses import RequestRefusedError
from treehammer.web.pages import root_file_page
from treehammer.web.pages.root_file_page import (
    KEEP_FILES_S,
    MAX_KEPT_FILES,
    RootExports,
    fingerprint_selection,
)


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceThread]:
    folder = tmp_path_factory.mktemp("files")
    fill_database(f"sqlite:///{folder / 'results.db'}")
    with pytest.MonkeyPatch.context() as patch:
        # No ROOT release is available.
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        with run_service(folder, reading_open=True) as service:
            yield service


def make_exports(filled: ServiceThread) -> RootExports:
    folder = Path(filled.url.removeprefix("sqlite:///")).parent / "cache" / "treehammer"
    return RootExports(folder / "exports", folder / "software", threading.Lock())


def find_key(files: RootExports, store: Store, chosen: Selection) -> str:
    return files.content_key(store, chosen, fingerprint_selection(store, chosen))


@pytest.mark.parametrize(
    "query, status, expected",
    [
        ("", 200, "treehammer export results.root"),
        ("?campaign=nightly", 200, "No ROOT release on this machine"),
        ("?campaign=none", 400, "no campaign matches"),
        ("?campaign=nightly&where=hots%3Dx", 400, "Did you mean &#39;host&#39;"),
        ("?campaign=nightly&where=site%3Dnowhere", 200, "No measurements match"),
        ("?campaign=nightly&where=site%3Dnowhere&where=site%3DSITE_A", 200, "No ROOT release"),
        ("?campaign=nightly&where=+&where=%22%3E%3Cscript%3E", 400, "is not a condition"),
    ],
)
def test_page_responds_to_parameters(
    filled: ServiceThread, query: str, status: int, expected: str
) -> None:
    page = filled.client.get(f"/root-file{query}", headers=BROWSER)
    assert page.status_code == status
    assert expected in page.text
    assert "<script>" not in page.text


def test_invalid_condition_keeps_form_values(
    filled: ServiceThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RootExports, "can_write", True)
    address = "/root-file?campaign=nightly&where=site%3DSITE_A&where=nonsense"
    page = filled.read(address, 400)
    assert page.fields["campaign"] == ["over"]
    assert page.fields["where"] == ["site=SITE_A", "nonsense", ""]
    (message,) = page.list_texts("p", "headline")
    assert "is not a condition" in message
    assert "--where" not in message
    answer = filled.client.get(address)
    assert (answer.status_code, next(iter(answer.json()))) == (400, "error")


def test_errors_hide_paths(
    service: ServiceThread, filled: ServiceThread, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = service.make_key("read").text
    empty = service.get_path("/root-file?campaign=last", key)
    assert (empty.status_code, "there are no campaigns yet" in empty.text) == (404, True)
    assert str(tmp_path) not in empty.text

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device", "/secret/place")

    files = RootExports(tmp_path / "exports", tmp_path / "software")
    monkeypatch.setattr(RootExports, "can_write", True)
    monkeypatch.setattr(RootExports, "_prune_files", full)
    selection = Selection(campaigns=("over",))
    key = find_key(files, filled.store, selection)
    with pytest.raises(RequestRefusedError) as refused:
        files.get_file(filled.store, selection, key)
    assert str(refused.value) == "the export failed: No space left on device"


def test_too_many_measurements_are_refused(
    filled: ServiceThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(root_file_page, "MAX_MEASUREMENTS", 10)
    query = "campaign=nightly&where=kind%3Dtimed"
    page = filled.client.get(f"/root-file?{query}", headers=BROWSER)
    assert "More than 10 measurements match" in page.text
    assert "--campaign over --where kind=timed" in page.text
    answer = filled.client.get(f"/root-file/{'0' * 32}.root?campaign=nightly")
    assert answer.status_code == 413


def test_cached_file_supports_ranges(filled: ServiceThread) -> None:
    files, chosen = make_exports(filled), Selection(campaigns=("over",))
    key = find_key(files, filled.store, chosen)
    other = files.content_key(filled.store, chosen, [])
    address = f"/root-file/{key}.root?campaign=nightly"
    assert filled.client.get(address).status_code == 503, "ROOT is not installed"
    assert filled.client.get(address.replace(key, other)).status_code == 404
    assert filled.client.get(address.replace(key, "../results")).status_code == 404
    files.folder.mkdir(parents=True, exist_ok=True)
    (files.folder / f"{key}.root").write_bytes(b"root" + bytes(5000))
    whole = filled.client.get(address)
    assert (whole.status_code, len(whole.content)) == (200, 5004)
    assert "content-encoding" not in whole.headers
    part = filled.client.get(address, headers={"Range": "bytes=0-3"})
    assert (part.status_code, part.content) == (206, b"root")
    assert filled.client.head(address).headers["Content-Length"] == "5004"


def test_key_changes_with_measurements(filled: ServiceThread) -> None:
    files, chosen = make_exports(filled), Selection(campaigns=("over",))
    seen = {find_key(files, filled.store, chosen) for _ in range(2)}
    assert len(seen) == 1
    others = "measurement_id = substr(measurement_id, 1, 23) || 'x'"
    for change in ("plausible = NOT plausible", "log_excerpt = NULL", others):
        with closing(sqlite3.connect(filled.url.removeprefix("sqlite:///"))) as connection:
            assert connection.execute(f"UPDATE measurement SET {change}").rowcount
            connection.commit()
        seen.add(find_key(files, filled.store, chosen))
    assert len(seen) == 4


def test_expired_file_is_rewritten(filled: ServiceThread) -> None:
    files, chosen = make_exports(filled), Selection(campaigns=("over",))
    key = find_key(files, filled.store, chosen)
    files.folder.mkdir(parents=True, exist_ok=True)
    (file := files.folder / f"{key}.root").write_bytes(b"root")
    assert files.get_file(filled.store, chosen, key) == file
    os.utime(file, (time.time() - KEEP_FILES_S - 1,) * 2)
    with pytest.raises(RequestRefusedError, match="ROOT is not installed"):
        files.get_file(filled.store, chosen, key)


def test_cached_file_is_sent_while_another_is_written(
    filled: ServiceThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, done = threading.Event(), threading.Event()

    def slowly(_self: RootExports, _store: Store, _selection: Selection, file: Path) -> None:
        begun.set()
        assert done.wait(60)
        file.write_bytes(b"made")

    files, keys = make_exports(filled), []
    for site in "AB":
        chosen = Selection.parse(["over"], [f"site=SITE_{site}"])
        keys.append(find_key(files, filled.store, chosen))
    monkeypatch.setattr(RootExports, "_export_file", slowly)
    files.folder.mkdir(parents=True, exist_ok=True)
    (files.folder / f"{keys[1]}.root").write_bytes(b"kept")
    made, cached = (
        f"/root-file/{key}.root?campaign=nightly&where=site%3DSITE_{site}"
        for key, site in zip(keys, "AB", strict=True)
    )
    with ThreadPoolExecutor(1) as executor:
        first = executor.submit(filled.client.get, made)
        try:
            assert begun.wait(20)
            assert filled.client.get(cached, timeout=60).content == b"kept"
            assert not first.done()
        finally:
            done.set()
        assert first.result().content == b"made"


@pytest.mark.parametrize("first", ["", "import sys; sys.stdin.buffer.read()"])
def test_hanging_root_is_killed(
    filled: ServiceThread, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    """Whether it reads all of its input or nothing."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*words: Any, **options: Any) -> subprocess.Popen[bytes]:
        started.append(popen(*words, **options))
        return started[-1]

    popen = subprocess.Popen
    (writer := tmp_path / "writer.py").write_text(f"{first}\nimport time\ntime.sleep(600)\n")
    monkeypatch.setattr(subprocess, "Popen", start)
    monkeypatch.setattr(file_writers, "WRITER_SCRIPT", writer)
    monkeypatch.setattr(file_writers, "root_environment", lambda *_: dict(os.environ))
    monkeypatch.setattr(providers, "list_prepared_releases", lambda _: {"6.40.00": "there"})
    monkeypatch.setattr(root_file_page, "EXPORT_TIMEOUT_S", 1)
    files = RootExports(tmp_path / "exports", tmp_path / "software")
    with pytest.raises(RequestRefusedError, match="ROOT was not done within 1 s") as refused:
        files._export_file(filled.store, Selection(), files.folder / "new.root")
    assert refused.value.status == 503
    assert [process.poll() for process in started] == [-signal.SIGKILL]
    assert list(files.folder.iterdir()) == []


def test_oldest_files_are_removed(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = RootExports(tmp_path / "exports", tmp_path / "software")
    files.folder.mkdir()
    for number in range(MAX_KEPT_FILES + 5):
        file = files.folder / f"{number:032x}.root"
        file.write_bytes(b"")
        os.utime(file, (time.time() - number, time.time() - number))
    old = files.folder / f"{1:032x}.root"
    os.utime(old, (0, 0))
    monkeypatch.setattr("treehammer.sql.transfer.export.export_file", lambda *_, **__: 0)
    monkeypatch.setattr(providers, "list_prepared_releases", lambda _: {"6.40.00": "there"})
    files._export_file(store, Selection(), files.folder / "new.root")
    left = sorted(file.name for file in files.folder.iterdir())
    assert len(left) == MAX_KEPT_FILES - 1
    assert old.name not in left
    assert f"{0:032x}.root" in left


def test_expired_files_are_removed(tmp_path: Path) -> None:
    files = RootExports(tmp_path / "exports", tmp_path / "software")
    files.folder.mkdir()
    for name, age_s in (("new", KEEP_FILES_S - 60), ("old", KEEP_FILES_S + 60)):
        (file := files.folder / f"{name}.root").write_bytes(b"")
        os.utime(file, (time.time() - age_s,) * 2)
    files._prune_files()
    assert [file.name for file in files.folder.iterdir()] == ["new.root"]


@pytest.fixture(scope="module")
def search_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceThread]:
    with run_service(tmp_path_factory.mktemp("search"), reading_open=True) as running:
        running.store.add(
            make_measurement(
                f"job-{number}",
                site=site,
                host=f"wn{number}.example.org",
                axis_root="6.40.00",
                test_name="ttree-read",
            )
            for number, site in enumerate(("CERN-PROD", "CERN", "UKI_100%", HOSTILE_TEXTS[0]))
        )
        campaigns = [("abc123", "nightly CERN"), ("abd999", "weekly")]
        for number, (identity, name) in enumerate(campaigns):
            row = make_campaign_row(identity, name=name)
            running.store.add_campaign(row, [make_job_row(f"Job{number}", campaign_id=identity)])
        many = make_campaign_row("many", name="many")
        jobs = [make_job_row(f"many-{n}", campaign_id="many") for n in range(MAX_HITS + 5)]
        running.store.add_campaign(many, jobs)
        yield running


@pytest.mark.parametrize(
    "text, expected",
    [
        ("cern", [("site", "CERN"), ("site", "CERN-PROD"), ("campaign", "nightly CERN")]),
        ("abc", [("campaign", "nightly CERN")]),
        ("Job1", [("job", "Job1")]),
        ("wn2", [("host", "wn2.example.org")]),
        ("6.40", [("ROOT release", "6.40.00")]),
        ("TTREE", [("test", "ttree-read")]),
        ("100%", [("site", "UKI_100%")]),
        ("K%_1", []),
        (" ", []),
        (HOSTILE_TEXTS[0], [("site", HOSTILE_TEXTS[0])]),
        (HOSTILE_TEXTS[1], []),
    ],
)
def test_names_are_found(
    search_service: ServiceThread, text: str, expected: list[tuple[str, str]]
) -> None:
    hits = search_service.client.get("/api/v1/search", params={"q": text}).json()["tables"]["hits"]
    assert [(hit["kind"], hit["name"]) for hit in hits] == expected


def test_hits_of_a_kind_are_limited(search_service: ServiceThread) -> None:
    hits = search_service.load_tables("/search?q=many")["hits"]
    assert [hit["kind"] for hit in hits] == ["campaign", *["job"] * MAX_HITS]


@pytest.mark.parametrize("text", ["nightly", "Job1", "wn2", "6.40.00", "ttree-read", "CERN-PROD"])
def test_single_hit_leads_to_its_page(search_service: ServiceThread, text: str) -> None:
    led = search_service.client.get(
        f"/search?q={quote(text)}", headers=BROWSER, follow_redirects=False
    )
    assert led.status_code == 307
    assert led.headers["location"].startswith("/")
    page = search_service.client.get(led.headers["location"], headers=BROWSER)
    assert page.status_code == 200
    assert text in page.text


def test_search_keeps_its_text(search_service: ServiceThread) -> None:
    assert search_service.read("/search?q=ern").fields["q"] == ["ern"]
    assert search_service.read("/nowhere", 404).fields["q"] == [""]
    assert "Nothing found." in search_service.read("/search?q=nothing-of-this").text
