"""Solvers for records with heavy tails, of whose slopes only some moments are bounded."""

from dpsco_jax.solvers.heavy_tailed import (
    aggregate_erm,
    auto,
    clipped_gd,
    known_lipschitz,
    localized_clipped_sgd,
    localized_erm,
    onepass_clipped_sgd,
    phased_clipped_glm,
    population_localize,
)

__all__ = [
    "aggregate_erm",
    "auto",
    "clipped_gd",
    "known_lipschitz",
    "localized_clipped_sgd",
    "localized_erm",
    "onepass_clipped_sgd",
    "phased_clipped_glm",
    "population_localize",
]
