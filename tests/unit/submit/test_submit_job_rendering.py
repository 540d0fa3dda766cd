"""Rendering of jobs for batch systems: inputs, submit descriptions and their language, authorities."""

from __future__ import annotations

import importlib
import json
import os
import shlex
import shutil
import ssl
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from unittest.mock import MagicMock

import pytest
from captured_runs import run_captured
from certificate_authority import CertificateAuthority
from click.testing import CliRunner
from hypothesis import example, given
from hypothesis import strategies as st
from machine_requirements import skip_or_fail
from plan_factory import (
    READING_TEST,
    SHELL_TEST,
    make_grid_plan,
    make_grid_site,
    make_local_plan,
    make_pinned_test,
    make_site,
)

from treehammer.cli import cli
from treehammer.collectors.storage_access import make_tls_context
from treehammer.collectors.worker.probes.credential_checks import unpack_authorities
from treehammer.errors import BatchError, ConfigError, SourceError
from treehammer.submit.batch.htcondor import submit_language
from treehammer.submit.batch.htcondor.submit_description import Submission
from treehammer.submit.batch.interface import JobDescription
from treehammer.submit.campaigns import job_rendering
from treehammer.submit.campaigns.job_rendering import copy_payload, render_jobs, write_bundle
from treehammer.submit.planning import cost_estimate
from treehammer.submit.planning.job_templates import render_template
from treehammer.submit.planning.plan import Plan
from treehammer.submit.planning.submission_options import (
    BUNDLE_NAME,
    JobCredentials,
    Pace,
    SubmissionOptions,
)
from treehammer.submit.sites.site_model import Ceilings
from treehammer.text_formatting import JobRamp

HOSTILE_TEXT = 'a"b\\c\n[limits]\nwall_s = 0 #{{ 7 * 7 }} \x7f\x1b é 😀'


def test_hostile_text_stays_a_value(tmp_path: Path) -> None:
    plan = replace(make_local_plan(tmp_path / "test", SHELL_TEST), campaign_name=HOSTILE_TEXT)
    job = replace(next(iter(plan.jobs)), label=HOSTILE_TEXT)
    environ = {"PATH": HOSTILE_TEXT, "LC_X=Y": "1", "SECRET_TOKEN": "s3cret"}
    (description,) = render_jobs(plan, _folder(tmp_path), [job], environ=environ)
    document = tomllib.loads(description.text)
    assert document["labels"]["campaign_name"] == HOSTILE_TEXT
    assert document["environment"]["PATH"] == HOSTILE_TEXT
    assert document["limits"] == {"wall_s": job.wall_limit_s, "cpus": 1}
    assert "s3cret" not in description.text


def test_description_lists_inputs(tmp_path: Path) -> None:
    plan = make_local_plan(tmp_path / "test", SHELL_TEST)
    descriptions = list(render_jobs(plan, _folder(tmp_path), environ={}))
    assert [d.job_id for d in descriptions] == [job.spec.job_id for job in plan.jobs]
    first = descriptions[0]
    assert set(first.inputs) == set(tomllib.loads(first.text)["job"]["inputs"])
    job = json.loads(first.inputs["job.json"].read_text())
    assert job["job_id"] == first.job_id
    copied = {p.name for p in first.inputs["payload"].iterdir()}
    assert copied == {"run.sh", "test.toml"}, "only files named by the test are sent"
    assert (first.inputs["payload"] / "run.sh").stat().st_mode & 0o100
    assert _texts(plan, tmp_path / "again") == [*dict.fromkeys(d.text for d in descriptions)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{{ 1 / 0 }}", "zero"),
        ("{{ x | option }}", r"bad\.j2: no option \(for job 17\)"),
        ("{{ lone | toml }}", r"bad\.j2.*not valid text"),
    ],
)
def test_invalid_template_is_refused(tmp_path: Path, text: str, expected: str) -> None:
    (tmp_path / "bad.j2").write_text(text)
    values = {"x": 1, "lone": "\udc80"}
    filters = {"option": MagicMock(side_effect=ConfigError("no option"))}
    with pytest.raises(ConfigError, match=expected):
        render_template(tmp_path / "bad.j2", values, filters=filters, where="job 17")


def test_changed_files_are_refused(tmp_path: Path) -> None:
    pinned = make_pinned_test(tmp_path / "test", SHELL_TEST)
    (tmp_path / "test" / "run.sh").write_text("#!/bin/sh\nexit 1\n")
    with pytest.raises(SourceError, match="changed during"):
        copy_payload(pinned, tmp_path / "copy")
    (tmp_path / "test" / "run.sh").unlink()
    with pytest.raises(SourceError, match="cannot be copied"):
        copy_payload(pinned, tmp_path / "other")


