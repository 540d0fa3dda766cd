from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from pathlib import Path

import jsonschema
import pytest

from treehammer.errors import DefinitionError
from treehammer.hctests import document, schema, source

WriteTest = Callable[..., Path]
PUBLISHED = source.SHIPPED / "test.schema.json"


def test_the_published_schema_is_the_one_of_the_models() -> None:
    published = json.loads(PUBLISHED.read_text())
    assert published == document.json_schema(), (
        "run: treehammer tests schema > hctests/test.schema.json"
    )
    jsonschema.Draft202012Validator.check_schema(published)


@pytest.mark.parametrize("name", source.shipped())
def test_shipped_tests_are_right_by_both(name: str) -> None:
    folder = source.SHIPPED / name
    assert schema.load(folder).name
    jsonschema.validate(tomllib.loads((folder / "test.toml").read_text()), document.json_schema())


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
def test_an_editor_flags_what_the_check_refuses(write_test: WriteTest, text: str) -> None:
    folder = write_test(text)
    raw = tomllib.loads((folder / "test.toml").read_text())
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(raw, document.json_schema())
    with pytest.raises(DefinitionError):
        schema.load(folder)
