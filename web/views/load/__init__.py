"""Page of a campaign's load."""
