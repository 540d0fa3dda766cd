"""Attribution of failures, by counts, to a site, storage, test, release or a central cause.

The same work is compared at the same time: a factor is named where its measurements fail more often
than others, by a one-sided test, and where it explains all outcomes best. Measurements of one job
fail together, so counts are divided by the failures that a failing job has.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import product

from treehammer.analysis.status.failure_causes import CAUSES_OF_TESTS, STORAGE_CLASSES, count_causes
from treehammer.sql.read.failure_counts import CommitCounts, FailureSign, OutcomeCell, Tally

#: Probability of naming a factor by chance, over all factors that are tried together.
ERROR_RATE = 0.01
#: Jobs with failures that a factor needs at least, and sites where a test or a release fails.
MIN_FAILED_JOBS, MIN_SITES = 3, 2
#: Sites, and their share, that a central cause needs.
MIN_CENTRAL_SITES, CENTRAL_SHARE = 3, 0.5
#: Log-likelihood by which a narrower factor must explain outcomes better.
_NARROWER = 3.0
#: Tests that fail less often than this share of the worst one are left out.
_MIN_RELATIVE_SHARE = 0.25


class Culprit(StrEnum):
    """Origin of failures."""

    SITE = "the site"
    STORAGE = "the storage"
    TEST = "the test"
    RELEASE = "the release"
    CENTRAL = "central"
    #: Failures are as frequent elsewhere.
    COMMON = "as elsewhere"
    UNKNOWN = "too few to tell"


@dataclass(frozen=True)
class FailureAttribution:
    """Origin of the failures of a site or storage, with the counts that show it.

    Attributes:
        culprit: the origin.
        tests: tests that fail.
        inside: failures of the culprit; of the site where there is none.
        outside: failures of the same work without it.
        sites: sites where the culprit fails, of all that have it.
        name: of the storage, test or release; '' for others.
        detail: the part that fails, such as ``with ROOT 6.40.00``, or that all read the storage.
        commit: commit since which a test fails; '' if it is not the commit.
        commit_us: time of the first campaign with that commit.
    """

    culprit: Culprit
    tests: tuple[str, ...]
    inside: Tally
    outside: Tally
    sites: Tally
    name: str = ""
    detail: str = ""
    commit: str = ""
    commit_us: int = 0


def sum_cells(cells: Iterable[OutcomeCell]) -> Tally:
    """Sum up the measurements of cells."""
    return sum((cell.tally for cell in cells), Tally())


def is_more_frequent(inside: Tally, outside: Tally, error_rate: float = ERROR_RATE) -> bool:
    """Decide by Fisher's exact test whether failures are more frequent on one side."""
    if inside.bad < MIN_FAILED_JOBS or not outside.total or inside.share <= outside.share:
        return False
    bad, total = inside.bad + outside.bad, inside.total + outside.total
    ways = _log_choose(total, bad)
    chance = 0.0
    for count in range(inside.bad, min(bad, inside.total) + 1):
        term = _log_choose(inside.total, count) + _log_choose(outside.total, bad - count) - ways
        chance += math.exp(term)
        if chance > error_rate or term < math.log(error_rate) - 30:
            break
    return chance <= error_rate


def _log_choose(total: int, count: int) -> float:
    if not 0 <= count <= total:
        return -math.inf
    return math.lgamma(total + 1) - math.lgamma(count + 1) - math.lgamma(total - count + 1)


def _log_likelihood(*sides: Tally) -> float:
    """Return the log-likelihood of outcomes with one rate of failures on each side."""
    total = 0.0
    for side in sides:
        for count in (side.bad, side.total - side.bad):
            total += count * math.log(count / side.total) if count else 0.0
    return total


