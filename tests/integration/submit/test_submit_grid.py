"""Campaigns at sites of a real pool, behind a job router, at a remote schedd, and with reports."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from captured_runs import run_captured
from credential_factory import write_proxy, write_token
from grid_campaigns import GridUser

from treehammer.sql.core.rows import AttemptRow
from treehammer.sql.write.store import Store
from treehammer.submit.batch.htcondor.pool import HTCondorPool
from treehammer.submit.sites import sites_file


def _attempts(user: GridUser, site: str = "") -> list[AttemptRow]:
    with Store.open(user.settings.database) as store:
        jobs = store.jobs(store.campaign("last").id)
        return store.attempts(job.id for job in jobs if not site or job.site == site)


def write_template(folder: Path, limits: str = "", block: str = "") -> Path:
    """Write a template with other limits, or with more commands."""
    folder.mkdir()
    (folder / "htcondor.sub.j2").write_text(
        '{% extends "shipped/htcondor.sub.j2" %}\n'
        f"{{% set limits = dict(limits, {limits}) %}}\n{{% block site %}}\n{block}\n{{% endblock %}}\n"
    )
    return folder


def test_campaign_runs_at_many_sites(user: GridUser) -> None:
    variables = {"X509_CERT_DIR": "/its authorities", "XRD_STREAMTIMEOUT": "90"}
    user.write_sites_file(**{name: {"environment": variables} for name in user.sites})
    user.set_payload(
        'test "$XRD_APPNAME$XRD_STREAMTIMEOUT$X509_CERT_DIR" = "treehammer90/its authorities" || exit 9\n'
        'test -z "$HOME" && env'
    )
    sites = ",".join(user.sites)
    campaign = user.submit_campaign(
        *("--sites", sites, "--in-flight", "2", "--name", 'mine "$(x)" $$(y)'), *("-S", "repeats=1")
    )
    attributes = ("JobBatchName", "TreehammerSite", "RequestMemory", "RequestDisk", "RequestCpus")
    output = user.follow_campaign("last")
    assert "8 of 8 measured" in output, output
    assert len(user.read_measurements()) == 8
    assert not [row for row in user.read_measurements() if row["failure_class"]]

    def history() -> list[dict[str, Any]]:
        ads = user.grid.run_condor_command(
            *("condor_history", "-name", user.grid.pool.schedd_name, "-json"),
            *("-constraint", f'TreehammerCampaign == "{campaign}"'),
        )
        return list(json.loads(ads))

    # A job enters the history shortly after the event of its end.
    user.grid.wait_until(lambda: len(history()) == 4, "all jobs are in the history")
    for ad in history():
        assert [ad[name] for name in attributes][:1] == ['mine "$(x)" $$(DOLLARDOLLAR)(y)']
        assert (ad["RequestMemory"], ad["RequestCpus"]) == (100, 1)
        assert ad["TreehammerContact"]
        assert ad["TreehammerSite"] in user.sites
    assert "all jobs have ended already" in user.run_in_shell("cancel", campaign)
    assert "removed" in user.run_in_shell("purge", "last")


def exclude_site(user: GridUser, site: str) -> None:
    override = ("sites", "override", site, "critical", "--why", "disk burns", "--until", "1h")
    assert f"{site} is critical until" in user.run_in_shell(*override)


def test_queue_of_an_excluded_site_is_held_back(
    user: GridUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TREEHAMMER_EXCLUDED_JOBS", "hold")
    bad = user.grid.box.sites[0]
    user.set_payload("sleep 3")
    campaign = user.submit_campaign("--sites", bad, "--in-flight", "2", "-S", "repeats=3")
    exclude_site(user, bad)
    output = user.run_in_shell("status", campaign)
    assert "queued jobs held back, site excluded: jobs and storage excluded since" in output
    user.run_in_shell("sites", "end-override", bad)
    user.grid.wait_until(
        lambda: "usable again were released" in user.run_in_shell("status", campaign),
        "the jobs are released",
    )
    assert "6 of 6 measured" in user.follow_campaign(campaign)


def test_queue_of_an_excluded_site_is_removed_until_resumed(user: GridUser) -> None:
    bad, good = user.grid.box.sites[:2]
    user.set_payload("sleep 3")
    options = ("--in-flight", "1", "-S", "repeats=3")
    campaign = user.submit_campaign("--sites", f"{bad},{good}", *options)
    exclude_site(user, bad)
    output = user.follow_campaign(campaign)
    message = rf"Site {bad}: \d+ queued jobs? removed, site excluded: jobs and storage excluded"
    assert re.search(message, output), output
    assert "disk burns" in output
    assert " excluded" in output.splitlines()[-1]
    messages = [attempt.message for attempt in _attempts(user, bad)]
    removed = sum(message.startswith("site excluded: ") for message in messages)
    assert removed >= 1, messages
    assert len(user.read_measurements()) == 12 - 2 * removed, "the other site is unaffected"

    assert "no job can be queued" in user.run_in_shell("resume", campaign)
    user.run_in_shell("sites", "end-override", bad)
    assert f"0 jobs released, {removed} requeued" in user.run_in_shell("resume", campaign)
    output = user.follow_campaign(campaign)
    assert "12 of 12 measured" in output
    assert "excluded" not in output
    good_rows = [row for row in user.read_measurements() if not row["failure_class"]]
    assert len(good_rows) == 12, "no measurement is lost or duplicated"
    assert "removed" in user.run_in_shell("purge", campaign)
    assert not (user.grid.submit_dir / campaign).exists(), "both submissions are removed"


def test_transient_failures_are_retried_and_ended_jobs_not_repeated(
    user: GridUser, tmp_path: Path
) -> None:
    folder = tmp_path / "templates"
    folder.mkdir()
    (folder / "htcondor.sub.j2").write_text(
        '{% extends "shipped/htcondor.sub.j2" %}\n'
        "{% block worker %}\n{{ super() }}\n{% if site.grid_resource %}\n"
        "arguments = \"-c 'grep -q ^NumShadowStarts.=.2 $_CONDOR_JOB_AD || { : >output.tar; exit 75; }; "
        "exec /bin/sh $(treehammer_start) {{ site.python }}'\"\n{% else %}\n"
        "arguments = \"-c 'mkdir $(treehammer_output); "
        "test $(treehammer_attempt) -eq 2 -a {{ site.name }} != {{ bad }} || exit 75; "
        "exec {{ site.python }} worker.pyz run job.json --attempt $(treehammer_attempt) "
        "--output $(treehammer_output) >$(treehammer_output)/worker.out 2>&1'\"\n"
        "{% endif %}\n{% endblock %}\n".replace("{{ bad }}", user.grid.box.sites[1])
    )
    good, bad, duplicate = user.grid.box.sites[:3]
    twice = write_template(tmp_path / "twice", block="on_exit_remove = NumShadowStarts >= 2")
    user.write_sites_file(
        **{site: {"templates": folder} for site in (good, bad, "FAR")},
        **{duplicate: {"templates": twice}},
    )
    user.set_payload("true")
    user.submit_campaign("--sites", f"{good},{bad},{duplicate},FAR", "-S", "repeats=1", "--wait")
    assert len(user.read_measurements()) == 6
    # HTCondor starts an ended job again after some failures of its own, too.
    ended, repeated = _attempts(user, duplicate)
    assert [a.exit_code for a in (ended, repeated)] == [0, 0]
    assert repeated.message == "attempt 1 had ended, so that nothing was measured again"
    assert not any(a.failure_class for a in (ended, repeated))
    # In the grid universe, the remote pool retries the job.
    assert [(a.number, a.exit_code) for a in _attempts(user, "FAR")][-1] == (2, 0)
    retried = _attempts(user, good)
    assert [(a.number, a.exit_code) for a in retried] == [(1, 75), (2, 0)]
    assert [a.failure_class for a in retried] == ["lost", ""]
    assert [(a.number, a.exit_code) for a in _attempts(user, bad)] == [(n, 75) for n in (1, 2, 3)]


def test_limits_end_jobs_with_their_reasons(user: GridUser, tmp_path: Path) -> None:
    """One campaign, whose jobs meet another limit at each site; FAR is behind the router."""
    idle, disk, wall = user.grid.box.sites[:3]
    templates = {
        wall: ("wall_s=5", ""),
        "FAR": ("wall_s=5", ""),
        idle: ("idle_s=5", 'requirements = TARGET.GLIDEIN_Site == "NOWHERE"'),
        disk: ("idle_s=600", "request_disk = 20000"),
    }
    user.write_sites_file(
        **{
            site: {"templates": write_template(tmp_path / site, limits, block)}
            for site, (limits, block) in templates.items()
        }
    )
    user.set_payload("head -c 50000000 /dev/zero >big; sleep 300")
    user.submit_campaign("--sites", ",".join(templates), "-S", "repeats=1", "--wait")
    for site, failure_class, message in (
        (wall, "evicted", "ran longer than its wall limit of 5 s"),
        ("FAR", "evicted", "ran longer than its wall limit of 5 s"),
        (idle, "submission", "no machine of the site took the job within 5 s"),
        (disk, "evicted", "MiB of disk, more than the 19 MiB requested"),
    ):
        attempt = _attempts(user, site)[-1]
        assert attempt.failure_class == failure_class, site
        assert message in attempt.message
    user.grid.wait_until(lambda: not list_jobs(user), "the routed job is removed")


def test_credentials_reach_only_jobs(user: GridUser, tmp_path: Path) -> None:
    secrets = ("PROXY-5ecret", "TOKEN-5ecret")
    end = time.time() + 3600
    proxy = write_proxy(tmp_path / "p", end, secret=secrets[0])
    token = write_token(tmp_path / "t", end, secret=secrets[1])
    size = proxy.stat().st_size + token.stat().st_size
    user.set_payload(
        f'test $(cat "$X509_USER_PROXY" "$BEARER_TOKEN_FILE" | wc -c) = {size} || exit 4\n'
        'test $(stat -c %a "$X509_USER_PROXY" "$BEARER_TOKEN_FILE" | sort -u) = 600 || exit 5\nenv'
    )
    options = ("--proxy", str(proxy), "--token-file", str(token))
    sites = f"{user.grid.box.sites[0]},FAR"
    campaign = user.submit_campaign("--sites", sites, "-S", "repeats=1", *options, "--wait")
    assert not [row for row in user.read_measurements() if row["failure_class"]]
    printed = user.grid.run_condor_command(
        "condor_history", "-name", user.grid.pool.schedd_name, "-l"
    ) + user.run_in_shell("status", campaign)
    assert not [secret for secret in secrets if secret in printed]
    # The archive holds the credentials of jobs in the grid universe.
    allowed = {"x509-proxy.pem", "storage-token", "inputs.tar"}
    for folder in (user.grid.box.folder, user.settings.data_dir):
        holders = run_captured(["grep", "-rlE", "|".join(secrets), str(folder)]).stdout.split()
        assert {Path(path).name for path in holders} <= allowed, holders
        for path in map(Path, holders):
            with suppress(FileNotFoundError):  # HTCondor removes the files of ended jobs
                assert not path.stat().st_mode & 0o077, path


def test_condor_submit_accepts_rendered_files(user: GridUser, tmp_path: Path) -> None:
    hostile = 'a"b $(x) $$(y) \\'
    site = user.grid.box.sites[0]
    arguments = ("--sites", f"{site},FAR", "--name", hostile, "--in-flight", "4")
    done = user.invoke_command("render", str(user.test), *arguments, "-o", str(tmp_path / "out"))
    assert done.exception is None
    refused = user.invoke_command("submit", str(user.test), "--sites", "FAR", "--spread", "1h")
    assert "does not support pacing of starts" in str(refused.exception)
    files = list((tmp_path / "out").glob("*/*/*/submit.txt"))
    assert len(files) == 2
    for file in files:
        ads = user.grid.run_condor_command("condor_submit", "-dry-run", "-", str(file))
        assert ads.count("TreehammerJob=") >= 1
        assert 'JobBatchName="a\\"b $(x) $$(DOLLARDOLLAR)(y) \\."' in ads


#: Ways to the router: through the grid universe of the first pool, and to its schedd directly.
WAYS = ("FAR", "REMOTE")


def use_way(user: GridUser, way: str, templates: Path) -> None:
    """Write a sites file with one of the :data:`WAYS`, and with a folder of templates."""
    if way == "FAR":
        user.write_sites_file(FAR={"templates": templates})
    else:
        use_remote_schedd(user, templates)


def use_remote_schedd(user: GridUser, templates: Path) -> None:
    """Write a sites file with one site, REMOTE: the second pool's schedd, with spooled files."""
    second = user.grid.second
    pool = HTCondorPool(
        name="remote",
        collector=f"127.0.0.1:{second.collector_port}",
        schedd=second.schedd_name,
        token_dir=second.client_folder / "tokens.d",
        spool=True,
    )
    site = user.sites["FAR"].replace(
        name="REMOTE", batch="htcondor@remote", grid_resource="", templates=templates
    )
    path = user.folder / "remote.toml"
    sites_file.write_sites_file([site], [pool], path)
    user.settings = replace(user.settings, sites_file=path)


