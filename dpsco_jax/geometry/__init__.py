"""Where parameters live: norms, convex sets, composite terms, rotations, smoothing kernels."""

from dpsco_jax.geometry import (
    block_norms,
    domains,
    lasry_lions,
    log_laplace,
    lp,
    lp_balls,
    norms,
    prox,
    rotations,
    smoothing,
    subspaces,
    two_balls,
)
from dpsco_jax.geometry.domains import Domain, ball, box, l1_ball, simplex, whole_space
from dpsco_jax.geometry.lp_balls import lp_ball, schatten_ball

__all__ = [
    "Domain",
    "ball",
    "block_norms",
    "box",
    "domains",
    "l1_ball",
    "lasry_lions",
    "log_laplace",
    "lp",
    "lp_ball",
    "lp_balls",
    "norms",
    "prox",
    "rotations",
    "schatten_ball",
    "simplex",
    "smoothing",
    "subspaces",
    "two_balls",
    "whole_space",
]
