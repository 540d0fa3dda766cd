"""Origins of failures and slowness in planted counts, their begin and remedies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from failure_story import SITES, TODAY, explain, run, run_everywhere
from measurement_factory import HOUR_US, STORY_US, make_campaign_row, make_downtime, make_job_row

from treehammer.analysis.status import failure_explanation
from treehammer.analysis.status.failure_attribution import Culprit, is_more_frequent
from treehammer.analysis.status.failure_causes import find_failure_cause
from treehammer.analysis.status.failure_explanation import explain_period
from treehammer.collectors.record import node_needs
from treehammer.collectors.record.day_numbers import DAY_US
from treehammer.collectors.record.outcome import NOT_SUPPORTED
from treehammer.sql.core.rows import AttemptRow
from treehammer.sql.core.watch_rows import DowntimeRow
from treehammer.sql.read.failure_counts import FailureSign, Tally
from treehammer.sql.read.overview_queries import STORAGE_SITE
from treehammer.sql.write.maintenance import ChangeScope, DatabaseChange
from treehammer.sql.write.store import Store

OLD, NEW = "c0ffee" * 6, "deadbeef" * 5


def break_site(store: Store) -> None:
    store.add(run_everywhere(10))
    store.add(run(hours=0.5 + hour, fails=hour > 4) for hour in range(20))


def break_test(store: Store) -> None:
    store.add(run_everywhere(10))
    store.add(run_everywhere(10, test_name="load"))
    store.add(
        run(fails=True, hours=10 + n, site=site, test_name="new", failure="payload")
        for site in SITES[:6]
        for n in range(6)
    )
    store.add(run(hours=10 + n, site=s, test_name="new") for n in range(6) for s in SITES[6:])


def add_commits(store: Store) -> None:
    """Add the campaigns of two commits, and good runs of the first at every site."""
    for commit, begins_us in ((OLD, STORY_US), (NEW, STORY_US + 12 * HOUR_US)):
        row = make_campaign_row(
            commit[:4], commit_id=commit, test_name="read", created_us=begins_us
        )
        store.add_campaign(row, [])
    store.add(run_everywhere(6, campaign_id=OLD[:4]))


def break_commit(store: Store) -> None:
    """Let the only test fail at most sites since a commit."""
    add_commits(store)
    lack: dict[str, Any] = {"failure_kind": NOT_SUPPORTED, "campaign_id": OLD[:4]}
    store.add(run(True, 7 + n, "stage-in", **lack) for n in range(5))
    store.add(
        run(place < 6, 13 + n, "payload", site=site, campaign_id=NEW[:4])
        for place, site in enumerate(SITES)
        for n in range(6)
    )


def break_storage(store: Store) -> None:
    """Let the storage of A fail for all sites that read it."""
    store.add(run_everywhere(10))
    store.add(
        run(n > 0, 11 + n, site=site, storage_site="A") for site in SITES[:5] for n in range(8)
    )


def lack_release(store: Store) -> None:
    store.add(run_everywhere(10))
    store.add(
        run(True, 10 + n, "software-setup", site=site, axis_root="6.40.00", failure_kind="version")
        for site in SITES[:5]
        for n in range(5)
    )
    store.add(run(hours=10 + n, site=s, axis_root="6.40.00") for n in range(5) for s in SITES[5:])


def lack_release_here(store: Store) -> None:
    store.add(run_everywhere(10))
    store.add(run_everywhere(10, axis_root="6.40.00", site="B"))
    store.add(run(True, 10 + n, "build", axis_root="6.40.00") for n in range(10))


def break_door(store: Store) -> None:
    store.add(run_everywhere(10))
    store.add(run_everywhere(2, door="far"))
    store.add(run(True, 3 + n / 2, door="far", failure="read") for n in range(12))


def break_all(store: Store) -> None:
    for test in ("read", "load"):
        store.add(run_everywhere(2, test_name=test))
        store.add(
            run(True, 3 + n, "credential", site=site, test_name=test)
            for site in SITES[:7]
            for n in range(6)
        )


def hold_jobs(store: Store) -> None:
    """Let jobs of A be held for memory; most return a measurement that this stopped."""
    store.add(run_everywhere(10))
    store.add(run(True, 1, "evicted", job_id=f"held{n}", campaign_id="held") for n in range(4))
    jobs = [make_job_row(f"held{n}", site="A", campaign_id="held", door="near") for n in range(6)]
    row = make_campaign_row("held", test_name="read", created_us=STORY_US)
    store.add_campaign(row, jobs)
    message = "over the limit (hold code 34, subcode 102: memory)."
    store.set_attempts(
        AttemptRow(job.id, 1, "held", STORY_US, STORY_US + HOUR_US, None, "evicted", message)
        for job in jobs
    )


def fail_once(store: Store) -> None:
    """Let one job fail with all of its measurements."""
    store.add(run_everywhere(10))
    store.add(
        run(True, 1, job_id="unlucky", position=1 + n, measurement_id=f"m{n}") for n in range(30)
    )


def run_alone(store: Store) -> None:
    store.add(run(True, n) for n in range(9))


def fail_as_elsewhere(store: Store) -> None:
    store.add(run_everywhere(10))
    store.add(run(True, 11 + n / 2, site=site) for site in SITES for n in range(4))


@pytest.mark.parametrize(
    ("plant", "culprit", "sentence", "action"),
    [
        (break_site, Culprit.SITE,
         "15 of 30 failed here, 0 of 70 elsewhere: the site, since 2026-03-01 05:30 UTC",
         "Cause: door. Check the door and its files"),
        (break_test, Culprit.TEST,
         "new fails at 6 of 8 sites, other tests in 0 of 160 there: the test, "
         "since 2026-03-01 10:00 UTC",
         "Fix the test"),
        (break_commit, Culprit.TEST,
         "read fails at 6 of 8 sites since commit deadbeefde (2026-03-01 12:00 UTC), "
         "0 of 48 failed before: the test",
         "Fix the test, or submit the commit before"),
        (break_storage, Culprit.STORAGE,
         "35 of 50 failed at 5 of 5 sites that read A, 0 of 70 at other storages: the storage, "
         "since 2026-03-01 12:00 UTC",
         "Cause: door"),
        (lack_release, Culprit.RELEASE,
         "ROOT 6.40.00 fails at 5 of 8 sites, other releases in 0 of 80: the release, "
         "since 2026-03-01 10:00 UTC",
         "Cause: software."),
        (lack_release_here, Culprit.SITE,
         "10 of 10 failed here, 0 of 90 elsewhere: the site with ROOT 6.40.00, "
         "since 2026-03-01 10:00 UTC",
         "Cause: build."),
        (break_door, Culprit.SITE,
         "12 of 14 failed here, 0 of 24 elsewhere: the site through door far, "
         "since 2026-03-01 03:00 UTC",
         "Cause: door."),
        (break_all, Culprit.CENTRAL,
         "12 of 16 failed here, and 2 tests fail at 7 of 8 sites: central, "
         "since 2026-03-01 03:00 UTC",
         "Check what all sites share. Renew it"),
        (hold_jobs, Culprit.SITE,
         "6 of 16 failed here, 0 of 70 elsewhere: the site, since 2026-03-01 01:00 UTC",
         "Cause: memory. Raise the test's memory_limit_mb"),
        (fail_once, Culprit.UNKNOWN,
         "30 of 40 failed here in 1 job, 0 of 70 elsewhere: too few failed jobs to tell, "
         "since 2026-03-01 01:00 UTC",
         "Cause: door."),
        (run_alone, Culprit.UNKNOWN,
         "9 of 9 failed here in 9 jobs, no other site ran this: too few to tell, "
         "since 2026-03-01 00:00 UTC",
         "Cause: door."),
        (fail_as_elsewhere, Culprit.COMMON,
         "4 of 14 failed here, 28 of 98 elsewhere: as elsewhere, since 2026-03-01 11:00 UTC",
         "Cause: door."),
    ],
)  # fmt: skip
def test_the_origin_of_failures_is_named(
    store: Store, plant: Callable[[Store], None], culprit: str, sentence: str, action: str
) -> None:
    plant(store)
    explanation = explain(store)
    assert (explanation.culprit, explanation.sentence) == (culprit, sentence)
    assert action in explanation.action


def test_a_site_is_not_blamed_for_a_commit_that_no_other_ran(store: Store) -> None:
    for commit in (OLD, NEW):
        row = make_campaign_row(commit[:4], commit_id=commit, test_name="read", created_us=STORY_US)
        store.add_campaign(row, [])
    store.add(run_everywhere(10, campaign_id=OLD[:4]))
    store.add(run(True, 11 + n, "payload", campaign_id=NEW[:4]) for n in range(10))
    explanation = explain(store)
    assert explanation.culprit == Culprit.UNKNOWN
    assert "no other site ran commit deadbeefde: the site or the test" in explanation.sentence


def test_the_only_test_failing_everywhere_is_not_told_from_a_central_cause(store: Store) -> None:
    store.add(run_everywhere(2))
    store.add(run(True, 3 + n, site=site) for site in SITES for n in range(6))
    assert explain(store).sentence == (
        "read fails at 8 of 8 sites and no other test ran: the test or central, "
        "since 2026-03-01 03:00 UTC"
    )


def test_the_only_failing_test_of_a_site_is_named(store: Store) -> None:
    store.add(run_everywhere(10, test_name="load"))
    break_site(store)
    assert explain(store).sentence.startswith(
        "15 of 30 failed here, 0 of 70 elsewhere: the site in read, since"
    )


def test_no_site_is_blamed_while_most_fail(store: Store) -> None:
    store.add(
        run(place < 4, n, site=site, test_name=test)
        for test in ("read", "load")
        for place, site in enumerate(SITES)
        for n in range(12)
    )
    assert explain(store).sentence.startswith(
        "24 of 24 failed here, and 2 tests fail at 4 of 8 sites: central"
    )


def test_the_storage_that_all_sites_read_is_suspected_if_access_fails(store: Store) -> None:
    store.add(run_everywhere(2, storage_site="Z"))
    store.add(run(True, 3 + n, site=site, storage_site="Z") for site in SITES for n in range(6))
    assert explain(store).sentence == (
        "6 of 8 failed here, 42 of 56 elsewhere, and all sites read Z: the storage, "
        "since 2026-03-01 03:00 UTC"
    )


def test_the_failing_host_of_a_site_is_named(store: Store) -> None:
    store.add(run_everywhere(10, host="n0"))
    store.add(run(host == "n2", 3 + n, host=host) for host in ("n1", "n2", "n3") for n in range(8))
    assert explain(store).sentence.endswith("; 8 of 8 on host n2, 0 of 26 on its others")


def test_hosts_that_are_new_for_every_job_are_not_named(store: Store) -> None:
    store.add(run_everywhere(10, host="n0"))
    store.add(run(n % 2 == 0, 3 + n / 2, host=f"pod-{n}") for n in range(24))
    assert "pod" not in explain(store).sentence


Announce = Callable[[DowntimeRow], None]


@pytest.fixture
def announce(monkeypatch: pytest.MonkeyPatch) -> Announce:
    """Announce a downtime, as the part that judges sites lists it."""

    def replace_part(downtime: DowntimeRow) -> None:
        part = SimpleNamespace(
            list_outages=lambda _store, _since_us: [downtime],
            list_current_states=lambda *_args, **_options: [],
        )
        monkeypatch.setattr(failure_explanation, "import_parts", lambda _name: [part])

    return replace_part


def test_an_announced_downtime_is_the_cause(store: Store, announce: Announce) -> None:
    break_storage(store)
    announce(make_downtime(5, 30))
    action = "Cause: downtime until 2026-03-02 06:00 UTC, new disks. Wait for its end."
    for site, culprit in (("A", Culprit.SITE), ("B", Culprit.STORAGE)):
        explanation = explain(store, site)
        assert (explanation.culprit, explanation.action) == (culprit, action)


@pytest.mark.parametrize("plant", [break_site, break_storage, run_alone, fail_as_elsewhere])
def test_a_downtime_of_the_storage_explains_first(
    store: Store, announce: Announce, plant: Callable[[Store], None]
) -> None:
    plant(store)
    announce(replace(make_downtime(0, 30), subject_kind="storage_site"))
    explanation = explain(store)
    assert explanation.culprit == Culprit.STORAGE
    assert "failures in the announced downtime of the storage of A: the storage" in (
        explanation.sentence
    )
    assert explanation.action.startswith("Cause: downtime until 2026-03-02 06:00 UTC, new disks.")


def test_a_downtime_explains_only_what_it_may_cause(store: Store, announce: Announce) -> None:
    store.add(run(True, n, "credential") for n in range(9))
    announce(replace(make_downtime(0, 30), subject_kind="storage_site"))
    assert explain(store).action.startswith("Cause: credential.")
    announce(make_downtime(20, 30))
    assert explain(store).action.startswith("Cause: credential.")


def test_files_that_are_wrong_everywhere_are_no_fault_of_a_storage(store: Store) -> None:
    store.add(run_everywhere(5, test_name="load"))
    store.add(
        run(True, 6 + n, "payload", site=site, failure_kind="files")
        for site in SITES
        for n in range(6)
    )
    explanation = explain(store)
    assert explanation.culprit == Culprit.TEST
    assert explanation.action.startswith(
        "Cause: dataset. Add its files with treehammer datasets add"
    )


def test_implausible_measurements_are_not_called_failed(store: Store, announce: Announce) -> None:
    store.add(run_everywhere(10))
    store.add(run(hours=11 + n / 2, plausible=n > 4, failure_class=None) for n in range(10))
    assert explain(store).sentence.startswith("5 of 20 were bad here, 0 of 70 elsewhere: the site")
    announce(make_downtime(10, 30))
    assert explain(store).sentence.startswith("5 of 5 bad measurements in the announced downtime")


def test_a_storage_is_explained_by_those_who_read_it(store: Store) -> None:
    break_storage(store)
    assert explain(store, by=STORAGE_SITE).culprit == Culprit.STORAGE
    # A reader learns the same.
    assert explain(store, "C").sentence.partition(", since")[0] == (
        "35 of 50 failed at 5 of 5 sites that read A, 0 of 70 at other storages: the storage"
    )


def test_failures_begin_with_the_first_of_the_failing_days(store: Store) -> None:
    for day in range(-5, 1):
        store.add(run_everywhere(4, started_us=STORY_US + day * DAY_US, day=20260220))
        store.add(run(day > -3, 24 * day + n) for n in range(6))
    for values in ({"failure_kind": NOT_SUPPORTED}, {"campaign_id": "withdrawn"}):
        store.add(run(True, n - 72, "stage-in", **values) for n in range(9))
    scope = ChangeScope(campaign_id="withdrawn")
    store.apply_change(DatabaseChange("quarantine", scope, "me@here", 1, "x", "all"))
    assert ", since 2026-02-27" in explain(store).sentence


def test_only_the_test_of_a_job_is_asked_for(store: Store) -> None:
    break_site(store)
    store.add(run(True, n, test_name="other") for n in range(9))
    assert explain(store, test="read").tests == ("read",)
    assert explain_period(store, "B", TODAY, test="read") is None


def test_a_slow_site_is_told_from_its_peers_and_from_its_past(store: Store) -> None:
    store.add(
        run(hours=24 * day + n, site=site, wall_per_event_s=wall, cpu_per_event_s=1e-3)
        for day in range(-3, 1)
        for place, site in enumerate(SITES)
        for wall in [1e-3 * (1 + 0.01 * place) * (1.8 if site == "A" and day >= -1 else 1.0)]
        for n in range(4)
    )
    explanation = explain(store)
    assert explanation.sentence == (
        "an event takes 1.7 times the wall time of the same work at 7 other sites: the site, "
        "since 2026-02-28"
    )
    assert explanation.action.startswith("Cause: waiting for data.")
    assert explain_period(store, "H", TODAY) is None


@pytest.mark.parametrize(
    ("inside", "outside", "decided"),
    [
        (Tally(3, 3), Tally(0, 20), True),
        (Tally(2, 2), Tally(0, 2000), False),  # two jobs are too few
        (Tally(3, 3), Tally(0, 3), False),  # p = 1/20
        (Tally(34, 60), Tally(0, 2340), True),
        (Tally(7, 60), Tally(140, 2340), False),  # as elsewhere
        (Tally(60, 60), Tally(0, 0), False),
    ],
)
def test_fishers_exact_test_decides(inside: Tally, outside: Tally, decided: bool) -> None:
    assert is_more_frequent(inside, outside) is decided


def hold(code: str, cause: str) -> str:
    return (
        f"0 of 1 measurements arrived at slot1@cpu-farm.example: held (hold code {code}, subcode 0: "
        f"{cause}). Ask; wait."
    )


@pytest.mark.parametrize(
    ("failure", "message", "cause"),
    [
        ("open/file", "no such file", "door"),
        ("open/file", "(TNetXNGFile::Open: [FATAL] Socket error)", "network"),
        ("stage-in/copy", "<urlopen error [Errno -5] No address associated with hostname>", "network"),
        ("stage-in/copy", "no answer within 60 s", "network"),
        ("stage-in/store", "the object store answers 400 RequestTimeout: Your socket connection timed out", "door"),
        ("open/director", "[Errno -2] Name or service not known", "network"),
        ("open/file", "a: Cannot connect to host se:443 ssl:default [Connect call failed]", "network"),
        ("stage-in/copy", "<urlopen error [Errno -3] Temporary failure in name resolution>", "network"),
        ("read/entry", "(TNetXNGFile::ReadBuffers: [ERROR] Operation expired)", "network"),
        ("open/file", "(TNetXNGFile::Open: [ERROR] [3012] Internal timeout)", "door"),
        ("stage-in/copy", "HTTP Error 504: Gateway Timeout", "door"),
        ("open/file", "davix: HTTP 408 : Request Timeout", "door"),
        ("stage-in/copy", "[Errno 112] Host is down", "network"),
        ("stage-in/copy", "IncompleteRead(10 bytes read, 20 more expected)", "network"),
        ("open/branch", "no branch 'network_resets'", "dataset"),
        ("open/other-half", "The other half of the launch failed (open/branch): no branch 'y'", "dataset"),
        ("payload/other-half", "The other half of the launch failed (payload/memory): The kernel killed the payload", "memory"),
        ("open/branch-list", "disk.txt cannot be read", "payload"),
        ("stage-in/copy", "No space left on device", "disk"),
        ("open/file", "[ERROR] Server responded with an error: [3009] no space left", "door"),
        ("open/tree", "(TFile::Get) a.root contains no tree 'Events'", "dataset"),
        ("stage-in/copy", "root://a//quota/reset.root cannot be copied: [3011] no such file", "door"),
        ("credential/expired", "token expired", "credential"),
        ("credential/certificate", "certificate has expired", "door"),
        ("held", hold("1", "a person"), "a person"),
        ("lost", hold("13", "transfer of inputs") + "; removed from the queue: by x", "transfer of inputs"),
        ("evicted", "Job has exceeded request_disk", "disk"),
        ("lost", "slot1@n1: Job disconnected too long: JobLeaseDuration (2400 seconds) expired", "batch system"),
        ("evicted", "evicted: Error from slot1@cpu7.disk.example: Job has encountered an out-of-memory event", "memory"),
        ("evicted", "(TARGET.Memory < MY.RequestMemory)", "memory"),
        ("lost", "1 of 2 measurements arrived at cpu-farm: removed: disk (by user memory)", "batch system"),
        ("lost", "Error from memory-1.example: cannot run /data/disk/start.sh", "batch system"),
        ("submission", "no machine took the job: idle for more than 24 hours", "batch system"),
        ("payload/timeout", "The payload ran longer than its wall limit of 60 s.", "time"),
        ("payload/memory", "The kernel killed the payload: out of memory.", "memory"),
        ("payload/disk-full", "The disk of its work folder is full", "disk"),
        # The words of a payload decide nothing.
        ("payload/exit", "The payload ended with exit code 1. KeyError: 'memory_profile'.", "payload"),
        ("payload/reported-memory", "MemoryError", "payload"),
        ("data-check/content", "checksum differs", "replica"),
        ("payload/files", "branch 'y' lies in another file", "dataset"),
        ("payload/branches", "branch 'y' is int in a.root and long in b.root", "dataset"),
        ("software-setup/missing", "ROOT 6.40.00 is not installed", "software"),
        ("software-setup/cpu-limit", "The node ended the payload after 4 s", "time"),
        ("software-setup/file-limit", "The node ended the payload at a file of 4 bytes", "disk"),
        ("software-setup/disk-full", "No space left on device: '/scratch/a'", "disk"),
        ("software-setup/node", "An operation failed on the node: Too many open files", "node"),
        ("software-setup", "the worker ended with exit code 126: mktemp: /tmp: Read-only file system", "node"),
        ("lost", "the worker ended with exit code 75: .: the worker cannot continue: [Errno 28] No space left", "disk"),
    ],
)  # fmt: skip
def test_only_worker_kernel_and_batch_system_state_a_cause(
    failure: str, message: str, cause: str
) -> None:
    label, _, kind = failure.partition("/")
    assert find_failure_cause(FailureSign(label, kind, message)).name == cause


@pytest.mark.parametrize("name", node_needs.NODE_NEEDS)
def test_what_a_node_lacks_brings_its_remedy(name: str) -> None:
    sentence = node_needs.describe_lack(name, "found (a) b", "SITE_A")
    remedy = node_needs.NODE_NEEDS[name].remedy.format(site="SITE_A")
    for kind, message in (
        (name, f"{sentence} (this ROOT cannot compile kit.hpp: x)"),
        ("", f"0 of 2 measurements arrived at n1: the worker ended with exit code 78: {sentence}"),
    ):
        cause = find_failure_cause(FailureSign("software-setup", kind, message))
        assert (cause.name, cause.action.lower()) == (f"node: {name}", f"{remedy}.".lower())


def test_only_an_expired_credential_is_renewed() -> None:
    kinds = ("expired", "missing", "untrusted", "refused", "not-permitted")
    actions = [find_failure_cause(FailureSign("credential", kind, "")).action for kind in kinds]
    assert [action.startswith("Renew it") for action in actions] == [True, *[False] * 4]


def test_a_hold_brings_its_remedy() -> None:
    sign = FailureSign("held", "", hold("1", "a person") + "; removed from the queue: x")
    assert find_failure_cause(sign).action == "Ask; wait."


def lose_jobs(store: Store, site: str, message: str) -> None:
    """Let four jobs of the only test end at a site without a measurement."""
    jobs = [make_job_row(f"{site}{n}", site=site, campaign_id=site, door="near") for n in range(4)]
    store.add_campaign(make_campaign_row(site, test_name="read", created_us=STORY_US), jobs)
    store.set_attempts(
        AttemptRow(job.id, 1, "held", STORY_US, STORY_US + HOUR_US, None, "held", message)
        for job in jobs
    )


def test_sites_with_other_causes_are_no_evidence(store: Store) -> None:
    store.add(run(True, n, "credential", site="A") for n in range(4))
    store.add(run(True, n, "payload", site="B", failure_kind="timeout") for n in range(4))
    store.add(run(True, n, "open", site="C") for n in range(4))
    store.add(run(True, n, "build", site="D", test_name="other") for n in range(4))
    sentences = [explain(store, site).sentence.partition(", since")[0] for site in "ABC"]
    assert sentences == [
        "4 of 4 failed here in 4 jobs, 2 other sites failed by other causes (time, door): the site",
        "4 of 4 failed here in 4 jobs, 2 other sites failed by other causes (credential, door): "
        "the site or the test",
        "4 of 4 failed here in 4 jobs, 2 other sites failed by other causes (credential, time): "
        "the site or the test",
    ]
    # A cause that the others share is still found.
    store.add(run(True, 4 + n, "credential", site=site) for site in "BC" for n in range(8))
    assert explain(store).sentence.startswith("4 of 4 failed here, and read fails at 3 of 3 sites")
    assert explain(store, "D").sentence.startswith("4 of 4 failed here in 4 jobs, no other site")


def test_holds_are_compared_by_their_causes(store: Store) -> None:
    causes = ("a person", "policy", "policy", "memory", "node or pool", "start of the job")
    for site, cause in zip(SITES, causes, strict=False):
        lose_jobs(store, site, hold("9", cause))
    person, policy = explain(store), explain(store, "B")
    assert person.sentence.startswith(
        "4 of 4 failed here in 4 jobs, 5 other sites failed by other causes (policy, memory, "
        "node or pool, start of the job): the site"
    )
    assert person.action == "Cause: a person. Ask; wait."
    assert policy.sentence.startswith(
        "4 of 4 failed here, 4 of 4 elsewhere, 4 other sites failed by other causes (a person, "
        "memory, node or pool, start of the job): as elsewhere"
    )


def test_a_commit_is_not_blamed_for_other_causes(store: Store) -> None:
    add_commits(store)
    for site, failure in {"A": "payload", "B": "credential", "C": "open"}.items():
        store.add(run(True, 13 + n, failure, site=site, campaign_id=NEW[:4]) for n in range(6))
    assert explain(store).sentence.startswith(
        "6 of 12 failed here, 0 of 42 elsewhere, 2 other sites failed by other causes (credential, "
        "door); no further site ran commit deadbeefde: the site or the test"
    )
