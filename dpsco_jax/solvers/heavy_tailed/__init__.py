"""Solvers for records with heavy tails, of whose slopes only some moments are bounded."""

from dpsco_jax.solvers.heavy_tailed import (
    clipped_gd,
    localized_clipped_sgd,
    onepass_clipped_sgd,
    phased_clipped_glm,
)

__all__ = ["clipped_gd", "localized_clipped_sgd", "onepass_clipped_sgd", "phased_clipped_glm"]