def list_jobs(user: GridUser) -> list[dict[str, Any]]:
    """List the jobs in the router's schedd."""
    environment = {"CONDOR_CONFIG": str(user.grid.second.client_config)}
    text = user.grid.run_condor_command("condor_q", "-allusers", "-json", **environment)
    jobs: list[dict[str, Any]] = json.loads(text or "[]")
    return jobs


def wait_for_routed_job(user: GridUser) -> Mapping[str, Any]:
    """Wait until a routed job runs and return it."""
    routed: list[dict[str, Any]] = []

    def is_running() -> bool:
        routed[:] = [j for j in list_jobs(user) if j.get("RoutedJob") and j["JobStatus"] == 2]
        return bool(routed)

    user.grid.wait_until(is_running, "a routed job runs", 60)
    return routed[0]


@pytest.mark.parametrize("way", WAYS)
def test_requests_reach_the_routed_job_until_it_is_cancelled(
    user: GridUser, tmp_path: Path, way: str
) -> None:
    use_way(user, way, write_template(tmp_path / "templates", "wall_s=601, lease_s=77"))
    user.set_payload("sleep 300")
    user.submit_campaign("--sites", way, "-S", "repeats=1")
    routed = wait_for_routed_job(user)
    assert routed["RequestMemory"] == 100
    assert routed["BatchRuntime"] == 11 * 60
    assert routed["JobLeaseDuration"] == 77
    assert routed["RequestDisk"] > 0
    assert "PeriodicRemove" not in routed
    user.run_in_shell("cancel", "last")
    user.grid.wait_until(lambda: not list_jobs(user), "all jobs are removed")