def _folder(tmp_path: Path) -> Path:
    folder = tmp_path / "out"
    folder.mkdir()
    return folder


GOLDEN = Path(__file__).with_name("golden")


@pytest.fixture(autouse=True)
def _someone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_rendering, "submitter_contact", lambda: "someone@host.example")


def _texts(plan: Plan, folder: Path) -> list[str]:
    folder.mkdir()
    return list(dict.fromkeys(item.text for item in render_jobs(plan, folder, environ={})))


#: Golden file -> grid resource.
REMOTE = {
    "grid": "condor schedd@far collector.far",
    "arc": "arc https://ce.far.example/arex/rest/1.0",
}


@pytest.mark.parametrize("universe", ["vanilla", *REMOTE])
def test_description_equals_golden_file(tmp_path: Path, universe: str) -> None:
    """Changes of the template require a change of the golden file."""
    options = SubmissionOptions(
        Pace(4, 3600, JobRamp(2, 60)), credentials=JobCredentials(Path("/p"), Path("/t"))
    )
    views = ("LCG_106/x86_64-el9-gcc13-opt", "/sw/view")
    site = make_grid_site(
        cvmfs="/my/cvmfs", python_views=views, submit={"accounting_group": "group_io"}
    )
    if universe in REMOTE:
        options, site = SubmissionOptions(), site.replace(grid_resource=REMOTE[universe])
    plan = replace(
        make_grid_plan(tmp_path / "test", READING_TEST, site, options=options), campaign_name="C"
    )
    (text,) = _texts(plan, tmp_path / "out")
    assert text == (GOLDEN / f"{universe}.sub").read_text(encoding="utf-8")


@pytest.mark.parametrize(("grid", "reports"), [("", True), (REMOTE["grid"], False)])
def test_only_jobs_of_load_tests_may_set_attributes(
    tmp_path: Path, grid: str, reports: bool
) -> None:
    site = make_grid_site().replace(grid_resource=grid)
    texts = {}
    for name, extra in (("plain", ""), ("load", "\n[load]\nduration_s = 10\n")):
        plan = make_grid_plan(tmp_path / name, READING_TEST + extra, site)
        (texts[name],) = _texts(plan, tmp_path / f"{name}-out")
    assert "WantRemoteUpdates" not in texts["plain"]
    assert ("\nMy.WantRemoteUpdates = true\n" in texts["load"]) is reports


def test_jobs_of_a_door_share_description_and_files(tmp_path: Path) -> None:
    text = READING_TEST.replace("[matrix]", '[matrix]\ndoor = ["root", "other"]')
    plan = make_grid_plan(
        tmp_path / "test", text, make_grid_site("root", "other"), make_grid_site(name="SITE_B")
    )
    descriptions = list(render_jobs(plan, _folder(tmp_path), environ={"SECRET": "s3cret"}))
    assert len({item.text for item in descriptions}) == 3, "two doors of one site, one of the other"
    assert len(descriptions) == len(plan.jobs)
    assert len({item.inputs["job.json"] for item in descriptions}) == len(descriptions)
    assert len({item.inputs["worker.pyz"] for item in descriptions}) == 1
    assert not any("s3cret" in item.text for item in descriptions)


def test_hostile_campaign_name_stays_a_value(tmp_path: Path) -> None:
    hostile = 'a"b\nqueue 7\n$(x) $$(y) \\'
    plan = replace(
        make_grid_plan(
            tmp_path / "test", SHELL_TEST.replace("[matrix]", '[matrix]\nroot=["none"]')
        ),
        campaign_name=hostile,
    )
    (text,) = _texts(plan, tmp_path / "out")
    assert not any(line.startswith("queue") for line in text.splitlines())
    assert "$(x)" not in text.split("universe")[1]
    assert "$$(y)" not in text.split("universe")[1]


@pytest.mark.parametrize(
    ("mode", "ceiling", "request_mb", "limit_mb"),
    [
        ("solo", 0, 4096, 4096),
        ("solo", 5000, 4096, 4096),
        ("solo", 1500, 1500, 1500),
        ("paired", 0, 8192, 4096),
        ("paired", 3001, 3000, 1500),
    ],
)
def test_job_requests_the_memory_at_which_its_payloads_are_ended(
    tmp_path: Path, mode: str, ceiling: int, request_mb: int, limit_mb: int
) -> None:
    """Otherwise the kernel would end them first, without the worker's record."""
    text = READING_TEST.replace("[matrix]", f'memory_limit_mb = 4096\nmode = "{mode}"\n[matrix]')
    plan = make_grid_plan(tmp_path, text, make_grid_site(ceilings=Ceilings(memory_mb=ceiling)))
    assert {job.spec.limits.memory_bytes for job in plan.jobs} == {limit_mb * 1_000_000}
    assert f"request_memory = {request_mb} MB" in "".join(_texts(plan, tmp_path / "out"))
    notes = cost_estimate.list_memory_bounds(plan)
    assert len(notes) == (limit_mb < 4096)
    assert all(f"ended at {limit_mb:,} instead of 4,096 MB" in note for note in notes)


