"""Solvers for losses that are not convex: points at which the gradient or the risk is small, privately."""

from dpsco_jax.solvers.nonconvex import (
    adaptive_spider,
    certify,
    drift_spider,
    find_sosp,
    gibbs,
    goldstein,
    hessian_escape,
    net_exponential_mechanism,
    noisy_descent,
    o2nc_multi_pass,
    o2nc_single_pass,
    optimal_smoothing,
    select_sosp,
    spider,
)

__all__ = [
    "adaptive_spider",
    "certify",
    "drift_spider",
    "find_sosp",
    "gibbs",
    "goldstein",
    "hessian_escape",
    "net_exponential_mechanism",
    "noisy_descent",
    "o2nc_multi_pass",
    "o2nc_single_pass",
    "optimal_smoothing",
    "select_sosp",
    "spider",
]
