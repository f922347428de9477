"""How a statistic is released: pure functions that draw noise, and what they cost."""

from dpsco_jax.mechanisms import additive, concentrated_mean, selection, sparse_vector

__all__ = ["additive", "concentrated_mean", "selection", "sparse_vector"]
