"""Jobs behind doors with TLS and tokens: every release, staging, and every kind of refusal."""

from __future__ import annotations

import json
import os
import subprocess
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cached_software import prepare_cached
from grid_fixtures import SecureDoors
from polling import wait_until
from worker_bench import READ_TREE

from treehammer.collectors.job_spec import InputFile, SoftwareRequest
from treehammer.testbed.components.secure_storage import READ_SCOPE

pytestmark = pytest.mark.root

RELEASES = ("6.38.00", "6.40.00")
EXPIRED = ("credential", "expired")
MAKE_TREE = """
import sys, ROOT
file = ROOT.TFile(sys.argv[1], "RECREATE")
tree = ROOT.TTree("events", "events")
ROOT.gInterpreter.Declare("void fill(TTree *t) { int n; t->Branch(\\"n\\", &n); "
                          "for (n = 0; n < 5000; ++n) t->Fill(); t->Write(); }")
ROOT.fill(tree)
file.Close()
"""
#: Opens the file as a user's own script does, without the kit.
OPEN = """
    import os, ROOT
    file = ROOT.TFile.Open(os.environ["TREEHAMMER_URL"])
    assert file.Get("events").GetEntries() == 5000
    with open(os.environ["TREEHAMMER_RESULT"], "w") as result:
        result.write('{"format": 1}')
"""
#: Opens the file once it may, and reads it once the token has expired, if it expires soon.
READ_PAST_EXPIRY = """
    import base64, json, os, sys, time
    import ROOT

    def expiry():
        token = open(os.environ["BEARER_TOKEN_FILE"]).read()
        claims = token.split(".")[1]
        return json.loads(base64.urlsafe_b64decode(claims + "==="))["exp"]

    def count(file):
        return sum(entry.n for entry in file.Get("events"))

    open("ready", "w").close()
    while not os.path.exists("../../token written"):
        time.sleep(0.05)
    end = expiry()
    url = os.environ["TREEHAMMER_URL"]
    opened = ROOT.TFile.Open(url)  # the server decides now
    open("opened", "w").close()
    while time.time() < end + 1 < time.time() + 60:
        time.sleep(0.05)
    assert count(opened) == 5000 * 4999 // 2
    print("read after expiry", flush=True)
    with open(os.environ["TREEHAMMER_RESULT"], "w") as result:
        result.write('{"format": 1}')
"""


@pytest.fixture(scope="session")
def software() -> dict[str, SoftwareRequest]:
    return {name: prepare_cached(name) for name in RELEASES}


@pytest.fixture(scope="session")
def tree_file(
    secure: SecureDoors,
    software: dict[str, SoftwareRequest],
    tmp_path_factory: pytest.TempPathFactory,
) -> InputFile:
    """A small tree behind the doors; its URL is a path below their prefixes."""
    path = tmp_path_factory.mktemp("tree") / "tree.root"
    python = str(Path(software["6.40.00"].location) / "bin/python")
    subprocess.run([python, "-W", "ignore", "-c", MAKE_TREE, str(path)], check=True)
    content = path.read_bytes()
    secure.put_file("tree.root", content)
    return InputFile("tree.root", "tree.root", len(content), f"{zlib.adler32(content):08x}")


@pytest.fixture
def make_read(
    make_spec: Callable[..., Any],
    secure: SecureDoors,
    software: dict[str, SoftwareRequest],
    tree_file: InputFile,
) -> Callable[..., Any]:
    """Factory of executions that read the tree: ``make_read(position, release, door, access)``."""

    def make(
        position: int, release: str = "6.40.00", door: str = "roots", access: str = "direct"
    ) -> Any:
        url = f"{secure.doors[door].prefix}/{tree_file.url}"
        file = InputFile(tree_file.name, url, tree_file.size, tree_file.adler32)
        return make_spec(
            position,
            files=(file,),
            tree="events",
            passes=1,
            software=software[release],
            variant={"branches": 1.0, "cache_mb": 30, "events": 1.0, "access": access},
        )

    return make


def test_proxy_opens_a_door_with_x509(
    bench: Any, secure: SecureDoors, make_read: Callable[..., Any], tmp_path: Path
) -> None:
    proxy = secure.part.authority.write_proxy(tmp_path / "proxy", 900)
    env = {**secure.environment(), "X509_USER_PROXY": str(proxy)}
    executions = [make_read(1, "6.38.00", "x509"), make_read(2, door="x509", access="staged")]
    ran = bench.run(OPEN, *executions, env=env)
    assert list_failures(ran) == [("", "")] * 2


def test_voms_door_refuses_with_its_own_class(
    bench: Any, secure: SecureDoors, make_read: Callable[..., Any], tmp_path: Path
) -> None:
    """Jobs of a member, of one whose attributes expired, of another VO, and of none."""
    proxies = {
        ("", ""): secure.write_voms_proxy(tmp_path / "a", "/testers"),
        EXPIRED: secure.write_voms_proxy(tmp_path / "b", "/testers", expired=True),
        ("credential", "refused"): secure.write_voms_proxy(tmp_path / "c", "/others"),
    }
    for number, (failure, proxy) in enumerate(proxies.items(), start=1):
        env = {**secure.environment(), "X509_USER_PROXY": str(proxy)}
        executions = [
            make_read(2 * number, "6.38.00", "voms"),
            make_read(2 * number + 1, door="voms-https", access="staged"),
        ]
        ran = bench.run(OPEN, *executions, env=env)
        # Over https, strangers are admitted as nobody, who may read nothing.
        https = ("credential", "not-permitted") if failure[1] == "refused" else failure
        assert list_failures(ran) == [failure, https]
    for record in ran.records:
        assert "x509 proxy (/others)" in record.values["failure_message"]


