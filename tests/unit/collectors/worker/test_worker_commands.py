"""The packed worker: commands, schema of its records, benchmark, and probes of the node."""

from __future__ import annotations

import ast
import json
import mmap
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from captured_runs import run_captured
from click.testing import CliRunner
from credential_factory import SECRET, write_proxy, write_token
from hypothesis import given
from hypothesis import strategies as st
from machine_requirements import find_python

from treehammer.collectors import cli, process_stats, worker_zipapp
from treehammer.collectors.job_spec import NODE_EXIT_CODE
from treehammer.collectors.process_stats import (
    measure_tree_bytes,
    read_resident_bytes,
)
from treehammer.collectors.record import node_needs
from treehammer.collectors.record.metric_catalogue import CATALOGUE, METRICS_BY_NAME
from treehammer.collectors.record.outcome import ExecutionError
from treehammer.collectors.worker.probes.credential_checks import (
    PROXY_VARIABLE,
    TOKEN_FILE_VARIABLE,
    check_credentials,
    credential_expiry,
    resolve_credentials,
)
from treehammer.collectors.worker.probes.node_state import find_machine
from treehammer.collectors.worker.probes.proxy_certificates import read_proxy
from treehammer.collectors.worker_zipapp import build_worker
from treehammer.errors import TreehammerError


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_worker(tmp_path_factory.mktemp("packed") / "worker.pyz")


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_worker(tmp_path_factory.mktemp("compiled") / "worker.pyz", bytecode=True)


@pytest.mark.parametrize("kept", ["bytecode", "source"])
def test_worker_runs_from_its_bytecode_or_its_source(
    compiled: Path, tmp_path: Path, kept: str
) -> None:
    """Without sources only the bytecode can be loaded, and that of another Python is ignored."""
    changed = tmp_path / "changed.pyz"
    with zipfile.ZipFile(compiled) as archive, zipfile.ZipFile(changed, "w") as target:
        names = archive.namelist()
        for name in names:
            content = archive.read(name)
            if name.endswith(".pyc") and kept == "source":
                content = b"\0\0\r\n" + content[4:]
            if f"{name}c" not in names or kept == "source":
                target.writestr(name, content)
    command = [sys.executable, str(changed), "run", "no-job.json"]
    ran = run_captured(command)
    assert (ran.returncode, "no-job.json" in ran.stderr) == (2, True), ran.stderr


OLD_PYTHONS = ("2.7", "3.6", "3.8")


def find_old_python(version: str) -> str:
    """Find an old Python; CI may lack it, too, as no current Debian or Ubuntu has all of them."""
    return find_python(version) or pytest.skip(f"there is no Python {version} here")


def run_on_node(folder: Path, program: str, worker: Path, **env: str) -> Any:
    """Run the packed worker for a site's job with nothing but some programs on PATH."""
    (folder / "job.json").write_text('{\n "executions": [],\n "site": "SITE_A"\n}\n')
    return run_captured(
        [program, str(worker), "run", "no-job.json"], cwd=folder, env={"PATH": str(folder), **env}
    )


@pytest.mark.parametrize(("old", "newer"), [("2.7", "named"), ("3.6", "view"), ("3.8", "on PATH")])
def test_old_python_finds_a_newer_one(compiled: Path, tmp_path: Path, old: str, newer: str) -> None:
    python = find_old_python(old)
    view = tmp_path / "a view"
    (view / "bin").mkdir(parents=True)
    (view / "bin" / "python3").symlink_to(sys.executable)
    (tmp_path / "python3").symlink_to(python)
    if newer == "on PATH":
        (tmp_path / "python3.11").write_text(f'#!/bin/sh\necho Hi\nexec {sys.executable} "$@"\n')
        (tmp_path / "python3.11").chmod(0o755)
    places = {"named": f"{python}:{sys.executable}", "view": f"/nowhere:{view}", "on PATH": ""}
    env = {worker_zipapp.PYTHONS_VARIABLE: places[newer]}
    # A batch system may pass on the settings of another Python.
    for program, settings in ((python, {}), ("/bin/sh", {"PYTHONHOME": "/nowhere"})):
        ran = run_on_node(tmp_path, program, compiled, **env, **settings)
        assert (ran.returncode, "no-job.json: cannot" in ran.stderr) == (2, True), ran.stderr


