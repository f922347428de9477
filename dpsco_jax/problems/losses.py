"""Losses with their constants: each factory returns an ``Objective``.

What it computes: convex losses per item, their Lipschitz and smoothness constants. For a linear model with
link φ, ‖∇loss‖ = |φ'|·‖x‖ and ‖∇²loss‖ = φ''·‖x‖², so with features of norm at most B the constants are
sup|φ'|·B and sup φ''·B². All constants are attained in the limit, so none can be lowered.

| loss | link or loss | Lipschitz | smoothness |
| --- | --- | --- | --- |
| ``logistic`` | log(1 + e^m) - y·m, y in [0, 1] | B | B²/4 |
| ``hinge`` | max(0, 1 - s·m), s = 2y - 1 | B | none |
| ``huber`` | Huber of m - y, threshold δ | δB | B² |
| ``absolute`` | abs(m - y) | B | none |
| ``quantile`` | pinball of y - m, level τ | max(τ, 1 - τ)·B | none |
| ``squared`` | ½(m - y)², y in [-Y, Y], ‖w‖ ≤ R | B(BR + Y) | B² |
| ``softmax`` | logsumexp(Wᵀx) - (Wᵀx)_y | √2·B | B²/2 |
| ``geometric_median`` | ‖w - x‖ (the median in one dimension) | 1 | none |
| ``squared_distance`` | ½‖w - x‖², ‖x‖ ≤ B, ‖w‖ ≤ R | R + B | 1 |

Source: standard; Böhning 1992 for the curvature of softmax.

Formal guarantee: the constants hold for every item. Bounds are enforced inside the loss, not
assumed of the data: features are projected onto their ball (non-finite features count as zero),
labels of classification and of ``squared`` are clipped to their range, and an item whose label (or
point) is not finite has loss and gradient zero.

Cost: for linear models one pass over the features, and one more to enforce the bound.
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, PyTree

from dpsco_jax import _checks
from dpsco_jax.geometry.domains import Domain, ball
from dpsco_jax.geometry.norms import all_finite, clip_to_norm, global_norm
from dpsco_jax.problems import _links, _proofs, _remainders
from dpsco_jax.problems.labels import TWO_CLASSES, LabelRange
from dpsco_jax.problems.objective import Example, LinearModel, Objective, margin


def logistic(feature_bound: float, domain: Domain | None = None, ridge: float = 0.0) -> Objective:
    """Logistic regression, labels in {0, 1} (or soft labels between), or in {-1, 1}.

    Labels are clipped to [0, 1]: -1 is the negative class as 0 is, whatever is 1 or more the positive one.

    Args:
        feature_bound: positive ℓ2 norm onto which features are projected.
        domain: of the parameters; ``None`` is the whole space.
        ridge: λ ≥ 0 of the regularizer (λ/2)·‖params‖².
    """
    return _links.objective(
        link=lambda m, y: jax.nn.softplus(m) - jnp.clip(y, 0.0, 1.0) * m,
        derivative=lambda m, y: jax.nn.sigmoid(m) - jnp.clip(y, 0.0, 1.0),
        slope=1.0,
        curvature=0.25,
        feature_bound=feature_bound,
        domain=domain,
        ridge=ridge,
        label_range=TWO_CLASSES,
        remainder=lambda m, y, change: _remainders.softplus(m, change),
        gap=_logistic_gap,
        third=math.sqrt(3.0) / 18.0,
        loss_range=_links.known(_links.reach(domain, feature_bound)),
    )


def hinge(feature_bound: float, domain: Domain | None = None, ridge: float = 0.0) -> Objective:
    """Support vector machine, labels in {0, 1} or {-1, 1}; it takes what ``logistic`` takes."""

    def sign(y):
        return 2.0 * jnp.clip(y, 0.0, 1.0) - 1.0

    def kink(y):
        s = sign(y)
        # A label in the middle has no loss to speak of: it is one, everywhere.
        place = jnp.where(s != 0.0, 1.0 / jnp.where(s != 0.0, s, 1.0), 0.0)
        return place, jnp.minimum(-s, 0.0), jnp.maximum(-s, 0.0)

    return _links.objective(
        link=lambda m, y: jnp.maximum(0.0, 1.0 - sign(y) * m),
        derivative=lambda m, y: jnp.where(sign(y) * m < 1.0, -sign(y), 0.0),
        slope=1.0,
        curvature=None,
        feature_bound=feature_bound,
        domain=domain,
        ridge=ridge,
        label_range=TWO_CLASSES,
        kink=kink,
    )


def huber(
    feature_bound: float, delta: float = 1.0, domain: Domain | None = None, ridge: float = 0.0
) -> Objective:
    """Huber regression, any real label; quadratic within ``delta`` of it, linear beyond.

    Args:
        feature_bound: positive ℓ2 norm onto which features are projected.
        delta: threshold, positive; in the units of the label.
        domain: of the parameters; ``None`` is the whole space.
        ridge: λ ≥ 0 of the regularizer (λ/2)·‖params‖².
    """
    _checks.require_positive("delta", delta)
    return _links.objective(
        link=lambda m, y: optax.losses.huber_loss(m, y, delta=delta),
        derivative=lambda m, y: jnp.clip(m - y, -delta, delta),
        slope=delta,
        curvature=1.0,
        feature_bound=feature_bound,
        domain=domain,
        ridge=ridge,
        remainder=lambda m, y, change: _remainders.ramp(m - y, change, -delta, delta),
    )


def absolute(feature_bound: float, domain: Domain | None = None, ridge: float = 0.0) -> Objective:
    """Least absolute deviations, any real label; it takes what ``logistic`` takes."""
    return _links.objective(
        link=lambda m, y: jnp.abs(m - y),
        derivative=lambda m, y: jnp.sign(m - y),
        slope=1.0,
        curvature=None,
        feature_bound=feature_bound,
        domain=domain,
        ridge=ridge,
        kink=lambda y: (y, -1.0, 1.0),
    )


def quantile(
    feature_bound: float, level: float, domain: Domain | None = None, ridge: float = 0.0
) -> Objective:
    """Quantile regression (pinball loss), any real label.

    Args:
        feature_bound: positive ℓ2 norm onto which features are projected.
        level: which quantile of the label is predicted, in (0, 1).
        domain: of the parameters; ``None`` is the whole space.
        ridge: λ ≥ 0 of the regularizer (λ/2)·‖params‖².
    """
    _checks.require_inside("level", level)
    return _links.objective(
        link=lambda m, y: jnp.maximum(level * (y - m), (level - 1.0) * (y - m)),
        derivative=lambda m, y: jnp.where(m > y, 1.0 - level, jnp.where(m < y, -level, 0.0)),
        slope=max(level, 1.0 - level),
        curvature=None,
        feature_bound=feature_bound,
        domain=domain,
        ridge=ridge,
        kink=lambda y: (y, -level, 1.0 - level),
    )


def squared(
    feature_bound: float, label_bound: float, radius: float, ridge: float = 0.0
) -> Objective:
    """Least squares on the ball of a given radius around the origin.

    The Lipschitz constant holds on that ball only: squared loss has none on the whole space.

    Args:
        feature_bound: positive ℓ2 norm onto which features are projected.
        label_bound: labels are clipped to [-label_bound, label_bound].
        radius: of the domain of the parameters.
        ridge: λ ≥ 0 of the regularizer (λ/2)·‖params‖².
    """
    _checks.require_positive("feature_bound", feature_bound)
    _checks.require_positive("label_bound", label_bound)
    _checks.require_positive("radius", radius)

    def residual(m, y):
        return m - jnp.clip(y, -label_bound, label_bound)

    return _links.objective(
        link=lambda m, y: 0.5 * jnp.square(residual(m, y)),
        derivative=residual,
        slope=feature_bound * radius + label_bound,
        curvature=1.0,
        feature_bound=feature_bound,
        domain=ball(radius),
        ridge=ridge,
        everywhere=False,
        label_range=LabelRange(-label_bound, label_bound),
        third=0.0,
        loss_range=_range_of_squares(feature_bound * radius, label_bound),
    )


def softmax(
    feature_bound: float, num_classes: int, domain: Domain | None = None, ridge: float = 0.0
) -> Objective:
    """Multinomial logistic regression; params is a matrix ``[dim, num_classes]``.

    Labels are integers in [0, num_classes); any other label gives loss zero.

    Args:
        feature_bound: positive ℓ2 norm onto which features are projected.
        num_classes: at least 2.
        domain: of the parameters; ``None`` is the whole space.
        ridge: λ ≥ 0 of the regularizer (λ/2)·‖params‖².
    """
    _checks.require_integer("num_classes", num_classes, 2)
    _checks.require_positive("feature_bound", feature_bound)
    _checks.require_nonnegative("ridge", ridge)

    def truth(logits: Any, label: Any) -> Any:
        return (jnp.asarray(label)[..., None] == jnp.arange(num_classes)).astype(logits.dtype)

    def link(logits: Any, label: Any) -> Any:
        return optax.losses.softmax_cross_entropy(logits, truth(logits, label))

    def derivative(logits: Any, label: Any) -> Any:
        one = truth(logits, label)
        known = jnp.any(one > 0, axis=-1, keepdims=True)
        return jnp.where(known, jax.nn.softmax(logits) - one, 0.0)

    def loss(params: Float[Array, "dim classes"], item: Example) -> Any:
        _links.require_one_label(item.label)
        return link(margin(params, item.features, feature_bound), item.label)

    return _proofs.register(
        Objective(
            loss=loss,
            lipschitz=math.sqrt(2.0) * feature_bound,
            smoothness=0.5 * feature_bound**2,
            domain=_links.or_whole_space(domain),
            ridge=ridge,
            linear_model=LinearModel(link, derivative, feature_bound, num_classes),
            globally_convex_lipschitz=True,
            label_range=LabelRange(0, num_classes - 1, whole=True),
        )
    )


def geometric_median(domain: Domain | None = None) -> Objective:
    """Distance to a point: items are points with the structure of params; no bound is needed."""

    def loss(params: PyTree, item: PyTree) -> Any:
        _links.require_like_params(params, item)
        there = all_finite(item)
        nearby = jax.tree.map(lambda leaf, at: jnp.where(there, leaf, at), item, params)
        return global_norm(jax.tree.map(jnp.subtract, params, nearby))

    return _proofs.register(
        Objective(
            loss=loss,
            lipschitz=1.0,
            smoothness=None,
            domain=_links.or_whole_space(domain),
            globally_convex_lipschitz=True,
        )
    )


def squared_distance(point_bound: float, radius: float) -> Objective:
    """Mean estimation: ½‖params - x‖² on the ball of a given radius around the origin.

    Args:
        point_bound: items (points with the structure of params) are projected onto this ℓ2 norm.
        radius: of the domain of the parameters.
    """
    _checks.require_positive("point_bound", point_bound)
    _checks.require_positive("radius", radius)

    def loss(params: PyTree, item: PyTree) -> Any:
        _links.require_like_params(params, item)
        offsets = jax.tree.map(jnp.subtract, params, clip_to_norm(item, point_bound))
        return 0.5 * optax.tree.norm(offsets, squared=True)

    return _proofs.register(
        Objective(
            loss=loss,
            lipschitz=radius + point_bound,
            smoothness=1.0,
            domain=ball(radius),
            loss_strong_convexity=1.0,
            hessian_lipschitz=0.0,
            loss_range=_range_of_squares(radius, point_bound),
        )
    )


def _range_of_squares(reach: float, bound: float) -> float:
    """Largest minus least ½(m - y)² over m in [-reach, reach], for the worst y in [-bound, bound]."""
    return 0.5 * (reach + bound) ** 2 - 0.5 * max(bound - reach, 0.0) ** 2


_CELLS = 1200
_ROUNDING = 1.0 + 2.0**-40


@functools.lru_cache(maxsize=256)
def _logistic_gap(radius: float) -> float:
    """How far apart gradients of two items of the logistic loss can be at one point, ‖x‖ ≤ 1 and ‖w‖ ≤ R.

    It is 1 for w = 0, where gradients have the norm ½, and tends to 2: where w classifies everything with
    great confidence, two rows that are both wrong are nearly alike.

    Proof: the gradient is affine in the label, so that its extremes have labels 0 and 1, and with v = x for
    label 1 and v = -x for label 0 it is -σ(-⟨w, v⟩)·v. Let θ be the angle between v and -w and S(θ) =
    σ(R·max(cos θ, 0)). The length of the gradient is σ(‖w‖·‖v‖·cos θ)·‖v‖ ≤ S(θ). So all gradients at w,
    their means, and zero are in the convex hull of the points τ·u, u a unit vector at the angle θ from -w and
    0 ≤ τ ≤ S(θ). Two of these points are farthest apart at the ends of their segments, since a distance is
    convex, and, of given angles, on opposite sides of w: S(θ)² + S(θ')² - 2·S(θ)·S(θ')·cos(θ + θ'). A convex
    hull has the diameter of its points. The maximum over θ and θ' is taken on a grid; between its points the
    curve S(θ)·u moves by at most √(1 + R²/16) for a unit of angle, which is added.

    Args:
        radius: R, at least 0; ``inf`` gives 2.
    """
    if not radius < 1e3:
        return 2.0
    angles = np.linspace(0.0, math.pi, _CELLS + 1)
    lengths = 1.0 / (1.0 + np.exp(-radius * np.maximum(np.cos(angles), 0.0)))
    first, second = lengths[:, None], lengths[None, :]
    towards = np.cos(angles[:, None] + angles[None, :])
    farthest = math.sqrt(np.max(first**2 + second**2 - 2.0 * first * second * towards))
    between = math.pi / _CELLS * math.sqrt(1.0 + radius**2 / 16.0)
    return min(2.0, _ROUNDING * (farthest + between))
