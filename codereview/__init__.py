"""Verdict of a campaign as one comment of a pull or merge request."""
