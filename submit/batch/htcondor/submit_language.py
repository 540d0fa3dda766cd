"""HTCondor's submit language: commands, the check of descriptions and sites, and quoting of values.

HTCondor silently takes a misspelled command for a user's variable; every command of a template or a
site is therefore checked against HTCondor's list.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

from treehammer.errors import ConfigError, suggest_word
from treehammer.text_formatting import check_text

#: Commands that Treehammer sets -> the option of a site or of submit to use instead.
RESERVED_COMMANDS: Mapping[str, str] = {
    "requirements": "the site's own 'requirements'",
    **dict.fromkeys(("universe", "grid_resource"), "the site's own 'grid_resource'"),
    "executable": "the site's own 'python'",
    "environment": "the site's own 'environment'",
    "request_memory": "the test's memory_limit_mb, and the site's ceilings.memory_mb for less",
    **dict.fromkeys(
        ("max_materialize", "max_idle"), "--in-flight, or the site's ceilings.in_flight"
    ),
    **dict.fromkeys(
        (
            *("arguments", "batch_name", "error", "initialdir", "input", "log"),
            *("output", "queue", "should_transfer_files", "transfer_executable"),
            *("transfer_input_files", "transfer_output_files", "transfer_output_remaps"),
        ),
        "a template of the site's own in its 'templates' folder",
    ),
}
#: Prefixes that accept any word, and the words that HTCondor itself knows after them.
_COMMAND_FAMILIES: Mapping[str, tuple[str, ...]] = {
    "request_": ("cpus", "memory", "disk", "gpus"),
    "require_": ("gpus",),
    "transform_body_": (),
    "ec2_tag_": ("names",),
    "ec2_parameter_": ("names",),
    "cloud_label_": ("names",),
}
#: Keys that Treehammer adds to every description, in lower case.
_RESERVED_KEY = re.compile(
    r"initialdir|log|queue|should_transfer_files|job_ad_information_attrs|transfer_input_files"
    r"|transfer_output_(files|remaps)|treehammer_(attempt|output|start)"
    r"|(my\.|\+)treehammer(campaign|submission|job|attempt|time)"
)
_OWN_ATTRIBUTE = re.compile(r"(\+|my\.)[a-z_]\w*", re.IGNORECASE)
#: First words of lines that are not assignments.
_NON_COMMANDS = frozenset({"if", "elif", "else", "endif", "include", "use", "warning", "error"})
_ASSIGNMENT = re.compile(r"\s*([+\w.]+)\s*(@?=)\s*(.*)", re.DOTALL)
_REFERENCE = re.compile(r"\$\w*\((\w+)")


@cache
def load_known_commands() -> frozenset[str]:
    """Load all commands, in lower case."""
    lines = Path(__file__).with_name("known_commands.txt").read_text(encoding="utf-8").splitlines()
    return frozenset(line for line in lines if line and not line.startswith("#"))


def check_site_command(name: str, value: str, _names: Iterable[str]) -> None:
    """Check a command that a site adds to every job.

    Args:
        name: submit command.
        value: its value.

    Raises:
        ConfigError: the command does not exist, or is set by Treehammer, or its value is invalid; the
            hint names the remedy.
    """
    plain = name.strip().lower()
    if plain in RESERVED_COMMANDS:
        raise ConfigError(
            f"the submit command {name!r} is set by Treehammer",
            hint=f"Use {RESERVED_COMMANDS[plain]}.",
        )
    _check_command(name, "", frozenset())
    _check_value(name, value, "")


def check_description(text: str, where: str) -> None:
    """Check every command of a submit description.

    A name that the description references as ``$(NAME)`` is a variable and may be anything.

    Raises:
        ConfigError: a command does not exist or is reserved, or a line is not an assignment.
    """
    variables = frozenset(name.lower() for name in _REFERENCE.findall(text))
    for statement, name, value in split_statements(text):
        word = (statement.split() or ["#"])[0].lower().rstrip(":")
        if word.startswith("#") or word in _NON_COMMANDS:
            continue
        is_reserved = _RESERVED_KEY.fullmatch(name.lower() or word)
        if is_reserved or not name:
            problem = "is set by Treehammer" if is_reserved else "is not an assignment"
            raise ConfigError(
                f"{statement.strip()!r} {problem}",
                where=where,
                hint="Write NAME = VALUE, and nothing that Treehammer sets.",
            )
        _check_command(name, where, variables)
        _check_value(name, value, where)


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
    attribute = re.sub(r"\W", "_", name.strip())
    raise ConfigError(
        f"HTCondor has no submit command {name!r}",
        where=where,
        hint=f"{suggest_word(plain, load_known_commands())}A custom attribute is written "
        f"+{attribute}.",
    )


def _check_value(name: str, value: str, where: str) -> None:
    """Refuse a value that continues on the next line, which HTCondor would take as a part of it."""
    if value.strip().endswith("\\") or "\n" in value.strip():
        raise ConfigError(
            f"the value of {name!r} continues on the next line",
            where=where,
            hint="Remove the backslash or line break at its end.",
        )


def split_statements(text: str) -> Iterator[tuple[str, str, str]]:
    """Yield text, name and value of each statement; name and value are '' without an assignment.

    A statement has its continuation lines, and with ``@=TAG`` those until ``@TAG``, whose value is ''.
    """
    lines = iter(text.splitlines())
    for line in lines:
        statement = line
        while statement.endswith("\\") and not line.lstrip().startswith("#"):
            following = next(lines, None)
            if following is None:
                break
            statement += f"\n{following}"
        match = _ASSIGNMENT.fullmatch(statement.replace("\\\n", " "))
        name, sign, value = match.groups() if match else ("", "", "")
        if sign == "@=":
            end, value, following = f"@{value.strip()}", "", ""
            while following.strip() != end:
                following = next(lines, end)
                statement += f"\n{following}"
        yield statement, name, value


def quote_submit_value(value: object) -> str:
    """Quote any text as the value of a submit command, on one line.

    HTCondor expands neither ``$(NAME)`` nor ``$$(NAME)`` in it.  Control characters and surrounding
    space, which a line cannot hold, are lost.

    Raises:
        ValueError: it contains a lone surrogate.
    """
    line = _join_lines(value).strip()
    # A trailing backslash would continue the line.
    return _escape_macros(line + "." if line.endswith("\\") else line)


def quote_classad(value: object) -> str:
    """Quote any text as a string of a ClassAd expression in a submit description.

    Raises:
        ValueError: it contains a lone surrogate, or a zero byte, which ClassAds cannot hold.
    """
    text = check_text(value)
    if "\x00" in text:
        raise ValueError(f"{text!r} contains a zero byte")
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    escapes = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
    escaped = "".join(
        escapes.get(c) or (c if c.isprintable() or not c.isascii() else f"\\{ord(c):03o}")
        for c in escaped
    )
    return f'"{_escape_macros(escaped)}"'


def quote_environment(variables: Mapping[str, str]) -> str:
    """Quote variables as the value of the submit command ``environment``, quotes included.

    Raises:
        ValueError: a name or value cannot be passed this way.
    """
    items = []
    for name, value in sorted(variables.items()):
        text = check_text(value)
        if not name.isidentifier() or any(c in text for c in "\n\r\x00"):
            raise ValueError(f"the variable {name}={text!r} cannot be set in a job's environment")
        inner = f"{name}={text}".replace("'", "''").replace('"', '""')
        items.append(f"'{_escape_macros(inner)}'")
    return '"' + " ".join(items) + '"'


def quote_shell_word(value: object) -> str:
    """Quote a word of a shell script within single quotes in the submit command ``arguments``.

    Raises:
        ValueError: it contains a lone surrogate.
    """
    return _escape_macros(shlex.quote(_join_lines(value)).replace("'", "''").replace('"', '""'))


def flatten_expression(value: object) -> str:
    """Put a hand-written ClassAd expression on one line.

    Raises:
        ValueError: it ends with a backslash, which would continue the line.
    """
    line = " ".join(check_text(value).split())
    if line.endswith("\\"):
        raise ValueError(f"{line!r} ends with a backslash, which would continue the line")
    return line


def _escape_macros(text: str) -> str:
    """Escape text so that HTCondor expands nothing, neither at submission nor at the match."""
    parts = (part.replace("$", "$(DOLLAR)") for part in text.split("$$("))
    return "$$(DOLLARDOLLAR)(".join(parts)


def _join_lines(value: object) -> str:
    return "".join(c if c.isprintable() else " " for c in check_text(value))


#: Filters of templates.
FILTERS = {
    "text": quote_submit_value,
    "classad": quote_classad,
    "expression": flatten_expression,
    "environment": quote_environment,
    "shell_word": quote_shell_word,
}
