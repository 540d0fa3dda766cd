"""Parsing of ROOT requests, and the environment that each provider sets up."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

import pytest

from treehammer.collectors.job_spec import SoftwareRequest
from treehammer.collectors.record.outcome import ExecutionError
from treehammer.collectors.root_releases import prepare_root
from treehammer.collectors.software import providers
from treehammer.errors import ConfigError
from treehammer.text_formatting import no_progress


@pytest.mark.parametrize("text", ["6.40.00", "wheel:6.40.00", "  6.40.00 "])
def test_release_selects_its_wheel(text: str) -> None:
    request = providers.parse_software_request(text)
    assert (request.provider, request.version, request.location) == ("wheel", "6.40.00", "")


@pytest.mark.parametrize(
    "text, version, location",
    [
        ("path:/opt/root", "", "/opt/root"),
        ("path:/opt/root@6.41.01", "6.41.01", "/opt/root"),
        ("path:/opt/root@6.32/02", "6.32.02", "/opt/root"),
        ("path:build", "", "/base/build"),
        ("path:/opt/me@home/root", "", "/opt/me@home/root"),
    ],
)
def test_path_with_optional_version(text: str, version: str, location: str) -> None:
    request = providers.parse_software_request(text, base="/base")
    assert request == SoftwareRequest(text, "path", version, location)


@pytest.mark.parametrize("text", ["current", "none"])
def test_current_and_none_have_no_location(text: str) -> None:
    assert providers.parse_software_request(text) == SoftwareRequest(text, text, "", "")


@pytest.mark.parametrize(
    "text, expected",
    [
        ("6.40.0", "did you mean '6.40.00'"),
        ("6.38.06", "did you mean '6.38.00'?"),
        ("6.39.00", "did you mean '6.39.01'?"),
        ("6.36.02", "did you mean '6.37.01'?"),
        ("6.41.00", "did you mean '6.40.00'?"),
        ("curent", "did you mean 'current'"),
        ("6.32.02", "'path:/its/folder@6.32.02'"),
        ("path:", "names no ROOT"),
        ("", "names no ROOT"),
    ],
)
def test_unknown_root_suggests_the_nearest(text: str, expected: str) -> None:
    with pytest.raises(ValueError, match="ROOT") as error:
        providers.parse_software_request(text)
    assert expected in str(error.value)


def _executable(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def _fake_root(folder: Path, *, python: str = "", script: str = "") -> Path:
    """Create an installation with a thisroot.sh and an empty Python module ROOT."""
    version = python or f"{sys.version_info[0]}.{sys.version_info[1]}.0"
    _executable(folder / "bin" / "root-config", f"#!/bin/sh\necho {version}\n")
    (folder / "lib").mkdir()
    (folder / "lib" / "ROOT.py").write_text("")
    name = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    (folder / "bin" / name).symlink_to(sys.executable)
    text = script or (
        'echo noise; export ROOTSYS=$(dirname "$(dirname "${BASH_SOURCE[0]}")")\n'
        "export PATH=$ROOTSYS/bin:$PATH PYTHONPATH=$ROOTSYS/lib${PYTHONPATH:+:$PYTHONPATH}\n"
        "export MULTI='two\nlines'\n"
    )
    (folder / "bin" / "thisroot.sh").write_text(text)
    return folder


def _setup_path(folder: Path, **env: str) -> providers.SoftwareSetup:
    request = providers.prepare_software(providers.parse_software_request(f"path:{folder}"), folder)
    return providers.setup_software(request, {"PATH": os.environ["PATH"], **env}, "/the/kit")


def test_build_is_sourced_without_foreign_paths(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "libCore.so").write_text("")
    root = _fake_root(tmp_path / "root")
    libraries = f"{other}:{tmp_path}"
    ready = _setup_path(root, PYTHONPATH="/foreign", ROOTSYS="/foreign", LD_LIBRARY_PATH=libraries)
    assert ready.env["ROOTSYS"] == str(root)
    assert ready.env["PYTHONPATH"] == f"/the/kit:{root}/lib"
    assert ready.env["LD_LIBRARY_PATH"] == str(tmp_path)
    assert ready.env["MULTI"] == "two\nlines"
    assert ready.env["PYTHONNOUSERSITE"] == "1"
    assert ready.build_command("python", "/p/read.py") == [ready.python, "/p/read.py"]
    assert ready.build_command("executable", "/p/read.sh") == ["/p/read.sh"]
    assert ready.build_command("macro", "/p/read.C")[-1] == "/p/read.C"


def test_path_may_name_the_script(tmp_path: Path) -> None:
    root = _fake_root(tmp_path / "root")
    assert _setup_path(root / "bin" / "thisroot.sh").env["ROOTSYS"] == str(root)


@pytest.mark.parametrize(
    "change, kind, expected",
    [
        ({"script": "echo 'no such compiler' >&2; false\n"}, "broken", "no such compiler"),
        ({"script": "true\n"}, "broken", "no root-config"),
        ({"python": "2.6.1"}, "broken", "python2.6"),
    ],
)
def test_broken_build_names_the_cause(
    tmp_path: Path, change: dict[str, str], kind: str, expected: str
) -> None:
    root = _fake_root(tmp_path / "root", **change)
    with pytest.raises(ExecutionError) as error:
        _setup_path(root)
    failure = error.value.failure
    assert (failure.failure_class, failure.kind) == ("software-setup", kind)
    assert expected in failure.message


def test_missing_build_is_refused_at_preparation(tmp_path: Path) -> None:
    with pytest.raises(ExecutionError, match="does not exist") as error:
        providers.prepare_software(
            providers.parse_software_request(f"path:{tmp_path}/nothing"), tmp_path
        )
    assert error.value.failure.kind == "missing"


def test_incomplete_environment_is_neither_used_nor_completed_by_a_job(tmp_path: Path) -> None:
    folder = tmp_path / "root-6.40.00"
    _executable(folder / "bin" / "python", "#!/bin/sh\n")
    request = SoftwareRequest("6.40.00", "wheel", "6.40.00", str(folder))
    with pytest.raises(ExecutionError, match="a job never does") as error:
        providers.setup_software(request, dict(os.environ), "/the/kit")
    assert error.value.failure.kind == "missing"
    assert providers.list_prepared_releases(tmp_path) == {}


def test_current_requires_a_root(tmp_path: Path) -> None:
    with pytest.raises(ExecutionError, match="finds no module ROOT"):
        providers.setup_software(
            providers.parse_software_request("current"), {"PATH": str(tmp_path)}, "/the/kit"
        )


def test_current_keeps_the_environment(tmp_path: Path) -> None:
    (tmp_path / "ROOT.py").write_text("")
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(tmp_path)}
    ready = providers.setup_software(providers.parse_software_request("current"), env, "/the/kit")
    assert ready.python == sys.executable
    assert ready.env["PYTHONPATH"] == f"/the/kit:{tmp_path}"


def test_macro_requires_a_root(tmp_path: Path) -> None:
    ready = providers.setup_software(
        providers.parse_software_request("none"), {"PATH": "/bin"}, "/the/kit"
    )
    assert ready.build_command("executable", "/p/run.sh") == ["/p/run.sh"]
    with pytest.raises(ExecutionError, match="ROOT macro"):
        ready.build_command("macro", "/p/read.C")


@pytest.mark.parametrize(
    ("module", "request_", "problem"),
    [
        ("class gROOT: GetVersion = lambda: '6.41.01'", "path:{}@6.41.01", ""),
        ("class gROOT: GetVersion = lambda: '6.41.01'", "path:{}@6.41.02", "must report 6.41.02"),
        ("import no_such_library", "path:{}", "No module named 'no_such_library'"),
        (None, "path:{}", "no root-config"),
        (None, "wrap:env -i PATH=/usr/bin:/bin", "No module named 'ROOT'"),
        (None, "xrootd:{}", "failed"),
    ],
)
def test_unusable_software_is_refused_before_a_job_is_sent(
    tmp_path: Path, module: str | None, request_: str, problem: str
) -> None:
    root = _fake_root(tmp_path / "root")
    if module is None:
        (root / "bin" / "root-config").unlink()
    else:
        (root / "lib" / "ROOT.py").write_text(f"{module}\n")
    request = providers.parse_software_request(request_.format(root))
    if not problem:
        assert prepare_root(request, tmp_path, no_progress) == request
        return
    with pytest.raises(ConfigError, match=problem):
        prepare_root(request, tmp_path, no_progress)
