"""How honest and how fast Treehammer is: each figure a ratio within one run, against a named peer.

Run them with ``make bench`` or ``python -m benchmarks [NAME ...]``; raw data and plots go to
``benchmarks/results/``.  What the figures mean stands in ``docs/benchmarks.md``.
"""
