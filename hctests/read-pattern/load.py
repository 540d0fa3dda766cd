"""Read pieces of a file, each after the end of the last."""

import treehammer_load

treehammer_load.run(treehammer_load.read_pattern)
