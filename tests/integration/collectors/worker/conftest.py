"""Fixtures that run the packed worker."""

from worker_bench import bench, input_file, make_spec, packed_worker, worker

__all__ = ["bench", "input_file", "make_spec", "packed_worker", "worker"]
