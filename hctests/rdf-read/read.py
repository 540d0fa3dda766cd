"""Fill histograms of some columns with RDataFrame."""

from treehammer_kit import columns

columns.run_dataframe()