def list_failures(ran: Any) -> list[tuple[str, str]]:
    """List class and kind of each record's failure; '' for success."""
    return [
        (record.values.get("failure_class", ""), record.values.get("failure_kind", ""))
        for record in ran.records
    ]


def test_token_is_used_by_all_releases_and_copies(
    bench: Any, secure: SecureDoors, make_read: Callable[..., Any], tmp_path: Path
) -> None:
    token = secure.write_token(tmp_path / "token")
    executions = [
        make_read(1, "6.38.00"),
        make_read(2, "6.40.00"),
        make_read(3, "6.40.00", "https", "staged"),
        make_read(4, "6.38.00", "roots", "staged"),
        make_read(5, "6.38.00", "https"),
    ]
    ran = bench.run(READ_TREE, *executions, env=secure.environment(token))
    unsupported = ("software-setup", "not-supported")
    assert list_failures(ran) == [("", "")] * 4 + [unsupported], ran.errors
    assert [record.values["file_class"] for record in ran.records[:2]] == ["TNetXNGFile"] * 2
    assert "Stage the files" in ran.records[4].values["failure_message"]
    secret = token.read_text().strip()
    written = [path for path in ran.folder.rglob("*") if path.is_file()]
    assert not [path for path in written if secret.encode() in path.read_bytes()]


@pytest.mark.parametrize(
    ("scope", "lifetime_s", "kind"),
    [
        ("storage.read:/other", 900, "not-permitted"),
        (READ_SCOPE, -60, "expired"),
        ("", 900, "missing"),
    ],
)
def test_refused_token_has_its_own_class(
    bench: Any,
    secure: SecureDoors,
    make_read: Callable[..., Any],
    tmp_path: Path,
    scope: str,
    lifetime_s: float,
    kind: str,
) -> None:
    token = secure.write_token(tmp_path / "token", scope, lifetime_s) if scope else None
    executions = [
        make_read(1),
        make_read(2, "6.38.00", "roots", "staged"),
        make_read(3, door="https", access="staged"),
    ]
    ran = bench.run(OPEN, *executions, env=secure.environment(token))
    assert list_failures(ran) == [("credential", kind)] * 3
    assert not any(record.values["failure_transient"] for record in ran.records)


@pytest.mark.parametrize("has_bundle", [False, True])
def test_untrusted_server_is_no_refusal_and_a_bundle_of_authorities_suffices(
    bench: Any, secure: SecureDoors, make_read: Callable[..., Any], tmp_path: Path, has_bundle: bool
) -> None:
    env = secure.environment(secure.write_token(tmp_path / "token"))
    env["X509_CERT_DIR"] = str(tmp_path)
    if has_bundle:
        env["X509_CERT_FILE"] = str(secure.part.authority.ca)
    executions = [make_read(1), make_read(2, door="https", access="staged")]
    ran = bench.run(OPEN, *executions, env=env)
    assert list_failures(ran) == [("", "") if has_bundle else ("credential", "untrusted")] * 2


def test_token_of_a_credential_service_is_taken_anew_for_each_execution(
    bench: Any, secure: SecureDoors, make_read: Callable[..., Any], tmp_path: Path
) -> None:
    tokens = (
        secure.write_token(tmp_path / "scitokens.use"),
        secure.write_token(tmp_path / "next", ""),
    )
    for token in tokens:
        token.write_text(json.dumps({"access_token": token.read_text().strip()}))
    env = {**secure.environment(), "_CONDOR_CREDS": str(tmp_path)}
    renew = f"    os.replace('{tokens[1]}', '{tokens[0]}')\n"
    ran = bench.run(OPEN + renew, make_read(1), make_read(2), env=env)
    first, second = list_failures(ran)
    assert (first, second[0]) == (("", ""), "credential")


def test_renewed_token_is_used_by_the_next_execution(
    bench: Any, secure: SecureDoors, make_read: Callable[..., Any], tmp_path: Path
) -> None:
    token = secure.write_token(tmp_path / "token", "storage.read:/elsewhere")
    bench.write_job(READ_PAST_EXPIRY, make_read(1), make_read(2))
    with subprocess.Popen(
        bench.command(), cwd=bench.folder, env={**os.environ, **secure.environment(token)}
    ) as process:

        def wait_for(name: str) -> None:
            marker = bench.folder / "work" / "1-1" / name
            wait_until(lambda: marker.exists() or process.poll() is not None, name)

        wait_for("ready")
        secure.write_token(token, lifetime_s=12)
        (bench.folder / "token written").touch()
        wait_for("opened")
        secure.write_token(token, lifetime_s=900)
        process.wait(timeout=600)
    ran = bench.read_result(process.returncode)
    assert list_failures(ran) == [("", "")] * 2
