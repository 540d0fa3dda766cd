"""Campaigns at the sites of a real pool: polite, paced, stopped where they fail, and resumed."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from credential_makers import proxy, token
from grid import Grid
from grid_desk import GridDesk

from treehammer.errors import BatchError, ConfigError
from treehammer.sql.rows import AttemptRow
from treehammer.sql.store import Store
from treehammer.submit import following


@pytest.fixture
def user(pool: Grid, tmp_path: Path) -> Iterator[GridDesk]:
    made = GridDesk(tmp_path, pool)
    yield made
    with Store.open(made.settings.database) as store:
        tracker = following.tracker_for(store, made.settings)
        for campaign in store.campaigns():
            tracker.cancel(campaign)


def _attempts(user: GridDesk, site: str = "") -> list[AttemptRow]:
    with Store.open(user.settings.database) as store:
        jobs = store.jobs(store.campaign("last").id)
        return store.attempts(job.id for job in jobs if not site or job.site == site)


def test_a_campaign_at_many_sites_from_several_shells(user: GridDesk) -> None:
    user.payload_is('test "$XRD_APPNAME" = treehammer && test -z "$HOME" && env')
    sites = ",".join(user.sites)
    campaign = user.submits("--sites", sites, "--in-flight", "2", "--name", 'mine "$(x)" $$(y)')
    attributes = ("JobBatchName", "TreehammerSite", "RequestMemory", "RequestDisk", "RequestCpus")
    said = user.shell("status", "last", "--follow")
    assert f"{16} of {16} measurements are over" in said, said
    assert len(user.rows()) == 16
    assert not [row for row in user.rows() if row["failure_class"]]

    def history() -> list[dict[str, Any]]:
        ads = user.grid.condor(
            *("condor_history", "-name", user.grid.pool.schedd, "-json"),
            *("-constraint", f'TreehammerCampaign == "{campaign}"'),
        )
        return list(json.loads(ads))

    # A job enters the history a moment after its log has told that it ended.
    user.grid.until(lambda: len(history()) == 8, "all jobs are in the history")
    for ad in history():
        assert [ad[name] for name in attributes][:1] == ['mine "$(x)" $$(DOLLARDOLLAR)(y)']
        assert (ad["RequestMemory"], ad["RequestCpus"]) == (100, 1)
        assert ad["TreehammerContact"]
        assert ad["TreehammerSite"] in user.sites
    assert "every job is final already" in user.shell("cancel", campaign)
    assert "removed" in user.shell("purge", "last")


@pytest.mark.parametrize("pace", [("--over", "30s"), ("--ramp", "1/10s")])
def test_starts_are_spread_and_bounded(user: GridDesk, pace: tuple[str, str]) -> None:
    site = user.grid.box.sites[0]
    user.payload_is("true")
    user.submits("--sites", site, "-S", "repeats=3", *pace, "--in-flight", "3", "--wait")
    started = sorted(attempt.started_us / 1e6 for attempt in _attempts(user))
    gaps = [later - sooner for sooner, later in itertools.pairwise(started)]
    assert len(gaps) == 2
    assert all(8 <= gap <= 16 for gap in gaps), gaps


def test_a_site_that_fails_is_stopped_and_goes_on_once_repaired(
    user: GridDesk, tmp_path: Path
) -> None:
    bad, good = user.grid.box.sites[:2]
    end = time.time() + 3600
    old = token(tmp_path / "old", end, secret="old")
    user.payload_is(
        f"""sleep 2; grep -q '"site": "{bad}"' "$TREEHAMMER_JOB" || exec_it=yes
