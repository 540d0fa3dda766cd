"""Options that add tests which watch servers to a campaign."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from treehammer.config import Settings
from treehammer.errors import ConfigError
from treehammer.hctests.cli.definition_options import load_pinned_test
from treehammer.hctests.matrix.definition import TestDefinition
from treehammer.submit.planning.server_watch import ServerWatch, make_watch
from treehammer.submit.sites.site_model import Site

_PREFIX = "watch."


def split_overrides(overrides: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Split ``-S`` into the test's own and the settings of tests that watch servers."""
    test_overrides = {key: value for key, value in overrides.items() if not key.startswith(_PREFIX)}
    watch = {key: value for key, value in overrides.items() if key.startswith(_PREFIX)}
    return test_overrides, {key.removeprefix(_PREFIX): value for key, value in watch.items()}


def load_watches(
    specs: Sequence[str],
    sites: Sequence[Site],
    settings: Mapping[str, str],
    loading: TestDefinition,
    config: Settings,
) -> list[ServerWatch]:
    """Pin the tests that watch servers.

    Args:
        specs: the tests.
        sites: sites whose jobs run on the servers.
        settings: key of [settings] -> value as typed, for the tests that have this key.
        loading: the test that loads the storage.
        config: all settings.

    Raises:
        ConfigError: an option is missing, given twice, or without effect.
        TreehammerError: a test cannot be fetched, or has mistakes.
    """
    _check_options(specs, sites, settings)
    watches = []
    unused = set(settings)
    for spec in specs:
        test_settings = load_pinned_test(spec, {}, {}, config).definition.settings
        applicable = {
            key: value for key, value in settings.items() if key.partition(".")[0] in test_settings
        }
        unused -= set(applicable)
        overrides = {f"settings.{key}": value for key, value in applicable.items()}
        watches.append(make_watch(load_pinned_test(spec, {}, overrides, config), sites, loading))
    if unused:
        raise ConfigError(
            "no test of --watch has this key in its [settings]",
            where=f"-S {_PREFIX}{min(unused)}",
        )
    names = [watch.pinned.definition.name for watch in watches]
    if len(set(names)) < len(names):
        raise ConfigError("two tests have the same name", where=f"--watch {', '.join(names)}")
    return watches


def _check_options(
    specs: Sequence[str], sites: Sequence[Site], settings: Mapping[str, str]
) -> None:
    if specs and not sites:
        raise ConfigError(
            "no server named",
            where="--watch",
            hint="Add --watch-at SITES: entries of the sites file whose jobs run on the servers.",
        )
    if (sites or settings) and not specs:
        raise ConfigError(
            "nothing watches",
            where="--watch-at" if sites else f"-S {_PREFIX}{min(settings)}",
            hint="Add --watch server-watch or --watch log-parse.",
        )
