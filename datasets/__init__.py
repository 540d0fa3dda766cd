"""Datasets: manifests, specs, production, catalogues and storage doors."""
