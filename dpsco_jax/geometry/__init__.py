"""Where parameters live: norms, convex sets, composite terms, rotations, smoothing kernels."""

from dpsco_jax.geometry import domains, norms, prox, rotations, smoothing, two_balls
from dpsco_jax.geometry.domains import Domain, ball, box, l1_ball, simplex, whole_space

__all__ = [
    "Domain",
    "ball",
    "box",
    "domains",
    "l1_ball",
    "norms",
    "prox",
    "rotations",
    "simplex",
    "smoothing",
    "two_balls",
    "whole_space",
]