def test_hold_reason_of_the_routed_job_is_reported(user: GridUser, tmp_path: Path) -> None:
    hold = 'periodic_hold = JobStatus == 2\nperiodic_hold_reason = "the operator says no"'
    use_way(user, "REMOTE", write_template(tmp_path / "templates", "held_s=2", hold))
    user.set_payload("sleep 300")
    user.submit_campaign("--sites", "REMOTE", "-S", "repeats=1", "--wait")
    attempts = _attempts(user)
    assert attempts[-1].failure_class == "held"
    assert "the operator says no" in attempts[-1].message
    user.grid.wait_until(lambda: not list_jobs(user), "all jobs are removed")


def test_job_that_a_computing_element_does_not_start_again_is_lost(
    user: GridUser, tmp_path: Path
) -> None:
    """An HTCondor-CE removes a job whose routed job would start twice, by default."""
    block = "on_exit_remove = false\nMy.TestbedJobRetries = False"
    # Not the job's own limit, which a busy machine reaches before the removal.
    use_way(user, "REMOTE", write_template(tmp_path / "templates", "attempts=1000", block))
    user.set_payload("true")
    user.submit_campaign("--sites", "REMOTE", "-S", "repeats=1", "--wait")
    last = _attempts(user)[-1]
    assert "disabled job retries" in last.message
    assert last.failure_class == "lost", "the removal explains the end"
    assert "1 requeued" in user.run_in_shell("resume", "last")
