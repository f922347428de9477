"""Where parameters live: norms, convex sets, composite terms, rotations, smoothing kernels."""

from dpsco_jax.geometry import domains, norms, prox, rotations, smoothing, two_balls

__all__ = ["domains", "norms", "prox", "rotations", "smoothing", "two_balls"]
