"""What jobs find of the results service: tokens that outlive them, and that stand nowhere else."""

from __future__ import annotations

import json
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from ingest_stub import IngestStub, Reply
from submit_makers import READING_TEST, SHELL_TEST, grid_plan, plan, settings_for

from treehammer.collectors.service import CA_NAME, PLACEHOLDER, SERVICE_NAME, TOKEN_NAME
from treehammer.config import Settings, load
from treehammer.errors import ConfigError
from treehammer.sql import tokens
from treehammer.submit import preview, reporting
from treehammer.submit.batch.base import Description
from treehammer.submit.batch.htcondor.layout import Submission
from treehammer.submit.batch.spool import Spool
from treehammer.submit.campaign import submit_plan
from treehammer.submit.grid_text import ATTEMPTS, IDLE_S
from treehammer.submit.pace import Pace, Ramp
from treehammer.submit.plan import Plan
from treehammer.submit.render import describe
from treehammer.submit.reporting import Deadlines, Renewal
from treehammer.submit.terms import Terms
from treehammer.testbed.certificates import Authority

MASTER = b"m" * 32
KEY = tokens.derive(MASTER, "0123456789ab")
URL = "https://127.0.0.1:9"


def settings(
    folder: Path, *, url: str = URL, key: str | None = KEY.text, **more: object
) -> Settings:
    flags: dict[str, object] = {"data_dir": folder / "data", "cache_dir": folder / "cache"}
    if key is not None:
        (folder / "key").write_text(key + "\n")
        flags["service_token_file"] = folder / "key"
    return load(flags | {"service_url": url} | more, environ={}, folder=folder)


