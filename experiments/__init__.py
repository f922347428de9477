"""Experiments: studies, one file each, that the sweep engine of the package runs, and benchmarks."""
