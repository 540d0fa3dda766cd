"""What is read: dataset specs, generators, catalogues, replica checks."""
