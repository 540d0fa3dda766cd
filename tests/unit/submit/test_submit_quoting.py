"""Quoting for HTCondor: text round-trips and does not affect its neighbors."""

from __future__ import annotations

import importlib
import os
import shlex
from collections.abc import Callable
from types import ModuleType

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from treehammer.submit.templates import template_engine

HOSTILE_TEXTS = [
    'a"b\\c',
    "x\ny = 1\nqueue 5",
    "$(A) $$(B) $$$(C) $$([1]) $ENV(HOME) $",
    "it's",
    "ends in \\",
    "# {% if %} {{ 7 * 7 }}",
    "\u2028\x85\x01\x7f é 😀",
    "\\101 \\n",
]


def load_condor() -> ModuleType:
    """Load HTCondor's own parser of submit descriptions, without a configuration."""
    os.environ.setdefault("CONDOR_CONFIG", "/dev/null")
    return importlib.import_module("htcondor2")


def _expanded(condor: ModuleType, name: str, value: str) -> str:
    """Return a value after the expansions at submission and at matchmaking."""
    submit = condor.Submit(f"before = 1\n{name} = {value}\nafter = 2\n")
    assert (submit.expand("before"), submit.expand("after")) == ("1", "2")
    assert len(submit.keys()) == 3
    return str(submit.expand(name)).replace("$$(DOLLARDOLLAR)", "$$")


def _with_hostile_examples(test: Callable[[str], None]) -> Callable[[str], None]:
    for text in HOSTILE_TEXTS:
        test = example(text)(test)
    return test


@_with_hostile_examples
@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00")))
def test_classad_string_round_trips(text: str) -> None:
    condor, classad = load_condor(), importlib.import_module("classad2")
    expanded = _expanded(condor, "My.X", template_engine.quote_classad(text))
    assert classad.ExprTree(expanded).eval() == text


@pytest.mark.parametrize("text", HOSTILE_TEXTS)
def test_submit_value_is_one_line(text: str) -> None:
    expanded = _expanded(load_condor(), "batch_name", template_engine.quote_submit_value(text))
    shown = "".join(c if c.isprintable() else " " for c in text).strip()
    assert expanded == (shown + "." if shown.endswith("\\") else shown)


def test_environment_quotes_spaces_and_dollars() -> None:
    text = template_engine.quote_environment({"B": 'it\'s "so" $(X) $$(Y)', "A": "1"})
    assert text == "\"'A=1' 'B=it''s \"\"so\"\" $(DOLLAR)(X) $$(DOLLARDOLLAR)(Y)'\""


@pytest.mark.parametrize("name, value", [("A B", "x"), ("A", "x\ny"), ("A", "\x00")])
def test_invalid_environment_variable_is_refused(name: str, value: str) -> None:
    with pytest.raises(ValueError, match="cannot be set in a job"):
        template_engine.quote_environment({name: value})


@pytest.mark.parametrize(
    "quote",
    [
        template_engine.quote_submit_value,
        template_engine.quote_classad,
        template_engine.flatten_expression,
    ],
)
def test_lone_surrogate_is_refused(quote: object) -> None:
    assert callable(quote)
    with pytest.raises(ValueError, match="not valid text"):
        quote("\udc80")


@pytest.mark.parametrize("path", ["/usr/bin/python3", "/opt/my python", "/it's/python"])
def test_shell_word_round_trips(path: str) -> None:
    word = template_engine.quote_shell_word(path)
    assert shlex.split(word.replace("''", "'").replace('""', '"')) == [path]


def test_expression_is_flattened() -> None:
    assert template_engine.flatten_expression(' TARGET.A\n  == "b" ') == 'TARGET.A == "b"'
