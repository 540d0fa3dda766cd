"""Delete files that were created before."""

import treehammer_load

treehammer_load.run(treehammer_load.delete_files, prepare=treehammer_load.create_files)
