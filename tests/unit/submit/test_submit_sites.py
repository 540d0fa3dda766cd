"""Sites by name and label, their batch systems, releases and states, and ``treehammer sites``."""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from captured_runs import run_captured
from measurement_factory import make_campaign_row, make_job_row, make_measurement, make_recent_runs
from plan_factory import TrackingHarness, make_grid_site, make_settings
from repository_code import call_command, invoke_command

from treehammer.collectors import worker_zipapp
from treehammer.collectors.job_spec import SoftwareRequest
from treehammer.collectors.record import node_needs
from treehammer.collectors.software.providers import parse_software_request
from treehammer.config import Settings, load_settings
from treehammer.errors import ConfigError, DatasetError, ExitCode, NothingToDoError, TreehammerError
from treehammer.sql.core.rows import AttemptRow
from treehammer.sql.write.store import Store
from treehammer.submit.sites.site_registry import load_sites, open_batch_system, select_sites
from treehammer.submit.sites.site_software import resolve_site_software
from treehammer.submit.tools import node_probes

FILE = """
[pools.grid]
config = "condor_config"
[sites.NEAR]
pool = "grid"
labels = ["near", "eu"]
doors = [{ name = "root", protocol = "root", prefix = "root://h//d" }]
[sites.FAR]
pool = "grid"
labels = ["us"]
doors = [{ name = "root", protocol = "root", prefix = "root://far//d" }]
"""


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    path = tmp_path / "sites.toml"
    path.write_text(FILE, encoding="utf-8")
    return dataclasses.replace(make_settings(tmp_path), sites_file=path)


def chosen(settings: Settings, *names: str) -> list[str]:
    return [site.name for site in select_sites(names, settings)]


def test_sites_are_selected_by_name_label_and_all(settings: Settings, tmp_path: Path) -> None:
    assert list(load_sites(settings)) == ["local", "NEAR", "FAR"]
    assert list(load_sites(make_settings(tmp_path))) == ["local"]
    with pytest.raises(ConfigError, match="--sites-file"):
        chosen(make_settings(tmp_path), "NEAR")
    assert chosen(settings, "FAR", "local", "FAR") == ["FAR", "local"]
    assert chosen(settings, "label:eu", "label:near") == ["NEAR"]
    assert chosen(settings, "all") == ["NEAR", "FAR"]
    assert chosen(settings, "local", "all") == ["local", "NEAR", "FAR"]
    assert chosen(make_settings(tmp_path), "all") == ["local"]


@pytest.mark.parametrize(
    ("find", "name", "words"),
    [
        (
            select_sites,
            ["NAER"],
            ("unknown site 'NAER'", "Did you mean 'NEAR'?", "Known: local, NEAR, FAR"),
        ),
        (select_sites, ["label:nearby"], ("unknown label 'nearby'", "Did you mean 'label:near'?")),
        (select_sites, ["eu"], ("unknown site 'eu'", "label:eu")),
        (select_sites, ["al"], ("Did you mean 'all'?",)),
        (open_batch_system, "htcondor@grit", ("unknown pool 'grit'", "'grid'?", "left unchanged")),
        (open_batch_system, "htcondor@grid", ("pools.grid.config", "condor_config")),
        (open_batch_system, "pbs", ("unknown batch system 'pbs'", "Known: local, htcondor@POOL")),
    ],
)
def test_unknown_name_is_refused_with_known_ones(
    settings: Settings, find: Callable[..., object], name: object, words: tuple[str, ...]
) -> None:
    with pytest.raises(ConfigError) as caught:
        find(name, settings)
    assert caught.value.exit_code == ExitCode.USAGE
    for word in words:
        assert word in str(caught.value)


def test_local_batch_system_does_not_load_htcondor() -> None:
    code = (
        "import sys; from treehammer import config; "
        "from treehammer.submit.sites import site_registry; "
        "site_registry.open_batch_system('local', config.load_settings({}, environ={})); "
        "print([name for name in sys.modules if name in ('htcondor2', 'classad2')])"
    )
    done = run_captured([sys.executable, "-c", code], check=True)
    assert done.stdout.strip() == "[]"


@pytest.fixture
def campaign(settings: Settings) -> Settings:
    """A campaign with jobs in a pool missing from the sites file, and a finished one."""
    with Store.open(settings.database) as store:
        jobs = [
            make_job_row(
                "a", site="NEAR", batch_system="htcondor@gone", batch_id="1.0", state="running"
            ),
            make_job_row("b", site="NEAR", batch_system="htcondor@gone"),
        ]
        store.add_campaign(make_campaign_row(planned_jobs=2), jobs)
        store.add_campaign(make_campaign_row("other"), [make_job_row("c", campaign_id="other")])
    return settings


