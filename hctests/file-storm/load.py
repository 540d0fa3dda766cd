"""Read thousands of small files by many clients at once."""

import treehammer_load

treehammer_load.run(treehammer_load.storm_files, make_client=treehammer_load.make_storm_client)
