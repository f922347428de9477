"""Where parameters live: norms, convex sets, smoothing kernels."""

from dpsco_jax.geometry import domains, norms, smoothing

__all__ = ["domains", "norms", "smoothing"]
