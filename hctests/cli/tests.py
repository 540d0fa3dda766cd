"""``tests list | show | check | schema``."""

from __future__ import annotations

import json
import string
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import click

from treehammer.collectors.job_spec import PAIRED
from treehammer.config import Settings
from treehammer.errors import DefinitionError, ExitCode, NothingToDoError, TreehammerError
from treehammer.hctests.cli.definition_options import definition_options, load_pinned_test
from treehammer.hctests.cli.shipped_test_names import complete_tests
from treehammer.hctests.git import pinned_tests
from treehammer.hctests.git.repository_address import mask_credentials
from treehammer.hctests.matrix import execution_order, identity, variant_expansion
from treehammer.hctests.matrix.definition import PinnedTest, TestDefinition, Variant
from treehammer.hctests.matrix.load_settings import LoadSettings
from treehammer.hctests.schema import toml_models
from treehammer.terminal import JSON, TABLE, OutputColumn, output_options, print_rows

_VARIANT_LETTERS = string.ascii_uppercase + string.ascii_lowercase


@click.group()
def tests() -> None:
    """List, show and check tests."""


@tests.command("list")
@click.argument("where", nargs=-1)
@output_options
@click.pass_obj
def list_tests(settings: Settings, where: tuple[str, ...], form: str) -> None:
    """List the shipped tests, or those of folders and repositories (URL@REF:).

    Example: treehammer tests list https://gitlab.example.org/io/tests.git@main:
    """
    specs = [spec for place in where for spec in pinned_tests.find_tests(place, settings)]
    rows = [
        _describe_test(spec, settings)
        for spec in specs or ([] if where else pinned_tests.list_shipped_tests())
    ]
    if not rows:
        raise NothingToDoError(
            "no test.toml found",
            where=", ".join(mask_credentials(place) for place in where),
            hint="A test is a folder that contains test.toml.",
        )
    columns = [
        OutputColumn("test", "test"),
        OutputColumn("name", "name"),
        OutputColumn("variants", "variants", align_right=True),
        OutputColumn("dataset", "dataset"),
        OutputColumn("description", "description"),
    ]
    print_rows(rows, columns, form=form)


def _describe_test(spec: str, settings: Settings) -> dict[str, Any]:
    """Build a test's row; a test with mistakes is listed with them."""
    row: dict[str, Any] = {"test": mask_credentials(spec)}
    empty = dict.fromkeys(("name", "variants", "dataset"))
    try:
        definition = pinned_tests.pin_test(spec, settings).definition
    except TreehammerError as error:
        return {**row, **empty, "description": f"{error.message}: see 'tests check'"}
    count = sum(
        len(variant_expansion.expand_variants(definition, door))
        for door in _display_doors(definition)
    )
    return {
        **row,
        "name": definition.name,
        "variants": count,
        "dataset": definition.dataset or None,
        "description": definition.description,
    }


def _display_doors(definition: TestDefinition) -> tuple[str, ...]:
    """Return the doors that a test names; without names all doors have the same variants."""
    return tuple(str(door) for door in definition.axes.get("door", ("any",)))


@tests.command()
@click.argument("spec", shell_complete=complete_tests)
@definition_options
@output_options
@click.pass_obj
def show(
    settings: Settings,
    spec: str,
    axes: dict[str, tuple[str, ...]],
    overrides: dict[str, str],
    form: str,
) -> None:
    """Show a test's variants, their grouping into jobs and their order of execution.

    Example: treehammer tests show ttree-read -P cache_mb=0,30 -S repeats=6
    """
    pinned = load_pinned_test(spec, axes, overrides, settings)
    rows, orders = _build_variant_rows(pinned.definition)
    executions = sum(row["executions"] for row in orders)
    facts = _collect_facts(pinned, len(rows), len(orders), executions)
    if form == JSON:
        content = {"test": facts, "variants": rows, "orders": orders}
        click.echo(json.dumps(content, indent=1, default=str))
        return
    shown = _displayed_axes(pinned.definition)
    columns = [OutputColumn("job", "job", align_right=True), OutputColumn("letter", "letter")]
    columns += [OutputColumn(axis, axis, align_right=axis == "cache_mb") for axis in shown]
    if form == TABLE:
        _print_facts(facts, pinned.definition.load)
    print_rows(rows, columns, form=form)
    if form == TABLE:
        click.echo()
        orders_shown = [{**row, "orders": ", ".join(row["orders"])} for row in orders]
        names = [
            OutputColumn("job", "job", align_right=True),
            OutputColumn("orders", "orders, drawn again for each job"),
        ]
        print_rows(orders_shown, names)


def _displayed_axes(definition: TestDefinition) -> tuple[str, ...]:
    named = (("door",) if "door" in definition.axes else ()) + variant_expansion.find_label_axes(
        definition
    )
    return named or ("root", "branches", "cache_mb")