@dataclass(frozen=True)
class _Factor:
    """A possible culprit: cells with some values, beside those that they are compared with.

    Attributes:
        culprit: kind of the factor.
        values: column of a cell -> value, of all cells that the factor covers.
        tests: tests that are compared.
        sites: sites that are compared.
    """

    culprit: Culprit
    values: Mapping[str, str]
    tests: Collection[str]
    sites: Collection[str]

    @property
    def name(self) -> str:
        """Value of the factor itself."""
        return next(iter(self.values.values()))

    @property
    def detail(self) -> str:
        """Part of the site that it is restricted to; '' for all."""
        words = {"release": "with ROOT", "door": "through door"}
        return " ".join(f"{words[key]} {value}" for key, value in [*self.values.items()][1:])

    def covers(self, cell: OutcomeCell) -> bool:
        """Return whether a cell has the factor's values."""
        has_values = all(getattr(cell, name) == value for name, value in self.values.items())
        return has_values and cell.test in self.tests

    def compares(self, cell: OutcomeCell) -> bool:
        """Return whether a cell is covered or compared with those that are."""
        if self.culprit is Culprit.TEST:
            return cell.site in self.sites
        is_unread = self.culprit is Culprit.STORAGE and not cell.storage_site
        if cell.test not in self.tests or is_unread:
            return False
        matches = [getattr(cell, name) == value for name, value in self.values.items()]
        return len(matches) == 1 or any(matches)


@dataclass(frozen=True)
class FailureQuestion:
    """A question: why does this site, or this storage, fail?

    Attributes:
        site: name of the site or storage.
        is_storage: whether it is the storage.
        test: only this test; '' for all.
        failures_per_job: failures that a failing job has.
        cells: all counts of that time.
        causes: names of the causes here; none before they are compared.
        other_causes: main cause of each other site that fails, but mostly by others.
    """

    site: str
    is_storage: bool
    test: str
    failures_per_job: float
    cells: Sequence[OutcomeCell]
    causes: Collection[str] = ()
    other_causes: Mapping[str, str] = field(default_factory=dict)

    @property
    def may_be_of_tests(self) -> bool:
        """Whether a test can cause these failures."""
        return not self.causes or any(name in CAUSES_OF_TESTS for name in self.causes)

    def is_here(self, cell: OutcomeCell) -> bool:
        """Return whether a cell belongs to the site or storage, and the test."""
        site = cell.storage_site if self.is_storage else cell.site
        return site == self.site and self.test in ("", cell.test)

    def count_jobs(self, tally: Tally) -> Tally:
        """Return independent numbers of failures, which those of one job are not."""
        return tally.per_job(self.failures_per_job)

    def fails_more(self, inside: Tally, outside: Tally, error_rate: float = ERROR_RATE) -> bool:
        """Decide whether jobs fail more often on one side."""
        return is_more_frequent(self.count_jobs(inside), self.count_jobs(outside), error_rate)

    def find_failing_tests(self) -> tuple[str, ...]:
        """Find the tests that fail here, without those that hardly do."""
        by_test = _tally_by("test", filter(self.is_here, self.cells))
        worst = max((tally.share for tally in by_test.values()), default=0.0)
        least = _MIN_RELATIVE_SHARE * worst
        return tuple(
            sorted(t for t, tally in by_test.items() if tally.bad and tally.share >= least)
        )

    def find_main_causes(self) -> set[str]:
        """Find the names of the causes of failures here, without those of few."""
        counts: Counter[str] = Counter()
        for cell in filter(self.is_here, self.cells):
            counts.update(count_causes(cell.failures))
        threshold = _MIN_RELATIVE_SHARE * max(counts.values(), default=0)
        return {name for name, count in counts.items() if count >= threshold}


