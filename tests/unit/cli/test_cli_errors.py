"""Errors: location, remedy and documented exit codes."""

import inspect

from treehammer import errors


def test_exit_codes_match_documentation() -> None:
    assert {code.name: int(code) for code in errors.ExitCode} == {
        "DONE": 0,
        "REGRESSION": 1,
        "USAGE": 2,
        "NOTHING": 3,
        "INFRASTRUCTURE": 4,
        "INTERRUPTED": 130,
    }


def test_all_errors_share_one_base_class() -> None:
    classes = [
        c for _, c in inspect.getmembers(errors, inspect.isclass) if issubclass(c, Exception)
    ]
    assert len(classes) > 5
    assert all(issubclass(c, errors.TreehammerError) for c in classes)


def test_error_text_contains_location_message_hint_and_problems() -> None:
    error = errors.DefinitionError(
        "2 mistakes", where="test.toml", hint="Mend them.", problems=("a: x", "b: y")
    )
    assert str(error).splitlines() == ["test.toml: 2 mistakes", "  Mend them.", "  a: x", "  b: y"]
