"""Read a block every few seconds in each client."""

import treehammer_load

treehammer_load.run(treehammer_load.read_files)