def compare_causes(question: FailureQuestion) -> FailureQuestion:
    """Leave out the failures elsewhere of the same tests by other causes: no evidence on those here."""
    tests, causes = question.find_failing_tests(), question.find_main_causes()
    cells: list[OutcomeCell] = []
    unshared: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for cell in question.cells:
        failures = cell.failures
        if cell.test in tests and not question.is_here(cell):
            failures, others = _split_failures(failures, causes)
            unshared[cell.site].update(count_causes(others))
        if cell.good or failures:
            cells.append(replace(cell, failures=failures))
    compared = _tally_by("site", cells)
    other_causes = {
        site: by_cause.most_common(1)[0][0]
        for site, by_cause in unshared.items()
        if by_cause.total() > compared[site].bad
        and by_cause.total() > _MIN_RELATIVE_SHARE * compared[site].total
    }
    return replace(question, cells=cells, causes=causes, other_causes=other_causes)


def _split_failures(
    failures: Mapping[FailureSign, int], causes: Collection[str]
) -> tuple[dict[FailureSign, int], dict[FailureSign, int]]:
    """Split failures into those by some causes, and the others."""
    sides: tuple[dict[FailureSign, int], dict[FailureSign, int]] = ({}, {})
    for sign, count in failures.items():
        sides[count_causes({sign: 1}).keys().isdisjoint(causes)][sign] = count
    return sides


def attribute_failures(question: FailureQuestion) -> FailureAttribution | None:
    """Attribute the failures of a site or storage; None if it has none."""
    tests = question.find_failing_tests()
    if not tests:
        return None
    same_work = [cell for cell in question.cells if cell.test in tests]
    inside = sum_cells(filter(question.is_here, same_work))
    sites = _count_sites(same_work)
    base = FailureAttribution(Culprit.UNKNOWN, tests, inside, sum_cells(same_work) - inside, sites)
    is_widespread = sites.bad >= MIN_CENTRAL_SITES and sites.share >= CENTRAL_SHARE
    factors = _deduplicate(_list_factors(question, tests, same_work), question.cells)
    if proven := _find_proven_factor(factors, question, is_widespread):
        return _describe_factor(proven, base, question)
    if question.count_jobs(inside).bad < MIN_FAILED_JOBS:
        return base
    if is_widespread:
        return _attribute_to_all(base, same_work, question)
    elsewhere = question.count_jobs(base.outside).bad
    is_common = elsewhere >= MIN_FAILED_JOBS and base.outside.share >= inside.share / 2
    return replace(base, culprit=Culprit.COMMON) if is_common else base


def _attribute_to_all(
    base: FailureAttribution, same_work: Sequence[OutcomeCell], question: FailureQuestion
) -> FailureAttribution:
    """Attribute failures at most sites to the only storage that was read, or to a central cause."""
    storages = _list_values(same_work, "storage_site")
    signs = [item for cell in same_work for item in cell.failures.items()]
    access = sum(count for sign, count in signs if sign.failure in STORAGE_CLASSES)
    if len(storages) == 1 and 2 * access > sum(count for _, count in signs):
        return replace(base, culprit=Culprit.STORAGE, name=storages[0], detail="read by all")
    has_tests = len(_list_values(question.cells, "test")) > 1
    is_central = has_tests or not question.may_be_of_tests
    return replace(base, culprit=Culprit.CENTRAL) if is_central else base


def blame_host(
    attribution: FailureAttribution, hosts: Mapping[str, Tally], question: FailureQuestion
) -> str:
    """Find the host of a failing site that fails more often than its others; '' without any."""
    if attribution.culprit is not Culprit.SITE:
        return ""
    total = sum(hosts.values(), Tally())
    sides = {name: (tally, total - tally) for name, tally in hosts.items() if name}
    proven = [
        (_log_likelihood(*sides[name]), name)
        for name in sides
        if question.fails_more(*sides[name], ERROR_RATE / len(sides))
    ]
    if not proven:
        return ""
    _, name = max(proven)
    tally, other_tally = sides[name]
    return f"{tally} on host {name}, {other_tally} on its others"


