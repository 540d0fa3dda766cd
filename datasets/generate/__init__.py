"""Program for ROOT environments that writes, compares and measures files of datasets."""