def granted(token: str) -> tokens.Grant:
    row = tokens.KeyRow(KEY.kid, "submit", "x", 1, None, None, tokens.fingerprint(MASTER))
    access = tokens.Access({KEY.kid: row})
    return tokens.verify(token, access, MASTER, time.time_ns() // 1000)


@pytest.fixture(autouse=True)
def _no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(tokens.VARIABLE, raising=False)


@pytest.fixture
def open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def described(made: Plan, known: Settings, folder: Path) -> list[Description]:
    folder.mkdir()
    return list(describe(made, folder, environ={}, service=reporting.of(known, made.terms)))


def files(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.is_file())


@pytest.mark.usefixtures("open_umask")
def test_each_job_has_a_token_of_its_own_that_nobody_else_can_read(tmp_path: Path) -> None:
    made = plan(tmp_path / "test", SHELL_TEST)
    for job in described(made, settings(tmp_path), tmp_path / "out"):
        path = job.inputs[TOKEN_NAME]
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        token = path.read_text().strip()
        grant = granted(token)
        assert (grant.campaign_id, grant.job_id) == (made.campaign_id, job.job_id)
        assert token not in job.text
        others = [p for name, p in job.inputs.items() if name != TOKEN_NAME]
        assert not [p for p in others if p.is_file() and token.encode() in p.read_bytes()]
        assert KEY.secret not in "".join(p.read_text() for p in (path, job.inputs[SERVICE_NAME]))


@pytest.mark.usefixtures("open_umask")
def test_it_stays_so_in_both_queues(tmp_path: Path) -> None:
    known = settings(tmp_path)
    made = plan(tmp_path / "test", SHELL_TEST)
    jobs = described(made, known, tmp_path / "out")
    spool = Spool(tmp_path / "spool")
    spool.add(made.campaign_id, jobs, 1)
    grid = grid_plan(tmp_path / "grid", READING_TEST)
    described_grid = described(grid, known, tmp_path / "grid-out")
    root = tmp_path / "pool"
    (root / ".incoming").mkdir(parents=True)
    text = described_grid[0].text
    submission = Submission.of(root, grid.campaign_id, text, [j.job_id for j in described_grid])
    submission.stage(text, described_grid, spool=False)
    for folder, count in ((spool.root, len(jobs)), (root, len(described_grid))):
        held = [p for p in files(folder) if p.name == TOKEN_NAME]
        assert len(held) == count
        assert {stat.S_IMODE(path.stat().st_mode) for path in held} == {0o600}
        secrets = [path.read_bytes().strip() for path in held]
        assert len(set(secrets)) == count
        others = [p.read_bytes() for p in files(folder) if p.name != TOKEN_NAME]
        assert not [text for text in others for secret in secrets if secret in text]
    assert f"transfer_input_files = {','.join(_transferred(submission))}" in (
        submission.description.read_text()
    )


def _transferred(submission: Submission) -> list[str]:
    shared = ["worker.pyz", "payload", SERVICE_NAME, "output"]
    return [*(f"../../shared/{name}" for name in shared), "job.json", TOKEN_NAME]


def test_what_is_rendered_has_placeholders(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "authority")
    known = settings(tmp_path, service_ca=authority.ca)
    made = plan(tmp_path / "test", SHELL_TEST)
    (tmp_path / "out").mkdir()
    shown = reporting.shown(known, made.terms)
    jobs = list(describe(made, tmp_path / "out", environ={}, service=shown))
    assert preview.write(made, jobs, known, tmp_path / "rendered") == len(jobs)
    inputs = tmp_path / "rendered" / "1" / "inputs"
    assert (inputs / TOKEN_NAME).read_text() == PLACEHOLDER
    assert json.loads((inputs / SERVICE_NAME).read_text())["url"] == URL
    assert (inputs / CA_NAME).read_bytes() == authority.ca.read_bytes()


def test_nothing_travels_where_no_service_is_named_or_wanted(tmp_path: Path) -> None:
    made = plan(tmp_path / "test", SHELL_TEST)
    assert reporting.of(settings(tmp_path), Terms(service=False)) is None
    assert reporting.checked(settings_for(tmp_path), Terms()) == []
    (job, *_) = described(made, settings(tmp_path, url=""), tmp_path / "out")
    assert not {SERVICE_NAME, CA_NAME, TOKEN_NAME} & job.inputs.keys()


def test_a_service_without_a_key_is_refused_before_anything_is_stored(tmp_path: Path) -> None:
    known = settings(tmp_path, key=None)
    with pytest.raises(ConfigError, match="there is no key to https") as error:
        submit_plan(plan(tmp_path / "test", SHELL_TEST), known)
    assert "--no-service" in str(error.value)
    assert not (tmp_path / "data").exists()
    with pytest.raises(ConfigError, match="no key of a results service"):
        reporting.checked(settings(tmp_path, key="th1.abc.short"), Terms())


def test_the_key_may_come_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(tokens.VARIABLE, KEY.text)
    found = reporting.of(settings(tmp_path, key=None), Terms())
    assert found is not None
    assert found.key == KEY
    assert KEY.secret not in repr(found)


def test_authorities_that_cannot_be_used_are_refused(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("nothing")
    with pytest.raises(ConfigError, match="it holds no certificates"):
        reporting.shown(settings(tmp_path, service_ca=tmp_path / "ca.pem"), Terms())


def test_a_service_that_is_away_is_a_warning_and_one_that_refuses_us_an_error(
    tmp_path: Path,
) -> None:
    stub = IngestStub(tmp_path / "service")
    known = settings(tmp_path, url=stub.url, service_ca=stub.ca)
    try:
        assert reporting.checked(known, Terms()) == []
        stub.script = lambda _: Reply(422, {"error": "no measurements"})
        assert reporting.checked(known, Terms()) == [], "it took the key"
        stub.script = lambda _: Reply(401, {"error": "key 0123456789ab was revoked"})
        with pytest.raises(ConfigError, match="was revoked") as refused:
            reporting.checked(known, Terms())
        assert KEY.secret not in str(refused.value)
        stub.script = lambda _: Reply(503)
        assert "503" in reporting.checked(known, Terms())[0]
    finally:
        stub.stop()
    (line,) = reporting.checked(known, Terms(service_wait_s=7))
    assert "Connection refused" in line
    assert "each waits 7 s" in line


def test_tokens_outlive_the_last_moment_of_their_jobs(tmp_path: Path) -> None:
    day = 86400.0
    terms = Terms(pace=Pace(in_flight=2, over_s=3600, ramp=Ramp(1, 60)))
    made = grid_plan(tmp_path / "grid", READING_TEST, terms=terms)
    jobs = list(made.jobs)
    lives = [Deadlines(made, 1), Deadlines(made, 1)]
    spans = [lives[0].seconds(job) for job in jobs]
    assert spans == [lives[1].seconds(job) for job in jobs]
    each = ATTEMPTS * (IDLE_S + max(job.wall_limit_s for job in jobs))
    for place, span in enumerate(spans):
        assert span >= 3600 + 60 + (place // 2 + 1) * each + day
    assert spans == sorted(spans)
    here = plan(tmp_path / "test", SHELL_TEST)
    one, two = Deadlines(here, 1), Deadlines(here, 2)
    first, second = list(here.jobs)[:2]
    assert one.seconds(first) >= 2 * first.wall_limit_s + day
    assert one.seconds(second) >= 4 * first.wall_limit_s + day
    assert [two.seconds(first), two.seconds(second)][1] < one.seconds(second)


def test_jobs_that_are_queued_anew_are_given_new_tokens(tmp_path: Path) -> None:
    known = settings(tmp_path)
    made = plan(tmp_path / "test", SHELL_TEST)
    job = described(made, known, tmp_path / "out")[0]
    (tmp_path / "new").mkdir()
    walls_s = {job.job_id: 60.0}
    service = reporting.of(known, Terms(service_wait_s=5))
    renewal = Renewal(service, tmp_path / "new", made.campaign_id, walls_s)
    found = renewal(job.job_id, job.inputs)
    assert found.keys() == job.inputs.keys()
    assert json.loads(found[SERVICE_NAME].read_text())["wait_s"] == 5
    assert granted(found[TOKEN_NAME].read_text().strip()).job_id == job.job_id
    # Who did not report before does not now; nor does anybody to a service that is named no more.
    alone = {"job.json": job.inputs["job.json"]}
    assert renewal(job.job_id, alone) == alone
    none = Renewal(None, tmp_path / "new", made.campaign_id, walls_s)
    assert none(job.job_id, job.inputs).keys() == job.inputs.keys() - {SERVICE_NAME, TOKEN_NAME}


def test_workers_here_are_told_of_proxies_without_passwords() -> None:
    told = reporting.environment({"HTTPS_PROXY": "http://proxy:3128", "no_proxy": "localhost"})
    assert told == {
        "TREEHAMMER_HTTPS_PROXY": "http://proxy:3128",
        "TREEHAMMER_NO_PROXY": "localhost",
    }
    assert reporting.environment({"https_proxy": "http://me:5ecret@proxy:3128"}) == {}