@pytest.mark.parametrize("verb", ["status", "collect", "cancel"])
def test_jobs_of_unknown_pool_are_unchanged(campaign: Settings, verb: str) -> None:
    with pytest.raises(ConfigError, match="unknown pool 'gone'") as caught:
        call_command(verb, campaign, "campaign")
    assert caught.value.exit_code == ExitCode.USAGE
    with Store.open(campaign.database) as store:
        assert [(job.id, job.state) for job in store.jobs("campaign")] == [
            ("a", "running"),
            ("b", "queued"),
        ]
        assert store.attempts(["a", "b"]) == []


@pytest.fixture
def imported(tmp_path: Path) -> Settings:
    """A campaign imported from another installation, whose pool is unknown here."""
    settings = make_settings(tmp_path)
    over = {"batch_system": "htcondor@theirs", "batch_id": "1.0"}
    with Store.open(settings.database) as store:
        never_queued = make_job_row("c", state="lost", **{**over, "batch_id": ""})
        jobs = [
            make_job_row("a", state="done", **over),
            make_job_row("b", state="lost", **over),
            never_queued,
        ]
        store.add_campaign(make_campaign_row(planned_jobs=2), jobs)
        store.set_attempts(
            AttemptRow(job, number, "lost", 5, 9, None, "lost", "gone")
            for job, number in (("a", 1), ("a", 2), ("b", 1))
        )
        store.add([make_measurement(job="a"), make_measurement(job="b")])
    return settings


@pytest.mark.parametrize(
    ("verb", "code", "says"),
    [
        ("status", ExitCode.DONE, "name of campaign"),
        ("collect", ExitCode.DONE, "0 new measurements, 0 known"),
        ("cancel", ExitCode.NOTHING, "all jobs have ended already"),
        ("purge", ExitCode.NOTHING, "nothing to remove"),
    ],
)
def test_imported_campaign_needs_no_sites_file(
    imported: Settings, verb: str, code: ExitCode, says: str
) -> None:
    done = invoke_command(verb, imported, "campaign")
    error = done.exception if isinstance(done.exception, TreehammerError) else None
    assert (error.exit_code if error else done.exit_code) == code, done.exception
    assert says in f"{done.output}{error or ''}"
    # A user who submitted it from here learns which sites file is missing.
    remark = "no sites file defines pool 'theirs': the output of its jobs is not read"
    assert (remark in done.stderr) == (verb != "cancel")


def test_status_lists_campaigns_beside_one_of_unknown_pool(campaign: Settings) -> None:
    done = invoke_command("status", campaign, "--json", catch_exceptions=False)
    assert done.exit_code == 0
    assert {row["id"] for row in json.loads(done.stdout)} == {"campaign", "other"}
    assert "campaign may have changed since the last status" in done.stderr


def _at(text: str, **mapping: str) -> SoftwareRequest:
    place = make_grid_site(software=mapping)
    return resolve_site_software([place], {text: parse_software_request(text)})["SITE_A", text]


@pytest.mark.parametrize("text", ["none", "current", "cvmfs:LCG_106/P", "path:/opt/root"])
def test_explicit_location_is_unchanged(text: str) -> None:
    assert _at(text, **{"*": "cvmfs:ROOT/{version}/P"}) == parse_software_request(text)


@pytest.mark.parametrize("mapping", [{}, {"6.38.00": "cvmfs:ROOT/6.38.00/P"}, {"*": "{version}"}])
def test_missing_site_software_is_refused(mapping: dict[str, str]) -> None:
    with pytest.raises(ConfigError) as caught:
        _at("6.40.00", **mapping)
    assert "site SITE_A does not define its installation of ROOT 6.40.00" in str(caught.value)
    assert "Grid jobs never download software" in str(caught.value)


ANY_RELEASE = {"*": "cvmfs:ROOT/{version}/x86_64-el9-gcc13-opt"}
EXACT_RELEASE = {**ANY_RELEASE, "6.40.00": "cvmfs:LCG_109/x86_64-el9-gcc13-opt"}
OWN_CLIENT = {"xrootd": "xrootd:/cvmfs/site/client-{version}"}


