"""One version everywhere: package, changelog and citation."""

from __future__ import annotations

import re
from importlib.metadata import version
from pathlib import Path

from demo_checkout import REPOSITORY

from treehammer.version import __version__


def read_first_match(file: Path, pattern: str) -> str:
    """Return the first group of the first match of a pattern in a file."""
    match = re.search(pattern, file.read_text(encoding="utf-8"), re.MULTILINE)
    assert match, f"{file} has no {pattern}"
    return match.group(1)


def test_installed_metadata_has_the_version() -> None:
    assert version("treehammer") == __version__


def test_newest_release_in_changelog_is_the_version() -> None:
    newest = r"^## \[(\d[^\]]*)\] - \d{4}-\d{2}-\d{2}$"
    assert read_first_match(REPOSITORY / "CHANGELOG.md", newest) == __version__


def test_citation_names_version_and_date_of_the_changelog() -> None:
    citation, changelog = REPOSITORY / "CITATION.cff", REPOSITORY / "CHANGELOG.md"
    assert read_first_match(citation, r"^version: (\S+)$") == __version__
    released = read_first_match(changelog, rf"^## \[{re.escape(__version__)}\] - (\S+)$")
    assert read_first_match(citation, r"^date-released: (\S+)$") == released
