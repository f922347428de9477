"""Where parameters live: norms, convex sets, rotations, smoothing kernels."""

from dpsco_jax.geometry import domains, norms, rotations, smoothing

__all__ = ["domains", "norms", "rotations", "smoothing"]
