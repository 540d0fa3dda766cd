"""Reports a result without values: the worker has checked the node before."""

import os
from pathlib import Path

Path(os.environ["TREEHAMMER_RESULT"]).write_text('{"format": 1}', encoding="utf-8")
