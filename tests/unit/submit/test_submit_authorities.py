"""Authorities of doors: from the command line to the environment of a job's payload."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from pathlib import Path

import pytest
from machine_requirements import skip_or_fail
from plan_factory import READING_TEST, make_grid_plan

from treehammer.collectors.storage_access import make_tls_context
from treehammer.collectors.worker.probes.credential_checks import unpack_authorities
from treehammer.errors import ConfigError
from treehammer.submit.campaigns.job_rendering import render_jobs, write_bundle
from treehammer.submit.planning.submission_options import (
    BUNDLE_NAME,
    JobCredentials,
    SubmissionOptions,
)
from treehammer.testbed.credentials import CertificateAuthority


@pytest.fixture
def authority(tmp_path: Path) -> CertificateAuthority:
    return CertificateAuthority(tmp_path / "authority")


def hash_name(certificate: Path) -> str:
    if shutil.which("openssl") is None:
        skip_or_fail("no program openssl")
    command = ["openssl", "x509", "-noout", "-subject_hash", "-in", str(certificate)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


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
    assert env == {
        "X509_CERT_FILE": str(bundle),
        "X509_CERT_DIR": str(tmp_path / "unpacked"),
    }
    assert [path.name for path in (tmp_path / "unpacked").iterdir()] == [name]
    certificates = make_tls_context(env).get_ca_certs()
    assert any("Treehammer" in str(one["subject"]) for one in certificates)


def test_authorities_travel_with_every_job(tmp_path: Path, authority: CertificateAuthority) -> None:
    options = SubmissionOptions(credentials=JobCredentials(authorities=authority.ca))
    plan = make_grid_plan(tmp_path / "test", READING_TEST, options=options)
    (tmp_path / "out").mkdir()
    jobs = list(render_jobs(plan, tmp_path / "out", environ={}))
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
    with pytest.raises(FileNotFoundError):
        make_tls_context({"X509_CERT_FILE": str(tmp_path / "none")})
    assert isinstance(make_tls_context({}), ssl.SSLContext)


def test_source_without_certificates_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.pem").touch()
    with pytest.raises(ConfigError, match="contains no certificates"):
        write_bundle(tmp_path / "empty.pem", tmp_path / "out")
    with pytest.raises(ConfigError, match="contains no certificates"):
        write_bundle(tmp_path, tmp_path / "out")
