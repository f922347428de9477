"""The closed forms of the papers' tables: predicted risks, costs and lower bounds, as plain numbers."""

from dpsco_jax.rates import (
    accelerated,
    bounded_losses,
    dimension_free,
    element_level,
    heavy_tailed,
    nonconvex,
    norms,
    parallel,
    sampling,
    sampling_printed,
    sampling_tables,
    stability,
    uniform_convergence,
    user_level,
    value_queries,
    winsorized,
)

__all__ = [
    "accelerated",
    "bounded_losses",
    "dimension_free",
    "element_level",
    "heavy_tailed",
    "nonconvex",
    "norms",
    "parallel",
    "sampling",
    "sampling_printed",
    "sampling_tables",
    "stability",
    "uniform_convergence",
    "user_level",
    "value_queries",
    "winsorized",
]