@pytest.mark.parametrize("is_local", [False, True])
def test_variables_of_a_site_reach_its_jobs(tmp_path: Path, is_local: bool) -> None:
    variables = {"https_proxy": "http://squid:3128", "TZ": "CET", "X509_CERT_DIR": "/it's here"}
    site = make_grid_site(environment=variables)
    plan = make_grid_plan(tmp_path / "test", READING_TEST, site)
    if is_local:
        site = make_site().replace(environment=variables)
        plan = make_local_plan(tmp_path / "local", READING_TEST, site)
    job = next(render_jobs(plan, _folder(tmp_path), environ={"TZ": "UTC", "PATH": "/bin"}))
    if is_local:
        environment = tomllib.loads(job.text)["environment"]
        assert environment == {"PATH": "/bin", **variables}
    else:
        for word in ("'https_proxy=http://squid:3128'", "'TZ=CET'", "'X509_CERT_DIR=/it''s here'"):
            assert word in job.text


EXTENDS = '{% extends "shipped/htcondor.sub.j2" %}\n'


def test_site_template_extends_shipped_one(tmp_path: Path) -> None:
    (tmp_path / "htcondor.sub.j2").write_text(
        f"{EXTENDS}"
        '{% block resources %}\n{{ super() }}\nrequest_cpus = 2\n+JobFlavour = "long"\n{% endblock %}\n'
    )
    plan = make_grid_plan(tmp_path / "test", READING_TEST, make_grid_site(templates=tmp_path))
    (text,) = _texts(plan, tmp_path / "out")
    assert '+JobFlavour = "long"' in text
    assert "request_memory = 2000 MB" in text


@pytest.mark.parametrize(
    "text, message",
    [
        ("reqest_cpus = 1\n", "no submit command 'reqest_cpus'\n.*'request_cpus'"),
        ("request_cpus = {{ cores }}\n", "'cores' is undefined.*SITE_A"),
        ("{% if %}", "htcondor.sub.j2:1"),
        (f"{EXTENDS}{{% block resource %}}{{% endblock %}}", "j2:2: this is in no .* resources"),
        (f"{EXTENDS}+JobFlavour = 1\n", "j2:2: this is in no block"),
        ('{% extends "shipped/other.j2" %}', "shipped/other.j2 not found\n.* shipped/htcondor"),
        (None, r"template htcondor\.sub\.j2 not found"),
    ],
)
def test_invalid_site_template_is_refused(tmp_path: Path, text: str | None, message: str) -> None:
    if text is not None:
        (tmp_path / "htcondor.sub.j2").write_text(text)
    plan = make_grid_plan(tmp_path / "test", READING_TEST, make_grid_site(templates=tmp_path))
    with pytest.raises(ConfigError, match=message):
        _texts(plan, tmp_path / "out")


@pytest.mark.parametrize(
    "requested, ceiling, expected",
    [(1, 0, {1}), (8, 0, {8}), (8, 6, {3}), (8, 2, {1}), (8, 1, {1}), (1, 50, {1})],
)
def test_cluster_concurrency_respects_ceiling(
    tmp_path: Path, requested: int, ceiling: int, expected: set[int]
) -> None:
    text = READING_TEST.replace("[matrix]", '[matrix]\ndoor = ["root", "other"]')
    site = make_grid_site("root", "other", ceilings=Ceilings(in_flight=ceiling))
    plan = make_grid_plan(tmp_path / "test", text, site, options=SubmissionOptions(Pace(requested)))
    clusters = plan.clusters
    assert {item.in_flight for item in clusters} == expected
    assert sum(item.in_flight for item in clusters) <= (ceiling or 99)
    assert sum(item.jobs for item in clusters) == len(plan.jobs)


HOSTILE_TEXTS = [
    'a"b\\c',
    "x\ny = 1\nqueue 5",
    "$(A) $$(B) $$$(C) $$([1]) $ENV(HOME) $",
    "it's",
    "ends in \\",
    "# {% if %} {{ 7 * 7 }}",
    "\u2028\x85\x01\x7f é 😀",
    "\\101 \\n",
]