@pytest.mark.parametrize("program", [*OLD_PYTHONS, "/bin/sh"])
def test_node_without_a_new_python_says_so(packed: Path, tmp_path: Path, program: str) -> None:
    lack = "not found: python3.9 to python3.19, /opt/it's, python3, /usr/libexec/platform-python"
    if program in OLD_PYTHONS:
        python = find_old_python(program)
        (tmp_path / "python3").symlink_to(python)
        version = subprocess.check_output(
            [python, "-c", "import sys; print(sys.version)"], text=True
        )
        lack = f"python3 is {version.split()[0]}, {lack.replace(' python3, ', ' ')}"
        program = python
    (tmp_path / "sed").symlink_to(shutil.which("sed") or "")
    ran = run_on_node(tmp_path, program, packed, TREEHAMMER_PYTHONS="/opt/it's")
    assert ran.returncode == NODE_EXIT_CODE
    assert ran.stderr == f"{node_needs.describe_lack(node_needs.PYTHON, lack, 'SITE_A')}\n"


def test_bytecode_names_no_folder_of_this_machine(compiled: Path) -> None:
    folder = str(Path(worker_zipapp.__file__).parent).encode()
    assert folder not in compiled.read_bytes()


def test_only_files_are_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to("worker.pyz")
    assert build_worker(tmp_path / "link").is_symlink()
    for target in ("nowhere/worker.pyz", "fifo"):
        with pytest.raises(TreehammerError, match="cannot be written"):
            build_worker(tmp_path / target)


def test_packed_modules_need_only_python_3_9_and_its_standard_library(packed: Path) -> None:
    standard = set(sys.stdlib_module_names)
    with zipfile.ZipFile(packed) as archive:
        names = [name for name in archive.namelist() if name.endswith(".py")]
        assert f"{worker_zipapp.NODE_PACKAGE}/collectors/worker/run/job_runner.py" in names
        assert any("/kit/" in name for name in names)
        # It tells an old Python to look for a newer one.
        ast.parse(archive.read("__main__.py"), feature_version=(3, 4))
        for name in names:
            tree = ast.parse(archive.read(name), feature_version=(3, 9))
            for node in ast.walk(tree):
                if isinstance(node, ast.Import):
                    imported = [alias.name for alias in node.names]
                elif isinstance(node, ast.ImportFrom) and not node.level:
                    imported = [node.module or ""]
                else:
                    continue
                tops = {module.partition(".")[0] for module in imported}
                # The kit runs beside ROOT, in the payload's own Python.
                beside = {"ROOT", "XRootD", "aiohttp", "awkward", "fsspec", "numpy", "uproot"}
                kit = {*beside, "treehammer_kit"}
                allowed = kit if "/kit/" in name else {worker_zipapp.NODE_PACKAGE}
                assert tops <= standard | allowed, name


def test_schema_matches_the_catalogue() -> None:
    schema = json.loads(cli.render_record_schema())
    jsonschema.Draft202012Validator.check_schema(schema)
    samples: dict[str, Any] = {
        "text": "x",
        "float": 0.5,
        "bool": True,
        "ints": [1],
        "floats": [0.5],
    }
    values = {
        m.name: m.choices[-1] if m.choices else samples.get(m.type, max(1, m.minimum))
        for m in CATALOGUE
    }
    record: dict[str, Any] = {"values": values, "extras": {"mine": 1.0}}
    jsonschema.validate(record, schema)
    required = {m.name for m in METRICS_BY_NAME.values() if m.required}
    jsonschema.validate({**record, "values": {k: record["values"][k] for k in required}}, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**record, "values": {**record["values"], "other": 1}}, schema)


