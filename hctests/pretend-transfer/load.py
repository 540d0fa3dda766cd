"""Perform the namespace calls of transfers without data."""

import treehammer_load

treehammer_load.run(treehammer_load.pretend_transfers, prepare=treehammer_load.make_own_folders)
