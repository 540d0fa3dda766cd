"""Continuous operation: patrols, states of sites, alarms, and checks of releases."""
