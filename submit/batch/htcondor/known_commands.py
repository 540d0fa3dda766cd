"""Submit commands of HTCondor, and those that a site may add.

HTCondor silently takes a misspelled command for a user's variable.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

from treehammer.errors import ConfigError, suggest_word

_COMMANDS_FILE = Path(__file__).with_name("known_commands.txt")
#: Prefixes that accept any word, and the words that HTCondor itself knows after them.
_COMMAND_FAMILIES: Mapping[str, tuple[str, ...]] = {
    "request_": ("cpus", "memory", "disk", "gpus"),
    "require_": ("gpus",),
    "transform_body_": (),
    "ec2_tag_": ("names",),
    "ec2_parameter_": ("names",),
    "cloud_label_": ("names",),
}
_OWN_ATTRIBUTE = re.compile(r"(\+|my\.)[a-z_]\w*", re.IGNORECASE)
#: First words of lines that are not assignments.
_NON_COMMANDS = frozenset({"if", "elif", "else", "endif", "include", "use", "warning", "error"})
_ASSIGNMENT = re.compile(r"\s*(?P<name>[+\w.]+)\s*(?P<sign>@?=)\s*(?P<value>.*)", re.DOTALL)
_REFERENCE = re.compile(r"\$\w*\((\w+)")

#: Commands that Treehammer sets -> the option of a site or of submit to use instead.
RESERVED_COMMANDS: Mapping[str, str] = {
    "requirements": "the site's own 'requirements'",
    "universe": "the site's own 'grid_resource'",
    "grid_resource": "the site's own 'grid_resource'",
    "executable": "the site's own 'python'",
    "max_materialize": "--in-flight, or the site's ceilings.in_flight",
    "max_idle": "--in-flight, or the site's ceilings.in_flight",
    **dict.fromkeys(
        (
            "arguments",
            "batch_name",
            "environment",
            "error",
            "initialdir",
            "input",
            "log",
            "output",
            "queue",
            "should_transfer_files",
            "transfer_executable",
            "transfer_input_files",
            "transfer_output_files",
            "transfer_output_remaps",
        ),
        "a template of the site's own in its 'templates' folder",
    ),
}


@cache
def load_known_commands() -> frozenset[str]:
    """Load all commands, in lower case."""
    lines = _COMMANDS_FILE.read_text(encoding="utf-8").splitlines()
    return frozenset(line for line in lines if line and not line.startswith("#"))


def check_site_commands(commands: Iterable[str], where: str) -> None:
    """Check the commands that a site adds to every job.

    Raises:
        ConfigError: a command does not exist, or is set by Treehammer; the hint names the remedy.
    """
    for name in commands:
        plain = name.strip().lower()
        if plain in RESERVED_COMMANDS:
            raise ConfigError(
                f"the submit command {name!r} is set by Treehammer",
                where=where,
                hint=f"Use {RESERVED_COMMANDS[plain]}.",
            )
        _check_command(name, where, frozenset())


def check_description(text: str, where: str) -> None:
    """Check every command of a submit description.

    A name that the description references as ``$(NAME)`` is a variable and may be anything.

    Raises:
        ConfigError: a command does not exist, a line is not an assignment, or there is a ``queue``.
    """
    variables = frozenset(name.lower() for name in _REFERENCE.findall(text))
    for name in _assigned_names(text, where):
        _check_command(name, where, variables)


def _check_command(name: str, where: str, variables: frozenset[str]) -> None:
    plain = name.strip().lower()
    if plain in load_known_commands() or plain in variables or _OWN_ATTRIBUTE.fullmatch(plain):
        return
    for prefix, words in _COMMAND_FAMILIES.items():
        # request_memry is a typo, request_widgets a custom resource of the pool.
        if plain.startswith(prefix) and plain != prefix:
            if not suggest_word(plain[len(prefix) :], words):
                return
            break
    raise ConfigError(
        f"HTCondor has no submit command {name!r}",
        where=where,
        hint=f"{suggest_word(plain, load_known_commands())}A custom attribute is written "
        f"+{_normalize_attribute(name)}.",
    )


def _normalize_attribute(name: str) -> str:
    return re.sub(r"\W", "_", name.strip())


def _assigned_names(text: str, where: str) -> Iterator[str]:
    """Yield the left-hand side of each assignment."""
    lines = iter(text.replace("\\\n", " ").split("\n"))
    for line in lines:
        words = line.split()
        if not words or words[0].startswith("#") or words[0].lower().rstrip(":") in _NON_COMMANDS:
            continue
        match = _ASSIGNMENT.fullmatch(line)
        if words[0].lower() == "queue" or match is None:
            raise ConfigError(
                f"{line.strip()!r} is not an assignment",
                where=where,
                hint="Write NAME = VALUE; the queue statement is added by Treehammer.",
            )
        if match["sign"] == "@=":  # continues to a line that contains only @TAG
            end = f"@{match['value'].strip()}"
            while next(lines, end).strip() != end:
                pass
        yield match["name"]
