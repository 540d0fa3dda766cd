"""Replay a recording of the XRootD client."""

import treehammer_load

treehammer_load.run(treehammer_load.replay_recording, prepare=treehammer_load.load_recording)