def _build_variant_rows(
    definition: TestDefinition,
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Build a row for each variant, and for each job a row with the orders of its rounds."""
    rows: list[dict[str, Any]] = []
    orders: list[dict[str, Any]] = []
    for door in _display_doors(definition):
        for group in variant_expansion.group_variants(definition, door):
            number = len(orders) + 1
            letters = {variant: _variant_letter(n) for n, variant in enumerate(group.variants)}
            named = {"door": door} if "door" in definition.axes else {}
            rows += [
                {"job": number, "letter": letters[variant], **named, **dict(variant.values)}
                for variant in group.variants
            ]
            seed = variant_expansion.derive_job_seed(definition.seed, number)
            order = execution_order.order_job(definition, group, seed)
            orders.append(
                {"job": number, "executions": len(order), "orders": _format_orders(order, letters)}
            )
    return rows, orders


def _variant_letter(number: int) -> str:
    return _VARIANT_LETTERS[number] if number < len(_VARIANT_LETTERS) else f"<{number + 1}>"


def _format_orders(
    order: Iterable[execution_order.OrderedExecution], letters: Mapping[Variant, str]
) -> list[str]:
    texts: dict[int, str] = {}
    for execution in order:
        texts[execution.round] = texts.get(execution.round, "") + letters[execution.variant]
    return list(texts.values())


def _collect_facts(
    pinned: PinnedTest, variants: int, groups: int, executions: int
) -> dict[str, Any]:
    definition = pinned.definition
    return {
        "name": definition.name,
        "description": definition.description,
        "repository": pinned.repository,
        "ref": pinned.ref,
        "commit": pinned.commit,
        "dirty": pinned.dirty,
        "path": pinned.path,
        "payload": definition.payload,
        "kind": definition.payload_kind,
        "dataset": definition.dataset,
        "tree": definition.tree,
        "files": dict(pinned.hashes),
        "test_hash": identity.compute_test_hash(pinned),
        "bundle": list(definition.bundle),
        **({"headline": list(definition.headline)} if definition.headline else {}),
        "repeats": definition.repeats,
        "mode": definition.mode,
        "rounds": definition.rounds,
        "passes": definition.passes,
        "variants": variants,
        "jobs": groups * definition.repeats,
        "executions": executions * definition.repeats,
        "settings": dict(definition.settings),
        **({"load": asdict(definition.load)} if definition.load else {}),
        **({"before": asdict(definition.before)} if definition.before else {}),
    }


def _print_facts(facts: dict[str, Any], load: LoadSettings | None) -> None:
    state = ", modified in the working tree" if facts["dirty"] else ""
    paired = "in paired mode, " if facts["mode"] == PAIRED else ""
    commit = f"commit {facts['commit'][:12]}{state}" if facts["commit"] else "not in Git"
    lines = {
        "test": f"{facts['name']}  {facts['description']}".rstrip(),
        "from": f"{facts['repository']} {facts['path']} ({commit})",
        "payload": f"{facts['payload']} ({facts['kind']})",
        "reads": f"{facts['dataset'] or 'no dataset'} {facts['tree']}".rstrip(),
        "hash": facts["test_hash"][:16],
        "plan": f"variants {facts['variants']}, jobs {facts['jobs']}, executions "
        f"{facts['executions']} for each site and door ({paired}"
        f"repeats {facts['repeats']}, rounds {facts['rounds']}, passes {facts['passes']})",
    }
    if "headline" in facts:
        lines["headline"] = ", ".join(facts["headline"])
    if "before" in facts:
        command, applied = facts["before"]["command"], ", ".join(facts["before"]["settings"])
        lines["before"] = f"{command} applies {applied} before each execution"
    if load:
        lines["load"] = load.describe()
    for name, text in lines.items():
        click.echo(f"{name:8} {text}")
    click.echo()


@tests.command()
@click.argument("specs", nargs=-1, required=True, metavar="SPEC...", shell_complete=complete_tests)
@click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
@click.pass_obj
@click.pass_context
def check(
    context: click.Context, settings: Settings, specs: tuple[str, ...], as_json: bool
) -> None:
    """Report all mistakes in tests with file, line, key and the expected value.

    Python files are compiled, too. Exits with code 2 if there are any mistakes.

    Example: treehammer tests check my-test ./tests/another
    """
    found = [_check_test(spec, settings) for spec in specs]
    if as_json:
        click.echo(json.dumps([checked.document for checked in found], indent=1))
    else:
        for checked in found:
            click.echo(checked.describe())
    context.exit(max(checked.exit_code for checked in found))


@dataclass(frozen=True)
class _CheckedTest:
    """Result of checking one test; ``pinned`` is None if it has problems."""

    spec: str
    pinned: PinnedTest | None
    problems: tuple[str, ...] = ()
    exit_code: ExitCode = ExitCode.DONE

    @property
    def document(self) -> dict[str, Any]:
        """The result for programs."""
        facts = {}
        if self.pinned:
            name, commit = self.pinned.definition.name, self.pinned.commit
            facts = {"name": name, "commit": commit, "dirty": self.pinned.dirty}
        return {"test": self.spec, "ok": not self.problems, **facts, "problems": self.problems}

    def describe(self) -> str:
        """Describe the result in one line, or each problem in one."""
        if self.pinned is None:
            return "\n".join(self.problems)
        dirty = ", modified in the working tree" if self.pinned.dirty else ""
        at = f" at {self.pinned.commit[:12]}{dirty}" if self.pinned.commit else ""
        return f"ok {self.spec}: {self.pinned.definition.name}{at}"


def _check_test(spec: str, settings: Settings) -> _CheckedTest:
    shown = mask_credentials(spec)
    try:
        return _CheckedTest(shown, pinned_tests.pin_test(spec, settings))
    except TreehammerError as error:
        problems = error.problems if isinstance(error, DefinitionError) else ()
        return _CheckedTest(shown, None, problems or (str(error),), error.exit_code)


@tests.command()
def schema() -> None:
    """Print the JSON Schema of test.toml, for editors.

    Example: treehammer tests schema > test.schema.json
    """
    click.echo(json.dumps(toml_models.build_test_schema(), indent=1, sort_keys=True))
