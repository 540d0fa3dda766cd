"""Parsing and set-up of CVMFS and command requests, without a real ROOT."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

import pytest

from treehammer.collectors.job_spec import SoftwareRequest
from treehammer.collectors.record.outcome import ExecutionError
from treehammer.collectors.software import providers, wheels
from treehammer.collectors.software.providers import (
    parse_software_request,
    prepare_software,
    setup_software,
)
from treehammer.collectors.software.setup_commands import CVMFS_VARIABLE
from treehammer.collectors.software.wheels import make_root_release, make_xrootd_release

PLATFORM = "x86_64-el9-gcc13-opt"
VIEWS = "sft.cern.ch/lcg/views"


@pytest.mark.parametrize(
    "name, version, location",
    [
        (f"LCG_106/{PLATFORM}", "", f"{VIEWS}/LCG_106/{PLATFORM}"),
        (f"LCG_106b_ATLAS_1/{PLATFORM}@6.32.02", "6.32.02", f"{VIEWS}/LCG_106b_ATLAS_1/{PLATFORM}"),
        (f"dev3/latest/{PLATFORM}", "", f"{VIEWS}/dev3/latest/{PLATFORM}"),
        (
            "ROOT/6.38.00/x86_64-almalinux9.6-gcc115-opt",
            "6.38.00",
            "sft.cern.ch/lcg/app/releases/ROOT/6.38.00/x86_64-almalinux9.6-gcc115-opt",
        ),
        ("sft-nightlies.cern.ch/lcg/views/dev3", "", "sft-nightlies.cern.ch/lcg/views/dev3"),
        ("my.site.org/root/setup.sh@6.40/01", "6.40.01", "my.site.org/root/setup.sh"),
    ],
)
def test_cvmfs_accepts_view_release_or_folder(name: str, version: str, location: str) -> None:
    text = f"cvmfs:{name}"
    assert parse_software_request(text) == SoftwareRequest(text, "cvmfs", version, location)


@pytest.mark.parametrize(
    "text, expected",
    [
        ("cvmfs:LCG_106", "'cvmfs:LCG_106/x86_64-el9-gcc13-opt' for a view"),
        ("cvmfs:ROOT/6.38.00", "'cvmfs:ROOT/6.38.00/PLATFORM' for a release"),
        (f"cvmfs:ROOT/6.38.00/{PLATFORM}@6.40.00", "requests both 6.38.00 and 6.40.00"),
        (f"cvmfs:../../home/{PLATFORM}", "remove '.' and '..'"),
        ("cvmfs:LCG 106/x", "names no ROOT on CVMFS"),
        ("cvmfs:", "names no ROOT"),
        (f"cvmf:LCG_106/{PLATFORM}", "did you mean 'cvmfs'?"),
        ("wrap:", "names no ROOT"),
        ("wrap:''@6.38.00 'x", "is not a valid command: No closing quotation"),
        ("wrap:apptainer exec --bind {foldres} /x.sif", "unknown placeholder {foldres}; known"),
        ("wrap:apptainer exec docker://rootproject/root", "save the image as a file"),
        ("6.41.00", "did you mean '6.40.00'?"),
    ],
)
def test_invalid_request_names_valid_ones(text: str, expected: str) -> None:
    with pytest.raises(ValueError, match=r"ROOT|command|placeholder|image|requests") as error:
        parse_software_request(text)
    assert expected in str(error.value)


def test_command_with_version() -> None:
    text = "wrap:apptainer exec --bind {folders} /images/me@home.sif@6.38.00"
    location = "apptainer exec --bind {folders} /images/me@home.sif"
    assert parse_software_request(text) == SoftwareRequest(text, "wrap", "6.38.00", location)


@pytest.mark.parametrize(
    "text, expected",
    [
        (f"cvmfs:LCG_106/{PLATFORM}", "sft.cern.ch is not mounted at"),
        ("wrap:no-such-runtime exec x.sif", "no command 'no-such-runtime'"),
    ],
)
def test_missing_mount_or_command_is_refused_at_preparation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, expected: str
) -> None:
    monkeypatch.setenv(CVMFS_VARIABLE, str(tmp_path))
    request = parse_software_request(text)
    with pytest.raises(ExecutionError) as error:
        prepare_software(request, tmp_path)
    assert expected in str(error.value)


def test_missing_cvmfs_folder_lists_its_neighbors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CVMFS_VARIABLE, str(tmp_path))
    for number in range(100, 112):
        (tmp_path / VIEWS / f"LCG_{number}" / PLATFORM).mkdir(parents=True)
    with pytest.raises(ExecutionError) as error:
        prepare_software(parse_software_request(f"cvmfs:LCG_1066/{PLATFORM}"), tmp_path)
    assert "did you mean 'LCG_106'? it has: ..., LCG_104" in str(error.value)
    assert "LCG_111" in str(error.value)
    with pytest.raises(ExecutionError, match=r"neither setup\.sh nor bin"):
        prepare_software(parse_software_request(f"cvmfs:LCG_106/{PLATFORM}"), tmp_path)


@pytest.fixture
def prefix(tmp_path: Path) -> str:
    """Create a command that notes its first argument and provides an empty module ROOT."""
    (tmp_path / "inside").mkdir()
    (tmp_path / "inside" / "ROOT.py").write_text("")
    script = tmp_path / "run it"
    script.write_text(
        f'#!/bin/sh\nprintf "%s " "$1" > {tmp_path}/called; shift\n'
        f'exec env -i PATH="{Path(sys.executable).parent}:/usr/bin:/bin" '
        f'PYTHONPATH={tmp_path}/inside "$@"\n'
    )
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return f"'{script}'"


def test_placeholders_are_replaced_by_folders(tmp_path: Path, prefix: str) -> None:
    request = parse_software_request(f"wrap:{prefix} {{folders}}:{{work}}@6.38.00")
    folders = {"work": str(tmp_path), "payload": "/usr", "input": "/bin"}
    base = {"PATH": os.environ["PATH"], "PYTHONPATH": "/foreign"}
    ready = setup_software(request, base, "/etc", folders)
    assert (tmp_path / "called").read_text() == f"{tmp_path},/usr,/bin,/etc:{tmp_path} "
    assert "PYTHONPATH" not in ready.env
    command = ready.build_command("python", "/usr/read.py", {"NAME": "two words"})
    assert command[:2] == [str(tmp_path / "run it"), f"{tmp_path},/usr,/bin,/etc:{tmp_path}"]
    assert command[-4:] == ["env", "NAME=two words", "python3", "/usr/read.py"]
    assert ready.build_command("macro", "/usr/x.C")[-3:] == [
        "-m",
        "treehammer_kit.macro",
        "/usr/x.C",
    ]
    assert ready.build_command("executable", "/usr/x")[-2:] == ["env", "/usr/x"]


def test_read_only_work_folder_is_refused(tmp_path: Path, prefix: str) -> None:
    request = parse_software_request(f"wrap:{prefix} x")
    with pytest.raises(ExecutionError, match=r"/proc is not writable; bind \{work\}"):
        setup_software(request, os.environ, "/etc", {"work": "/proc"})


def test_unknown_provider_is_refused(tmp_path: Path) -> None:
    request = SoftwareRequest("x:y", "x", "", "y")
    with pytest.raises(ExecutionError, match="unknown software provider 'x'") as error:
        setup_software(request, os.environ, tmp_path)
    assert error.value.failure.failure_class == "software-setup"


def test_every_wheel_has_a_distinct_hash() -> None:
    assert set(wheels.WHEEL_SHA256) == set(providers.WHEELS)
    hashes = [sha for by_tag in wheels.WHEEL_SHA256.values() for sha in by_tag.values()]
    assert len(set(hashes)) == len(hashes)
    assert all(len(sha) == 64 and int(sha, 16) for sha in hashes)
    assert wheels.find_wheel_sha256("6.99.00") == ""


@pytest.mark.parametrize(
    "output, reason",
    [
        (
            "ERROR: Exception:\nTraceback ...\nzlib.error: Error -3",
            "corrupt (zlib.error: Error -3)",
        ),
        ("WARNING: Retrying (Retry(total=4)) x\nERROR: No matching distribution", "index broke ("),
        ("ERROR: No matching distribution found for ROOT", "ERROR: No matching distribution"),
        ("", "no output"),
    ],
)
def test_pip_errors_are_described(output: str, reason: str) -> None:
    assert reason in wheels._describe_download_failure(output)


def test_xrootd_client_is_a_release_or_a_folder(tmp_path: Path) -> None:
    release = parse_software_request("xrootd:6.2.1")
    assert (release.provider, release.version, release.location) == ("xrootd", "6.2.1", "")
    assert providers.is_installed_release(release)
    assert providers.find_missing_release(release, tmp_path) == "XRootD 6.2.1"
    own = parse_software_request("xrootd:./client", base="/opt")
    assert (own.version, own.location) == ("", "/opt/client")
    assert not providers.is_installed_release(own)
    with pytest.raises(ValueError, match="neither a version such as"):
        parse_software_request("xrootd:6.2")


def test_releases_of_root_and_xrootd_stay_apart(tmp_path: Path) -> None:
    for release in (make_root_release("6.40.00"), make_xrootd_release("6.2.1")):
        folder = tmp_path / release.folder_name
        (folder / "bin").mkdir(parents=True)
        (folder / "bin" / "python").symlink_to(sys.executable)
        info = f"{release.package.lower()}-{release.wheel}.dist-info"
        record = folder / "lib" / "python3.11" / "site-packages" / info / "RECORD"
        record.parent.mkdir(parents=True)
        record.write_text("")
        wheels.write_marker(str(folder), release)
    assert providers.list_prepared_releases(tmp_path) == {"6.40.00": str(tmp_path / "root-6.40.00")}
    request = parse_software_request("xrootd:6.2.1")
    located = providers.locate_prepared_software(request, tmp_path)
    assert located.location == str(tmp_path / "xrootd-6.2.1")
    assert not providers.find_missing_release(request, tmp_path)
