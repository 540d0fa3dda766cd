"""Search for the build that changed a metric."""
