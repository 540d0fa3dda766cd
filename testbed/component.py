"""The interface of a testbed's components.

A component names the packages that it needs, writes its configuration (rendered from ``templates``),
and names the daemons that the lifecycle starts and stops.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import jinja2

from treehammer.testbed.debian_packages import PackageTree
from treehammer.testbed.workspace import ProgressCallback, Workspace


@dataclass(frozen=True)
class VisibleFolder:
    """A folder that jobs see although its surroundings are hidden.

    ``source`` appears at ``target``, which may be the same path; read-only unless ``writable``.
    """

    source: Path
    target: Path
    writable: bool = False


@dataclass(frozen=True)
class DaemonSpec:
    """A process that runs until ``down``, in its own session.

    Its log is ``FOLDER/logs/NAME.log``, and :data:`ENVIRONMENT_MARK` is added to its environment.
    As root, it runs as the testbed's user, who can read the package cache even below root's home.

    Attributes:
        name: of its log and in ``testbed status``.
        command: program and arguments; stays in the foreground.
        env: its complete environment.
        folder: its working folder.
        privileged: whether it runs as the current user instead of the testbed's user.
        command_prefix: prefix that starts it as root before it changes to the testbed's user, e.g.
            ``("ip", "netns", "exec", NAME)``.
        stop_signal: for an orderly end.
    """

    name: str
    command: Sequence[str]
    env: Mapping[str, str]
    folder: Path
    privileged: bool = False
    command_prefix: Sequence[str] = ()
    stop_signal: int = 15


class Component:
    """One service of a testbed; a method without an effect for most components does nothing here.

    The lifecycle calls ``install`` (all components at once), then ``configure`` and ``daemons`` of one
    after the other, ``describe_missing`` until it is '', and ``finish_setup``. All changes of a
    component are below the testbed's folder, or end with its daemons.

    Args:
        box: the testbed.

    Attributes:
        name: of the component, in messages.
        packages: Debian packages that it needs.
        job_views: folders that jobs see, of all components; empty before ``configure``.
    """

    name: str
    packages: tuple[PackageTree, ...] = ()

    def __init__(self, box: Workspace) -> None:
        self.box = box
        self.job_views: Sequence[VisibleFolder] = ()

    def install(self, say: ProgressCallback) -> None:
        """Install its programs into the cache; fast if they exist.

        Raises:
            treehammer.errors.TestbedError: they cannot be fetched; with a remedy.
        """
        for tree in self.packages:
            tree.unpack(self.box.cache, say)

    def visible_folders(self) -> Sequence[VisibleFolder]:
        """Return its folders that jobs see; called after all components are installed."""
        return ()

    def configure(self) -> None:
        """Write its configuration below the testbed's folder."""

    def daemons(self) -> Sequence[DaemonSpec]:
        """Return the daemons to start, in order."""
        return ()

    def describe_missing(self) -> str:
        """Describe parts that are not ready, '' if all are; fast, called repeatedly."""
        return ""

    def finish_setup(self) -> None:
        """Write values that are known only when all components are ready, such as ports."""


def render_template(name: str, **values: object) -> str:
    """Render a template; every value that it names must be given."""
    return _make_environment().get_template(name).render(values)


@cache
def _make_environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        undefined=jinja2.StrictUndefined,
        autoescape=False,  # noqa: S701 - configuration, not HTML
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["quote"] = shlex.quote
    return environment
