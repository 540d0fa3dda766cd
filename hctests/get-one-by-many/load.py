"""Read one file by many clients."""

import treehammer_load

treehammer_load.run(treehammer_load.stream_files)
