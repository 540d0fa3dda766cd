"""Copy whole files with a program, each after the end of the last."""

import treehammer_load

treehammer_load.run(treehammer_load.stream_files, prepare=treehammer_load.write_streams)
