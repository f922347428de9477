"""Solvers whose privacy unit is a user with many items."""

from dpsco_jax.solvers.user_level import sgd

__all__ = ["sgd"]
