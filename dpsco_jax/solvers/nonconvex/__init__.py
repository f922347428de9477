"""Solvers for losses that are not convex: points at which the gradient or the risk is small, privately."""

from dpsco_jax.solvers.nonconvex import (
    certify,
    gibbs,
    net_exponential_mechanism,
    noisy_descent,
    select_sosp,
    spider,
)

__all__ = [
    "certify",
    "gibbs",
    "net_exponential_mechanism",
    "noisy_descent",
    "select_sosp",
    "spider",
]
