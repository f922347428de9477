"""dpsco_jax: accelerated optimizers for differentially private convex optimization, in JAX."""

__version__ = "0.1.0"