def test_staged_files_increase_disk_request(tmp_path: Path) -> None:
    direct = make_grid_plan(tmp_path / "a", READING_TEST)
    staged = make_grid_plan(
        tmp_path / "b", READING_TEST.replace("[matrix]", '[matrix]\naccess = ["direct", "staged"]')
    )
    (direct_cluster,), (staged_cluster,) = (plan.clusters for plan in (direct, staged))
    assert staged_cluster.disk_bytes - direct_cluster.disk_bytes == 100_000_000


def load_condor() -> ModuleType:
    """Load HTCondor's own parser of submit descriptions, without a configuration."""
    os.environ.setdefault("CONDOR_CONFIG", "/dev/null")
    return importlib.import_module("htcondor2")


def _expanded(condor: ModuleType, name: str, value: str) -> str:
    """Return a value after the expansions at submission and at matchmaking."""
    submit = condor.Submit(f"before = 1\n{name} = {value}\nafter = 2\n")
    assert (submit.expand("before"), submit.expand("after")) == ("1", "2")
    assert len(submit.keys()) == 3
    return str(submit.expand(name)).replace("$$(DOLLARDOLLAR)", "$$")


def _with_hostile_examples(test: Callable[[str], None]) -> Callable[[str], None]:
    for text in HOSTILE_TEXTS:
        test = example(text)(test)
    return test


@_with_hostile_examples
@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00")))
def test_classad_string_round_trips(text: str) -> None:
    condor, classad = load_condor(), importlib.import_module("classad2")
    expanded = _expanded(condor, "My.X", submit_language.quote_classad(text))
    assert classad.ExprTree(expanded).eval() == text


def test_environment_quotes_spaces_and_dollars() -> None:
    text = submit_language.quote_environment({"B": 'it\'s "so" $(X) $$(Y)', "A": "1"})
    assert text == "\"'A=1' 'B=it''s \"\"so\"\" $(DOLLAR)(X) $$(DOLLARDOLLAR)(Y)'\""


@pytest.mark.parametrize("name, value", [("A B", "x"), ("A", "x\ny"), ("A", "\x00")])
def test_invalid_environment_variable_is_refused(name: str, value: str) -> None:
    with pytest.raises(ValueError, match="cannot be set in a job"):
        submit_language.quote_environment({name: value})


def test_expression_is_flattened_and_a_lone_surrogate_refused() -> None:
    assert submit_language.flatten_expression(' TARGET.A\n  == "b" ') == 'TARGET.A == "b"'
    for quote in (
        submit_language.quote_submit_value,
        submit_language.quote_classad,
        submit_language.flatten_expression,
    ):
        with pytest.raises(ValueError, match="not valid text"):
            quote("\udc80")


@pytest.mark.parametrize("path", ["/usr/bin/python3", "/opt/my python", "/it's/python"])
def test_shell_word_round_trips(path: str) -> None:
    word = submit_language.quote_shell_word(path)
    assert shlex.split(word.replace("''", "'").replace('""', '"')) == [path]


def test_submission_adds_to_a_description() -> None:
    job = JobDescription("job", "", {"a": Path("a")})

    def build(text: str, folder: str = "/f") -> str:
        submission = Submission.for_jobs(Path(folder), "c", text, ["job"])
        return submission.full_description(text, [job], spool=True)

    assert "max_materialize" not in build("max_materialize = 5\nuniverse = vanilla")
    with pytest.raises(BatchError, match="does not support folder names"):
        build("", folder="/a$b")


@pytest.mark.parametrize("name", ["+JobFlavour", "My.Project", "MY.x", "request_fpgas", "Rank"])
def test_site_commands_are_accepted(name: str) -> None:
    submit_language.check_site_command(name, "1", ())


def test_description_lines_are_checked() -> None:
    submit_language.check_description(
        "# comment\n\nif version > 23\n  rank = \\\n    Memory\nendif\nmine = 4\n"
        "request_cpus = $(mine)\nMy.Text @=END\nany thing = goes\n@END\n+Own = 1\n",
        "here",
    )
    for text in ("rnak = 1", "queue 7", "no assignment", "rank = \\\nc\n+TreehammerJob = 1"):
        with pytest.raises(ConfigError, match=r"template\.j2"):
            submit_language.check_description(text, "template.j2")


@pytest.mark.parametrize("value", ["x \\", "x\ny"])
def test_continued_line_is_refused(value: str) -> None:
    with pytest.raises(ConfigError, match=r"\+Project.*continues on the next line"):
        submit_language.check_site_command("+Project", value, ())
    with pytest.raises(ConfigError, match="here"):
        submit_language.check_description("My.Project = x \\\n", "here")


