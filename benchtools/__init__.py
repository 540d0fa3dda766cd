"""Results of other benchmark tools, imported as measurements of their own tests."""
