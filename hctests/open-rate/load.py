"""Open files at a constant rate."""

import treehammer_load

treehammer_load.run(treehammer_load.open_files)
