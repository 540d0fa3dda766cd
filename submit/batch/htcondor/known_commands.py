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
    assignments = list(_list_assignments(text, where))
    names = [name for name, _ in assignments]
    for name, value in assignments:
        _check_command(name, where, variables)
        check_command_value(name, value, where, names)


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


def _list_own_attributes(names: Iterable[str]) -> frozenset[str]:
    """List the attributes that a description sets itself, in lower case."""
    matches = (_OWN_ATTRIBUTE.fullmatch(name.strip().lower()) for name in names)
    return frozenset(match[0].removeprefix(match[1]) for match in matches if match)


def check_command_value(name: str, value: str, where: str, names: Iterable[str]) -> None:
    """Check a value: no continued line and, of a custom attribute, no string without quotes.

    Args:
        name: submit command.
        value: its value.
        where: place of both, for messages.
        names: all commands of the description; values may refer to custom attributes.

    Raises:
        ConfigError: HTCondor would read something else; the hint names the remedy.
    """
    value = value.strip()
    if value.endswith("\\") or "\n" in value:
        raise ConfigError(
            f"the value of {name!r} continues on the next line, which HTCondor would take as a part of it",
            where=where,
            hint="Remove the backslash or line break at its end.",
        )
    if not _OWN_ATTRIBUTE.fullmatch(name.strip().lower()) or "$(" in value:
        return
    if problem := _find_expression_problem(value, _list_own_attributes(names)):
        quoted = value.replace("\\", "\\\\").replace('"', '\\"')
        raise ConfigError(
            f"the value of {name!r} {problem}",
            where=where,
            hint=f"""Quote a string within the value: {name} = '"{quoted}"'. """
            "An attribute of the job is written MY.NAME.",
        )


#: Tokens of a ClassAd expression: string, number, name with scope, operator, bracket, other.
_TOKEN = re.compile(
    r"""\s+|(?P<string>"(?:\\.|[^"\\])*")|(?P<number>\d[\w.]*)|(?P<name>[A-Za-z_][\w.]*|'[^']+')"""
    r"|(?P<operator>=\?=|=!=|[<>=!]=|&&|\|\||[-+*/%<>!~&|^?:,])|(?P<bracket>[()\[\]{}])|(?P<other>.)"
)
_LITERALS = frozenset({"true", "false", "undefined", "error"})
_WORD_OPERATORS = frozenset({"is", "isnt"})
#: Attributes of jobs beside those named like a submit command.
_JOB_ATTRIBUTES = frozenset(
    [
        "clusterid",
        "procid",
        "owner",
        "user",
        "qdate",
        "jobstatus",
        "numjobstarts",
        "numholds",
        "diskusage",
        "memoryusage",
        "imagesize",
        "residentsetsize",
        "cmd",
        "iwd",
        "jobprio",
        "jobuniverse",
        "enteredcurrentstatus",
        "currenttime",
    ]
)


def _find_expression_problem(value: str, own_attributes: frozenset[str]) -> str:
    """Describe why a value is no ClassAd expression, or only by chance; '' if it is one."""
    tokens = [
        (match.lastgroup or "", match[0]) for match in _TOKEN.finditer(value) if match.lastgroup
    ]
    operands = ("string", "number", "name")
    before = "operator"
    for kind, text in tokens:
        is_word = kind == "name" and text.lower() in _WORD_OPERATORS
        if kind == "other" or (before in operands and kind in operands and not is_word):
            return f"is not a ClassAd expression (at {text!r})"
        before = "operator" if is_word else kind
    if any(
        kind == "bracket" or text[0] in '<>=!&|?"' or text.lower() in _WORD_OPERATORS
        for kind, text in tokens
    ):
        return ""  # more than a text without quotes would be
    for kind, text in tokens:
        if kind == "name" and not _is_known_name(text.lower(), own_attributes):
            return f"names the attribute {text}, which jobs do not have"
    return ""


def _is_known_name(name: str, own_attributes: frozenset[str]) -> bool:
    if name.startswith(("my.", "target.")) or name in own_attributes | _LITERALS | _JOB_ATTRIBUTES:
        return True
    return name in {command.replace("_", "") for command in load_known_commands()}


def _normalize_attribute(name: str) -> str:
    return re.sub(r"\W", "_", name.strip())


def _list_assignments(text: str, where: str) -> Iterator[tuple[str, str]]:
    """Yield the two sides of each assignment; the right one is '' if it has several lines."""
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
        value = match["value"]
        if match["sign"] == "@=":  # continues to a line that contains only @TAG
            end = f"@{match['value'].strip()}"
            while next(lines, end).strip() != end:
                pass
            value = ""
        yield match["name"], value
