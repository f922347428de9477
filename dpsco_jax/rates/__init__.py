"""The closed forms of the papers' tables: predicted risks, costs and lower bounds, as plain numbers."""

from dpsco_jax.rates import accelerated, norms, parallel, stability, user_level, winsorized

__all__ = ["accelerated", "norms", "parallel", "stability", "user_level", "winsorized"]
