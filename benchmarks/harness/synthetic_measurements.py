"""A year of synthetic measurements at forty sites, in any number, for large databases.

Every day, up to yesterday, a campaign runs three variants of one test at every site, each with two
releases. Texts, numbers and missing values resemble real campaigns: names of nodes, doors and
releases repeat, times have microseconds, and most failures are at one site for a day.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from random import Random
from typing import Any, ClassVar

from benchmarks.harness.figures import SEED
from treehammer.collectors.record.day_numbers import DAY_US, day_to_number
from treehammer.collectors.record.measurement_record import Measurement, make_measurement_id
from treehammer.collectors.record.metric_catalogue import CATALOGUE, LATENCY_BINS
from treehammer.collectors.record.outcome import FAILURE_CLASSES
from treehammer.hctests.definition.model import Variant
from treehammer.sql.core.measurement_columns import PACKED_COLUMNS

#: Number of days; the last one is yesterday, within the range that pages show.
DAYS = 400
FIRST_DAY = datetime.now(UTC).date() - timedelta(days=DAYS)
SITE_NAMES = tuple(f"SITE-{number:02}" for number in range(1, 41))
VARIANT_COUNT = 24
RELEASES = ("6.34.08", "6.36.00", "6.38.00", "6.40.00")
#: Variants of one day.
VARIANTS_PER_DAY, RELEASES_PER_DAY = 3, 2
HOSTS_PER_SITE = 20
#: Executions per job: two releases, two rounds.
MEASUREMENTS_PER_JOB = 4
PASSES_PER_MEASUREMENT = 3
#: Characters of an inventory, the longest text of a real record.
INVENTORY_CHARS = 6_500
#: Share of site-days with a problem, and of their jobs that fail.
BAD_DAY_SHARE, BAD_DAY_FAILURE_SHARE = 0.03, 0.6
IMPLAUSIBLE_SHARE = 0.002
#: Seconds from the start of an execution to the next.
MEASUREMENT_US = 60_000_000

#: Metrics that a TTree read lacks.
_ABSENT_PREFIXES = (
    "ntuple_",
    "checksum_",
    "stagein_",
    "failure_",
    "cgroup_",
    "value_checksum",
    "exit_",
)
#: Magnitudes of numbers by the end of their names; 1 for others.
_TYPICAL_SIZES = {"_bytes": 5e8, "_chars": 5e8, "_hz": 900.0, "_mhz": 2600.0, "_calls": 3000.0}
_RARE_VALUE_PERIOD = 500
_INVENTORIES = [
    json.dumps({"libraries": Random(release).randbytes(INVENTORY_CHARS // 2).hex()})
    for release in RELEASES
]


@dataclass(frozen=True)
class SyntheticCampaigns:
    """Campaigns of a number of days with a total number of measurements."""

    days: int
    total_measurements: int

    #: Hosts of a site, and the spread of numbers in ln.
    hosts_per_site: ClassVar[int] = HOSTS_PER_SITE
    spread: ClassVar[float] = 0.08

    def releases_of_job(self, variant: int) -> Sequence[int]:
        """Return the releases that a job runs."""
        return releases_of_variant(variant)

    def find_failure(self, day: int, site: int) -> str:
        """Return the class of a site's failures on a day; '' for none."""
        bad = Random(f"{SEED} bad {day} {site}")
        return bad.choice(FAILURE_CLASSES) if bad.random() < BAD_DAY_SHARE else ""

    def scale_times(self, day: int, site: int, variant: int, release: int) -> float:
        """Return the size of numbers relative to the first site, variant and release."""
        return 1.0 + 0.02 * site + 0.1 * variant - 0.03 * release

    def scale_efficiency(self, site: int, host: int) -> float:
        """Return the CPU efficiency of a host relative to others."""
        return 1.0

    def __iter__(self) -> Iterator[Measurement]:
        """Yield the measurements, day by day and job by job."""
        for day in range(self.days):
            yield from self.iterate_day(day)

    def iterate_day(self, day: int) -> Iterator[Measurement]:
        """Yield the measurements of a day, job by job."""
        for job in range(self.jobs_on_day(day)):
            yield from self._job_measurements(day, job)

    def jobs_on_day(self, day: int) -> int:
        """Return the number of jobs on a day."""
        return (self.total_measurements * (day + 1) // self.days // MEASUREMENTS_PER_JOB) - (
            self.total_measurements * day // self.days // MEASUREMENTS_PER_JOB
        )

    def _job_measurements(self, day: int, job: int) -> Iterator[Measurement]:
        values = Random(f"{SEED} {day} {job}")
        site = job % len(SITE_NAMES)
        variant = variant_of_job(day, job)
        releases = self.releases_of_job(variant)
        host = values.randrange(self.hosts_per_site)
        failure = self.find_failure(day, site)
        identity = job_id(day, job)
        start = datetime.combine(FIRST_DAY + timedelta(days=day), datetime.min.time(), UTC)
        # A job that starts before midnight ends before it.
        since_us = min(values.randrange(DAY_US), DAY_US - MEASUREMENTS_PER_JOB * MEASUREMENT_US)
        started_us = round(start.timestamp() * 1e6) + since_us
        for place in range(MEASUREMENTS_PER_JOB):
            round_, position = divmod(place, len(releases))
            release = releases[position]
            row = self._number_values(values, self.scale_times(day, site, variant, release))
            row |= _text_values(site, variant, release, host)
            row["eff_job"] = round(row["eff_job"] * self.scale_efficiency(site, host), 6)
            if failure and values.random() < BAD_DAY_FAILURE_SHARE:
                row = _failed_values(row, failure)
            elif values.random() < IMPLAUSIBLE_SHARE:
                row |= {"plausible": False, "implausible_reasons": "more CPU than wall time"}
            row |= {
                "measurement_id": make_measurement_id(identity, 1, round_ + 1, position + 1),
                "campaign_id": campaign_id(day),
                "campaign_name": f"daily {day:03}",
                "job_id": identity,
                "attempt": 1,
                "repeat": repeat_of_job(job),
                "round": round_ + 1,
                "position": position + 1,
                "started_us": started_us + MEASUREMENT_US * place,
                "ended_us": started_us + MEASUREMENT_US * place + 55_000_000,
                "day": day_number(day),
            }
            yield Measurement(row)

    def _number_values(self, values: Random, scale: float) -> dict[str, Any]:
        row: dict[str, Any] = {}
        for name, kind, size in self._measured_metrics:
            number = size * scale * values.lognormvariate(0, self.spread)
            row[name] = round(number) if kind == "int" else round(number, 6)
        for name in PACKED_COLUMNS:
            row[name] = [
                round(scale * values.lognormvariate(0, 0.05), 6)
                for _ in range(PASSES_PER_MEASUREMENT)
            ]
        noise = values.lognormvariate(0, min(self.spread, 0.05))
        row["eff_job"] = round(min(0.999, 0.85 / scale**0.3 * noise), 6)
        row["read_latency_hist"] = self._random_histograms[values.randrange(_RARE_VALUE_PERIOD)]
        _make_consistent(row)
        return row | {"plausible": True, "retries": 0, "slot": f"slot1_{values.randrange(64)}"}

    @cached_property
    def _measured_metrics(self) -> Sequence[tuple[str, str, float]]:
        texts = _text_values(0, 0, 0, 0)
        return [
            (
                metric.name,
                metric.type,
                next((n for end, n in _TYPICAL_SIZES.items() if metric.name.endswith(end)), 1.0),
            )
            for metric in CATALOGUE
            if metric.type in ("int", "float")
            and metric.name not in texts
            and not metric.name.startswith(_ABSENT_PREFIXES)
        ]

    @cached_property
    def _random_histograms(self) -> Sequence[list[int]]:
        values = Random(SEED)
        histograms = []
        for _ in range(_RARE_VALUE_PERIOD):
            histogram = [0] * LATENCY_BINS
            for _ in range(300):
                histogram[min(LATENCY_BINS - 1, int(values.gauss(9, 2)))] += 10
            histograms.append(histogram)
        return histograms


