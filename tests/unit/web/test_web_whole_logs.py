"""Whole logs of a job: links on its page, and the files behind them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from measurement_factory import make_campaign_row, make_job_row, make_measurement
from service_thread import ServiceThread, run_service

from treehammer.config import load_settings
from treehammer.sql.write.store import Store
from treehammer.web.pages import measurement_page

OUTPUT = "Fatal in <TBranch>\n" + "a line <of> many\n" * 1000


@pytest.fixture
def sandbox(tmp_path: Path) -> Path:
    folder = tmp_path / "attempt-1"
    (folder / "logs").mkdir(parents=True)
    (folder / "logs" / "2-1.out").write_text(OUTPUT)
    (folder / "logs" / "2-1.err").touch()
    return folder


@pytest.fixture
def logs_service(
    tmp_path: Path, sandbox: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ServiceThread]:
    settings = load_settings({"data_dir": tmp_path}, environ={}, folder=tmp_path)
    settings.spool_dir.mkdir()
    folders = {"here.0": {1: sandbox}}
    batch = SimpleNamespace(sandboxes=lambda batch_id: folders.get(batch_id, {}))
    monkeypatch.setattr(measurement_page, "open_batch_system", lambda *_: batch)
    failed: dict[str, Any] = {
        "failure_class": "payload",
        "log_excerpt": OUTPUT[-50:],
        "round": 2,
        "position": 1,
    }
    with Store.open(f"sqlite:///{tmp_path / 'results.db'}") as store:
        jobs = [
            make_job_row(name, campaign_id="c", batch_system="local", batch_id=f"{name}.0")
            for name in ("here", "elsewhere")
        ]
        store.add_campaign(make_campaign_row("c"), jobs)
        store.add(
            make_measurement(job.id, campaign_id="c", job_id=job.id, attempt=1, **failed)
            for job in jobs
        )
    with run_service(tmp_path, reading_open=True, settings=settings) as running:
        yield running


def test_job_page_leads_to_the_whole_log(logs_service: ServiceThread) -> None:
    page = logs_service.load_page("/jobs/here")
    assert '<a href="?log=1%2F2-1.out">2-1.out (17.0 kB)</a>' in page
    assert "2-1.err" not in page, "an empty log has no link"
    log = logs_service.client.get("/jobs/here?log=1/2-1.out")
    assert log.text == OUTPUT
    assert log.headers["content-type"] == "text/plain; charset=utf-8"
    assert log.headers["x-content-type-options"] == "nosniff"


def test_job_of_another_installation_has_no_whole_log(logs_service: ServiceThread) -> None:
    page = logs_service.load_page("/jobs/elsewhere")
    assert "The whole output is not on this machine" in page
    assert logs_service.client.get("/jobs/elsewhere?log=1/2-1.out").status_code == 404


@pytest.mark.parametrize(
    "wanted",
    ["2/2-1.out", "1/3-1.out", "1/../../secret", "1/2-1.out/..", "1/link", "x", "1/9-9.out"],
)
def test_only_logs_of_the_job_are_sent(
    logs_service: ServiceThread, sandbox: Path, tmp_path: Path, wanted: str
) -> None:
    (tmp_path / "secret").write_text("secret")
    (sandbox / "logs" / "9-9.out").symlink_to(tmp_path / "secret")
    refused = logs_service.client.get(f"/jobs/here?log={wanted}")
    assert refused.status_code == 404
    assert "secret" not in refused.text.replace("../../secret", "")


def test_unknown_batch_system_has_no_folders(tmp_path: Path) -> None:
    settings = load_settings({"data_dir": tmp_path}, environ={}, folder=tmp_path)
    find = measurement_page.find_output_folders(settings)
    found: list[Mapping[int, Path]] = [
        find(make_job_row("job", batch_system=name))
        for name in ("local", "htcondor@nowhere", "external:local", "unknown")
    ]
    assert found == [{}] * 4
    assert not any(tmp_path.iterdir())
