"""``treehammer review``: a campaign's verdict as one comment of a pull or merge request."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import click

from treehammer.codereview.comment_thread import GITHUB, GITLAB, CommentThread, describe_run
from treehammer.collectors.record.day_numbers import current_us
from treehammer.config import Settings
from treehammer.errors import NothingToDoError
from treehammer.sql.cli import pass_store
from treehammer.terminal import CAMPAIGN, print_early

if TYPE_CHECKING:
    from treehammer.analysis.comparison.comparison_result import ComparisonResult
    from treehammer.sql.core.rows import CampaignRow
    from treehammer.sql.write.store import Store

#: Rows of a table; a comment has 65,536 characters at most.
MAX_ROWS = 40


@click.command("review")
@click.option(
    "--campaign",
    metavar="ID|last",
    default="last",
    show_default=True,
    type=CAMPAIGN,
    help="Campaign whose verdict is written.",
)
@click.option(
    "--comment",
    "service",
    type=click.Choice([GITHUB, GITLAB]),
    help="Write it into the pull or merge request of this pipeline [default: only print it].",
)
@click.option(
    "--site",
    metavar="URL",
    default="",
    help="Address of the site that 'treehammer publish' writes, for links to its pages.",
)
@pass_store
def review(
    settings: Settings, store: Store, /, campaign: str, service: str | None, site: str
) -> None:
    """Print a campaign's verdict as Markdown, or write it as a comment of a pull request.

    Verdict, tables and limits; the comment of an earlier run for the same test is updated. The
    pipeline's variables name the request. The token is GITHUB_TOKEN, for GitLab GITLAB_TOKEN (a
    project access token with the scope api), else CI_JOB_TOKEN.

    \b
    Example: treehammer review
             treehammer review --comment github --site https://example.org/root/
    """
    row = store.campaign(campaign)
    text = "\n".join(describe_review(store, row, site, os.environ))
    if service is None:
        click.echo(text)
        return
    digest = hashlib.sha256(f"{row.test_path} {row.test_name}".encode()).hexdigest()
    address = CommentThread.open(service, os.environ).write(
        f"<!-- treehammer {digest[:16]} -->", text
    )
    print_early(f"comment written: {address}" if address else "comment written")


def describe_review(
    store: Store, campaign: CampaignRow, site: str, environment: Mapping[str, str]
) -> Iterator[str]:
    """Yield the lines of a comment; verdicts are stored, so that they can be published.

    Raises:
        NothingToDoError: the campaign neither compares anything nor states a limit.
    """
    from treehammer.analysis.comparison.comparison_result import judge_campaign, store_results
    from treehammer.analysis.comparison.limit_outcomes import judge_limits
    from treehammer.analysis.comparison.limit_text import escape_markdown, format_markdown
    from treehammer.analysis.comparison.series_changes import DETAIL_COLUMNS
    from treehammer.analysis.statistics.headline_rows import load_headline_rows
    from treehammer.sql.read.query_model import Selection

    rows = load_headline_rows(store, Selection((campaign.id,)), DETAIL_COLUMNS)
    verdict = judge_campaign(store, campaign, rows)
    report = judge_limits(store, campaign, current_us())
    if not (verdict.results or verdict.problems or report.outcomes):
        raise NothingToDoError(f"{campaign.name} compares nothing and states no limit")
    store_results(store, verdict.results)
    yield f"## Treehammer: {escape_markdown(campaign.test_name)}"
    yield ""
    for problem in verdict.problems:
        yield f"{escape_markdown(problem)}\n"
    for result in verdict.results:
        yield from _describe_result(result, site)
    if report.outcomes:
        yield format_markdown(report)
    run = describe_run(environment)
    yield f"\n[Run and report]({run})" if run else ""


def _describe_result(result: ComparisonResult, site: str) -> Iterator[str]:
    from treehammer.analysis.cli.comparison_output import make_verdict_columns, make_verdict_table
    from treehammer.analysis.comparison.conclusion import describe_conclusion
    from treehammer.analysis.comparison.limit_text import escape_markdown, format_markdown_table

    verdicts = result.comparison.of_series
    names = _name_commits(result)
    yield f"**{escape_markdown(describe_conclusion(result.comparison.verdicts, names))}**\n"
    table = make_verdict_table(
        verdicts[:MAX_ROWS], make_verdict_columns(verdicts, names), "", False
    )
    yield from format_markdown_table(table.rows, table.columns)
    if len(verdicts) > MAX_ROWS:
        yield f"\nAnd {len(verdicts) - MAX_ROWS} more."
    if changed := [change for change in result.counters if change.has_changed]:
        names_of_counters = ", ".join(dict.fromkeys(change.metric for change in changed))
        yield f"\nExact counters that changed: {escape_markdown(names_of_counters)}."
    if site:
        yield f"\n[Published evidence]({site.rstrip('/')}/compare/{result.comparison.query.id}.html)"
    yield ""


def _name_commits(result: ComparisonResult) -> Mapping[str, str]:
    from treehammer.hctests.definition.model import COMMIT_AXIS, format_commit

    query = result.comparison.query
    values: Sequence[object] = (query.a, query.b) if query.axis == COMMIT_AXIS else ()
    return {str(value): format_commit(str(value)) for value in values}
