"""Loading and checking of test.toml, lines and texts of mistakes, overrides, and the JSON Schema."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from treehammer import hctests
from treehammer.errors import DefinitionError, InvalidDocumentError
from treehammer.hctests import pinned_tests
from treehammer.hctests.cli import parse_axis_options
from treehammer.hctests.definition import definition_loader
from treehammer.hctests.definition.definition_loader import load_definition
from treehammer.hctests.definition.document_problems import KeyPath, find_line, locate_keys
from treehammer.hctests.definition.execution_order import expand_variants, group_variants
from treehammer.hctests.definition.toml_models import TestDefinition, build_test_schema
from treehammer.submit.sites.sites_file import read_sites_file

WriteTest = Callable[..., Path]


def only_problem(folder: Path) -> str:
    with pytest.raises(DefinitionError) as caught:
        load_definition(folder)
    (problem,) = caught.value.problems
    return problem


def override(folder: Path, *parameters: str, **settings: str) -> TestDefinition:
    typed = {key.replace("__", "."): value for key, value in settings.items()}
    return load_definition(folder, axes=parse_axis_options(parameters), settings=typed)


def test_defaults_are_filled_in(write_test: WriteTest) -> None:
    definition = load_definition(write_test())
    assert definition.axes == {
        "root": ("current",),
        "branches": (1.0,),
        "cache_mb": (30,),
        "events": (1.0,),
        "access": ("direct",),
        "cache": ("warm",),
    }
    test = definition.test
    assert (test.repeats, test.rounds, test.passes, test.seed) == (1, 2, 3, 1)
    assert (test.wall_limit_s, test.memory_limit_mb) == (600, 2000)
    assert test.tree == ""
    assert definition.matrix.bundle == ()
    assert test.files == ("test.toml", "read.py")
    assert definition.payload_kind == "python"


def test_axes_keep_the_order_of_test_toml(write_test: WriteTest) -> None:
    text = '[matrix]\nmine = ["x"]\nevents = [0.5]\nroot = ["6.40.00"]\nbundle = ["root"]\n'
    definition = load_definition(write_test(text))
    assert tuple(definition.axes)[:3] == ("mine", "events", "root")
    assert "bundle" not in definition.axes
    assert definition.matrix.bundle == ("root",)


def test_equal_numbers_are_one_value(write_test: WriteTest) -> None:
    a = load_definition(write_test("[matrix]\nbranches = [1]\nevents = [1]\ncache_mb = [30.0]\n"))
    b = load_definition(write_test("[matrix]\nbranches = [1.0]\nevents = [1.0]\ncache_mb = [30]\n"))
    assert repr(a.axes) == repr(b.axes)
    values = load_definition(write_test("[matrix]\nmine = [3.0, 0.5, 1e300]\n")).axes["mine"]
    assert list(map(repr, values)) == ["3", "0.5", "1e+300"]


def test_executable_payload_has_no_root(write_test: WriteTest) -> None:
    text = '[test]\nname = "mine"\npayload = "./run.sh"\n'
    definition = load_definition(write_test(text, run_sh="#!/bin/sh\n"))
    assert definition.payload_kind == "executable"
    assert definition.test.payload == "run.sh"
    assert definition.axes["root"] == ("none",)


def test_branch_list_is_one_of_the_files(write_test: WriteTest) -> None:
    text = 'files = ["helper.h"]\n[matrix]\nbranches = ["@list.txt", "Muon_*,Jet_pt"]\n'
    folder = write_test(text, helper_h="", list_txt="a\n")
    assert load_definition(folder).test.files == ("test.toml", "read.py", "helper.h", "list.txt")


def test_settings_rules_and_metrics_are_loaded(write_test: WriteTest) -> None:
    text = """
