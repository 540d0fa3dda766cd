"""The command line as a process: exit codes, messages, extras, version and requirements."""

from __future__ import annotations

import configparser
import io
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import click
import pytest
from captured_runs import run_captured
from click.testing import CliRunner
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version
from repository_code import REPOSITORY

from treehammer import errors
from treehammer.cli import COMMANDS, SECTIONS, cli, main
from treehammer.datasets.doors import xrootd_door
from treehammer.errors import EXTRA_OF_MODULE, MissingExtraError
from treehammer.version import __version__


def test_modules_of_commands_load_no_heavy_package() -> None:
    """Help, completion and mistakes in usage shall not pay for them."""
    code = """
import sys
from treehammer.cli import COMMANDS
for command in COMMANDS.values():
    command.load()
print(*sorted({*sys.modules} & {*sys.argv[1:]}))
"""
    heavy = ("sqlalchemy", "pydantic", "scipy", "numpy", "rich.console", "jinja2", "git", "psutil")
    done = run_captured([sys.executable, "-c", code, *heavy], check=True)
    assert done.stdout == "\n"


def run_here(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str
) -> tuple[int, str, str]:
    """Run the program in this process; return its exit code, output and errors."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("TREEHAMMER_DATA_DIR", str(folder))
    monkeypatch.setattr(sys, "argv", ["treehammer", *words])
    with pytest.raises(SystemExit) as end:
        main()
    return int(end.value.code or 0), *capsys.readouterr()


def test_config_show_prints_value_and_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, output, _ = run_here(tmp_path, monkeypatch, capsys, "config", "show", "--json")
    rows = {row["setting"]: row for row in json.loads(output)}
    assert code == 0
    assert rows["data_dir"]["value"] == str(tmp_path)
    assert rows["data_dir"]["source"] == "environment (TREEHAMMER_DATA_DIR)"


def test_folder_that_cannot_be_made_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--data-dir", "/proc/none", "run", "true"]
    code, _, message = run_here(tmp_path, monkeypatch, capsys, *words)
    assert code == errors.ExitCode.INFRASTRUCTURE
    assert message.startswith("treehammer: /proc/none: No such file or directory\n")
    run_here(tmp_path, monkeypatch, capsys, "token", "create", "--role=read", "--name=a")
    code, _, message = run_here(tmp_path, monkeypatch, capsys, "db", "delete", "--key", "\udcff")
    assert (code, message) == (2, "treehammer: '\\udcff' is not UTF-8 text\n")


def test_unencodable_output_gets_question_marks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "Ü"
    folder.mkdir()
    output = io.TextIOWrapper(io.BytesIO(), "ascii")
    monkeypatch.setattr(sys, "stdout", output)
    assert run_here(folder, monkeypatch, capsys, "config", "show") == (0, "", "")
    output.seek(0)
    assert "?" in output.read()


@pytest.mark.parametrize(
    ("arguments", "code", "word"),
    [
        (("--config", "absent.toml", "config", "show"), 2, "absent.toml"),
        (("no-such-verb",), 2, "no-such-verb"),
        (("sumbit",), 2, "Did you mean 'submit'?"),
        (("config", "show", "--json", "--csv"), 2, "exclusive"),
        (("status", "no-such-campaign"), 3, "results.db"),
    ],
)
def test_mistakes_print_one_message_with_documented_code(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    code: int,
    word: str,
) -> None:
    exit_code, _, errors = run_here(tmp_path, monkeypatch, capsys, *arguments)
    assert exit_code == code
    assert word in errors
    assert "Traceback" not in errors


def verbs(command: click.Command, name: str = "treehammer") -> Iterator[tuple[str, click.Command]]:
    if isinstance(command, click.Group):
        context = click.Context(command)
        for child in command.list_commands(context):
            sub = command.get_command(context, child)
            assert sub is not None
            assert sub.name == child
            yield from verbs(sub, f"{name} {child}")
    else:
        yield name, command


@pytest.mark.parametrize(("name", "command"), list(verbs(cli)), ids=str)
def test_every_command_help_has_an_example(name: str, command: click.Command) -> None:
    text = command.help or ""
    assert "Example" in text
    assert name in text


def test_help_lists_each_command_once_by_section() -> None:
    lines = CliRunner().invoke(cli, ["--help"]).output.splitlines()
    for name, command in COMMANDS.items():
        assert [line.split()[1:] for line in lines if line.startswith(f"  {name} ")] == [
            command.summary.split()
        ]
    titles = [line.rstrip(":") for line in lines if line.endswith(":") and line[0] != " "]
    assert titles == ["Options", *(title for title, commands in SECTIONS.items() if commands)]


def test_error_text_contains_location_message_hint_and_problems() -> None:
    error = errors.DefinitionError(
        "2 mistakes", where="test.toml", hint="Mend them.", problems=("a: x", "b: y")
    )
    assert str(error).splitlines() == ["test.toml: 2 mistakes", "  Mend them.", "  a: x", "  b: y"]


#: Program that runs a command without certain modules and prints all imported ones.
SCRIPT = """
import sys
from treehammer import __main__
hidden, sys.argv = sys.argv[1], ["treehammer", *sys.argv[2:]]
sys.modules |= dict.fromkeys(filter(None, hidden.split(",")))
try:
    __main__.main()
