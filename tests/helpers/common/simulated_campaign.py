"""A simulated grid: campaigns whose true effects are known, as rows of measurements, and questions.

Noise has three independent parts, all in ln: of the job (node and hour; common to both sides of a
pair), of the round and of the single execution.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from measurement_factory import make_campaign_row, make_job_row, make_measurement

from treehammer.analysis.comparison.comparison import Comparison, ComparisonQuery, compare_samples
from treehammer.analysis.statistics.sample import Sample
from treehammer.analysis.statistics.verdict import SITES_SCOPE
from treehammer.collectors.record.measurement_record import Measurement
from treehammer.sql.core.evidence import VerdictEvidence
from treehammer.sql.core.rows import VerdictRow
from treehammer.sql.read.query_model import Selection
from treehammer.sql.write.store import Store

BUILD_VALUES: dict[str, Any] = {
    "root_platform": "linuxx8664gcc",
    "root_compiler": "gcc1421",
    "root_flags": "-O3 -DNDEBUG",
    "root_cxx_standard": "cxx17",
    "root_features": "cxx17 builtin_zstd imt",
    "zstd_version": "1.5.5",
}
START_US = 1_790_000_000_000_000


@dataclass(frozen=True)
class SimulatedCampaign:
    """A campaign's plan; effects are in ln and apply to every execution."""

    seed: int = 1
    name: str = "simulated"
    test: str = "ttree-read"
    sites: Sequence[str] = ("T2_A",)
    hosts: int = 4
    jobs: int = 8
    rounds: int = 2
    roots: Sequence[str] = ("6.38.00", "6.40.00")
    branches: Sequence[float] = (1.0,)
    cache_mb: Sequence[float] = (30.0,)
    effect: float = 0.0
    effect_at: Mapping[str, float] = field(default_factory=dict)
    site_spread: float = 0.0
    job_noise: float = 0.15
    execution_noise: float = 0.01
    loop_s: float = 10.0
    bundled: bool = True
    checksum: Mapping[str, str] = field(default_factory=dict)

    def rows(self) -> Iterator[dict[str, Any]]:
        """Every measurement of the campaign, as a valid record's values."""
        noise = np.random.default_rng(self.seed)
        for site in self.sites:
            at_site = noise.normal(0, self.site_spread) if self.site_spread else 0.0
            yield from self._checksum_rows(site)
            for branches in self.branches:
                for cache in self.cache_mb:
                    shift = self.effect + self.effect_at.get(site, 0.0) + at_site
                    yield from self._variant_rows(site, branches, cache, shift, noise)

    def samples(self) -> list[Sample]:
        """The measurements as analysis sees them."""
        return [Sample.from_row(row) for row in self.rows()]

    def _variant_rows(
        self, site: str, branches: float, cache: float, shift: float, noise: np.random.Generator
    ) -> Iterator[dict[str, Any]]:
        for repeat in range(1, self.jobs + 1):
            for root in [None] if self.bundled else self.roots:
                job_noise = noise.normal(0, self.job_noise)
                for round_ in range(1, self.rounds + 1):
                    for position, release in enumerate(self.roots if root is None else [root], 1):
                        step = self.roots.index(release) / max(len(self.roots) - 1, 1)
                        factor = np.exp(
                            step * shift + job_noise + noise.normal(0, self.execution_noise)
                        )
                        job = f"{self.name}-{site}-{branches}-{cache}-{root}-{repeat}"
                        host = f"{site.lower()}-{repeat % self.hosts:02d}"
                        yield self._timed_rows(
                            (job, repeat, round_, position),
                            (site, host),
                            {"root": release, "branches": branches, "cache_mb": cache},
                            float(factor),
                            job_noise,
                        )

    def _timed_rows(
        self,
        where: tuple[str, int, int, int],
        place: tuple[str, str],
        variant: Mapping[str, Any],
        factor: float,
        busy: float,
    ) -> dict[str, Any]:
        row = build_record(where, place, variant, name=self.name, test=self.test)
        wall = self.loop_s * float(variant["branches"]) ** 0.5 * factor
        # Busy nodes are less efficient, the same on both sides of a pair.
        efficiency = (0.97 if variant["cache_mb"] else 0.72) * min(1.0, float(np.exp(-0.2 * busy)))
        cpu = efficiency * wall
        events = 10_000
        return row | {
            "loop_wall_s": wall,
            "loop_cpu_s": cpu,
            "cpu_per_event_s": cpu / events,
            "wall_per_event_s": wall / events,
            "eff_loop": efficiency,
            "eff_job": efficiency * 0.93,
            "payload_wall_s": wall * 3.4,
        }

    def _checksum_rows(self, site: str) -> Iterator[dict[str, Any]]:
        for position, (root, digest) in enumerate(self.checksum.items(), 1):
            variant = {"root": root, "branches": 1.0, "cache_mb": 30.0}
            row = build_record(
                (f"{self.name}-{site}-checksum", 1, 1, position),
                (site, f"{site.lower()}-00"),
                variant,
                name=self.name,
                test=self.test,
            )
            yield row | {"kind": "checksum", "value_checksum": digest, "checksum_leaves": 300}


