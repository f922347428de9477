"""Solvers whose record is one loss function: an item, or a user taken as one record."""

from dpsco_jax.solvers.item_level import (
    erm,
    langevin,
    private_ac_sa,
    regularized_sgd,
    sco,
    staged_ac_sa,
)
from dpsco_jax.solvers.resque import (
    ball_accelerated_erm,
    ball_accelerated_regularized_erm,
    ball_accelerated_sco,
    resque_erm,
    resque_erm_high_probability,
    resque_prox,
)

__all__ = [
    "ball_accelerated_erm",
    "ball_accelerated_regularized_erm",
    "ball_accelerated_sco",
    "erm",
    "langevin",
    "private_ac_sa",
    "regularized_sgd",
    "resque_erm",
    "resque_erm_high_probability",
    "resque_prox",
    "sco",
    "staged_ac_sa",
]
