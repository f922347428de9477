"""Solvers whose record is one loss function: an item, or a user taken as one record."""

from dpsco_jax.solvers.item_level import private_ac_sa

__all__ = ["private_ac_sa"]