def build_record(
    where: tuple[str, int, int, int],
    place: tuple[str, str],
    variant: Mapping[str, Any],
    *,
    name: str,
    test: str,
) -> dict[str, Any]:
    """Build the values of every measurement; ``where`` is job, repeat, round, position."""
    job, repeat, round_, position = where
    site, host = place
    values = make_measurement(
        job,
        round_,
        position,
        campaign_id=hashlib.sha256(name.encode()).hexdigest()[:12],
        campaign_name=name,
        repeat=repeat,
        test_name=test,
        repository="https://git.example/tests.git",
        ref="main",
        commit_id="0123456789abcdef0123456789abcdef01234567",
        test_path=f"hctests/{test}",
        test_hash=hashlib.sha256(test.encode()).hexdigest(),
        payload_hash="b" * 64,
        treehammer_version="0.1",
        series="c" * 24,
        variant=json.dumps(variant, sort_keys=True, separators=(",", ":")),
        variant_label=" ".join(f"{axis}={value}" for axis, value in variant.items()),
        site=site,
        door=f"{site.lower()}-door",
        door_protocol="root",
        dataset="reference-small",
        dataset_hash="d" * 64,
        axis_root=variant["root"],
        axis_branches=str(variant["branches"]),
        axis_cache_mb=variant["cache_mb"],
        axis_access="direct",
        axis_cache="warm",
        passes_planned=3,
        started_us=START_US + repeat * 60_000_000,
        ended_us=START_US + repeat * 60_000_000 + 40_000_000,
        day=20260921,
        host=host,
        cpu_model="Example CPU 3000",
        cores_online=64,
        cores_allowed=1,
        kernel="6.1.0",
        os_name="Example Linux 9",
        root_version=variant["root"],
        root_commit=f"{variant['root'].replace('.', '-')}",
        **BUILD_VALUES,
    ).values
    return dict(values)


def add_campaign(
    store: Store,
    name: str,
    effect: float,
    *,
    seed: int = 1,
    state: str = "done",
    **values: Any,
) -> str:
    """Add a campaign of two releases, the second slower by ``effect`` in ln; return its identity."""
    plan = SimulatedCampaign(seed=seed, name=name, effect=effect, **values)
    identity = hashlib.sha256(name.encode()).hexdigest()[:12]
    job = make_job_row(f"{name}-job", campaign_id=identity, state=state)
    store.add_campaign(make_campaign_row(identity, name=name, created_us=START_US), [job])
    store.add([Measurement(row) for row in plan.rows()])
    return identity


A, B = "6.38.00", "6.40.00"

THREE = ("T2_A", "T2_B", "T2_C")
AT_T2_A = Selection.parse(["c1"], ["site=T2_A"])


def ask(samples: Sequence[Sample], question: ComparisonQuery | None = None) -> Comparison:
    return compare_samples(samples, question or ComparisonQuery("root", A, B), now_us=1)


def changed(
    samples: Sequence[Sample], which: Callable[[Sample], bool], **changes: object
) -> list[Sample]:
    return [replace(s, **changes) if which(s) else s for s in samples]  # type: ignore[arg-type]


def is_b(sample: Sample) -> bool:
    return sample.axis_value("root") == B


def rows(result: Comparison, scope: str = "", metric: str = "cpu_per_event_s") -> list[VerdictRow]:
    of_scope = result.over_sites if scope == SITES_SCOPE else result.of_series
    return [row for row in of_scope if row.metric == metric]


def evidence(row: VerdictRow) -> VerdictEvidence:
    return row.evidence
