"""Watch over sites and releases: states, changes, alarms, patrol and bisection."""
