"""The performance of sites that Prometheus scrapes."""

from __future__ import annotations

import time

import pytest
from measurement_factory import make_measurement
from prometheus_client.parser import text_string_to_metric_families
from service_thread import ServiceThread

from treehammer.web.display_formats import day_number, today


def read_samples(pages: ServiceThread, name: str, *labels: str) -> dict[tuple[str, ...], float]:
    """Scrape a metric, by the values of these labels."""
    for family in text_string_to_metric_families(pages.load_page("/metrics")):
        if family.name == name:
            return {
                tuple(sample.labels[label] for label in labels): sample.value
                for sample in family.samples
            }
    raise AssertionError(f"{name} is missing")


def test_sites_are_compared_on_the_work_of_similar_ones(pages: ServiceThread) -> None:
    now_us, day = time.time_ns() // 1000, day_number(today())
    performances = {
        "SITE_A": (0.4, 0.006, 14),
        "SITE_B": (0.8, 0.003, 10),
        "SITE_C": (0.9, 0.004, 10),
    }
    pages.store.add(
        make_measurement(
            site, site=site, day=day, started_us=now_us, eff_job=efficiency,
            wall_per_event_s=event_s, read_latency_hist=[0] * latency_bin + [100],
        )
        for site, (efficiency, event_s, latency_bin) in performances.items()
    )  # fmt: skip
    pages.store.add(
        [
            make_measurement(
                "own", site="SITE_A", day=day, started_us=now_us, test_name="own", eff_job=0.1
            )
        ]
    )
    assert read_samples(pages, "treehammer_site_cpu_efficiency", "site") == {
        ("SITE_A",): 0.4, ("SITE_B",): 0.8, ("SITE_C",): 0.9,
    }  # fmt: skip
    medians = read_samples(pages, "treehammer_site_cpu_efficiency_median", "site")
    assert medians[("SITE_A",)] == pytest.approx(0.85)
    ratios = read_samples(pages, "treehammer_site_event_time_ratio", "site")
    assert ratios[("SITE_A",)] == pytest.approx(0.006 / 0.0035)
    latencies = read_samples(pages, "treehammer_site_read_latency_seconds", "site", "quantile")
    assert latencies[("SITE_A", "0.5")] == pytest.approx(1e-6 * 1.5 * 2**14)
    assert latencies[("SITE_B", "0.99")] == pytest.approx(1e-6 * 1.99 * 2**10)
