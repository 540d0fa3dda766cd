"""A ROOT behind a command prefix: ``apptainer exec IMAGE``, ``bwrap ...``, a script of the site.

The prefix alone runs on the host.  What comes after it is a shell inside, which puts the kit in
front of the inside's own ``PYTHONPATH``, so that nothing depends on which variables a container
runtime lets through or what its image sets.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
from dataclasses import dataclass
from typing import List, Mapping, Tuple

from ..job_spec import SoftwareRequest
from .provider_tools import drop_foreign_root, raise_setup_error, run_tool

#: The interpreter inside, which must find ROOT.
WRAPPED_PYTHON = "python3"

#: What a prefix may hold in braces, for containers that are told what they may see.
PLACEHOLDERS = {
    "work": "folder of the execution: current folder, job, result, staged input",
    "payload": "folder of the test's files",
    "kit": "folder of the payload kit",
    "input": "folder that holds all local input files",
    "folders": "all four, separated by commas, as apptainer's --bind takes them",
}
_PLACEHOLDER = re.compile(r"\{(\w+)\}")
_REMOTE_IMAGE = re.compile(r"(docker|oras|library|shub|https?)://")

_INNER_COMMAND = (
    "PYTHONPATH=$1${PYTHONPATH:+:$PYTHONPATH}; PYTHONNOUSERSITE=1; export PYTHONPATH "
    'PYTHONNOUSERSITE; cd "$2" || exit 1; shift 2; exec "$@"'
)
_PROBE_SCRIPT = """
import importlib.util, json, os, sys, tempfile
try:
    tempfile.TemporaryFile(dir=".").close()
    writable = True
except OSError:
    writable = False
print(json.dumps({
    "root": importlib.util.find_spec("ROOT") is not None,
    "version": sys.version.split()[0],
    "unseen": [path for path in sys.argv[1:] if not os.path.exists(path)],
    "writable": writable,
}))
"""


@dataclass(frozen=True)
class CommandWrapper:
    """A prefix with its placeholders filled in, and the two folders that are always needed."""

    prefix: Tuple[str, ...]
    kit: str
    work: str

    def build_command(self, inside: List[str], variables: Mapping[str, str]) -> List[str]:
        """The arguments that run ``inside`` behind the prefix, given these variables."""
        settings = [f"{name}={value}" for name, value in variables.items()]
        shell = ["sh", "-c", _INNER_COMMAND, "treehammer", self.kit, self.work]
        return [*self.prefix, *shell, "env", *settings, *inside]


def parse_wrap(text: str, prefix: str, version: str) -> SoftwareRequest:
    """A request for what stands behind ``prefix``, which becomes its location.

    Raises:
        ValueError: it is no command, or not one that a job may run.
    """
    try:
        words = shlex.split(prefix)
    except ValueError as error:
        raise ValueError(f"{text!r} is no command: {error}") from error
    if not words:
        raise ValueError(f"{text!r} holds no command, such as 'wrap:apptainer exec /the/image.sif'")
    for name in _PLACEHOLDER.findall(prefix):
        if name not in PLACEHOLDERS:
            known = ", ".join(f"{{{known}}}" for known in PLACEHOLDERS)
            raise ValueError(f"{text!r}: {{{name}}} stands for nothing; known: {known}")
    if _REMOTE_IMAGE.search(prefix):
        raise ValueError(
            f"{text!r} would download in every job; make the image a file first "
            "(apptainer pull) and name that"
        )
    return SoftwareRequest(text, "wrap", version, prefix)


def check_wrap(request: SoftwareRequest) -> None:
    """Whether this machine has the prefix' command.

    Raises:
        ExecutionError: kind ``missing``.
    """
    word = os.path.expanduser(shlex.split(request.location)[0])
    if shutil.which(word) is None:
        raise_setup_error(
            "missing", f"there is no command {word!r} on this machine to wrap a payload in"
        )


def setup_wrap(
    request: SoftwareRequest, base: Mapping[str, str], kit: str, folders: Mapping[str, str]
) -> Tuple[CommandWrapper, Mapping[str, str]]:
    """The filled-in prefix and the environment to start it in, tried once.

    Args:
        request: from :func:`parse_wrap`.
        base: environment to start from.
        kit: folder that holds the package ``treehammer_kit``.
        folders: ``work``, ``payload`` and ``input``; one that is missing is the current folder.

    Raises:
        ExecutionError: kind ``broken`` (it does not start, or hides what is needed) or ``missing`` (no ROOT).
    """
    here = os.getcwd()
    known = {name: folders.get(name, here) for name in ("work", "payload", "input")}
    known["kit"] = kit
    needed = list(dict.fromkeys(known.values()))
    known["folders"] = ",".join(needed)

    def fill(word: str) -> str:
        return _PLACEHOLDER.sub(lambda match: known[match[1]], os.path.expanduser(word))

    prefix = tuple(map(fill, shlex.split(request.location)))
    wrapper = CommandWrapper(prefix, kit, known["work"])
    env = drop_foreign_root(base)
    _probe_wrapper(wrapper, env, [known["payload"], kit])
    return wrapper, env


def _probe_wrapper(wrapper: CommandWrapper, env: Mapping[str, str], needed: List[str]) -> None:
    """Find out before any payload runs whether there is a ROOT inside that can see its files."""
    what = shlex.join(wrapper.prefix)
    command = wrapper.build_command([WRAPPED_PYTHON, "-c", _PROBE_SCRIPT, *needed], {})
    output = run_tool(command, env, f"starting {WRAPPED_PYTHON} behind '{what}'")
    try:
        answer = json.loads(output.strip().splitlines()[-1])  # a site's script may greet
    except (ValueError, IndexError):
        raise_setup_error(
            "broken", f"'{what}' did not run {WRAPPED_PYTHON}: it printed {output[:200]!r}"
        )
    if answer["unseen"]:
        raise_setup_error(
            "broken",
            f"behind '{what}' there is no {answer['unseen'][0]}; let the container see it, "
            "e.g. apptainer exec --bind {folders} IMAGE",
        )
    if not answer["writable"]:
        raise_setup_error(
            "broken", f"behind '{what}' nothing can be written to {wrapper.work}; bind {{work}}"
        )
    if not answer["root"]:
        raise_setup_error(
            "missing",
            f"{WRAPPED_PYTHON} behind '{what}' (version {answer['version']}) finds no ROOT",
        )
