"""Submit descriptions: limits of jobs, permitted commands, keys added by Treehammer.

HTCondor silently takes a misspelled command for a user's variable; every command of a template or a
site is therefore checked against HTCondor's list.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path

from treehammer.errors import BatchError, ConfigError, suggest_word
from treehammer.submit.batch.interface import OUTPUT_ARCHIVE

#: Starts of a job before it is given up.
MAX_GRID_ATTEMPTS = 3
#: Seconds that a job may wait for a machine, or stay held by a person.
IDLE_LIMIT_S = 24 * 3600
#: Seconds that a job may stay held for any other reason that time does not cure.
HOLD_LIMIT_S = 600
#: Seconds before a failed file transfer is retried.
RETRY_PAUSE_S = 30
#: Seconds that an evicted worker has to end its payload and write its results.
VACATE_GRACE_S = 60
#: Largest memory request of a job in MB: the usual share of a core.  Sites with more set their own
#: request_memory.
REQUEST_MEMORY_MB = 2000
#: Further MB for the second process of a job in paired mode.
SECOND_PROCESS_MEMORY_MB = 1000
#: Longest time in seconds without contact to its node before a job is given up.
MAX_LEASE_S = 1200
#: Placeholder in a template: number of this start of the job.
ATTEMPT_VARIABLE = "$(treehammer_attempt)"
#: Placeholder in a template: the start script and its first argument, for jobs of plain files.
START_VARIABLE = "$(treehammer_start)"
#: Name of the start script in the job's sandbox.
START_SCRIPT = "treehammer-start.sh"
#: Sandbox folder that is transferred back, with a folder for every start.
OUTPUT_FOLDER = "output"
#: HTCondor's event log of a submission, or of a spooled job.
EVENT_LOG_NAME = "events.log"
#: Prefix of the folder of one start.
ATTEMPT_PREFIX = "attempt-"
#: ClassAd attributes of Treehammer's jobs.
CAMPAIGN_ATTRIBUTE = "TreehammerCampaign"
SUBMISSION_ATTRIBUTE = "TreehammerSubmission"
JOB_ATTRIBUTE = "TreehammerJob"
ATTEMPT_ATTRIBUTE = "TreehammerAttempt"
#: Number of the last attempt of a requeued job before it was requeued.
PREVIOUS_ATTEMPTS_ATTRIBUTE = "TreehammerPreviousAttempts"
# The schedd counts shadow starts durably; NumJobStarts falls back when the schedd is killed, and a
# later start would overwrite the output of an earlier one.  It is expanded when a shadow starts and
# kept when it reconnects.  No spaces: HTCondor would quote them inside quoted arguments.
_ATTEMPT_VALUE = f"$$([(NumShadowStarts?:1)+({PREVIOUS_ATTEMPTS_ATTRIBUTE}?:0)])"
#: Keys that Treehammer sets, in lower case.
_RESERVED_KEY = re.compile(
    r"initialdir|log|queue|should_transfer_files|job_ad_information_attrs|transfer_input_files"
    r"|transfer_output_(files|remaps)|treehammer_(attempt|output|start)"
    r"|(my\.|\+)treehammer(campaign|submission|job|attempt)"
)
#: Keys of late materialization, which HTCondor cannot combine with spooling.
_MATERIALIZATION_KEYS = frozenset({"max_materialize", "max_idle", "materialize_max_idle"})
#: Commands that Treehammer sets -> the option of a site or of submit to use instead.
RESERVED_COMMANDS: Mapping[str, str] = {
    "requirements": "the site's own 'requirements'",
    **dict.fromkeys(("universe", "grid_resource"), "the site's own 'grid_resource'"),
    "executable": "the site's own 'python'",
    **dict.fromkeys(
        ("max_materialize", "max_idle"), "--in-flight, or the site's ceilings.in_flight"
    ),
    **dict.fromkeys(
        [
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
        ],
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
#: Names in expressions, in lower case, beside the job's own and those named like a submit command.
_KNOWN_NAME = re.compile(
    r"(my|target)\..*|true|false|undefined|error|clusterid|procid|owner|user|qdate|jobstatus|jobprio"
    r"|jobuniverse|numjobstarts|numholds|diskusage|memoryusage|imagesize|residentsetsize|cmd|iwd"
    r"|enteredcurrentstatus|currenttime"
)
#: Line of a requeued job's template.
PREVIOUS_ATTEMPTS = re.compile(rf"^My\.{PREVIOUS_ATTEMPTS_ATTRIBUTE} = (\d+)$\n?", re.MULTILINE)
_OWN_ATTRIBUTE = re.compile(r"(\+|my\.)[a-z_]\w*", re.IGNORECASE)
#: First words of lines that are not assignments.
_NON_COMMANDS = frozenset({"if", "elif", "else", "endif", "include", "use", "warning", "error"})
_ASSIGNMENT = re.compile(r"\s*([+\w.]+)\s*(@?=)\s*(.*)", re.DOTALL)
_REFERENCE = re.compile(r"\$\w*\((\w+)")
_STRING_OR_NUMBER = re.compile(r'"(?:\\.|[^"\\])*"|[-+]?\d[\d.]*(e[-+]?\d+)?', re.IGNORECASE)
#: Anything by which an expression is more than a text without its quotes.
_EXPRESSION_MARK = re.compile(r'[()\[\]{}<>=!&|?"]|\b(is|isnt)\b', re.IGNORECASE)
_NUMBER_OR_NAME = re.compile(r"\d[\w.]*|(?P<name>'[^']+'|[A-Za-z_][\w.]*)")


def lease_duration_s(wall_s: int) -> int:
    """Return the seconds without contact to its node after which a job is lost.

    HTCondor's default of 40 minutes would exceed the wall limit of a short job.
    """
    return min(wall_s, MAX_LEASE_S)


@cache
def load_known_commands() -> frozenset[str]:
    """Load all commands, in lower case."""
    lines = Path(__file__).with_name("known_commands.txt").read_text(encoding="utf-8").splitlines()
    return frozenset(line for line in lines if line and not line.startswith("#"))


def check_site_command(name: str, value: str, names: Iterable[str]) -> None:
    """Check a command that a site adds to every job.

    Args:
        name: submit command.
        value: its value.
        names: all commands of the site.

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
    check_command_value(name, value, "", names)