def blame_commit(
    attribution: FailureAttribution, commits: Sequence[CommitCounts], question: FailureQuestion
) -> FailureAttribution:
    """Refine an attribution by the commits of the failing test.

    A test that fails at several sites since a commit is the culprit. A site is not blamed for a
    commit that ran only there.
    """
    worst = max((commit.tally.share for commit in commits), default=0.0)
    failing = [commit for commit in commits if commit.tally.share >= worst / 2]
    if len(failing) == len(commits):
        return attribution
    first = min(failing, key=lambda commit: commit.submitted_us)
    by_site = _tally_commits(failing, question.other_causes)
    if attribution.culprit in (Culprit.TEST, Culprit.CENTRAL, Culprit.COMMON, Culprit.UNKNOWN):
        earlier = (commit.tally for commit in commits if commit.submitted_us < first.submitted_us)
        return _blame_test(attribution, first, by_site, sum(earlier, Tally()), question)
    elsewhere = sum(by_site.values(), Tally()) - by_site[question.site]
    if attribution.culprit is Culprit.SITE and not elsewhere.total:
        return replace(attribution, culprit=Culprit.UNKNOWN, commit=first.commit)
    return attribution


def _tally_commits(
    commits: Iterable[CommitCounts], other_causes: Mapping[str, str]
) -> defaultdict[str, Tally]:
    """Sum up the measurements of commits by site, without sites that fail by other causes."""
    by_site: defaultdict[str, Tally] = defaultdict(Tally)
    for commit in commits:
        for site in commit.by_site.keys() - other_causes.keys():
            by_site[site] += commit.by_site[site]
    return by_site


def _blame_test(
    attribution: FailureAttribution,
    first: CommitCounts,
    by_site: Mapping[str, Tally],
    before: Tally,
    question: FailureQuestion,
) -> FailureAttribution:
    """Attribute failures to the test if it fails at several sites since its first failing commit."""
    since = sum(by_site.values(), Tally())
    fails = [tally.share >= since.share / 2 for tally in by_site.values()]
    is_widespread = sum(fails) >= MIN_SITES and 2 * sum(fails) >= len(fails)
    if not (is_widespread and _is_spread(by_site, question) and question.fails_more(since, before)):
        return attribution
    return replace(
        attribution,
        culprit=Culprit.TEST,
        name=attribution.tests[0],
        inside=since,
        outside=before,
        sites=Tally(sum(fails), len(fails)),
        commit=first.commit,
        commit_us=first.submitted_us,
    )


#: Kinds of factors and the columns of their values, the usual ones first.
_FACTORS = (
    (Culprit.SITE, ("site",)),
    (Culprit.STORAGE, ("storage_site",)),
    (Culprit.TEST, ("test",)),
    (Culprit.RELEASE, ("release",)),
    (Culprit.SITE, ("site", "release")),
    (Culprit.SITE, ("site", "door")),
)


def _list_factors(
    question: FailureQuestion, tests: Collection[str], same_work: Sequence[OutcomeCell]
) -> Iterator[_Factor]:
    """List the factors that the failures here may be due to."""
    sites = _list_values(same_work, "site")
    failing = [cell for cell in same_work if cell.tally.bad and question.is_here(cell)]
    for culprit, columns in _FACTORS:
        if culprit is Culprit.SITE and question.is_storage:
            continue
        for values in product(*(_list_values(failing, column) for column in columns)):
            yield _Factor(culprit, dict(zip(columns, values, strict=True)), tests, sites)


def _list_values(cells: Iterable[OutcomeCell], column: str) -> list[str]:
    return sorted({getattr(cell, column) for cell in cells} - {""})


def _deduplicate(factors: Iterable[_Factor], cells: Sequence[OutcomeCell]) -> list[_Factor]:
    """Keep the first of the factors that cover the same cells, and none that covers all."""
    distinct: dict[tuple[int, ...], _Factor] = {}
    for factor in factors:
        covered = tuple(index for index, cell in enumerate(cells) if factor.covers(cell))
        if len(covered) < len(cells):
            distinct.setdefault(covered, factor)
    return list(distinct.values())


