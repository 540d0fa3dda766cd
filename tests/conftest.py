"""What holds for all tests."""

from __future__ import annotations

import signal

# A shell without job control starts what runs in the background with SIGINT ignored, and processes
# that tests start would inherit that: there would be no interrupting them.
signal.signal(signal.SIGINT, signal.default_int_handler)

pytest_plugins = ["grid"]
