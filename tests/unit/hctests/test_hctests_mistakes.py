"""Every kind of mistake in test.toml, in ``-P`` and ``-S``, and in sites.toml, with its full text.

Each line of ``mistakes.jsonl`` changes keys of a valid document, its base, or holds a document of its
own, and lists the problems that are reported for it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from treehammer.errors import InvalidDocumentError
from treehammer.hctests.definition.definition_loader import load_definition
from treehammer.submit.sites.sites_file import read_sites_file

FILE = Path(__file__).with_name("mistakes.jsonl")
HEADER, *CASES = map(json.loads, FILE.read_text(encoding="utf-8").splitlines())
TEST_FILES = {"read.py": "print()\n", "run.sh": "#!/bin/sh\n", "list.txt": "", "other.txt": ""}


def render(tables: Mapping[str, Mapping[str, str]]) -> str:
    return "".join(
        f"[{table}]\n" + "".join(f"{key} = {value}\n" for key, value in keys.items())
        for table, keys in tables.items()
    )


def build_document(case: Mapping[str, Any]) -> str:
    if "toml" in case:
        return str(case["toml"])
    tables = {table: dict(keys) for table, keys in HEADER["bases"][case["base"]].items()}
    for name in case.get("without", ()):
        table, _, key = name.partition(" ")
        if key:
            del tables[table][key]
        else:
            del tables[table]
    for name, value in case.get("with", {}).items():
        table, _, key = name.partition(" ")
        tables[table][key] = value
    return render(tables)


def list_problems(case: Mapping[str, Any], folder: Path) -> list[str]:
    """List the problems of a case without the name of the file."""
    is_sites = "sites" in (case.get("base"), case.get("kind"))
    path = folder / ("sites.toml" if is_sites else "test.toml")
    path.write_text(build_document(case), encoding="utf-8")
    try:
        if is_sites:
            read_sites_file(path)
        else:
            load_definition(folder, axes=case.get("P", {}), settings=case.get("S", {}))
    except InvalidDocumentError as error:
        return [problem.removeprefix(f"{path}:") for problem in error.problems]
    return []


@pytest.mark.parametrize("group", sorted({case["group"] for case in CASES}))
def test_mistakes_are_reported_with_line_key_and_remedy(tmp_path: Path, group: str) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    for name, text in {**TEST_FILES, "lib.so": ""}.items():
        (folder / name).write_text(text)
    (folder / "run.sh").chmod(0o755)
    cases = [case for case in CASES if case["group"] == group]
    reported = [{**case, "problems": list_problems(case, folder)} for case in cases]
    assert reported == cases
