"""Benchmarks of accuracy and cost; each figure is a ratio within one run against a named peer.

Run them with ``make bench`` or ``python -m benchmarks [NAME ...]``. Raw data and plots are written
to ``benchmarks/results/``; ``docs/benchmarks.md`` explains the figures or links to their page.
"""