def _make_consistent(row: dict[str, Any]) -> None:
    """Change random numbers in place so that the rules of plausibility hold, as in real records."""
    row["event_rate_hz"] = 1 / row["wall_per_event_s"]
    row["loop_wall_s"] = sorted(row["pass_loop_wall_s"])[PASSES_PER_MEASUREMENT // 2]
    row["passes_done"] = row["passes_counted"] = PASSES_PER_MEASUREMENT
    # The process tree contains all phases of all passes.
    for name in ("payload_wall_s", "payload_user_s", "payload_sys_s"):
        if name in row:
            row[name] = round(100 * row[name], 6)
    row["selected_zip_bytes"] = row["bytes_read"]
    row["kernel_read_chars"] = row["bytes_read"] + row["bytes_read_extra"]
    row["client_cached_fraction"] = 1.0
    for name in ("eff_loop", "eff_payload", "eff_access"):
        if name in row:
            row[name] = min(row[name], 0.999)


def day_number(day: int) -> int:
    """Return a day as YYYYMMDD."""
    return day_to_number(FIRST_DAY + timedelta(days=day))


def campaign_id(day: int) -> str:
    """Return the identity of a day's campaign."""
    return f"campaign-{day:03}"


def job_id(day: int, job: int) -> str:
    """Return the identity of a job of a day's campaign."""
    return f"{day:03}-{job:06}"


def variant_of_job(day: int, job: int) -> int:
    """Return a job's variant; consecutive jobs, also those of one site, have different ones."""
    return (job % VARIANTS_PER_DAY + VARIANTS_PER_DAY * day) % VARIANT_COUNT


def repeat_of_job(job: int) -> int:
    """Return a job's repeat of its site and variant on that day, from 1."""
    return 1 + job // (len(SITE_NAMES) * VARIANTS_PER_DAY)


def releases_of_variant(variant: int) -> range:
    """Return a variant's two consecutive releases; all pairs are equally frequent."""
    first = variant % (len(RELEASES) - RELEASES_PER_DAY + 1)
    return range(first, first + RELEASES_PER_DAY)


def variant_label(variant: int) -> str:
    """Return the display name of a variant."""
    return f"branches={4 * variant + 4}%"


def subject_columns(site: int, variant: int, release: int) -> dict[str, Any]:
    """Return the columns of the dimension ``subject``."""
    axes: dict[str, str | float] = {
        "branches": (4 * variant + 4) / 100,
        "cache_mb": 30.0,
        "root": RELEASES[release],
    }
    return {
        "series": f"{site:02}{variant:02}{release:02}".ljust(64, "e"),
        "test_name": "ttree-read",
        "variant": Variant(tuple(axes.items())).canonical_json,
        "variant_label": variant_label(variant),
        "site": SITE_NAMES[site],
        "storage_site": SITE_NAMES[site],
        "door": ("root", "https")[variant % 2],
        "door_protocol": ("root", "https")[variant % 2],
        "dataset": "reference-750mb",
        "dataset_hash": "d" * 64,
        "content_hash": "c" * 64,
        "axis_root": RELEASES[release],
        "axis_branches": f"{axes['branches']:g}",
        "axis_cache_mb": 30.0,
        "axis_events": 1.0,
        "axis_access": "direct",
        "axis_cache": "warm",
        "passes_planned": PASSES_PER_MEASUREMENT,
        "run_mode": "solo",
        "launch_order": None,
    }


def _text_values(site: int, variant: int, release: int, host: int) -> dict[str, Any]:
    """Return values that stay the same between executions."""
    name = f"{SITE_NAMES[site].lower()}.example.org"
    return {
        **subject_columns(site, variant, release),
        "kind": "timed",
        "record_version": 1,
        "instrument_version": 1,
        "repository": "https://git.example.org/io/tests.git",
        "ref": "main",
        "commit_id": "b" * 40,
        "dirty": False,
        "test_path": "hctests/ttree-read",
        "test_hash": "a" * 64,
        "payload_hash": "9" * 64,
        "treehammer_version": "1.0",
        "root_provider": "cvmfs",
        "root_version": RELEASES[release],
        "root_commit": f"{release}" * 40,
        "root_platform": "x86_64-el9-gcc14-opt",
        "root_compiler": "gcc 14.2.0",
        "root_flags": "-O3 -DNDEBUG",
        "root_cxx_standard": "20",
        "root_features": "cxx20 ssl xrootd " * 20,
        "zlib_version": "1.3.1",
        "lzma_version": "5.6.2",
        "lz4_version": "1.10.0",
        "zstd_version": "1.5.6",
        "libcore_sha256": f"{release}" * 64,
        "inventory": _INVENTORIES[release],
        "host": f"node{host:03}.{name}",
        "cpu_model": ("AMD EPYC 7763", "AMD EPYC 9654", "Intel Xeon 6338")[(site + host) % 3],
        "cores_online": 64,
        "cores_allowed": 1,
        "mem_total_bytes": 256_000_000_000,
        "kernel": "5.14.0-503.el9.x86_64",
        "os_name": "AlmaLinux 9.5",
        "container": "apptainer",
        "worker_python": "3.9.21",
        "file_name": "reference-750mb.root",
        "file_url": f"root://storage.{name}//data/reference-750mb.root",
        "file_size_bytes": 750_000_000,
        "file_class": "TNetXNGFile",
        "data_server": f"pool{host % 5}.{name}",
        "address_family": "IPv6",
        "server_version": f"v5.{site % 8}.1",
        "client_cache_state": "warmed",
        "client_cache_method": "an execution before",
        "server_cache_state": "unknown",
        "server_cache_method": "not reported",
        "events_total": 12_000,
        "events_read": 12_000,
        "branches_total": 3_000,
        "passes_done": PASSES_PER_MEASUREMENT,
        "passes_counted": PASSES_PER_MEASUREMENT - 1,
        "processes": 1,
    }


def _failed_values(values: dict[str, Any], failure: str) -> dict[str, Any]:
    """Remove values that a failed payload does not report."""
    is_known = {m.name: m.owner != "payload" or m.name.startswith("root_") for m in CATALOGUE}
    return {name: value for name, value in values.items() if is_known[name]} | {
        "failure_class": failure,
        "failure_kind": "exit",
        "failure_phase": "loop",
        "failure_message": f"the payload ended with exit code 1 ({failure})",
        "failure_transient": True,
        "log_excerpt": "Error in <TNetXNGFile::ReadBuffer>: [ERROR] Operation expired\n" * 30,
    }