@pytest.mark.parametrize(
    ("text", "mapping", "provider", "version", "location"),
    [
        ("6.40.00", ANY_RELEASE, "cvmfs", "6.40.00", "ROOT/6.40.00/x86_64-el9-gcc13-opt"),
        ("6.40.00", EXACT_RELEASE, "cvmfs", "6.40.00", "LCG_109/x86_64-el9-gcc13-opt"),
        ("wheel:6.40.00", EXACT_RELEASE, "cvmfs", "6.40.00", "LCG_109/x86_64-el9-gcc13-opt"),
        ("xrootd:6.2.1", OWN_CLIENT, "xrootd", "", "/cvmfs/site/client-6.2.1"),
        ("xrootd:6.2.1", {"xrootd:6.2.1": "cvmfs:LCG_106/P"}, "cvmfs", "", "LCG_106/P"),
    ],
)
def test_software_is_the_site_s_own(
    text: str, mapping: dict[str, str], provider: str, version: str, location: str
) -> None:
    request = _at(text, **mapping)
    assert (request.provider, request.version) == (provider, version)
    assert request.location.endswith(location)


def test_client_or_release_that_the_site_lacks_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"installation of XRootD 6\.2\.1") as caught:
        _at("xrootd:6.2.1", **{"*": "cvmfs:ROOT/{version}/P", "xrootd": "xrootd:{version}"})
    assert '"xrootd" = "xrootd:/FOLDER"' in str(caught.value)
    with pytest.raises(ConfigError, match=r"site SITE_A: software.*6\.38\.00"):
        _at("6.40.00", **{"*": "cvmfs:ROOT/6.38.00/P"})


SITES_TOML = """
[sites.DESK]
labels = ["near", "mine"]
storage = "ext4"
ceilings = { jobs = 1000, in_flight = 50, bytes_per_day = "10 TB", mb_per_s = 100 }
doors = [
  { name = "file", protocol = "file", prefix = "data" },
  { name = "gone", protocol = "file", prefix = "gone" },
]
"""


@pytest.fixture
def command_settings(tmp_path: Path) -> Settings:
    (tmp_path / "sites.toml").write_text(SITES_TOML, encoding="utf-8")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "f.root").write_bytes(b"x" * 2000)
    return dataclasses.replace(make_settings(tmp_path), sites_file=tmp_path / "sites.toml")


def test_list_shows_doors_labels_and_ceilings(command_settings: Settings) -> None:
    rows = json.loads(call_command("sites", command_settings, "list", "--json").stdout)
    assert [(row["site"], row["door_name"]) for row in rows] == [
        ("local", "file"),
        ("DESK", "file"),
        ("DESK", "gone"),
    ]
    assert rows[1]["labels"] == ["near", "mine"]
    assert rows[1]["ceilings"]["bytes_per_day"] == 10_000_000_000_000
    words = " ".join(call_command("sites", command_settings, "list").stdout.split())
    for word in ("near, mine", "1,000 jobs", "50 in", "10.0 TB", "100 MB/s"):
        assert word in words


#: Options of checks without a job on a node.
NO_JOB = ("--wait", "0")


def test_list_shows_doors_that_permit_no_writing(command_settings: Settings) -> None:
    path = command_settings.sites_file
    assert path is not None
    path.write_text(
        "[sites.A]\ndoors = [{name = 'd', protocol = 'root', prefix = 'root://h//x', load = {clients = 7}}]\n"
    )
    assert "7 clients" in call_command("sites", command_settings, "list").stdout


