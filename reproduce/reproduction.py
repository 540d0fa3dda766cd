"""Runs of published results: data, campaign and judgement of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from treehammer.analysis.statistics.verdict import DEFAULT_DELTA, DEFAULT_MAX_LAUNCHES
from treehammer.collectors.job_spec import LOCAL_BATCH, PAIRED
from treehammer.config import Settings
from treehammer.datasets import DEFAULT_ROOT
from treehammer.datasets.catalogues.dataset_rewriting import make_dataset
from treehammer.datasets.catalogues.folder_catalogue import FolderCatalogue
from treehammer.datasets.root_process import prepare_dataset_root
from treehammer.errors import DatasetError, TreehammerError
from treehammer.reproduce.agreement import Agreement, Reproduction, judge
from treehammer.reproduce.published_result import DatasetTable, PublishedResult
from treehammer.sql.core.rows import CampaignRow
from treehammer.sql.write.store import Store
from treehammer.submit.campaigns.campaign_polling import CampaignDisplay, wait_for_campaign
from treehammer.submit.campaigns.campaign_request import plan_request
from treehammer.submit.campaigns.submission import submit_plan
from treehammer.submit.planning.submission_options import CampaignRequest, SubmissionOptions
from treehammer.submit.tools.local_comparison import (
    choose_slots,
    ends_when_decided,
    parse_sequential_plan,
    run_until_decided,
)
from treehammer.submit.tools.read_session import cancel_on_interrupt
from treehammer.text_formatting import ProgressFactory, join_lines


def reproduce_results(
    results: Sequence[PublishedResult],
    sites: tuple[str, ...],
    settings: Settings,
    bars: ProgressFactory,
    display: CampaignDisplay,
    announce: Callable[[PublishedResult], None],
) -> Iterator[Reproduction]:
    """Measure published results, one after the other.

    A result whose data or campaign fails cannot be judged here, with the error as the reason.

    Args:
        sites: names of sites whose storage is read.
        announce: called before each.
    """
    for result in results:
        announce(result)
        if result.campaign.needs and sites == (LOCAL_BATCH,):
            yield Reproduction(result, Agreement.UNJUDGED, reason=result.campaign.needs)
            continue
        try:
            campaign = _measure(result, sites, settings, bars, display)
        except TreehammerError as error:
            reason = join_lines(str(error)).rstrip(".")
            yield Reproduction(result, Agreement.UNJUDGED, reason=reason)
            continue
        with Store.open(settings.database) as store:
            yield judge(store, result, campaign)


def _make_dataset(
    catalogue: FolderCatalogue,
    result: PublishedResult,
    dataset: DatasetTable,
    settings: Settings,
    bars: ProgressFactory,
) -> None:
    """Make a dataset of a result, or add the file of another writer.

    Raises:
        DatasetError: it cannot be made, or the file is not in ``sources_dir``.
    """
    if dataset.is_file:
        path = (settings.sources_dir or Path()) / dataset.source
        if not settings.sources_dir or not path.is_file():
            hint = "Set sources_dir to the folder that holds it."
            raise DatasetError("is not at hand", where=dataset.source, hint=hint)
        software = prepare_dataset_root(DEFAULT_ROOT, settings.software_dir, bars)
        catalogue.add(dataset.name, [path], software, bars=bars)
        return
    source = str(result.folder / dataset.source) if dataset.is_spec else dataset.source
    make_dataset(catalogue, settings, source, dataset.options, dataset.name, bars=bars)


def _measure(
    result: PublishedResult,
    sites: tuple[str, ...],
    settings: Settings,
    bars: ProgressFactory,
    display: CampaignDisplay,
) -> CampaignRow:
    """Make the data of a result and run its campaign."""
    catalogue = FolderCatalogue(settings.datasets_dir)
    for dataset in result.dataset:
        if not catalogue.has(dataset.name or Path(dataset.source).stem):
            _make_dataset(catalogue, result, dataset, settings, bars)
    request = CampaignRequest(
        result.campaign.test,
        result.campaign.axes,
        result.campaign.settings,
        sites,
        name=result.campaign_name,
        options=SubmissionOptions(use_service=False),
    )
    plan = plan_request(request, settings, bars=bars)
    with cancel_on_interrupt(settings, plan.campaign_id):
        is_paired = plan.pinned_test.definition.test.mode == PAIRED
        if is_paired and ends_when_decided(plan, request, None):
            sequential = parse_sequential_plan(DEFAULT_MAX_LAUNCHES, DEFAULT_DELTA)
            return run_until_decided(plan, sequential, settings, display).campaign
        campaign = submit_plan(plan, choose_slots(settings))
        wait_for_campaign(campaign, settings, bars)
        return campaign