def _is_proven(factor: _Factor, question: FailureQuestion, tried: int) -> bool:
    """Return whether a factor fails more often than the work it is compared with."""
    inside, outside = _split(factor, question)
    if not question.fails_more(inside, outside, ERROR_RATE / tried):
        return False
    if factor.culprit is Culprit.SITE:
        return True
    by_site = _tally_by("site", filter(factor.covers, question.cells))
    failing = sum(tally.share >= inside.share / 2 for tally in by_site.values())
    if factor.culprit is Culprit.STORAGE and failing < MIN_SITES:
        # One reader: its own work at other storages must be better.
        at_readers = sum_cells(
            cell
            for cell in question.cells
            if factor.compares(cell) and by_site.get(cell.site, Tally()).bad
        )
        return question.fails_more(inside, at_readers - inside)
    return failing >= MIN_SITES and _is_spread(by_site, question)


def _is_spread(by_site: Mapping[str, Tally], question: FailureQuestion) -> bool:
    """Return whether enough jobs failed apart from those at the site with the most failures."""
    failures = [tally.bad for tally in by_site.values()]
    remaining = sum(failures) - max(failures, default=0)
    return remaining / question.failures_per_job >= MIN_FAILED_JOBS - 0.5


def _split(factor: _Factor, question: FailureQuestion) -> tuple[Tally, Tally]:
    """Return the failures of a factor, and of the work it is compared with."""
    inside = sum_cells(filter(factor.covers, question.cells))
    return inside, sum_cells(filter(factor.compares, question.cells)) - inside


def _find_proven_factor(
    factors: Sequence[_Factor], question: FailureQuestion, is_widespread: bool
) -> _Factor | None:
    """Find the proven factor that explains the outcomes of all work best; no site if most fail."""
    total = sum_cells(question.cells)
    proven = [
        factor
        for factor in factors
        if _is_proven(factor, question, len(factors))
        and not (is_widespread and factor.culprit is Culprit.SITE)
    ]

    def score(factor: _Factor) -> float:
        inside = sum_cells(filter(factor.covers, question.cells))
        jobs = map(question.count_jobs, (inside, total - inside))
        return _log_likelihood(*jobs) - _NARROWER * bool(factor.detail)

    return max(proven, key=score, default=None)


def _describe_factor(
    factor: _Factor, base: FailureAttribution, question: FailureQuestion
) -> FailureAttribution:
    inside, outside = _split(factor, question)
    covered = [cell for cell in question.cells if factor.covers(cell)]
    failing_tests = {cell.test for cell in question.cells if question.is_here(cell)}
    detail = factor.detail
    if factor.culprit is Culprit.SITE and failing_tests - {*base.tests}:
        detail = f"{detail} in {', '.join(base.tests)}".strip()
    tests = (factor.name,) if factor.culprit is Culprit.TEST else base.tests
    return replace(
        base,
        culprit=factor.culprit,
        name="" if factor.culprit is Culprit.SITE else factor.name,
        detail=detail,
        tests=tests,
        inside=inside,
        outside=outside,
        sites=_count_sites(covered, inside.share / 2),
    )


def _count_sites(cells: Iterable[OutcomeCell], least_share: float = 0.5) -> Tally:
    """Count the sites at which at least this share fails, among all that did the work."""
    tallies = _tally_by("site", cells).values()
    return Tally(sum(tally.share >= least_share for tally in tallies), len(tallies))


def _tally_by(column: str, cells: Iterable[OutcomeCell]) -> defaultdict[str, Tally]:
    """Sum up the measurements of cells by a column, such as the site of the jobs."""
    tallies: defaultdict[str, Tally] = defaultdict(Tally)
    for cell in cells:
        tallies[getattr(cell, column)] += cell.tally
    return tallies
