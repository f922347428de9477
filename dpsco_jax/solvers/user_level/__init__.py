"""Solvers whose privacy unit is a user with many items."""

from dpsco_jax.solvers.user_level import (
    item_group_privacy,
    localized_sgd,
    multipass_sgd,
    output_perturbation,
    phased_sgd,
    sgd,
)

__all__ = [
    "item_group_privacy",
    "localized_sgd",
    "multipass_sgd",
    "output_perturbation",
    "phased_sgd",
    "sgd",
]
