"""Solvers for losses that are not convex: points at which the gradient is small, found privately."""

from dpsco_jax.solvers.nonconvex import spider

__all__ = ["spider"]