def test_check_sends_a_job_that_checks_the_node(
    command_settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone").mkdir()
    assert command_settings.sites_file
    monkeypatch.setenv("HOME", "/nowhere")
    done = call_command("sites", command_settings, "check", "--json")
    assert done.return_value == ExitCode.DONE, done.stderr
    rows = {row["check"]: row for row in json.loads(done.stdout)}
    node = rows["node"]
    assert (node["site"], node["result"]) == ("DESK", "ok")
    python = ".".join(map(str, sys.version_info[:3]))
    assert f": Python {python}, " in node["finding"]
    home = rows["node home"]
    assert home["result"] == "ok"
    assert home["finding"] == "lacks a home folder (HOME is /nowhere, which does not exist)"
    assert home["remedy"] == "The worker gives the payload one in its sandbox."
    assert [*(command_settings.data_dir / "probes").iterdir()] == [], "nothing is left"
    with pytest.raises(NothingToDoError), Store.open(command_settings.database, create=False):
        pass


def test_node_that_cannot_run_the_worker_fails_the_check(
    command_settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone").mkdir()
    lack = node_needs.describe_lack(node_needs.SCRATCH, "[Errno 30] Read-only", "DESK")
    monkeypatch.setattr(
        worker_zipapp, "_MAIN", f"import sys\nprint({lack!r}, file=sys.stderr)\nsys.exit(78)\n"
    )
    done = call_command("sites", command_settings, "check", "--json")
    assert done.return_value == ExitCode.REGRESSION
    node = json.loads(done.stdout)[-1]
    assert (node["check"], node["result"]) == ("node", "failed")
    assert node["finding"].endswith("the node lacks a folder to write to ([Errno 30] Read-only)")
    assert node["remedy"] == "Let jobs write in the folder in which they start."


def test_job_that_waits_in_the_queue_says_nothing_of_the_node(tmp_path: Path, store: Store) -> None:
    scene = TrackingHarness(tmp_path, store)
    job = scene.tracker.refresh_jobs(scene.campaign)[0]
    (row,) = node_probes._describe_job(scene.tracker, job, 120.0)
    assert (row.result, row.finding) == ("skipped", "the probe job is queued after 120 s")


def test_only_a_failed_check_exits_with_1(command_settings: Settings) -> None:
    done = call_command("sites", command_settings, "check", "--json", *NO_JOB)
    assert done.return_value == ExitCode.REGRESSION
    good, gone = json.loads(done.stdout)
    assert (good["result"], good["finding"]) == ("ok", "read 1024 bytes of f.root")
    assert (gone["result"], gone["check"]) == ("failed", "door gone")
    assert gone["finding"].startswith("there is no ")
    assert "Correct the prefix" in gone["remedy"]
    printed = call_command("sites", command_settings, "check", "label:mine", *NO_JOB)
    assert "Correct the prefix" in " ".join(printed.stdout.split())
    assert "1 of 2 checks failed" in printed.stderr
    assert command_settings.sites_file
    (command_settings.sites_file.parent / "gone").mkdir()
    fine = call_command("sites", command_settings, "check", "DESK", *NO_JOB)
    assert fine.return_value == ExitCode.DONE


def test_check_without_sites_or_of_an_unknown_dataset_is_refused(
    command_settings: Settings,
) -> None:
    with pytest.raises(NothingToDoError, match="no site given"):
        call_command("sites", command_settings, "check", ",")
    with pytest.raises(DatasetError, match="nothing"):
        call_command("sites", command_settings, "check", "--dataset", "nothing")


@pytest.fixture
def folder(store: Store, tmp_path: Path) -> Path:
    """Fill a database with runs of the last hours: all good at SITE_A, all failed at SITE_B."""
    store.add(make_recent_runs({"SITE_A": True, "SITE_B": False}))
    return tmp_path


run_sites = partial(invoke_command, "sites")


def list_states(folder: Path, *arguments: str) -> dict[tuple[str, str], str]:
    rows = json.loads(run_sites(folder, "status", "--json", *arguments).stdout)
    return {(row["site"], row["of"]): row["state"] for row in rows}


def test_states_are_evaluated_and_shown(folder: Path) -> None:
    assert "sites evaluate" in str(run_sites(folder, "status").exception)
    evaluated = run_sites(folder, "evaluate")
    assert evaluated.exit_code == 0
    assert "critical" in evaluated.stdout
    assert list_states(folder) == {
        ("SITE_B", "jobs"): "critical",
        ("SITE_B", "storage"): "critical",
        ("SITE_A", "jobs"): "ok",
        ("SITE_A", "storage"): "ok",
    }
    printed = run_sites(folder, "status", "--site", "SITE_B", "--history").output
    assert "unknown" in printed
    assert "by rules" in printed
    [row, *_] = json.loads(run_sites(folder, "status", "--site", "SITE_B", "--json").stdout)
    assert row["evidence"]["failures"] == {"open": 12} or row["cause"] == "exclusion"
    assert row["evidence"]["measurements"]


def test_an_override_is_shown_at_once(folder: Path) -> None:
    done = run_sites(folder, "override", "SITE_A", "warning", "--why", "new disks", "--until", "2d")
    assert done.exit_code == 0, done.output
    assert list_states(folder, "--site", "SITE_A")["SITE_A", "jobs"] == "warning"
    ended = run_sites(folder, "end-override", "SITE_A", "--by", "ada")
    assert "follows the rules" in ended.output
    assert list_states(folder, "--site", "SITE_A")["SITE_A", "jobs"] == "ok"
    assert "no override" in str(run_sites(folder, "end-override", "SITE_A").exception)
    typo = run_sites(folder, "override", "SITE_AA", "ok", "--why", "x", "--until", "2d")
    assert "unknown site 'SITE_AA'" in str(typo.exception)
    assert "Did you mean 'SITE_A'?" in str(typo.exception)
    past = run_sites(folder, "override", "SITE_A", "ok", "--why", "x", "--until", "2020-01-01")
    assert "in the past" in str(past.exception)


def test_a_downtime_is_imported_and_withdrawn(folder: Path) -> None:
    file = folder / "downtimes.json"
    hour = 3600
    now = round(time.time())
    entry = {"site": "B", "start": now - 30 * hour, "end": now + hour, "services": "xrootd"}
    file.write_text(json.dumps([entry]))
    imported = run_sites(folder, "downtimes", "import", str(file), "--map", "B=SITE_B")
    assert imported.output == "1 new, 0 changed, 0 unchanged, 0 withdrawn\n"
    [row] = json.loads(run_sites(folder, "downtimes", "list", "--json").stdout)
    assert (row["site"], row["of"], row["severity"]) == ("SITE_B", "storage", "outage")
    run_sites(folder, "evaluate")
    assert list_states(folder, "--site", "SITE_B")["SITE_B", "storage"] == "downtime"
    file.write_text("[]")
    assert "1 withdrawn" in run_sites(folder, "downtimes", "import", str(file)).output
    assert json.loads(run_sites(folder, "downtimes", "list", "--json").stdout) == []


def test_a_downtime_of_a_host_is_of_the_site_of_its_door(tmp_path: Path) -> None:
    """Before the first measurement, too."""
    (tmp_path / "sites.toml").write_text(
        '[[sites.SITE_A.doors]]\nname = "x"\nprotocol = "root"\nprefix = "root://se.example//d"\n'
    )
    file = tmp_path / "downtimes.xml"
    start = round(time.time())
    entries = [
        f"<DOWNTIME ID='{number}'><HOSTNAME>{host}</HOSTNAME>{site}<SEVERITY>OUTAGE</SEVERITY>"
        f"<START_DATE>{start}</START_DATE><END_DATE>{start + 3600}</END_DATE></DOWNTIME>"
        for number, (host, site) in enumerate(
            [("se.example", ""), *[("x.example", "<HOSTED_BY>T2_YY</HOSTED_BY>")] * 2]
        )
    ]
    file.write_text(f"<results>{''.join(entries)}</results>")
    settings = load_settings(
        {"data_dir": tmp_path, "sites_file": tmp_path / "sites.toml"}, environ={}, folder=tmp_path
    )
    words = ["downtimes", "import", str(file)]
    imported = run_sites(settings, *words)
    assert imported.stdout == "1 new, 0 changed, 0 unchanged, 0 withdrawn\n"
    assert imported.stderr == "refused: entry 2: unknown site 'T2_YY'.\n"
    file.write_text(f"<results>{entries[1]}</results>")
    refused = run_sites(settings, *words)
    assert "--map NAME=SITE" in str(refused.exception)
    assert "Known: SITE_A, local." in str(refused.exception)
    listed = run_sites(settings, "downtimes", "list", "--json")
    [row] = json.loads(listed.stdout)
    assert (row["site"], row["of"], row["severity"]) == ("SITE_A", "storage", "outage")


def test_sites_that_nobody_knows_are_refused(folder: Path) -> None:
    file = folder / "downtimes.json"
    file.write_text('[{"site": "SITE_AA", "start": "2026-03-02", "end": "2026-03-03"}]')
    run_sites(folder, "evaluate")
    for arguments in (
        ["downtimes", "import", str(file)],
        ["downtimes", "import", str(file), "--site", "SITE_AA"],
        ["downtimes", "import", str(file), "--map", "SITE_AA=SITE_AA"],
        ["status", "--site", "SITE_AA"],
        ["end-override", "SITE_AA"],
    ):
        refused = run_sites(folder, *arguments)
        assert isinstance(refused.exception, ConfigError), arguments
        assert "Did you mean 'SITE_A'?" in str(refused.exception)
    assert json.loads(run_sites(folder, "downtimes", "list", "--json", "--all").stdout) == []


def test_rules_are_listed_and_checked(folder: Path) -> None:
    printed = run_sites(folder, "rules")
    assert "exclusion" in printed.stdout
    assert "Central event" in printed.stderr
    wrong = folder / "rules.toml"
    wrong.write_text('[rules.mine]\nkind = "shares"\n')
    assert "known: share, operations, tests" in str(
        run_sites(folder, "rules", str(wrong)).exception
    )
