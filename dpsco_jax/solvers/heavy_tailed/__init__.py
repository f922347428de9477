"""Solvers for records with heavy tails, of whose slopes only some moments are bounded."""

from dpsco_jax.solvers.heavy_tailed import clipped_gd

__all__ = ["clipped_gd"]
