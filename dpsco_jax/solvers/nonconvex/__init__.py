"""Solvers for losses that are not convex: points at which the gradient or the risk is small, privately."""

from dpsco_jax.solvers.nonconvex import gibbs, net_exponential_mechanism, spider

__all__ = ["gibbs", "net_exponential_mechanism", "spider"]