[matrix]
door = ["root", "https"]
cache_mb = [0, 30]
[[exclude]]
door = "https"
cache_mb = 0.0
[[include]]
cache_mb = 300
[settings]
nested = {list = [1, 2.5, true, "x"]}
[metrics.my_counter]
unit = "B"
better = "lower"
"""
    definition = load_definition(write_test(text))
    assert definition.exclude == ({"door": "https", "cache_mb": 0},)
    assert definition.include == ({"cache_mb": 300},)
    assert definition.settings == {"nested": {"list": [1, 2.5, True, "x"]}}
    assert definition.metrics["my_counter"].unit == "B"


def test_unreadable_test_toml_is_one_error(tmp_path: Path, write_test: WriteTest) -> None:
    with pytest.raises(DefinitionError, match="no test here"):
        load_definition(tmp_path / "nowhere")
    folder = write_test()
    (folder / "test.toml").write_bytes(b"\xff\xfe[test]")
    with pytest.raises(DefinitionError, match="UTF-16"):
        load_definition(folder)
    (folder / "test.toml").unlink()
    (folder / "test.toml").mkdir()
    with pytest.raises(DefinitionError, match="cannot be read"):
        load_definition(folder)


@pytest.mark.parametrize("table", ["settings", "environment"])
def test_tables_of_any_content_have_a_size(table: str, write_test: WriteTest) -> None:
    """Every job and plan repeats them, and a process has no room for such variables."""
    text = "[{}]\nX = '{}'\n"
    assert load_definition(write_test(text.format(table, "x" * 90_000)))
    with pytest.raises(DefinitionError) as caught:
        load_definition(write_test(text.format(table, "x" * 100_000)))
    (problem,) = caught.value.problems
    assert f"{table}: has 100,009 characters (expected at most 100,000" in problem


def test_link_out_of_the_folder_is_refused(tmp_path: Path, write_test: WriteTest) -> None:
    folder = write_test('files = ["inside.h", "outside.h"]\n')
    (tmp_path / "secret").write_text("x")
    os.symlink("read.py", folder / "inside.h")
    os.symlink("../secret", folder / "outside.h")
    assert "'outside.h' is a link to neither this test's folder nor one" in only_problem(folder)


def test_link_to_a_file_of_a_test_beside_is_accepted(tmp_path: Path, write_test: WriteTest) -> None:
    folder = write_test('files = ["shared.h"]\n')
    neighbor = tmp_path / "neighbor"
    neighbor.mkdir()
    (neighbor / "shared.h").write_text("x")
    os.symlink("../neighbor/shared.h", folder / "shared.h")
    assert "is a link to neither" in only_problem(folder)
    (neighbor / "test.toml").write_text("")
    assert "shared.h" in load_definition(folder).test.files


def test_lfs_pointer_is_refused(write_test: WriteTest) -> None:
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"
    assert "Git LFS pointer" in only_problem(write_test(read_py=pointer))


@pytest.mark.parametrize(
    "text",
    [
        'passes = 1\n[matrix]\ncache = ["cold"]\n',
        '[test]\nname = "mine"\npayload = "run.sh"\npasses = 1\n',
    ],
    ids=["cold", "executable"],
)
def test_one_pass_is_enough(write_test: WriteTest, text: str) -> None:
    assert load_definition(write_test(text, run_sh="#!/bin/sh\n")).test.passes == 1


@pytest.fixture
def overridden(write_test: WriteTest) -> Path:
    text = """dataset = "one"