def test_known_commands_include_reserved_ones() -> None:
    known = submit_language.load_known_commands()
    assert {*submit_language.RESERVED_COMMANDS} - {"queue"} <= known
    assert {"accounting_group", "x509userproxy", "use_oauth_services"} <= known


@pytest.fixture
def authority(tmp_path: Path) -> CertificateAuthority:
    return CertificateAuthority(tmp_path / "authority")


def hash_name(certificate: Path) -> str:
    if shutil.which("openssl") is None:
        skip_or_fail("no program openssl")
    command = ["openssl", "x509", "-noout", "-subject_hash", "-in", str(certificate)]
    return run_captured(command, check=True).stdout.strip()


def test_folder_arrives_as_folder(tmp_path: Path, authority: CertificateAuthority) -> None:
    source = tmp_path / "certificates"
    source.mkdir()
    name = f"{hash_name(authority.ca)}.0"
    _, key = authority.issue_server_certificate("localhost")
    (source / name).write_bytes(authority.ca.read_bytes())
    (source / "localhost.key").write_bytes(key.read_bytes())
    bundle = write_bundle(source, tmp_path / BUNDLE_NAME)
    assert "PRIVATE" not in bundle.read_text()

    env = JobCredentials(authorities=source).environment()
    unpack_authorities(env, str(tmp_path), str(tmp_path / "unpacked"))
    assert env == {"X509_CERT_FILE": str(bundle), "X509_CERT_DIR": str(tmp_path / "unpacked")}
    assert [path.name for path in (tmp_path / "unpacked").iterdir()] == [name]
    certificates = make_tls_context(env).get_ca_certs()
    assert any("Treehammer" in str(certificate["subject"]) for certificate in certificates)


def test_authorities_travel_with_every_job(tmp_path: Path, authority: CertificateAuthority) -> None:
    options = SubmissionOptions(credentials=JobCredentials(authorities=authority.ca))
    plan = make_grid_plan(tmp_path / "test", READING_TEST, options=options)
    jobs = list(render_jobs(plan, _folder(tmp_path), environ={}))
    for job in jobs:
        assert "BEGIN CERTIFICATE" in job.inputs[BUNDLE_NAME].read_text()
        assert f"X509_CERT_FILE={BUNDLE_NAME}" in job.text
    assert len(jobs) == len(plan.jobs)


def test_bundle_stays_a_bundle(tmp_path: Path, authority: CertificateAuthority) -> None:
    bundle = write_bundle(authority.ca, tmp_path / BUNDLE_NAME)
    env = {"X509_CERT_FILE": BUNDLE_NAME}
    unpack_authorities(env, str(tmp_path), str(tmp_path / "unpacked"))
    assert env == {"X509_CERT_FILE": str(bundle)}
    assert not (tmp_path / "unpacked").exists()


def test_authorities_of_the_node_are_kept(tmp_path: Path) -> None:
    env = {"X509_CERT_FILE": "/etc/ca.pem", "X509_CERT_DIR": "/etc/certificates"}
    unpack_authorities(env, str(tmp_path), str(tmp_path / "unpacked"))
    assert env["X509_CERT_DIR"] == "/etc/certificates"
    with pytest.raises(OSError, match=r"X509_CERT_FILE=/.*/none: No such file"):
        make_tls_context({"X509_CERT_FILE": str(tmp_path / "none")})
    assert isinstance(make_tls_context({}), ssl.SSLContext)


def test_source_without_certificates_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.pem").touch()
    with pytest.raises(ConfigError, match="contains no certificates"):
        write_bundle(tmp_path / "empty.pem", tmp_path / "out")
    with pytest.raises(ConfigError, match="contains no certificates"):
        write_bundle(tmp_path, tmp_path / "out")


@pytest.mark.parametrize(("options", "kinds"), [((), 1), (("--full",), 2)])
def test_render_prints_texts_as_rows(tmp_path: Path, options: tuple[str, ...], kinds: int) -> None:
    folder = make_pinned_test(tmp_path / "test", SHELL_TEST).folder
    flags = [f"--{name}-dir={tmp_path / name}" for name in ("data", "cache")]
    words = [*flags, "render", str(folder), *options]
    plain, printed = (CliRunner().invoke(cli, [*words, *form]) for form in ((), ("--json",)))
    rows = json.loads(printed.stdout)
    assert len(rows) == kinds * len({job for row in rows for job in row["jobs"]})
    assert {row["batch"] for row in rows} == {"local"}
    # Identities and times differ between two runs, not their lengths.
    assert sum(len(row["text"]) + 1 for row in rows) == len(plain.stdout)
