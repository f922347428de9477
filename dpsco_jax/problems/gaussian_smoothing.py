"""Losses convolved with a Gaussian, exactly: the ground truth for whatever samples the convolution.

What it computes: f_ρ(x) = E f(x + y), y ~ N(0, ρ²I), for losses of a linear predictor ⟨a, x⟩: there the
margin is shifted by N(0, τ²) with τ = ρ‖a‖, so one-dimensional convolutions of the link are all that is
needed. In closed form for piecewise linear and quadratic links,

| link | its convolution |
| --- | --- |
| abs(m) | τ√(2/π)·exp(-m²/(2τ²)) + m·erf(m/(τ√2)), derivative erf(m/(τ√2)) |
| max(0, m) | (m + the above)/2 |
| pinball at level q of m | (q - ½)·m + half of the above |
| linear | itself |
| m²/2 | m²/2 + τ²/2 |

and by Gauss-Hermite quadrature for smooth ones.

Source: thesis, chapter 2, Definition 2.2.1 and Fact 2.8.1; for f convex and L-Lipschitz, f ≤ f_ρ ≤ f + Lρ√d
and f_ρ is √(2/π)·L/ρ-smooth (``geometry.smoothing``). For a linear model the first bound improves to
√(2/π)·Lρ in any dimension.

Formal guarantee: none of privacy. Closed forms are right to rounding, values and (through ``jax.grad``)
derivatives, down to ρ = 0.

Cost: as the loss itself, with one erf and one exponential for each item; ``nodes`` values of the link by
quadrature.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from dpsco_jax._checks import (
    require_callable,
    require_count,
    require_each,
    require_inside,
    require_instance,
    require_nonnegative,
    require_number,
    require_positive,
)
from dpsco_jax.geometry import smoothing
from dpsco_jax.geometry.norms import global_norm
from dpsco_jax.problems.labels import for_any_label
from dpsco_jax.problems.objective import Example, Objective, OneHot, bounded_row, margin, row_values

SmoothedLink = Callable[[Any, Any, Any], Any]
"""``(margin, label, spread) -> E link(margin + spread·N(0, 1), label)``, elementwise; spread ≥ 0."""


def expected_absolute(mean: Any, spread: Any) -> Float[Array, "*batch"]:
    """E|mean + spread·N(0, 1)|, elementwise; at spread 0 it is |mean|, with derivative sign(mean)."""
    # Here, since what ``custom_jvp`` is given it converts before anything else is asked.
    require_each(require_number, mean=mean, spread=spread)
    return _expected_absolute(mean, spread)


@jax.custom_jvp
def _expected_absolute(mean: Any, spread: Any) -> Any:
    ratio = _ratio(mean, spread)
    peak = spread * math.sqrt(2 / math.pi) * jnp.exp(-jnp.square(ratio) / 2)
    return peak + mean * jax.lax.erf(ratio / math.sqrt(2))


@_expected_absolute.defjvp
def _expected_absolute_jvp(primals: Any, tangents: Any) -> Any:
    # Written out: automatic differentiation leaves terms that cancel, and 0/0 at spread 0.
    ratio = _ratio(*primals)
    by_mean = jax.lax.erf(ratio / math.sqrt(2))
    by_spread = math.sqrt(2 / math.pi) * jnp.exp(-jnp.square(ratio) / 2)
    return _expected_absolute(*primals), by_mean * tangents[0] + by_spread * tangents[1]


def _ratio(mean: Any, spread: Any) -> Any:
    """mean/spread, with the limits at spread 0; far beyond where the erf is ±1 it may be cut."""
    mean, spread = jnp.broadcast_arrays(*map(jnp.asarray, (mean, spread)))
    far = jnp.sign(mean) * 20.0
    positive = spread > 0
    return jnp.where(positive, jnp.clip(mean / jnp.where(positive, spread, 1.0), -20, 20), far)


def absolute(margin: Any, label: Any, spread: Any) -> Any:
    """For ``losses.absolute``."""
    require_each(require_number, margin=margin, label=label, spread=spread)
    return expected_absolute(margin - label, spread)


def hinge(margin: Any, label: Any, spread: Any) -> Any:
    """For ``losses.hinge``: labels in {0, 1} or {-1, 1}."""
    require_each(require_number, margin=margin, label=label, spread=spread)
    sign = 2.0 * jnp.clip(label, 0.0, 1.0) - 1.0
    slack = 1.0 - sign * margin
    return (slack + expected_absolute(slack, jnp.abs(sign) * spread)) / 2


def quantile(level: float) -> SmoothedLink:
    """For ``losses.quantile`` at that level."""
    require_inside("level", level)

    def link(margin: Any, label: Any, spread: Any) -> Any:
        above = label - margin
        return (level - 0.5) * above + expected_absolute(above, spread) / 2

    return link


def squared(label_bound: float) -> SmoothedLink:
    """For ``losses.squared`` with that bound on labels: a constant is added, gradients stay."""
    require_positive("label_bound", label_bound)

    def link(margin: Any, label: Any, spread: Any) -> Any:
        residual = margin - jnp.clip(label, -label_bound, label_bound)
        return (jnp.square(residual) + jnp.square(spread)) / 2

    return link


def by_quadrature(link: Callable[[Any, Any], Any], nodes: int = 64) -> SmoothedLink:
    """Gauss-Hermite quadrature of any link, such as ``objective.linear_model.link``.

    For the logistic link and 64 nodes the value and its derivative in the margin are within 2e-7 of the
    convolution for spreads up to 3, 6e-6 up to 4 and 2e-3 up to 8, besides float32's rounding of the margin.
    Links with kinks converge slowly: use their closed forms.

    Args:
        link: ``link(margin, label)``, smooth in the margin.
        nodes: at least 1.
    """
    require_callable("link", link)
    require_count("nodes", nodes)
    points, weights = np.polynomial.hermite_e.hermegauss(nodes)
    weights = weights / weights.sum()

    def smoothed_link(margin: Any, label: Any, spread: Any) -> Any:
        at = jnp.asarray(margin)[..., None] + jnp.asarray(spread)[..., None] * jnp.asarray(points)
        values = link(at, jnp.asarray(label)[..., None])
        return jnp.sum(values * jnp.asarray(weights, values.dtype), axis=-1)

    return smoothed_link


def smoothed(objective: Objective, link: SmoothedLink, smoothing_radius: float) -> Objective:
    """The objective whose losses are convolved with N(0, ρ²I); deterministic.

    The regularizer stays as it is: its convolution differs by a constant.

    Args:
        objective: of a linear model.
        link: the convolution of its link, from this module.
        smoothing_radius: ρ ≥ 0.

    Returns:
        An objective with the smoothness that both bounds give. It is no ``linear_model``: its link depends
        on the norms of features.

    Raises:
        ValueError: the objective is not a linear model, or its parameters are a matrix.
    """
    require_instance("objective", objective, Objective)
    require_callable("link", link)
    require_nonnegative("smoothing_radius", smoothing_radius)
    model = objective.vector_model
    if model is None:
        raise ValueError(
            "objective must be a linear model whose parameters are a vector, got one with"
            f" linear_model={objective.linear_model}"
        )
    link = for_any_label(link)

    def loss(params: Float[Array, "dim"], item: Example) -> Any:
        if isinstance(item.features, OneHot):
            row = row_values(item.features, params.shape[0], model.feature_bound)
        else:
            row = bounded_row(item.features, model.feature_bound)
        spread = smoothing_radius * global_norm(row)
        return link(margin(params, item.features, model.feature_bound), item.label, spread)

    bounds = [] if objective.smoothness is None else [objective.smoothness]
    if smoothing_radius > 0 and objective.globally_convex_lipschitz:
        bounds.append(smoothing.gaussian_smoothness(objective.lipschitz, smoothing_radius))
    return objective._replace(loss=loss, smoothness=min(bounds, default=None), linear_model=None)
