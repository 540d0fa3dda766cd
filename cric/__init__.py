"""Import of sites from CRIC, the catalogue of the LHC experiments."""
