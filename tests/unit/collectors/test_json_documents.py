"""Conversion between dataclasses and JSON documents."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, Optional, Union

import pytest

from treehammer.collectors.job_spec import JobSpec
from treehammer.collectors.json_documents import (
    DocumentError,
    decode_json,
    format_json,
    measure_depth,
    parse_document,
    parse_json,
)
from treehammer.collectors.record.measurement_record import Measurement
from treehammer.collectors.worker.run.execution_record import read_payload_result
from treehammer.datasets.catalogues.recordings import _read_process
from treehammer.datasets.manifest import Manifest
from treehammer.errors import TreehammerError


class State(Enum):
    OPEN = "open"
    SHUT = "shut"


@dataclass(frozen=True)
class Door:
    name: str
    port: int = 1094


@dataclass(frozen=True)
class Storage:
    state: State
    folder: Path
    doors: tuple[Door, ...]
    range: tuple[float, float]
    axes: Mapping[str, Union[str, int, bool]] = field(default_factory=dict)  # noqa: UP007
    starts: dict[int, Door] = field(default_factory=dict)
    first: Optional[Door] = None  # noqa: UP045 - as the worker writes it
    note: str | None = None
    free: Any = None
    command: Sequence[str] = ()


STORAGE = Storage(
    State.OPEN,
    Path("/data"),
    (Door("root"), Door("https", 443)),
    (1, 2.5),
    {"cache": "cold", "threads": 2, "warm": True},
    {3: Door("late")},
    Door("first"),
    free={"anything": [1]},
    command=("env", "xrootd"),
)


def test_document_returns_as_the_same_dataclass() -> None:
    assert parse_json(Storage, format_json(STORAGE)) == STORAGE
    minimal = {"state": "shut", "folder": ".", "doors": [], "range": [0, 1]}
    assert parse_document(Storage, minimal) == Storage(State.SHUT, Path(), (), (0, 1))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"state": "ajar"}, "state: expected one of open, shut, not 'ajar'"),
        ({"folder": 7}, "folder: expected text, not 7"),
        ({"doors": {}}, "doors: expected a list, not {}"),
        ({"doors": [{"name": 1}]}, "doors[0].name: expected text, not 1"),
        ({"doors": [{}]}, "doors[0].name: is missing"),
        ({"doors": [{"name": "a", "prot": 1}]}, "doors[0].prot: unknown key"),
        ({"range": [1]}, "range: expected a list of 2 values, not [1]"),
        ({"range": [1, True]}, "range[1]: expected a number, not True"),
        ({"axes": {"a": None}}, "axes.a: expected text, not None"),
        ({"axes": []}, "axes: expected an object, not []"),
        ({"starts": {"3": {"name": "a", "port": 1.5}}}, "starts.3.port: expected a whole number"),
        ({"first": 1}, "first: expected an object, not 1"),
        ({"note": 1}, "note: expected text, not 1"),
    ],
)
def test_each_mistake_is_named_by_its_key(change: dict[str, Any], problem: str) -> None:
    document = {**json.loads(format_json(STORAGE)), **change}
    with pytest.raises(DocumentError) as caught:
        parse_document(Storage, document)
    assert [text[: len(problem)] for text in caught.value.problems] == [problem]


@pytest.mark.parametrize("text", ["[" * 100_000, b'{"a":' * 100_000, "nonsense", b"\xff"])
def test_text_of_others_is_refused_as_one_kind_of_error(text: str | bytes) -> None:
    with pytest.raises(ValueError, match=r"nested too deeply|Expecting value|decode byte"):
        decode_json(text)


@pytest.mark.parametrize(
    ("document", "depth"), [(1, 0), ([], 1), ({"a": [1, {"b": 2}], "c": 3}, 3), ([[[]], [[[]]]], 4)]
)
def test_depth_is_that_of_the_deepest_branch(document: object, depth: int) -> None:
    assert measure_depth(document) == depth


def test_all_mistakes_are_reported_at_once() -> None:
    with pytest.raises(DocumentError) as caught:
        parse_document(Storage, {"state": 1, "surprise": 2})
    assert len(caught.value.problems) == 5
    with pytest.raises(DocumentError, match="document: expected an object"):
        parse_document(Storage, [])


def _read_result(folder: Path) -> None:
    problem = read_payload_result(str(folder / "file.json"), {}).problem
    raise ValueError(problem.message if problem else "")


@pytest.mark.parametrize(
    ("kind", "read"),
    [
        ("dataset", Manifest.read),
        ("payload's result", _read_result),
        ("record", lambda folder: Measurement.from_json((folder / "file.json").read_text())),
        ("job", lambda folder: JobSpec.from_json((folder / "file.json").read_text())),
        ("recorded process", lambda folder: _read_process(folder / "file.json")),
    ],
)
def test_repeated_keys_are_refused(
    kind: str, read: Callable[[Path], object], tmp_path: Path
) -> None:
    for name in ("file.json", "manifest.json"):
        (tmp_path / name).write_text('{"a": 1, "values": {"b": 1, "c": 2, "b": 3}}')
    with pytest.raises((ValueError, TreehammerError), match="duplicate key 'b'"):
        read(tmp_path)