def check_description(text: str, where: str) -> None:
    """Check every command of a submit description.

    A name that the description references as ``$(NAME)`` is a variable and may be anything.

    Raises:
        ConfigError: a command does not exist, a line is not an assignment, or there is a ``queue``.
    """
    variables = frozenset(name.lower() for name in _REFERENCE.findall(text))
    assignments = []
    for statement, name, value in _split_statements(text):
        word = (statement.split() or ["#"])[0].lower().rstrip(":")
        if word.startswith("#") or word in _NON_COMMANDS:
            continue
        if word == "queue" or not name:
            raise ConfigError(
                f"{statement.strip()!r} is not an assignment",
                where=where,
                hint="Write NAME = VALUE; the queue statement is added by Treehammer.",
            )
        _check_command(name, where, variables)
        assignments.append((name, value))
    names = [name for name, _ in assignments]
    for name, value in assignments:
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
    attribute = re.sub(r"\W", "_", name.strip())
    raise ConfigError(
        f"HTCondor has no submit command {name!r}",
        where=where,
        hint=f"{suggest_word(plain, load_known_commands())}A custom attribute is written "
        f"+{attribute}.",
    )


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
    if problem := _find_expression_problem(value, names):
        quoted = value.replace("\\", "\\\\").replace('"', '\\"')
        raise ConfigError(
            f"the value of {name!r} {problem}",
            where=where,
            hint=f"""Quote a string within the value: {name} = '"{quoted}"'. """
            "An attribute of the job is written MY.NAME.",
        )


def _find_expression_problem(value: str, names: Iterable[str]) -> str:
    """Describe why a value is no ClassAd expression, or only by chance; '' if it is one."""
    if not value or _STRING_OR_NUMBER.fullmatch(value):
        return ""
    # HTCondor's own parser; without the bindings, the pool's schedd refuses the value.
    with suppress(ImportError):
        import classad2

        try:
            classad2.ExprTree(value)
        except classad2.ClassAdException:
            return "is not a ClassAd expression"
    if _EXPRESSION_MARK.search(value):
        return ""
    matches = (_OWN_ATTRIBUTE.fullmatch(name.strip().lower()) for name in names)
    attributes = {match[0].removeprefix(match[1]) for match in matches if match}
    attributes |= {command.replace("_", "") for command in load_known_commands()}
    for match in _NUMBER_OR_NAME.finditer(value):
        name = (match["name"] or "true").lower()
        if name not in attributes and not _KNOWN_NAME.fullmatch(name):
            return f"names the attribute {match['name']}, which jobs do not have"
    return ""


def _split_statements(text: str) -> Iterator[tuple[str, str, str]]:
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


def uses_archives(text: str) -> bool:
    """Return whether the jobs of a template receive and return plain files only."""
    return START_VARIABLE in text


def parse_previous_attempts(text: str) -> int:
    """Return the number of the last attempt before a template's jobs were requeued; 0 for new ones."""
    match = PREVIOUS_ATTEMPTS.search(text)
    return int(match[1]) if match else 0


def list_statements(text: str, *, spool: bool) -> Iterator[str]:
    """Yield the statements of a template.

    Raises:
        BatchError: one sets a reserved key.
    """
    for statement, name, _ in _split_statements(text):
        key = (name or statement.split(maxsplit=1)[0] if statement.strip() else "").lower()
        if _RESERVED_KEY.fullmatch(key):
            raise BatchError(
                f"{key!r} is set by Treehammer",
                where="submit description",
                hint="Remove it from the template.",
            )
        if not (spool and key in _MATERIALIZATION_KEYS):
            yield statement


def output_statements(text: str) -> Iterator[str]:
    """Yield the statements that number the starts and return their output."""
    # Adds the number of the start to each event.
    yield f"job_ad_information_attrs = {ATTEMPT_ATTRIBUTE}"
    if uses_archives(text):
        # The other batch system counts the starts; their output shows the number.
        yield f'My.{ATTEMPT_ATTRIBUTE} = "unknown"'
        yield f"transfer_output_files = {OUTPUT_ARCHIVE}"
        yield f"treehammer_start = {START_SCRIPT} {parse_previous_attempts(text)}"
        return
    yield f"transfer_output_files = {OUTPUT_FOLDER}"
    yield f"treehammer_attempt = {_ATTEMPT_VALUE}"
    yield f"treehammer_output = {OUTPUT_FOLDER}/{ATTEMPT_PREFIX}{ATTEMPT_VARIABLE}"
    yield f'My.{ATTEMPT_ATTRIBUTE} = "{ATTEMPT_VARIABLE}"'
