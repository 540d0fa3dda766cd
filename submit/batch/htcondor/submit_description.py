"""Submit descriptions: limits of jobs, permitted commands, keys added by Treehammer.

HTCondor silently takes a misspelled command for a user's variable; every command of a template or a
site is therefore checked against HTCondor's list.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
RESERVED_KEYS = frozenset(
    {
        "initialdir",
        "log",
        "transfer_input_files",
        "transfer_output_files",
        "transfer_output_remaps",
        "should_transfer_files",
        "job_ad_information_attrs",
        "treehammer_attempt",
        "treehammer_output",
        "treehammer_start",
        "queue",
        *(
            prefix + name.lower()
            for prefix in ("my.", "+")
            for name in (
                CAMPAIGN_ATTRIBUTE,
                SUBMISSION_ATTRIBUTE,
                JOB_ATTRIBUTE,
                ATTEMPT_ATTRIBUTE,
            )
        ),
    }
)
#: Keys of late materialization, which HTCondor cannot combine with spooling.
_MATERIALIZATION_KEYS = frozenset({"max_materialize", "max_idle", "materialize_max_idle"})
_PREVIOUS_ATTEMPTS = re.compile(rf"^My\.{PREVIOUS_ATTEMPTS_ATTRIBUTE} = (\d+)$", re.MULTILINE)
_KEY_PATTERN = re.compile(r"\s*([+\w.]+)")
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
#: Tokens of a ClassAd expression: string, number, name with scope, operator, bracket, other.
_EXPRESSION_TOKEN = re.compile(
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


def lease_duration_s(wall_s: int) -> int:
    """Return the seconds without contact to its node after which a job is lost.

    HTCondor's default of 40 minutes would exceed the wall limit of a short job.
    """
    return min(wall_s, MAX_LEASE_S)


def build_description(
    text: str, *, folder: str, campaign: str, submission: str, inputs: Sequence[str], spool: bool
) -> str:
    """Build the submit description of a cluster, without its ``queue`` statement.

    Args:
        text: the rendered template.
        folder: absolute path of the submission.
        campaign: id of the campaign.
        submission: unique name of the submission.
        inputs: inputs of a job, relative to its folder.
        spool: whether inputs are sent to the schedd and outputs fetched from it.

    Raises:
        BatchError: the text sets a reserved key, or the folder's name cannot be expressed.
    """
    if re.search(r'[$"\n]', folder):
        raise BatchError(
            "HTCondor does not support folder names with $, quotation marks or line breaks",
            where=folder,
            hint="Choose another submit_dir for this pool, or another --data-dir.",
        )
    statements = []
    for key, statement in _split_statements(text):
        if key in RESERVED_KEYS:
            raise BatchError(
                f"{key!r} is set by Treehammer",
                where="submit description",
                hint="Remove it from the template.",
            )
        if not (spool and key in _MATERIALIZATION_KEYS):
            statements.append(statement)
    return "\n".join(
        [
            *statements,
            f"initialdir = {folder}/jobs/$(job_id)",
            # The log of a spooled job is written at the schedd and returned with the output.
            f"log = {EVENT_LOG_NAME}" if spool else f"log = {folder}/{EVENT_LOG_NAME}",
            "should_transfer_files = YES",
            f"transfer_input_files = {','.join(inputs)}",
            *_output_statements(text),
            f'My.{CAMPAIGN_ATTRIBUTE} = "{campaign}"',
            f'My.{SUBMISSION_ATTRIBUTE} = "{submission}"',
            f'My.{JOB_ATTRIBUTE} = "$(job_id)"',
            "",
        ]
    )


def parse_previous_attempts(text: str) -> int:
    """Return the number of the last attempt before a template's jobs were requeued; 0 for new ones."""
    match = _PREVIOUS_ATTEMPTS.search(text)
    return int(match[1]) if match else 0


def uses_archives(text: str) -> bool:
    """Return whether the jobs of a template receive and return plain files only."""
    return START_VARIABLE in text


def _output_statements(text: str) -> Iterator[str]:
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


def _split_statements(text: str) -> Iterator[tuple[str, str]]:
    """Yield key (lower case, '' for none) and text of each statement with its continuation lines."""
    lines = iter(text.splitlines())
    for line in lines:
        parts = [line]
        while parts[-1].endswith("\\") and not line.lstrip().startswith("#"):
            parts.append(next(lines, ""))
        match = _KEY_PATTERN.match(line)
        yield match.group(1).lower() if match else "", "\n".join(parts)


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


def _find_expression_problem(value: str, own_attributes: frozenset[str]) -> str:
    """Describe why a value is no ClassAd expression, or only by chance; '' if it is one."""
    tokens = [
        (match.lastgroup or "", match[0])
        for match in _EXPRESSION_TOKEN.finditer(value)
        if match.lastgroup
    ]
    misplaced = _find_misplaced_token(tokens)
    if misplaced:
        return f"is not a ClassAd expression (at {misplaced!r})"
    if any(_marks_expression(kind, text) for kind, text in tokens):
        return ""
    names = (text for kind, text in tokens if kind == "name")
    unknown = next((name for name in names if not _is_known_name(name.lower(), own_attributes)), "")
    return f"names the attribute {unknown}, which jobs do not have" if unknown else ""


def _marks_expression(kind: str, text: str) -> bool:
    """Return whether a token shows that a value is more than a text without its quotes."""
    return kind == "bracket" or text[0] in '<>=!&|?"' or text.lower() in _WORD_OPERATORS


def _find_misplaced_token(tokens: Iterable[tuple[str, str]]) -> str:
    """Find an unknown character, or an operand that follows another one; '' if there is none."""
    operands = ("string", "number", "name")
    before = "operator"
    for kind, text in tokens:
        is_word = kind == "name" and text.lower() in _WORD_OPERATORS
        if kind == "other" or (before in operands and kind in operands and not is_word):
            return text
        before = "operator" if is_word else kind
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