def test_commands_print_schema_and_pack_reproducibly(packed: Path, tmp_path: Path) -> None:
    target = tmp_path / "worker.pyz"
    done = CliRunner().invoke(cli.worker, ["pack", str(target)])
    assert done.exit_code == 0, done.output
    assert target.read_bytes() == packed.read_bytes()
    assert [path.name for path in tmp_path.iterdir()] == ["worker.pyz"]
    assert CliRunner().invoke(cli.worker, ["schema"]).stdout == cli.SCHEMA_FILE.read_text(), (
        "run: treehammer worker schema > collectors/record.schema.json"
    )


SOON = 2_500_000_000.0  # in 2049, encoded with a two-digit year
FAR = 4_000_000_000.0  # in 2096, encoded with a four-digit year


@pytest.mark.parametrize("ends", [(SOON,), (FAR,), (FAR, SOON), (SOON, FAR, FAR)])
def test_proxy_expires_with_the_first_of_its_chain(tmp_path: Path, ends: tuple[float, ...]) -> None:
    proxy = write_proxy(tmp_path / "proxy", *ends)
    assert credential_expiry(PROXY_VARIABLE, str(proxy)) == min(ends)


@pytest.mark.parametrize("end", [SOON, None], ids=["ends", "endless"])
def test_token_expiry(tmp_path: Path, end: float | None) -> None:
    path = write_token(tmp_path / "t", end)
    assert credential_expiry(TOKEN_FILE_VARIABLE, str(path)) == end
    path.write_text("opaque-token\n")
    assert credential_expiry(TOKEN_FILE_VARIABLE, str(path)) is None


