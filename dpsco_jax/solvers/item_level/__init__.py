"""Solvers whose record is one loss function: an item, or a user taken as one record."""

from dpsco_jax.solvers.item_level import erm, private_ac_sa, sco

__all__ = ["erm", "private_ac_sa", "sco"]