files = ["other.txt"]
[matrix]
root = ["6.38.00", "6.40.00"]
branches = [1.0, "@list.txt"]
cache_mb = [0, 30]
layout = ["a", "b"]
fast = [true]
[[exclude]]
cache_mb = 30
root = "6.38.00"
[settings]
text = "1"
number = 1
deep = {er = 0.5}
"""
    return write_test(text, list_txt="", other_txt="")


def test_typed_axis_values_get_the_axis_type(overridden: Path) -> None:
    definition = load_definition(overridden)
    changed = override(
        overridden,
        "root=6.40.00",
        "branches=0.5,Muon_*\\,Jet_pt",
        "branches=@other.txt",
        "cache_mb=0,2.5",
        "layout=1",
        "fast=false",
        "door=root,https",
        "server_cache=cold",
        "bundle=layout,cache_mb",
    )
    assert changed.axes["root"] == ("6.40.00",)
    assert changed.axes["branches"] == (0.5, "Muon_*,Jet_pt", "@other.txt")
    assert changed.axes["cache_mb"] == (0, 2.5)
    assert changed.axes["layout"] == ("1",)
    assert changed.axes["fast"] == (False,)
    assert changed.axes["door"] == ("root", "https")
    assert changed.axes["server_cache"] == ("cold",)
    assert changed.matrix.bundle == ("layout", "cache_mb")
    assert changed.test.files == definition.test.files


def test_typed_keys_get_the_key_type(overridden: Path) -> None:
    definition = load_definition(overridden)
    changed = override(
        overridden,
        repeats="6",
        wall_limit_s="1.5",
        dataset="7",
        settings__text="2",
        settings__number="3",
        settings__deep__er="1",
    )
    assert (changed.test.repeats, changed.test.wall_limit_s, changed.dataset) == (6, 1.5, "7")
    assert changed.settings == {"text": "2", "number": 3, "deep": {"er": 1}}
    assert definition.settings["deep"] == {"er": 0.5}


def test_replaced_value_need_not_be_valid(write_test: WriteTest) -> None:
    folder = write_test("repeats = 0\n[matrix]\nevents = [2]\n")
    changed = override(folder, "events=0.5", repeats="3")
    assert (changed.test.repeats, changed.axes["events"]) == (3, (0.5,))
    with pytest.raises(DefinitionError) as caught:
        override(folder, "events=0.5")
    # Mistakes of test.toml itself come first, all of them.
    assert [problem.split(": ")[1] for problem in caught.value.problems] == [
        "test.repeats",
        "matrix.events",
    ]


def test_rules_with_removed_values_are_dropped(overridden: Path) -> None:
    definition = load_definition(overridden)
    assert override(overridden, "cache_mb=0").exclude == ()
    assert override(overridden, "cache_mb=0,30").exclude == definition.exclude
    assert override(overridden, "layout=z").exclude == definition.exclude


def test_twins_of_removed_formats_are_dropped() -> None:
    """Otherwise the shipped rdf-read could not read its TTree alone."""
    shipped = Path(hctests.__file__).parent / "rdf-read"
    assert override(shipped, "format=ttree").twins == {}
    assert set(override(shipped, "format=rntuple").twins) == {"rntuple"}


FORMATS = """dataset = "d"
[matrix]
format = ["ttree", "rntuple"]
[twins]
rntuple = "d-rntuple"
"""


def test_variant_reads_the_dataset_of_its_format(write_test: WriteTest) -> None:
    folder = write_test(FORMATS)
    definition = load_definition(folder)
    variants = expand_variants(definition, "file")
    read = {str(variant["format"]): definition.dataset_for(variant) for variant in variants}
    assert read == {"ttree": "d", "rntuple": "d-rntuple"}
    typed = override(folder, twins__rntuple="other", dataset="o")
    assert [typed.dataset_for(variant) for variant in variants] == ["o", "other"]


DATASETS = """[matrix]
dataset = ["a", "b"]
[[include]]
dataset = "c"
events = 0.5
"""


def test_datasets_are_an_axis_outside_the_identity(write_test: WriteTest) -> None:
    definition = load_definition(write_test(DATASETS))
    variants = expand_variants(definition, "file")
    assert [definition.dataset_for(variant) for variant in variants] == ["a", "b", "c"]
    assert definition.dataset_names == ("a", "b", "c")
    assert definition.dataset == "a"
    assert variants[0].canonical_json == variants[1].canonical_json
    assert "dataset" not in variants[0].canonical_json
    groups = group_variants(definition, "file")
    assert len({group.key for group in groups}) == 3


def test_typed_datasets_replace_those_of_the_file(write_test: WriteTest) -> None:
    folder = write_test('dataset = "d"')
    assert override(folder, "dataset=x,y").dataset_names == ("x", "y")
    assert override(write_test(DATASETS), dataset="x").dataset_names == ("x",)


def test_libraries_are_files_of_the_test(write_test: WriteTest) -> None:
    folder = write_test(
        'imports = ["prepare", "a.b"]\nload = ["libMine.so", "/cvmfs/x/libOther.so.3"]\n'
        'files = ["libMine_rdict.pcm"]'
    )
    for name in ("libMine.so", "libMine_rdict.pcm"):
        (folder / name).touch()
    definition = load_definition(folder)
    assert definition.test.load == ("libMine.so", "/cvmfs/x/libOther.so.3")
    assert definition.test.imports == ("prepare", "a.b")
    assert set(definition.test.files) == {"test.toml", "read.py", "libMine.so", "libMine_rdict.pcm"}
    assert override(folder, repeats="2").test.load == definition.test.load


@pytest.mark.parametrize(
    "keys, expected",
    [
        ('load = ["libGone.so"]', "there is no file 'libGone.so'"),
        ('load = ["libMine.so"]', "'libMine.so' needs 'libMine_rdict.pcm': add it to files"),
    ],
)
def test_missing_libraries_are_reported(write_test: WriteTest, keys: str, expected: str) -> None:
    folder = write_test(keys)
    for name in ("libMine.so", "libMine_rdict.pcm"):
        (folder / name).touch()
    assert expected in only_problem(folder)


@pytest.mark.parametrize("load", ["", "[load]\nstep_s = 1.0"])
def test_reads_in_states_of_a_cache_bundle_doors(write_test: WriteTest, load: str) -> None:
    # One pass counts, since each execution reads once.
    text = 'passes = 1\n[matrix]\nserver_cache = ["half"]\ndoor = ["a", "b"]\nbundle = ["door"]\n'
    assert load_definition(write_test(text + load)).bundles_doors


DOCUMENT = """# a comment
top = 1

