"""Experiments: the sweep engine, one file for each experiment, the benchmarks."""
