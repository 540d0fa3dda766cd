"""Page of published results."""
