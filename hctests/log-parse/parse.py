"""Count the calls in a server's log during a load."""

import treehammer_load

treehammer_load.run_log_parser()