grep -q new "$BEARER_TOKEN_FILE" || test "$exec_it" || exit 9"""
    )
    options = ("--breaker", "50%/2", "--in-flight", "1", "--token-file", str(old))
    campaign = user.submits("--sites", f"{bad},{good}", "-S", "repeats=6", *options)
    said = user.shell("status", campaign, "--follow")
    found = re.search(rf"Site {bad} was stopped by the breaker: (\d) of \1 jobs failed", said)
    assert found, said
    failed = int(found[1])
    messages = [attempt.message for attempt in _attempts(user, bad)]
    stopped = sum("stopped by the breaker" in message for message in messages)
    assert stopped >= 6 - failed - 1 > 0
    good_rows = [row for row in user.rows() if not row["failure_class"]]
    assert len(good_rows) == 12, "the other site went on"

    new = token(tmp_path / "new", end, secret="new")
    said = user.shell("resume", campaign, "--sites", bad, "--failed", "--token-file", str(new))
    assert "0 jobs released, 6 queued anew" in said
    said = user.shell("status", campaign, "--follow")
    assert "24 of 24 measurements are over" in said
    assert "breaker" not in said
    good_rows = [row for row in user.rows() if not row["failure_class"]]
    assert len(good_rows) == 24, "nothing is lost, nothing is doubled"
    assert "no job is held or was cut off" in user.shell("resume", campaign)
    assert "removed" in user.shell("purge", campaign)
    assert not (user.grid.submit_dir / campaign).exists(), "both submissions are gone"


def test_transient_trouble_is_tried_again_on_a_budget(user: GridDesk, tmp_path: Path) -> None:
    folder = tmp_path / "templates"
    folder.mkdir()
    (folder / "htcondor.sub.j2").write_text(
        '{% extends "shipped/htcondor.sub.j2" %}\n'
        "{% block worker %}\n{{ super() }}\n"
        "arguments = \"-c 'mkdir $(treehammer_output); "
        "test $(treehammer_attempt) -eq 2 -a {{ site.name }} != {{ bad }} || exit 75; "
        "exec {{ site.python }} worker.pyz run job.json --attempt $(treehammer_attempt) "
        "--output $(treehammer_output) >$(treehammer_output)/worker.out 2>&1'\"\n"
        "{% endblock %}\n".replace("{{ bad }}", user.grid.box.sites[1])
    )
    good, bad = user.grid.box.sites[:2]
    user.write(**{site: {"templates": folder} for site in (good, bad, "FAR")})
    user.payload_is("true")
    user.submits("--sites", f"{good},{bad},FAR", "-S", "repeats=1", "--wait")
    assert len(user.rows()) == 4
    # In the grid universe it is the other pool that tries again.
    assert [(a.number, a.exit_code) for a in _attempts(user, "FAR")][-1] == (2, 0)
    helped = _attempts(user, good)
    assert [(a.number, a.exit_code) for a in helped] == [(1, 75), (2, 0)]
    assert [a.failure_class for a in helped] == ["upload", ""]
    assert [(a.number, a.exit_code) for a in _attempts(user, bad)] == [(n, 75) for n in (1, 2, 3)]


@pytest.mark.parametrize(
    "limit, script, kind, said",
    [
        ("wall_s", "sleep 60", "evicted", "ran longer than its wall limit of 5 s"),
        ("idle_s", "true", "submission", "no machine of the site took the job within 5 s"),
    ],
)
def test_limits_end_a_job_and_say_why(
    user: GridDesk, tmp_path: Path, limit: str, script: str, kind: str, said: str
) -> None:
    folder = tmp_path / "templates"
    folder.mkdir()
    (folder / "htcondor.sub.j2").write_text(
        f'{{% extends "shipped/htcondor.sub.j2" %}}\n{{% set limits = dict(limits, {limit}=5) %}}\n'
    )
    site = user.grid.box.sites[0]
    changes: dict[str, object] = {"templates": folder}
    if limit == "idle_s":
        changes["requirements"] = 'TARGET.GLIDEIN_Site == "NOWHERE"'
    user.write(**{site: changes})
    user.payload_is(script)
    user.submits("--sites", site, "-S", "repeats=1", "--wait")
    attempt = _attempts(user)[-1]
    assert attempt.failure_class == kind
    assert said in attempt.message


def test_credentials_reach_jobs_and_nothing_else(user: GridDesk, tmp_path: Path) -> None:
    secrets = ("PROXY-5ecret", "TOKEN-5ecret")
    end = time.time() + 3600
    shown = proxy(tmp_path / "p", end, secret=secrets[0])
    bearer = token(tmp_path / "t", end, secret=secrets[1])
    size = shown.stat().st_size + bearer.stat().st_size
    user.payload_is(
        f'test $(cat "$X509_USER_PROXY" "$BEARER_TOKEN_FILE" | wc -c) = {size} || exit 4\n'
        'test $(stat -c %a "$X509_USER_PROXY" "$BEARER_TOKEN_FILE" | sort -u) = 600 || exit 5\nenv'
    )
    options = ("--proxy", str(shown), "--token-file", str(bearer))
    sites = f"{user.grid.box.sites[0]},FAR"
    campaign = user.submits("--sites", sites, "-S", "repeats=1", *options, "--wait")
    assert not [row for row in user.rows() if row["failure_class"]]
    told = user.grid.condor("condor_history", "-name", user.grid.pool.schedd, "-l") + user.shell(
        "status", campaign
    )
    assert not [secret for secret in secrets if secret in told]
    allowed = {"x509-proxy.pem", "storage-token"}
    for folder in (user.grid.box.folder, user.settings.data_dir):
        found = subprocess.run(
            ["grep", "-rlE", "|".join(secrets), str(folder)],
            capture_output=True,
            text=True,
            check=False,
        ).stdout.split()
        assert {Path(path).name for path in found} <= allowed, found

    late = proxy(tmp_path / "late", time.time() - 1)
    refused = user.types("submit", str(user.test), "--sites", sites, "--proxy", str(late))
    assert isinstance(refused.exception, ConfigError)
    assert "expired at" in str(refused.exception)
    assert user.submitted_id() == campaign


def test_what_is_rendered_is_what_condor_submit_takes(user: GridDesk, tmp_path: Path) -> None:
    hostile = 'a"b $(x) $$(y) \\'
    site = user.grid.box.sites[0]
    arguments = ("--sites", f"{site},FAR", "--name", hostile, "--in-flight", "4")
    done = user.types("render", str(user.test), *arguments, "-o", str(tmp_path / "out"))
    assert done.exception is None
    refused = user.types("submit", str(user.test), "--sites", "FAR", "--over", "1h")
    assert "behind the grid universe" in str(refused.exception)
    files = list((tmp_path / "out").glob("*/*/*/submit.txt"))
    assert len(files) == 2
    for file in files:
        ads = user.grid.condor("condor_submit", "-dry-run", "-", str(file))
        assert ads.count("TreehammerJob=") >= 1
        assert 'JobBatchName="a\\"b $(x) $$(DOLLARDOLLAR)(y) \\."' in ads


def test_what_htcondor_refuses_is_told_at_once(user: GridDesk) -> None:
    site = user.grid.box.sites[0]
    user.write(**{site: {"submit": {"periodic_hold": "1 +* 2"}}})
    error = user.types("submit", str(user.test), "--sites", site).exception
    assert isinstance(error, BatchError)
    assert "HTCondor does not take the jobs" in str(error)