[test]
name = "a"
"quoted \\u00e9" = 2
a.b = 3
[matrix]
x = [
  1,  # one
  "two",

  [3, 4],
]
text = '''
[not.a.table]
k = 1
'''
[[exclude]]
y = 1
[[exclude]]
y = 2
z = {k = 1, l = [1, 2]}
[exclude.below]
q = 1
[metrics.m]
unit = "1"
"""


@pytest.mark.parametrize(
    ("path", "line"),
    [
        (("top",), 2),
        (("test",), 4),
        (("test", "name"), 5),
        (("test", "quoted é"), 6),
        (("test", "a", "b"), 7),
        (("matrix", "x"), 9),
        (("matrix", "x", 0), 10),
        (("matrix", "x", 1), 11),
        (("matrix", "x", 2, 1), 13),
        (("exclude", 0), 19),
        (("exclude", 0, "y"), 20),
        (("exclude", 1, "y"), 22),
        (("exclude", 1, "z", "l", 1), 23),
        (("exclude", 1, "below", "q"), 25),
        (("metrics",), 26),
        (("metrics", "m", "unit"), 27),
        # Keys that are missing have the line of their table.
        (("test", "payload"), 4),
        (("nowhere", "at", "all"), 1),
    ],
)
def test_line_of_every_key(path: KeyPath, line: int) -> None:
    assert find_line(locate_keys(DOCUMENT), path) == line


def _paths(value: Any, path: KeyPath = ()) -> list[KeyPath]:
    if isinstance(value, dict):
        return [path, *(p for key, item in value.items() for p in _paths(item, (*path, key)))]
    if isinstance(value, list):
        return [path, *(p for n, item in enumerate(value) for p in _paths(item, (*path, n)))]
    return [path]


def test_every_path_of_tomllib_has_a_line() -> None:
    assert set(_paths(tomllib.loads(DOCUMENT))) <= set(locate_keys(DOCUMENT))


PUBLISHED = json.loads((pinned_tests.SHIPPED_TESTS_FOLDER / "test.schema.json").read_text())
VALIDATOR = jsonschema.Draft202012Validator(PUBLISHED)


def test_published_schema_is_up_to_date() -> None:
    assert build_test_schema() == PUBLISHED, (
        "run: treehammer tests schema > hctests/test.schema.json"
    )
    jsonschema.Draft202012Validator.check_schema(PUBLISHED)


@pytest.mark.parametrize("name", pinned_tests.list_shipped_tests())
def test_shipped_tests_are_valid(name: str) -> None:
    folder = pinned_tests.SHIPPED_TESTS_FOLDER / name
    assert definition_loader.load_definition(folder).test.name
    VALIDATOR.validate(tomllib.loads((folder / "test.toml").read_text()))


@pytest.mark.parametrize(
    "text",
    [
        "[matrix]\nroot = [6.40]\n",
        "[matrix]\nbranches = [0.0]\n",
        "[matrix]\nbranches = []\n",
        "[matrix]\ncache = ['hot']\n",
        "[matrix]\nMine = [1]\n",
        "[matrix]\nmine = 1\n",
        "[exclude]\nroot = '6.40.00'\n",
        "[metrics.mine]\nbetter = 'less'\n",
        "[metrix]\n",
    ],
)
def test_schema_rejects_mistakes(write_test: WriteTest, text: str) -> None:
    folder = write_test(text)
    raw = tomllib.loads((folder / "test.toml").read_text())
    with pytest.raises(jsonschema.ValidationError):
        VALIDATOR.validate(raw)
    with pytest.raises(DefinitionError):
        definition_loader.load_definition(folder)


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
