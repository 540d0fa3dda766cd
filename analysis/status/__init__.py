"""States of sites: rules, their evaluation over time, downtimes, overrides and central events."""