@given(st.binary(max_size=200))
def test_garbage_gives_one_known_error(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    path = tmp_path_factory.mktemp("c") / "c"
    for text in (data, b"-----BEGIN CERTIFICATE-----\n" + data, b"a." + data + b".c"):
        path.write_bytes(text)
        assert {_read_error(name, path) for name in (PROXY_VARIABLE, TOKEN_FILE_VARIABLE)} <= ERRORS


ERRORS = {
    "",
    "it contains no certificate",
    "it contains an unreadable certificate",
    "it is empty or not a single token",
    "its claims cannot be read",
}


def _read_error(name: str, path: Path) -> str:
    try:
        credential_expiry(name, str(path))
    except ValueError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("make", [write_proxy, write_token])
def test_expired_credential_is_refused_without_its_content(tmp_path: Path, make: object) -> None:
    assert callable(make)
    name = PROXY_VARIABLE if make is write_proxy else TOKEN_FILE_VARIABLE
    path = make(tmp_path / "c", time.time() - 10)
    with pytest.raises(ExecutionError) as caught:
        check_credentials({name: str(path)})
    failure = caught.value.failure
    assert (failure.failure_class, failure.kind) == ("credential", "expired")
    assert not failure.transient
    assert "expired at 20" in failure.message
    assert SECRET not in failure.message
    check_credentials({name: str(make(tmp_path / "c", SOON))})
    check_credentials({})
    with pytest.raises(ExecutionError, match="No such file"):
        check_credentials({TOKEN_FILE_VARIABLE: str(tmp_path / "none")})


def test_relative_paths_are_resolved_in_the_sandbox(tmp_path: Path) -> None:
    path = write_proxy(tmp_path / "x509-proxy.pem", SOON)
    path.chmod(0o644)
    env = {PROXY_VARIABLE: "x509-proxy.pem", TOKEN_FILE_VARIABLE: "/absolute"}
    resolve_credentials(env, str(tmp_path))
    assert env == {PROXY_VARIABLE: str(path), TOKEN_FILE_VARIABLE: "/absolute"}
    assert path.stat().st_mode & 0o777 == 0o600

    # The only token of HTCondor's credential services is used.
    write_token(tmp_path / "scitokens.use", SOON)
    (tmp_path / "scitokens.top").write_text("")
    env = {"_CONDOR_CREDS": str(tmp_path)}
    resolve_credentials(env, "/")
    assert env[TOKEN_FILE_VARIABLE] == str(tmp_path / "scitokens.use")
    # Its default format is JSON, which no client reads, and which is renewed.
    env = {"_CONDOR_CREDS": str(tmp_path)}
    for token in ("long.er.token", "a.b.c"):
        document = {"access_token": token, "expires_in": 1200}
        (tmp_path / "scitokens.use").write_text(json.dumps(document))
        resolve_credentials(env, "/")
        bare = Path(env[TOKEN_FILE_VARIABLE])
        assert (bare.read_text(), bare.stat().st_mode & 0o777) == (token, 0o600)


def test_voms_attributes_of_a_real_proxy_are_read(tmp_path: Path) -> None:
    proxy = read_proxy(str(Path(__file__).with_name("voms-proxy.pem")))
    assert (proxy.identity, proxy.vo) == ("/CN=alice", "testers")
    assert proxy.attributes == ("/testers/Role=production", "/testers")
    assert proxy.expires_at == 1_795_692_203, "as openssl x509 -enddate says"
    assert proxy.attributes_expire_at == pytest.approx(proxy.expires_at, abs=60)
    proxy = read_proxy(str(write_proxy(tmp_path / "proxy", SOON)))
    assert (proxy.vo, proxy.attributes, proxy.attributes_expire_at) == ("", (), None)


AD = 'Name = "slot1_1@wn7.example"\nMachine = "wn7.example"\n'
MACHINE_ID, BOOT_ID = f"{'a' * 32}\n", "1b4e28ba-2fa1-11d2-883f-0016d3cca427\n"


def test_machine_is_known_by_its_name_in_the_pool_or_by_hashed_identities() -> None:
    for host in ("pod-1", "pod-2"):
        assert find_machine(host, AD, MACHINE_ID, BOOT_ID) == "wn7.example"
    by_id = find_machine("wn7", AD, MACHINE_ID, BOOT_ID)
    in_container = find_machine("wn7", "", "", BOOT_ID)
    assert by_id == find_machine("pod-1", "", MACHINE_ID, "other")
    assert by_id not in (in_container, None)
    assert in_container == find_machine("pod-2", "", "uninitialized\n", BOOT_ID)
    assert "aaaa" not in str(by_id)
    assert find_machine("wn7", "", "uninitialized\n", "") is None


BALLAST = 64 * 1024 * 1024


@pytest.fixture
def forked() -> Iterator[int]:
    """Fork a child that shares all pages of this process and waits."""
    ballast = bytearray(b"x") * BALLAST
    child = os.fork()
    if not child:
        signal.pause()
        os._exit(0)
    yield child
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert len(ballast) == BALLAST > mmap.PAGESIZE


def test_pages_shared_by_a_fork_count_once(forked: int) -> None:
    resident_bytes = read_resident_bytes(os.getpid())
    assert resident_bytes > BALLAST
    pids = [os.getpid(), forked]
    assert resident_bytes <= measure_tree_bytes(pids, 0) < resident_bytes + BALLAST // 2
    # A sum below the bound is not examined.
    total = sum(map(read_resident_bytes, pids))
    assert measure_tree_bytes(pids, 2 * total) == pytest.approx(total, rel=0.05)


def test_child_in_vfork_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parent and child have one address space, so that each owns all of its pages."""
    texts = {"statm": "9 7 1 1 0 1 0", "cmdline": "root\0read.py", "smaps_rollup": "Pss: 28 kB"}
    monkeypatch.setattr(
        process_stats, "read_text", lambda path: texts.get(path.rpartition("/")[2], "")
    )
    assert measure_tree_bytes([10, 11], 0) == 7 * process_stats.PAGE_SIZE
