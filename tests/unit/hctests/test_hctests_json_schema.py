"""The published JSON Schema of test.toml."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from pathlib import Path

import jsonschema
import pytest

from treehammer.errors import DefinitionError
from treehammer.hctests import pinned_tests
from treehammer.hctests.definition import definition_loader
from treehammer.hctests.definition.toml_models import build_test_schema

WriteTest = Callable[..., Path]
PUBLISHED = pinned_tests.SHIPPED_TESTS_FOLDER / "test.schema.json"


def test_published_schema_is_up_to_date() -> None:
    published = json.loads(PUBLISHED.read_text())
    assert published == build_test_schema(), (
        "run: treehammer tests schema > hctests/test.schema.json"
    )
    jsonschema.Draft202012Validator.check_schema(published)


@pytest.mark.parametrize("name", pinned_tests.list_shipped_tests())
def test_shipped_tests_are_valid(name: str) -> None:
    folder = pinned_tests.SHIPPED_TESTS_FOLDER / name
    assert definition_loader.load_definition(folder).name
    jsonschema.validate(tomllib.loads((folder / "test.toml").read_text()), build_test_schema())


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
        jsonschema.validate(raw, build_test_schema())
    with pytest.raises(DefinitionError):
        definition_loader.load_definition(folder)
