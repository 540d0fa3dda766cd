"""Figures of any metric by any columns: Explore, study S0, and the links to them."""
