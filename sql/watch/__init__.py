"""Continuous operation: states of sites with their exceptions, alarms, and checks of releases."""
