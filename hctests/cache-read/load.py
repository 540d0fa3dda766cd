"""Read whole files or a fraction of their blocks, through a cache or directly."""

import treehammer_load

treehammer_load.run_cached_reads()
