"""Software: parsing of requests, set-up by each provider, releases on the package index; without ROOT."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from treehammer.cli import cli
from treehammer.collectors import root_releases
from treehammer.collectors.job_spec import SoftwareRequest
from treehammer.collectors.record.outcome import ExecutionError
from treehammer.collectors.root_releases import prepare_root
from treehammer.collectors.software import providers, setup_commands, wheel_installation, wheels
from treehammer.collectors.software.providers import (
    parse_software_request,
    prepare_software,
    setup_software,
)
from treehammer.collectors.software.setup_commands import CVMFS_VARIABLE
from treehammer.collectors.software.wheels import (
    expected_root_version,
    find_release,
    make_root_release,
    make_xrootd_release,
)
from treehammer.errors import ConfigError, SoftwareError
from treehammer.text_formatting import no_progress

PLATFORM = "x86_64-el9-gcc13-opt"
VIEWS = "sft.cern.ch/lcg/views"
RELEASE = "ROOT/6.38.00/x86_64-almalinux9.6-gcc115-opt"
NIGHTLY = "sft-nightlies.cern.ch/lcg/views/dev3"
OWN_SCRIPT = "my.site.org/root/setup.sh"
APPTAINER = "apptainer exec --bind {folders} /images/me@home.sif"


@pytest.mark.parametrize(
    "text, provider, version, location",
    [
        ("6.40.00", "wheel", "6.40.00", ""),
        ("wheel:6.40.00", "wheel", "6.40.00", ""),
        ("current", "current", "", ""),
        ("none", "none", "", ""),
        ("path:/opt/root@6.41.01", "path", "6.41.01", "/opt/root"),
        ("path:/opt/root@6.32/02", "path", "6.32.02", "/opt/root"),
        ("path:build", "path", "", "/base/build"),
        ("path:/opt/me@home/root", "path", "", "/opt/me@home/root"),
        ("xrootd:6.2.1", "xrootd", "6.2.1", ""),
        ("xrootd:./client", "xrootd", "", "/base/client"),
        (f"wrap:{APPTAINER}@6.38.00", "wrap", "6.38.00", APPTAINER),
        (f"cvmfs:LCG_106/{PLATFORM}", "cvmfs", "", f"{VIEWS}/LCG_106/{PLATFORM}"),
        (
            f"cvmfs:LCG_106b_ATLAS_1/{PLATFORM}@6.32.02",
            "cvmfs",
            "6.32.02",
            f"{VIEWS}/LCG_106b_ATLAS_1/{PLATFORM}",
        ),
        (f"cvmfs:dev3/latest/{PLATFORM}", "cvmfs", "", f"{VIEWS}/dev3/latest/{PLATFORM}"),
        (f"cvmfs:{RELEASE}", "cvmfs", "6.38.00", f"sft.cern.ch/lcg/app/releases/{RELEASE}"),
        (f"cvmfs:{NIGHTLY}", "cvmfs", "", NIGHTLY),
        (f"cvmfs:{OWN_SCRIPT}@6.40/01", "cvmfs", "6.40.01", OWN_SCRIPT),
    ],
)
def test_request_names_provider_version_and_location(
    text: str, provider: str, version: str, location: str
) -> None:
    request = parse_software_request(text, base="/base")
    assert request == SoftwareRequest(text, provider, version, location)


def _executable(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


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
    request = prepare_software(parse_software_request(f"path:{folder}"), folder)
    return setup_software(request, {"PATH": os.environ["PATH"], **env}, "/the/kit")


def test_build_is_sourced_without_foreign_paths(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "libCore.so").write_text("")
    root = _fake_root(tmp_path / "root")
    libraries = f"{other}:{tmp_path}"
    foreign = {"PYTHONPATH": "/foreign", "PYTHONWARNINGS": "error", "ROOTSYS": "/foreign"}
    ready = _setup_path(root, **foreign, LD_LIBRARY_PATH=libraries)
    assert "PYTHONWARNINGS" not in ready.env
    assert ready.env["ROOTSYS"] == str(root)
    assert ready.env["PYTHONPATH"] == f"/the/kit:{root}/lib"
    assert ready.env["LD_LIBRARY_PATH"] == str(tmp_path)
    assert (ready.env["MULTI"], ready.env["PYTHONNOUSERSITE"]) == ("two\nlines", "1")
    assert ready.env["ROOTENV_NO_HOME"] == "1"
    assert ready.build_command("python", "/p/read.py") == [ready.python, "/p/read.py"]
    assert ready.build_command("macro", "/p/read.C")[-1] == "/p/read.C"
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


def test_incomplete_environment_is_neither_used_nor_completed_by_a_job(tmp_path: Path) -> None:
    folder = tmp_path / "root-6.40.00"
    _executable(folder / "bin" / "python", "#!/bin/sh\n")
    request = SoftwareRequest("6.40.00", "wheel", "6.40.00", str(folder))
    with pytest.raises(ExecutionError, match="a job never does") as error:
        setup_software(request, dict(os.environ), "/the/kit")
    assert error.value.failure.kind == "missing"
    (folder / "bin" / "python").unlink()
    (folder / "bin" / "python").symlink_to("/opt/python3")
    with pytest.raises(ExecutionError, match="needs /opt/python3, which this node lacks"):
        setup_software(request, dict(os.environ), "/the/kit")
    assert providers.list_prepared_releases(tmp_path) == {}


def test_current_requires_a_root_and_keeps_the_environment(tmp_path: Path) -> None:
    with pytest.raises(ExecutionError, match="finds no module ROOT"):
        setup_software(parse_software_request("current"), {"PATH": str(tmp_path)}, "/the/kit")

    (tmp_path / "ROOT.py").write_text("")
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(tmp_path)}
    ready = setup_software(parse_software_request("current"), env, "/the/kit")
    assert ready.python == sys.executable
    assert ready.env["PYTHONPATH"] == f"/the/kit:{tmp_path}"


def test_macro_requires_a_root() -> None:
    base = {"PATH": "/bin", "PYTHONHOME": "/of/another/python"}
    ready = setup_software(parse_software_request("none"), base, "/the/kit")
    assert not ready.env["PYTHONHOME"]
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
    request = parse_software_request(request_.format(root))
    if not problem:
        assert prepare_root(request, tmp_path, no_progress) == request
        return
    with pytest.raises(ConfigError, match=problem):
        prepare_root(request, tmp_path, no_progress)


@pytest.mark.parametrize(
    "text, expected",
    [
        ("cvmfs:LCG_106", "'cvmfs:LCG_106/x86_64-el9-gcc13-opt' for a view"),
        ("cvmfs:ROOT/6.38.00", "'cvmfs:ROOT/6.38.00/PLATFORM' for a release"),
        (f"cvmfs:ROOT/6.38.00/{PLATFORM}@6.40.00", "requests both 6.38.00 and 6.40.00"),
        (f"cvmfs:../../home/{PLATFORM}", "remove '.' and '..'"),
        ("cvmfs:LCG 106/x", "names no ROOT on CVMFS"),
        (f"cvmf:LCG_106/{PLATFORM}", "did you mean 'cvmfs'?"),
        ("wrap:''@6.38.00 'x", "is not a valid command: No closing quotation"),
        ("wrap:apptainer exec --bind {foldres} /x.sif", "unknown placeholder {foldres}; known"),
        ("wrap:apptainer exec docker://rootproject/root", "save the image as a file"),
        ("wheel:6.41.00", "no wheel of ROOT 6.41.00"),
        ("wheel:new", "'wheel:new' names no ROOT"),
        ("6.40.0", "did you mean '6.40.00'"),
        ("curent", "did you mean 'current'"),
        ("6.32.02", "'path:/its/folder@6.32.02'"),
        ("", "names no ROOT"),
    ],
)
def test_invalid_request_names_valid_ones(text: str, expected: str) -> None:
    with pytest.raises(ValueError, match=r"ROOT|command|placeholder|image|requests") as error:
        parse_software_request(text)
    assert expected in str(error.value)


@pytest.mark.parametrize(
    "text, expected",
    [
        (f"cvmfs:LCG_106/{PLATFORM}", "sft.cern.ch is not mounted at"),
        ("wrap:no-such-runtime exec x.sif", "no command 'no-such-runtime'"),
        ("path:/no/such/build", "does not exist"),
    ],
)
def test_missing_software_is_refused_at_preparation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, expected: str
) -> None:
    monkeypatch.setenv(CVMFS_VARIABLE, str(tmp_path))
    request = parse_software_request(text)
    with pytest.raises(ExecutionError) as error:
        prepare_software(request, tmp_path)
    assert (error.value.failure.kind, expected in str(error.value)) == ("missing", True)


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
    _executable(
        script,
        f'#!/bin/sh\nprintf "%s " "$1" > {tmp_path}/called; shift\n'
        f'exec env -i PATH="{Path(sys.executable).parent}:/usr/bin:/bin" '
        f'PYTHONPATH={tmp_path}/inside "$@"\n',
    )
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
    macro = ready.build_command("macro", "/usr/x.C")[-3:]
    assert macro == ["-c", "import treehammer_kit; treehammer_kit.run_macro()", "/usr/x.C"]
    assert ready.build_command("executable", "/usr/x")[-2:] == ["env", "/usr/x"]


def test_read_only_work_folder_is_refused(prefix: str) -> None:
    request = parse_software_request(f"wrap:{prefix} x")
    with pytest.raises(ExecutionError, match=r"/proc is not writable; bind \{work\}"):
        setup_software(request, os.environ, "/etc", {"work": "/proc"})


@pytest.mark.parametrize(
    "prefix, kind, expected",
    [
        ("/no/such/runtime exec image", "broken", "No such file or directory: '/no/such/runtime'"),
        ("sh -c 'echo FATAL: no such image >&2; exit 255'", "broken", "FATAL: no such image"),
        ("true", "broken", "did not run python3"),
        (f"env PATH={Path(sys.executable).parent}:/usr/bin:/bin", "missing", "finds no ROOT"),
    ],
)
def test_unusable_command_is_named_on_the_node(
    tmp_path: Path, prefix: str, kind: str, expected: str
) -> None:
    request = parse_software_request(f"wrap:{prefix}")
    with pytest.raises(ExecutionError, match=expected) as error:
        setup_software(request, os.environ, "/etc", {"work": str(tmp_path)})
    failure = error.value.failure
    assert (failure.failure_class, failure.kind) == ("software-setup", kind)


def test_unknown_provider_is_refused(tmp_path: Path) -> None:
    request = SoftwareRequest("x:y", "x", "", "y")
    with pytest.raises(ExecutionError, match="unknown software provider 'x'") as error:
        setup_software(request, os.environ, tmp_path)
    assert error.value.failure.failure_class == "software-setup"


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
        ("Fatal Python error: x\n\n<no Python frame>", "Fatal Python error: x"),
    ],
)
def test_pip_errors_are_described(output: str, reason: str) -> None:
    assert reason in wheel_installation._describe_download_failure(output)


def test_xrootd_client_is_a_release_or_a_folder(tmp_path: Path) -> None:
    release = parse_software_request("xrootd:6.2.1")
    assert providers.is_installed_release(release)
    assert providers.find_missing_release(release, tmp_path) == "XRootD 6.2.1"
    request = parse_software_request("xrootd:./client", base="/opt")
    assert not providers.is_installed_release(request)
    with pytest.raises(ValueError, match="neither a version such as"):
        parse_software_request("xrootd:6.2")


def test_environments_of_other_architectures_stay_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder_name = make_xrootd_release("6.2.1").folder_name
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    assert make_xrootd_release("6.2.1").folder_name == f"{folder_name}-aarch64"
    assert wheels.find_wheel_sha256("6.40.00") == "", "these hashes are of x86_64 wheels"
    foreign = tmp_path / "python"
    foreign.write_bytes(b"\x7fELF of another machine")
    foreign.chmod(0o755)
    with pytest.raises(ExecutionError, match="another architecture than this node's aarch64"):
        setup_commands.run_tool([str(foreign)], {}, "the Python")


def test_releases_of_root_and_xrootd_stay_apart(tmp_path: Path) -> None:
    releases = [make_root_release("6.40.00"), make_root_release("6.42.00")]
    for release in (*releases, make_xrootd_release("6.2.1")):
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
    # Damage of a package that the newest one requires.
    assert providers.list_prepared_wheels(tmp_path) == ["6.42.00"]
    newest = tmp_path / "root-6.42.00" / "lib" / "python3.11" / "site-packages"
    (newest / "cppjit-0.1.dist-info").mkdir()
    (newest / "cppjit-0.1.dist-info" / "RECORD").write_text("libcppjit.so,,5\n")
    assert providers.list_prepared_wheels(tmp_path) == []


def test_listing_names_releases_and_unknown_wheels(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = ["6.42.00", "wheel:0.1a13", "6.40.00", "6.38.00"]
    listing = "ROOT (6.42.0)\nAvailable versions: 6.42.0, 0.1a13, 0.1a12, 0.1a10\n"
    monkeypatch.setattr(root_releases, "run_tool", lambda *_: listing)
    assert root_releases.list_root_releases() == expected
    monkeypatch.setattr(root_releases, "run_tool", lambda *_: "")
    assert root_releases.list_root_releases() == []


@pytest.mark.parametrize(("spec", "remedy"), [(True, "Check the network"), (None, "Install pip: ")])
def test_index_that_does_not_answer_is_explained(
    monkeypatch: pytest.MonkeyPatch, spec: object, remedy: str
) -> None:
    def fail(*_: object) -> str:
        setup_commands.raise_setup_error("broken", "listing ROOT's versions failed: no route")

    monkeypatch.setattr(root_releases, "run_tool", fail)
    monkeypatch.setattr(root_releases, "find_spec", lambda _: spec)
    with pytest.raises(SoftwareError, match=rf"no route\n  {remedy}"):
        root_releases.list_root_releases()


@pytest.mark.parametrize("wheel", ["0.1a13", "6.41.0", "6.42.0rc1", "6.42.0.post1"])
def test_unknown_wheel_is_requested_by_its_package_version(wheel: str) -> None:
    request = parse_software_request(f"wheel:{wheel}")
    release = find_release(request)
    assert (release.wheel, release.sha256, release.expected_version) == (wheel, "", "")
    assert expected_root_version(request) == ""


@pytest.mark.parametrize(
    "text, release, wheel",
    [
        ("wheel:6.40.00", "6.40.00", "0.1a12"),
        ("wheel:0.1a12", "6.40.00", "0.1a12"),
        ("6.42.00", "6.42.00", "6.42.0"),
        ("wheel:6.44.12", "6.44.12", "6.44.12"),
    ],
)
def test_known_release_must_report_its_version(text: str, release: str, wheel: str) -> None:
    """From 6.42 on the version of the package may name the release, without a change here."""
    request = parse_software_request(text)
    assert find_release(request).wheel == wheel
    assert find_release(request).folder_name == f"root-{release}"
    assert expected_root_version(request) == find_release(request).expected_version == release


OFFERED = ["wheel:0.1a13", "6.40.00", "6.38.00", "6.39.01"]


def miss_index() -> list[str]:
    raise SoftwareError("no route to the index")


def check_wheel(text: str, folder: Path) -> None:
    root_releases.check_unknown_wheels([parse_software_request(text)], folder, where="-P root")


def test_releases_are_described_by_cycle_and_state() -> None:
    described = root_releases.describe_releases(["6.42.00", *OFFERED], ["6.38.00", "wheel:0.1a7"])
    assert [(row.release, row.cycle, row.wheel) for row in described] == [
        ("wheel:0.1a13", "", "0.1a13"),
        ("wheel:0.1a7", "", "0.1a7"),
        ("6.42.00", "6.42", "6.42.0"),
        ("6.40.00", "6.40", "0.1a12"),
        ("6.39.01", "6.39", "0.1a9"),
        ("6.38.00", "6.38", "0.1a10"),
    ]
    assert [row.release for row in described if row.is_cached] == ["wheel:0.1a7", "6.38.00"]
    newest = [row.release for row in described if row.is_newest]
    assert newest == ["6.42.00", "6.40.00", "6.39.01", "6.38.00"]


def test_command_lists_cached_releases_without_network(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("treehammer.collectors.cli.list_root_releases", miss_index)
    monkeypatch.setattr("treehammer.collectors.cli.list_cached_releases", lambda _: ["6.38.00"])
    result = CliRunner().invoke(
        cli, ["--cache-dir", str(tmp_path), "--data-dir", str(tmp_path), "releases", "--json"]
    )
    assert result.stderr == "Only cached releases are listed: no route to the index\n"
    names = {"release": "6.38.00", "cycle": "6.38", "wheel": "0.1a10"}
    assert json.loads(result.stdout) == [{**names, "is_cached": True, "is_newest": None}]


def test_wheel_that_the_index_lacks_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(root_releases, "list_root_releases", lambda: OFFERED)
    for offered in ("wheel:0.1a13", "wheel:0.1a12", "6.37.01", "current"):
        check_wheel(offered, tmp_path)
    with pytest.raises(ConfigError, match=r"no wheel 0\.1a14 of ROOT .*\n.*mean 'wheel:0\.1a13'"):
        check_wheel("wheel:0.1a14", tmp_path)
    with pytest.raises(ConfigError, match=r"no wheel 6\.42\.0 of ROOT for Python 3.*\n.*:0\.1a13"):
        check_wheel("6.42.00", tmp_path)


def test_unknown_wheel_is_left_to_pip_without_network(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(root_releases, "list_root_releases", miss_index)
    check_wheel("wheel:0.1a14", tmp_path)
