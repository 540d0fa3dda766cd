"""``tests check --compile`` with a real ROOT."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner

from treehammer import config
from treehammer.submit.cli.tests_check_command import tests as commands

TEST = """\
[test]
name = "mine"
payload = "loop.C"
files = ["good.hpp"]

[matrix]
root = ["6.40.00"]
"""


def test_error_of_the_compiler_is_reported(tmp_path: Path) -> None:
    (tmp_path / "test.toml").write_text(TEST)
    (tmp_path / "good.hpp").write_text("inline int two(treehammer::Pass &) { return 2; }\n")
    loop = tmp_path / "loop.C"
    loop.write_text(
        '#include "good.hpp"\n#include "missing.hpp"\nvoid loop(treehammer::Pass &) {}\n'
    )
    arguments = ["check", str(tmp_path), "--compile"]
    result = CliRunner().invoke(commands, arguments, obj=config.load_settings())
    assert result.exit_code == 2, result.output
    assert result.output == (
        f"{tmp_path / 'test.toml'}: test.files: loop.C does not compile with ROOT 6.40.00. "
        f"{loop}:2:10: fatal error: 'missing.hpp' file not found\n"
    )
