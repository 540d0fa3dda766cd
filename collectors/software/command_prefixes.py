"""Command prefixes that run a payload in another environment, such as ``apptainer exec IMAGE``.

Only the prefix runs on the host.  It starts a shell inside, which prepends the kit to the inner
PYTHONPATH.  So nothing depends on the variables that a container runtime passes on or that its
image sets.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
from dataclasses import dataclass
from typing import List, Mapping, Tuple

from ..job_spec import SoftwareRequest
from ..json_documents import decode_json
from .setup_commands import drop_foreign_root, raise_setup_error, run_tool

#: The inner interpreter, which must find ROOT.
WRAPPED_PYTHON = "python3"

#: Placeholders that a prefix may use in braces, to bind folders into a container.
PLACEHOLDERS = {
    "work": "folder of the execution: current folder, job, result, staged input",
    "payload": "folder of the test's files",
    "kit": "folder of the payload kit",
    "input": "folder that holds all local input files",
    "folders": "all of these, separated by commas, as apptainer's --bind takes them, and the folders "
    "in which the test's libraries and its loop are built",
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
    """A prefix with its placeholders filled in, and the kit's and the work folder."""

    prefix: Tuple[str, ...]
    kit: str
    work: str

    def build_command(self, inside: List[str], variables: Mapping[str, str]) -> List[str]:
        """Build the command line that runs ``inside`` behind the prefix, with these variables."""
        settings = [f"{name}={value}" for name, value in variables.items()]
        shell = ["sh", "-c", _INNER_COMMAND, "treehammer", self.kit, self.work]
        return [*self.prefix, *shell, "env", *settings, *inside]


def parse_wrap(text: str, prefix: str, version: str) -> SoftwareRequest:
    """Parse a ``wrap:`` request; its location is the prefix.

    Raises:
        ValueError: no command, or one that a job must not run.
    """
    try:
        words = shlex.split(prefix)
    except ValueError as error:
        raise ValueError(f"{text!r} is not a valid command: {error}") from error
    if not words:
        raise ValueError(f"{text!r} has no command; write 'wrap:apptainer exec /the/image.sif'")
    for name in _PLACEHOLDER.findall(prefix):
        if name not in PLACEHOLDERS:
            placeholders = ", ".join(f"{{{placeholder}}}" for placeholder in PLACEHOLDERS)
            raise ValueError(f"{text!r}: unknown placeholder {{{name}}}; known: {placeholders}")
    if _REMOTE_IMAGE.search(prefix):
        raise ValueError(
            f"{text!r} would download in every job; save the image as a file "
            "(apptainer pull) and name the file"
        )
    return SoftwareRequest(text, "wrap", version, prefix)


def check_wrap(request: SoftwareRequest) -> None:
    """Check that this machine has the prefix's command.

    Raises:
        ExecutionError: kind ``missing``.
    """
    word = os.path.expanduser(shlex.split(request.location)[0])
    if shutil.which(word) is None:
        raise_setup_error(
            "missing", f"no command {word!r} on this machine; install it or correct 'wrap:'"
        )


def setup_wrap(
    request: SoftwareRequest, base: Mapping[str, str], kit: str, folders: Mapping[str, str]
) -> Tuple[CommandWrapper, Mapping[str, str]]:
    """Fill in the prefix, try it once, and return it with the environment to start it in.

    Args:
        request: from :func:`parse_wrap`.
        base: environment to start from.
        kit: folder of the package ``treehammer_kit``.
        folders: ``work``, ``payload`` and ``input``, by default the current folder; ``build`` and
            ``loops`` if the test's libraries and its loop are built there.

    Raises:
        ExecutionError: kind ``broken`` (the prefix fails or hides a folder) or ``missing`` (no ROOT).
    """
    current_folder = os.getcwd()
    replacements = {
        name: folders.get(name, current_folder) for name in ("work", "payload", "input")
    }
    replacements["kit"] = kit
    built = [folders[name] for name in ("build", "loops") if name in folders]
    needed = list(dict.fromkeys([*replacements.values(), *built]))
    replacements["folders"] = ",".join(needed)

    wrapper = CommandWrapper(_fill_prefix(request, replacements), kit, replacements["work"])
    env = drop_foreign_root(base)
    _probe_wrapper(wrapper, env, [replacements["payload"], kit])
    return wrapper, env


def wrap_python(request: SoftwareRequest, code: str) -> List[str]:
    """Build a command that runs Python code behind the prefix, which may hide folders of the host."""
    folders = dict.fromkeys(PLACEHOLDERS, os.getcwd())
    return [*_fill_prefix(request, folders), WRAPPED_PYTHON, "-c", code]


def _fill_prefix(request: SoftwareRequest, folders: Mapping[str, str]) -> Tuple[str, ...]:
    def fill(word: str) -> str:
        return _PLACEHOLDER.sub(lambda match: folders[match[1]], os.path.expanduser(word))

    return tuple(map(fill, shlex.split(request.location)))


def _probe_wrapper(wrapper: CommandWrapper, env: Mapping[str, str], needed: List[str]) -> None:
    """Check, before any payload runs, that Python inside finds ROOT and the payload's files."""
    prefix = shlex.join(wrapper.prefix)
    command = wrapper.build_command([WRAPPED_PYTHON, "-c", _PROBE_SCRIPT, *needed], {})
    output = run_tool(command, env, f"starting {WRAPPED_PYTHON} behind '{prefix}'")
    try:
        answer = decode_json(
            output.strip().splitlines()[-1]
        )  # a site's script may print a greeting
    except (ValueError, IndexError):
        raise_setup_error(
            "broken", f"'{prefix}' did not run {WRAPPED_PYTHON}: it printed {output[:200]!r}"
        )
    if answer["unseen"]:
        raise_setup_error(
            "broken",
            f"behind '{prefix}' {answer['unseen'][0]} is missing; bind it into the container, "
            "e.g. apptainer exec --bind {folders} IMAGE",
        )
    if not answer["writable"]:
        raise_setup_error(
            "broken", f"behind '{prefix}' {wrapper.work} is not writable; bind {{work}}"
        )
    if not answer["root"]:
        raise_setup_error(
            "missing",
            f"{WRAPPED_PYTHON} behind '{prefix}' (version {answer['version']}) finds no ROOT",
        )
