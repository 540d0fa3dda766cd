"""Fill histograms of some columns with uproot."""

from treehammer_kit import columns

columns.run_uproot()
