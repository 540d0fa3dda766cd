"""What conditions select, in H2's Oracle mode."""

from selection_contract import *  # noqa: F403
