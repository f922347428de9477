"""Rényi curves: of mechanisms in closed form, under sampling, and of compositions."""

from dpsco_jax.privacy.curves.closed_forms import (
    approximate_dp,
    bounded_range,
    gaussian,
    gdp,
    laplace,
    pure_dp,
    threshold_answer,
)

__all__ = [
    "approximate_dp",
    "bounded_range",
    "gaussian",
    "gdp",
    "laplace",
    "pure_dp",
    "threshold_answer",
]