finally:
    print("loaded:", *{name.partition(".")[0] for name in sys.modules}, file=sys.stderr)
"""


def run_without(folder: Path, hidden: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_captured(
        [sys.executable, "-c", SCRIPT, hidden, *arguments],
        cwd=folder,
        env={**os.environ, "TREEHAMMER_DATA_DIR": str(folder)},
    )


def test_status_imports_only_required_modules(tmp_path: Path) -> None:
    done = run_without(tmp_path, "", "status")
    assert done.returncode == 3
    loaded = set(done.stderr.rpartition("loaded:")[2].split())
    heavy = {"alembic", "numpy", "scipy", "pyarrow", "vl_convert", "git", "tree_sitter"}
    assert "treehammer" in loaded
    assert not loaded & (heavy | set(EXTRA_OF_MODULE))


@pytest.mark.parametrize(
    ("hidden", "words", "package", "extra"),
    [
        ("pyarrow.csv", ("export", "results.csv"), "pyarrow", "export"),
        ("starlette,prometheus_client", ("publish", "site"), "prometheus_client", "service"),
    ],
)
def test_missing_extra_is_named(
    tmp_path: Path, hidden: str, words: tuple[str, ...], package: str, extra: str
) -> None:
    done = run_without(tmp_path, hidden, *words)
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith(f"treehammer: Python packages are missing: {package}; run: ")
    assert f"{sys.executable} -m pip install 'treehammer[{extra}]'\n" in done.stderr


@pytest.mark.parametrize("hidden", ["treehammer.cli", "sqlalchemy"])
def test_bug_is_no_verdict(tmp_path: Path, hidden: str) -> None:
    done = run_without(tmp_path, hidden, "--database", "sqlite://", "status")
    assert done.returncode == errors.ExitCode.BUG
    report = "treehammer: this is a bug; report it with the lines above: https://"
    assert re.match(rf"Traceback .*\n{report}", done.stderr, re.DOTALL)


def test_missing_xrootd_client_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(errors, "find_spec", lambda _: None)
    with pytest.raises(MissingExtraError, match=r"uv pip .*python.*treehammer\[grid\]"):
        xrootd_door.stat_file("root://host//file")


def test_extras_are_declared_and_base_is_small() -> None:
    declared = configparser.ConfigParser(interpolation=None)
    declared.read(REPOSITORY / "setup.cfg", encoding="utf-8")
    assert set(EXTRA_OF_MODULE.values()) <= set(declared["options.extras_require"])
    names = re.findall(r"^[A-Za-z]", declared["options"]["install_requires"], re.MULTILINE)
    assert 0 < len(names) <= 8


def read_first_match(file: Path, pattern: str) -> str:
    """Return the first group of the first match of a pattern in a file."""
    match = re.search(pattern, file.read_text(encoding="utf-8"), re.MULTILINE)
    assert match, f"{file} has no {pattern}"
    return match.group(1)


def test_version_is_that_of_package_changelog_and_citation() -> None:
    citation, changelog = REPOSITORY / "CITATION.cff", REPOSITORY / "CHANGELOG.md"
    assert version("treehammer") == __version__
    newest = r"^## \[(\d[^\]]*)\] - \d{4}-\d{2}-\d{2}$"
    assert read_first_match(changelog, newest) == __version__
    assert read_first_match(citation, r"^version: (\S+)$") == __version__
    released = read_first_match(changelog, rf"^## \[{re.escape(__version__)}\] - (\S+)$")
    assert read_first_match(citation, r"^date-released: (\S+)$") == released


#: First version without a published hole, and the advisories that it fixes; looked up in 2026-11.
#: Packages that others bring along have a row if they handle data from the network.
#: Add a row for a new advisory, then raise the bound in setup.cfg or pyproject.toml.
FIXED = {
    "certifi": ("2024.7.4", "CVE-2024-39689"),
    "cryptography": ("50.0.0", "CVE-2026-26007, CVE-2026-39892, CVE-2026-69247, CVE-2026-69249"),
    "gitpython": ("3.1.59", "CVE-2026-42215, CVE-2026-67324, CVE-2026-78676, PYSEC-2026-3788"),
    "h11": ("0.16.0", "CVE-2025-43859"),
    "idna": ("3.15", "CVE-2024-3651, CVE-2026-45409"),
    "jinja2": ("3.1.6", "CVE-2024-56326, CVE-2025-27516"),
    "pillow": ("12.2.0", "CVE-2026-25990, CVE-2026-40192"),
    "pyarrow": ("23.0.1", "CVE-2023-47248, CVE-2026-25087"),
    "pydantic": ("2.4.0", "CVE-2024-3772"),
    "pyjwt": ("2.13.0", "CVE-2026-32597, CVE-2026-48523, CVE-2026-48526"),
    "pytest": ("9.0.3", "CVE-2025-71176"),
    "requests": ("2.33.0", "CVE-2024-47081, CVE-2026-25645"),
    "setuptools": ("83.0.0", "CVE-2025-47273, PYSEC-2026-3447"),
    "starlette": ("1.3.1", "CVE-2025-62727, CVE-2026-48710, CVE-2026-54282, CVE-2026-54283"),
    "urllib3": ("2.7.0", "CVE-2025-66418, CVE-2026-21441, CVE-2026-44431, CVE-2026-44432"),
    "uv": ("0.9.6", "CVE-2025-54368, CVE-2025-13327"),
    "uvicorn": ("0.11.7", "CVE-2020-7694, CVE-2020-7695"),
    "weasyprint": ("70", "CVE-2025-68616, CVE-2026-49452, CVE-2026-55073"),
    "werkzeug": ("3.1.6", "CVE-2026-21860, CVE-2026-27199"),
}
#: Requirements that only hold annotations for the type checker.
UNBOUND = {"pandas-stubs", "scipy-stubs", "types-jsonschema", "types-psutil"}


def list_requirements() -> Iterator[tuple[str, Requirement]]:
    """Yield each requirement with its section."""
    declared = configparser.ConfigParser(interpolation=None)
    declared.read(REPOSITORY / "setup.cfg", encoding="utf-8")
    build = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["build-system"]
    sections = {
        "build": build["requires"],
        "install": declared["options"]["install_requires"].splitlines(),
        **{name: text.splitlines() for name, text in declared["options.extras_require"].items()},
    }
    for section, lines in sections.items():
        for line in lines:
            if line and not line.startswith("treehammer[") and "< '3.11'" not in line:
                yield section, Requirement(line)


def lowest(requirement: Requirement) -> Version | None:
    bounds = [Version(part.version) for part in requirement.specifier if part.operator == ">="]
    return max(bounds, default=None)


def test_every_requirement_has_a_lower_bound() -> None:
    unbound = {item.name for _, item in list_requirements() if lowest(item) is None}
    assert unbound == UNBOUND


@pytest.mark.parametrize("name", FIXED)
def test_lower_bounds_exclude_known_holes(name: str) -> None:
    fixed, advisories = FIXED[name]
    bounds = {
        section: lowest(item)
        for section, item in list_requirements()
        if canonicalize_name(item.name) == name
    }
    assert bounds, f"no requirement bounds {name}: add one to setup.cfg"
    too_low = {
        section: str(bound)
        for section, bound in bounds.items()
        if bound is None or bound < Version(fixed)
    }
    assert not too_low, f"{name} {too_low} permits {advisories}; require {fixed}"
