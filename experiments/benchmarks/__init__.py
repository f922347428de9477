"""Benchmarks against peers: every figure is a ratio within one run."""
