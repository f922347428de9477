"""dpsco_jax: accelerated optimizers for differentially private convex optimization, in JAX."""

from dpsco_jax._infeasible import Infeasible

__all__ = ["Infeasible", "__version__"]

__version__ = "0.1.0"
