"""Solvers whose privacy unit is a user with many items."""

from dpsco_jax.solvers.user_level import (
    accelerated_phased_erm,
    accelerated_sgd,
    accelerated_strongly_convex,
    auto,
    finite_class,
    item_group_privacy,
    localized_sgd,
    metric_entropy,
    momentum_sgd,
    multipass_sgd,
    output_perturbation,
    phased_erm,
    phased_sgd,
    preconditioned_sgd,
    sgd,
    winsorized_erm,
)

__all__ = [
    "accelerated_phased_erm",
    "accelerated_sgd",
    "accelerated_strongly_convex",
    "auto",
    "finite_class",
    "item_group_privacy",
    "localized_sgd",
    "metric_entropy",
    "momentum_sgd",
    "multipass_sgd",
    "output_perturbation",
    "phased_erm",
    "phased_sgd",
    "preconditioned_sgd",
    "sgd",
    "winsorized_erm",
]
