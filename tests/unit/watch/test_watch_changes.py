"""Change points of simulated series, and the search for the build that changed a metric."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from datetime import date

import numpy as np
import pytest

from treehammer.analysis.statistics.item_effects import adjust_for_items
from treehammer.watch.bisection.bisection_search import (
    Conclusion,
    CounterSearch,
    SearchOutcome,
    StepPosterior,
    StepSearch,
    expect_information,
)
from treehammer.watch.changes.change_search import MAX_SEARCHES, Change, find_changes
from treehammer.watch.changes.daily_series import (
    CONFIRM_DAYS,
    MIN_DAYS,
    Attribution,
    ChangeState,
    DailySeries,
    NodeIdentity,
    SeriesKind,
    SeriesPlace,
    average_days,
    estimate_step,
    find_steps,
    is_seconded,
)
from treehammer.watch.changes.job_points import LevelDay, fit_levels, identify_nodes

FIRST = date(2026, 3, 1).toordinal()
SITES, RELEASES = ("A", "B", "C", "D", "E", "F"), ("6.38", "6.40")
#: Site F reads the storage of A.
STORAGES = {"F": "A"}
NOISE = 0.004

Slowdown = Callable[[SeriesPlace], float]


def simulate(slowdown: Slowdown, *, day: int = 40, days: int = 90) -> list[DailySeries]:
    rng = np.random.default_rng(1)
    series = []
    for site in SITES:
        for release in RELEASES:
            place = SeriesPlace(site, STORAGES.get(site, site), "near", release)
            measured_days = [number for number in range(days) if rng.random() > 0.1]
            values = {
                FIRST + number: float(rng.normal(0.1, NOISE))
                + (slowdown(place) if number >= day else 0.0)
                for number in measured_days
            }
            series.append(DailySeries.from_days(f"{site} {release}", place, values))
    return series


def simulate_days(
    slowdown: Callable[..., float], missing: float = 0.0, days: int = 90
) -> list[DailySeries]:
    """Simulate one release at six sites, slower by ``slowdown(site, day)``."""
    noise = np.random.default_rng(5)
    return [
        DailySeries.from_days(
            f"{site} master",
            SeriesPlace(site, site, "root", "master", "v"),
            {
                FIRST + day: noise.normal(0, 0.005) + slowdown(site, day)
                for day in range(days)
                if noise.random() >= missing or day in (0, days - 1)
            },
        )
        for site in "ABCDEF"
    ]


def search(series: Sequence[DailySeries]) -> list[Change]:
    return find_changes(series, SeriesKind.RATIO)


@pytest.mark.parametrize(
    ("slowdown", "attribution", "subject"),
    [
        (lambda place: 0.02 * (place.site == "C"), Attribution.SITE, "C"),
        (lambda place: 0.02 * (place.release == "6.40"), Attribution.RELEASE, "6.40"),
        (lambda place: 0.02 * (place.storage_site == "A"), Attribution.STORAGE, "A"),
        (lambda _: -0.02, Attribution.CENTRAL, ""),
    ],
)
@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_step_points_at_its_cause(
    slowdown: Slowdown, attribution: Attribution, subject: str, noise: float
) -> None:
    series = simulate(slowdown)
    for noisy in series[6:8]:
        noisy.values[:] += np.random.default_rng(2).normal(0, noise, len(noisy.values))
    (change,) = search(series)
    assert (change.group.attribution, change.group.subject) == (attribution, subject)
    assert change.day == FIRST + 40
    low, high = change.interval
    assert low < change.size < high
    assert abs(change.size) == pytest.approx(0.02, abs=0.003)
    assert change.seconded
    assert change.state is ChangeState.CONFIRMED


def test_unequal_mix_points_at_nothing() -> None:
    mixed = {("A", "6.38"), ("C", "6.40"), ("D", "6.38")}
    changes = search(simulate(lambda place: 0.05 * ((place.site, place.release) in mixed)))
    assert {change.group.attribution for change in changes} == {Attribution.UNKNOWN}
    assert {member for change in changes for member in change.group.members} == {
        " ".join(change) for change in mixed
    }


def test_quiet_series_and_a_wild_day_have_no_changes() -> None:
    series = simulate(lambda _: 0.0)
    assert search(series) == []
    series[3].values[30] += 0.5
    assert search(series) == []


def test_two_changes_of_one_site_are_both_found() -> None:
    series = [
        item.shift(FIRST + 70, 0.06) if item.place.site == "B" else item
        for item in simulate(lambda place: 0.03 * (place.site == "B"))
    ]
    changes = [(c.day - FIRST, c.group.subject, round(c.size, 2)) for c in search(series)]
    assert changes == [(40, "B", 0.03), (70, "B", -0.06)]


@pytest.mark.parametrize(
    ("before", "after"),
    [(CONFIRM_DAYS - 1, 60), (40, CONFIRM_DAYS - 2), (40, CONFIRM_DAYS + 3), (80, 10), (45, 45)],
)
def test_change_is_provisional_until_days_on_both_sides_confirm_it(before: int, after: int) -> None:
    (change,) = search(simulate(lambda _: 0.05, day=before, days=before + after))
    assert (change.day - FIRST, change.until) == (before, None), "a step is no drift"
    assert (change.state is ChangeState.CONFIRMED) is (min(before, after) > CONFIRM_DAYS)


@pytest.mark.parametrize(
    ("sites", "missing", "size"), [("ABCDEF", 0.0, 0.2), ("C", 0.3, -0.1), ("ABC", 0.0, 0.03)]
)
@pytest.mark.parametrize("length", [2, 3, 4, 7])
def test_ends_of_an_incident_share_a_state(
    length: int, sites: str, missing: float, size: float
) -> None:
    """Both are provisional until the days between them confirm them; two days are no incident."""
    series = simulate_days(
        lambda site, day: size * (site in sites and 45 <= day < 45 + length), missing
    )
    changes = search(series)
    # Half of the sites, or sites without some of the days, are found one by one.
    ends: dict[frozenset[str], list[Change]] = {}
    for change in changes:
        ends.setdefault(change.group.members, []).append(change)
        assert abs(change.size) == pytest.approx(abs(size), rel=0.1, abs=0.005)
    for first, second in ends.values():
        assert first.day - FIRST == 45
        assert second.day - FIRST == pytest.approx(45 + length, abs=1)
        assert first.state is second.state
    if not missing and length >= MIN_DAYS:
        assert frozenset().union(*ends) == {f"{site} master" for site in sites}
        is_long = length >= CONFIRM_DAYS
        assert (changes[0].state is ChangeState.CONFIRMED) is is_long
    assert not changes or length >= MIN_DAYS


@pytest.mark.parametrize(("length", "days_since"), [(3, 2), (4, 1), (4, 2)])
def test_incident_that_has_just_ended_is_provisional(length: int, days_since: int) -> None:
    end = 45 + length
    series = simulate_days(
        lambda site, day: 0.2 * (site == "C" and 45 <= day < end), 0, end + days_since
    )
    assert {change.state for change in search(series)} <= {ChangeState.PROVISIONAL}


@pytest.mark.parametrize("peaks", [(0.07, 0.14, 0.2), (0.2, 0.14, 0.07)])
def test_incident_that_comes_or_goes_gradually_has_both_ends(peaks: tuple[float, ...]) -> None:
    changes = search(simulate_days(lambda _, day: dict(enumerate(peaks, 44)).get(day, 0.0)))
    ends = [(change.state, change.size > 0) for change in changes]
    assert ends == [("provisional", True), ("provisional", False)]


@pytest.mark.parametrize("peak", [0.1, 0.15, -0.15])
@pytest.mark.parametrize("length", [1, 2, 3, 4])
def test_slowdown_that_lasts_after_an_incident_is_confirmed(length: int, peak: float) -> None:
    def slow(site: str, day: int) -> float:
        return (site == "C") * (peak if 45 <= day < 45 + length else 0.05 * (day >= 45))

    lasting = [change for change in search(simulate_days(slow)) if change.state == "confirmed"]
    assert [(change.group.subject, change.until) for change in lasting] == [("C", None)]
    assert 45 <= lasting[0].day - FIRST <= 45 + length
    assert lasting[0].size == pytest.approx(0.05, abs=0.01)


def test_searches_of_wild_series_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("treehammer.watch.changes.change_search.MAX_CHANGES", 2)
    series = simulate_days(lambda site, day: 0.2 * (0 <= day - 12 * SITES.index(site) - 10 < 4))
    changes = search(series)
    assert len(changes) == 2 * MAX_SEARCHES < 2 * len(series)
    assert {change.state for change in changes} == {ChangeState.PROVISIONAL}


@pytest.mark.parametrize("sites", ["ABCDEF", "C"])
def test_incidents_a_few_days_apart_are_both_found(sites: str) -> None:
    slow_days = {45, 46, 47, 51, 52, 53}
    changes = search(simulate_days(lambda site, day: 0.2 * (site in sites and day in slow_days)))
    assert [change.day - FIRST for change in changes] == [45, 48, 51, 54]
    assert {change.state for change in changes} == {ChangeState.PROVISIONAL}


@pytest.mark.parametrize(
    ("days", "missing", "sites", "size"),
    [(90, 0.0, "C", 0.06), (90, 0.3, "ABCDEF", -0.03), (45, 0.0, "C", -0.03)],
)
def test_slow_drift_is_found_as_one_change(
    days: int, missing: float, sites: str, size: float
) -> None:
    series = simulate_days(
        lambda site, day: size * (site in sites) * day / days, missing, days=days
    )
    (change,) = search(series)
    assert change.until is not None
    assert (change.day - FIRST, change.until - FIRST) == (0, days - 1)
    assert change.size == pytest.approx(size, abs=0.004)
    assert change.group.members == {f"{site} master" for site in sites}
    assert (change.state, change.seconded) == (ChangeState.CONFIRMED, True)


def test_cause_decides_between_site_and_storage() -> None:
    """The only series that reads a storage cannot tell it from its site; its context can."""

    def slow(place: SeriesPlace) -> float:
        return 0.04 * (place.site == "D")

    (plain,) = search(simulate(slow))
    assert plain.group.attribution is Attribution.SITE
    upgraded = []
    for item in simulate(slow):
        versions = ["56"[item.place.site == "D" and int(day) >= FIRST + 40] for day in item.days]
        contexts = [{"storage server": version} for version in versions]
        upgraded.append(replace(item, contexts=contexts))
    (change,) = search(upgraded)
    assert (change.group.attribution, change.group.subject) == (Attribution.STORAGE, "D")
    assert [str(cause) for cause in change.causes] == ["storage server 5 → 6"]


def test_interval_of_a_day_grows_with_its_ratio() -> None:
    series = simulate_days(lambda *_: 0.0, days=3)
    doubled = [replace(member, values=member.values + math.log(2)) for member in series]
    for day, other in zip(average_days(series), average_days(doubled), strict=True):
        ratio, error = 2 * (1 + day.change), 2 * (day.error or 0.0)
        assert (other.change, other.error) == pytest.approx((ratio - 1, error))


def test_missing_members_do_not_bias_a_day() -> None:
    items = np.array([0, 0, 0, 1, 1, 2])
    days = np.array([1, 2, 3, 2, 3, 3])
    truth = {1: 0.0, 2: 0.5, 3: 0.2}
    levels = np.array([0.0, 10.0, -3.0])
    values = levels[items] + np.array([truth[day] for day in days])
    adjusted, effects = adjust_for_items(items, days, values)
    assert list(adjusted) == [1, 2, 3]
    assert effects - effects[0] == pytest.approx([0.0, 0.5, 0.2], abs=1e-6)


def test_interval_covers_the_true_step() -> None:
    rng = np.random.default_rng(2)
    covered = 0
    for _ in range(300):
        values = rng.normal(0, 1, 30) + np.where(np.arange(30) >= 12, 1.0, 0.0)
        estimate = estimate_step(values, 0, 12, 30)
        assert estimate is not None
        low, high = estimate.interval()
        covered += low <= 1.0 <= high
    assert covered >= 0.93 * 300


def test_values_without_spread_have_no_steps() -> None:
    days, flat = np.arange(30), np.zeros(30)
    assert find_steps(days, flat, 0.05) == []
    assert not is_seconded(days, flat, 15)
    assert estimate_step(flat, 0, 15, 30) is None
    assert find_steps(days[:4], np.array([0.0, 1.0, 0.0, 1.0]), 0.05) == []


SITE_HOSTS, JOBS, HOST_SPREAD = 6, 4, 0.1
NAMES = {
    "fixed": lambda job, host: (f"wn{host}", {}),
    "machine": lambda job, host: (f"pod-{job}", {"machine": f"m{host}"}),
    "CPU model": lambda job, host: (f"pod-{job}", {"node type": f"EPYC {host % 3}"}),
    "unknown": lambda job, host: (f"pod-{job}", {}),
}


def simulate_levels(
    name: Callable[[int, int], tuple[str, dict[str, str]]],
    *,
    size: float = 0.1,
    slow_days: Collection[int] = range(45, 90),
    jobs: int = JOBS,
    jobs_on_host: int = 1,
    missing: float = 0.1,
) -> list[LevelDay]:
    """Simulate jobs of two works on hosts that differ by 10 %; on some days the site is slow."""
    rng = np.random.default_rng(3)
    hosts = rng.normal(0, HOST_SPREAD, SITE_HOSTS)
    items = []
    for number in range(90 * jobs):
        if rng.random() < missing:
            continue
        day = number // jobs
        if number % jobs_on_host == 0:
            host = int(rng.integers(SITE_HOSTS))
        value = hosts[host] + rng.normal(number % 2, 0.02) + size * (day in slow_days)
        host_name, context = name(number, host)
        items.append(LevelDay(f"work {number % 2}", host_name, FIRST + day, value, context))
    return items


def find_level_steps(items: Sequence[LevelDay]) -> list[tuple[int, float]]:
    levels, _ = fit_levels(items)
    days, values = np.array(sorted(levels)), np.array([levels[day] for day in sorted(levels)])
    steps = find_steps(days, values, 1e-5)
    return [(step.day - FIRST, step.estimate.mean) for step in steps]


@pytest.mark.parametrize(("missing", "jobs"), [(0.0, 4), (0.2, 2)])
@pytest.mark.parametrize("names", NAMES)
def test_step_is_found_whatever_the_hosts_are_called(names: str, missing: float, jobs: int) -> None:
    items = simulate_levels(NAMES[names], jobs=jobs, missing=missing)
    ((day, size),) = find_level_steps(items)
    assert abs(day - 45) <= 3
    assert size == pytest.approx(0.1, abs=0.04 if names in ("CPU model", "unknown") else 0.01)


def test_node_is_known_by_what_other_days_share() -> None:
    def item(day: int, host: str, **context: str) -> LevelDay:
        return LevelDay("w", host, day, 0.0, {n.replace("_", " "): v for n, v in context.items()})

    items = [
        item(1, "wn1"),
        item(2, "wn1"),
        item(1, "pod-a", machine="m1", node_type="Zen"),
        item(2, "pod-b", machine="m1", node_type="Zen"),
        item(2, "pod-c", machine="m1", node_type="Xeon"),
        item(3, "pod-d", machine="m2", node_type="Xeon"),
        item(3, "pod-e", node_type="ARM"),
        item(3, "pod-e", node_type="ARM"),
    ]
    host, machine, model, site = NodeIdentity
    assert identify_nodes(items) == [
        *[(host, "wn1")] * 2,
        *[(machine, "m1 Zen")] * 2,
        *[(model, "Xeon")] * 2,
        *[(site, "")] * 2,
    ]
    assert identify_nodes(items[:1]) == [(host, "wn1")], "before the second day"


def test_days_whose_jobs_share_a_host_lose_no_part_of_a_step() -> None:
    items = simulate_levels(NAMES["fixed"], size=0.05, missing=0, jobs_on_host=JOBS)
    ((day, size),) = find_level_steps(items)
    assert abs(day - 45) <= 2
    assert size == pytest.approx(0.05, abs=0.006)


def test_days_between_incidents_keep_their_level() -> None:
    items = simulate_levels(NAMES["fixed"], slow_days=(16, 17, 18, 22, 23, 24))
    assert [day for day, _ in find_level_steps(items)] == [16, 19, 22, 25]


def test_jobs_beside_a_busy_neighbor_hide_no_step() -> None:
    rng = np.random.default_rng(5)
    items = [
        item._replace(value=item.value + (rng.uniform(0.05, 0.3) if rng.random() < 0.25 else 0))
        for item in simulate_levels(NAMES["fixed"], size=0.06)
    ]
    ((day, size),) = find_level_steps(items)
    assert abs(day - 45) <= 3
    assert size == pytest.approx(0.06, abs=0.01)


def test_evenings_share_the_error_of_a_search() -> None:
    """Noise in which searches with 5 % each announced a change on some evening."""
    seeds = (102, 118, 125, 143, 168, 180, 181, 234)
    assert sum(any(announce_changes(seed)) for seed in seeds) <= len(seeds) / 4


def announce_changes(seed: int) -> Iterator[Change]:
    """Search noise every fifth evening; yield confirmed changes."""
    noise = np.random.default_rng(seed).normal(0, 0.01, (len(SITES), 90))
    for last in range(20, 91, 5):
        series = [
            DailySeries.from_days(
                site,
                SeriesPlace(site, site, "near", "6.40"),
                {FIRST + day: float(value) for day, value in enumerate(values[:last])},
            )
            for site, values in zip(SITES, noise, strict=True)
        ]
        yield from (change for change in search(series) if change.state is ChangeState.CONFIRMED)


SEARCH_NOISE, WIDE_SEARCH = 0.007, StepSearch(64)


def is_undecided(search: StepSearch | CounterSearch) -> bool:
    return search.conclude().outcome is SearchOutcome.UNDECIDED


def run_search(
    level: Callable[[int], float],
    search: StepSearch = WIDE_SEARCH,
    *,
    seed: int = 1,
    limit: int = 80,
) -> tuple[Conclusion, StepSearch]:
    """Search with simulated jobs; ``level`` is the true effect of a build."""
    noise = np.random.default_rng(seed)
    while is_undecided(search) and len(search.jobs) < limit:
        build = search.choose_next()
        assert build not in search.skipped
        effect = level(build) + SEARCH_NOISE * noise.normal()
        search = replace(search, jobs=(*search.jobs, (build, effect)))
    return search.conclude(), search


@pytest.mark.parametrize(
    ("place", "size"),
    [(1, 0.05), (2, 0.05), (31, 0.05), (62, 0.05), (63, 0.05), (20, -0.1), (20, 1.0)],
)
def test_step_is_found_anywhere(place: int, size: float) -> None:
    result, search = run_search(lambda build: size if build >= place else 0.0)
    assert result.outcome is SearchOutcome.STEP
    (step,) = result.steps
    assert (step.first, step.last) == (place, place)
    assert step.certainty >= 0.95
    assert step.effect == pytest.approx(size, abs=0.02)
    assert step.low is not None
    assert step.high is not None
    assert step.low < size < step.high
    assert len(search.jobs) <= 12
    assert search.jobs[0][0] == 63, "BAD comes first"
    assert result.candidates == (place, place)


def test_equal_builds_are_unchanged() -> None:
    result, _ = run_search(lambda _build: 0.0)
    assert result.outcome is SearchOutcome.UNCHANGED
    assert result.steps == ()
    assert result.last_level is not None
    mean, low, high = result.last_level
    assert low < 0 < high
    assert abs(mean) < 0.01


def test_two_steps_are_reported() -> None:
    result, _ = run_search(lambda build: 0.0 if build < 10 else 0.15 if build < 40 else 0.05)
    assert result.outcome is SearchOutcome.SEVERAL_STEPS
    assert [step.last for step in result.steps] == [10, 40]
    sizes = [step.effect for step in result.steps]
    assert sizes == [pytest.approx(0.15, abs=0.03), pytest.approx(-0.10, abs=0.03)]


def test_disturbed_job_makes_no_steps() -> None:
    search = StepSearch(6, jobs=((5, 0.010), (3, -0.005), (2, 0.004), (1, 1.38)))
    assert search.conclude().outcome is SearchOutcome.UNDECIDED, "the high build was measured once"
    assert search.choose_next() == 1
    search = replace(search, jobs=(*search.jobs, (1, 0.002)))
    assert search.conclude().outcome is not SearchOutcome.SEVERAL_STEPS


def test_search_without_enough_jobs_is_undecided() -> None:
    result, search = run_search(lambda build: 0.02 if build >= 30 else 0.0, limit=5)
    assert result.outcome is SearchOutcome.UNDECIDED
    assert len(search.jobs) == 5
    assert result.certainty < 0.95
    first, last = result.candidates
    assert first <= 30 <= last
    assert result.shares is not None
    assert sum(result.shares) == pytest.approx(1)


def test_skipped_builds_widen_the_result() -> None:
    search = StepSearch(16, skipped=frozenset({7, 8}))
    conclusion, _ = run_search(lambda build: 0.1 if build >= 8 else 0.0, search, seed=3)
    assert conclusion.outcome is SearchOutcome.STEP
    assert (conclusion.steps[0].first, conclusion.steps[0].last) == (7, 9)


def test_stated_certainty_holds() -> None:
    """Fewer than 18 right ones of 20 searches that state 95 % would be a chance of 8 %."""
    right = 0
    for seed in range(20):
        place = 1 + 7 * seed % 15
        result, _ = run_search(
            lambda b, p=place: 0.03 if b >= p else 0.0,  # type: ignore[misc]
            StepSearch(16),
            seed=seed,
        )
        right += result.outcome is SearchOutcome.STEP and result.steps[0].last == place
    assert right >= 18


def test_information_is_highest_inside_the_range() -> None:
    posterior = StepPosterior(9, [(8, 0.1), (8, 0.1), (4, 0.0)])
    gains = {build: expect_information(posterior, build) for build in range(1, 9)}
    assert max(gains, key=gains.__getitem__) == 6
    assert gains[6] == pytest.approx(math.log(2), rel=0.4)
    assert all(gain >= 0 for gain in gains.values())


def count_probes(values: list[float], skipped: tuple[int, ...] = ()) -> tuple[Conclusion, int]:
    search, probes = CounterSearch(len(values)), 0
    while is_undecided(search):
        build = search.choose_next()
        if build in skipped:
            search = replace(search, skipped=search.skipped | {build})
            continue
        probes += 1
        measured = {**search.values, 0: values[0], build: values[build]}
        search = replace(search, values=measured)
    return search.conclude(), probes


def test_counter_needs_one_job_a_halving() -> None:
    result, probes = count_probes([100.0] * 37 + [110.0] * 27)
    assert result.outcome is SearchOutcome.STEP
    assert result.certainty == 1
    assert (result.steps[0].first, result.steps[0].last) == (37, 37)
    assert result.steps[0].effect == pytest.approx(math.log(1.1))
    assert probes <= 7


def test_equal_counters_need_one_job() -> None:
    result, probes = count_probes([5.0] * 64)
    assert (result.outcome, probes) == (SearchOutcome.UNCHANGED, 1)


@pytest.mark.parametrize(
    ("values", "skipped", "outcome", "step"),
    [
        ([1.0] * 5 + [2.0] * 3 + [3.0] * 8, (), SearchOutcome.SEVERAL_STEPS, (5, 5)),
        ([0.0, 0.0, 4.0, 4.0], (), SearchOutcome.STEP, (2, 2)),
        ([1.0] * 8 + [2.0] * 8, (7, 8), SearchOutcome.STEP, (7, 9)),
    ],
)
def test_third_values_zeros_and_skipped_builds_of_a_counter(
    values: list[float], skipped: tuple[int, ...], outcome: SearchOutcome, step: tuple[int, int]
) -> None:
    result, _ = count_probes(values, skipped)
    assert (result.outcome, (result.steps[0].first, result.steps[0].last)) == (outcome, step)
    assert (result.steps[0].effect is None) is (values[0] == 0), "0 has no ratio"
