"""Completion of shipped tests in the shell."""

from __future__ import annotations

from treehammer.hctests.git import pinned_tests
from treehammer.terminal import complete_names

complete_tests = complete_names(lambda _settings: pinned_tests.list_shipped_tests())
