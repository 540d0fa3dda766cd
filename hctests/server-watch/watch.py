"""Watch a server's machine during a load."""

import treehammer_load

treehammer_load.run_server_watch()
