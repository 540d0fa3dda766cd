"""Datasets: manifests, specs, production, catalogues and storage doors."""

#: Release that measures files by default.
DEFAULT_ROOT = "6.40.00"
