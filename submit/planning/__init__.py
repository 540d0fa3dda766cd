"""Planning: jobs, costs, pacing, credentials, and checks before submission."""
