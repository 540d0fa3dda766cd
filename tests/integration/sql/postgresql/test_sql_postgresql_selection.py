"""What conditions select, on PostgreSQL."""

from selection_contract import *  # noqa: F403
