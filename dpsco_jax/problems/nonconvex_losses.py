"""Losses that are not convex, with their constants: each factory returns an ``Objective``.

What it computes: robust regression, phase retrieval, low-rank completion and a network of one hidden layer,
their Lipschitz constant, smoothness, Hessian-Lipschitz constant, least curvature (``loss_strong_convexity``,
which is negative) and range. For a linear model with link φ the k-th derivative along unit vectors is φ's
times at most Bᵏ, B the bound on the features, so the constants are suprema of derivatives of one variable:

| loss | sup abs(φ') | sup abs(φ'') | inf φ'' | sup abs(φ''') | range of φ |
| --- | --- | --- | --- | --- | --- |
| ``welsch``, scale c | c·e^(-1/2) | 1 | -2e^(-3/2) | 1.3801/c | c² |
| ``cauchy``, scale c | c/2 | 1 | -1/8 | (3 + 2√2)/(4c) | (c²/2)·log(1 + (S + Y)²/c²) |
| ``tukey``, scale c | 16c/(25√5) | 1 | -4/5 | 8/c | c²/6 |
| ``phase_retrieval`` | max(7S³/4, 2(Y/3)^(3/2)) | 3S² | -Y | 6S | of the largest margin |

Y bounds labels and S margins. ``low_rank_completion`` and ``tanh_network`` derive theirs below. All but those
of ``tanh_network``, and the Hessian-Lipschitz constant of ``low_rank_completion``, are attained or
approached, so that none of them can be lowered.

Source: Welsch and Dennis 1978; Beaton and Tukey 1974; Candès, Li and Soltanolkotabi 2015 (phase retrieval);
the setting is that of thesis, Assumption 6.3.1.

Formal guarantee: the constants hold for every item, on the whole space unless the factory says where. Bounds
are enforced inside the loss: features are projected onto their ball, labels are clipped where they have a
bound, and an item that is not finite has loss and gradient zero. Means of items have the same constants, so
they hold for the loss of a user. They are registered as proven, with the negative convexity: solvers whose
privacy rests on convexity refuse these losses, those that need a Lipschitz constant take them.

Cost: that of one evaluation; ``low_rank_completion`` solves a system of rank × rank for each user, by
elimination: rank steps, each a few operations of the program.

Example:
    >>> from dpsco_jax.problems import nonconvex_losses
    >>> loss = nonconvex_losses.welsch(feature_bound=1.0, scale=2.0)
    >>> loss.lipschitz, loss.smoothness, loss.loss_range
    (1.2130613194252668, 1.0, 4.0)
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from dpsco_jax import _checks
from dpsco_jax.geometry.domains import Domain, ball
from dpsco_jax.geometry.norms import all_finite, clip_to_norm
from dpsco_jax.problems import _links, _proofs
from dpsco_jax.problems.labels import TWO_CLASSES, LabelRange
from dpsco_jax.problems.objective import Example, Objective, bounded_row

__all__ = [
    "Network",
    "Ratings",
    "cauchy",
    "low_rank_completion",
    "phase_retrieval",
    "tanh_network",
    "tukey",
    "welsch",
]

# sup |t³ - 3t|·e^(-t²/2), at t² = 3 - √6.
_GAUSSIAN_THIRD = math.sqrt(3.0 - math.sqrt(6.0)) * math.sqrt(6.0) * math.exp(math.sqrt(1.5) - 1.5)
# 6 max over angles of cos²·(½ + (5/4)·cos·sin), which is 4.82971…
_COMPLETION_THIRD = 4.8298
_LOGISTIC_THIRD = math.sqrt(3.0) / 18.0


class Ratings(NamedTuple):
    """What one user has said of all things, as one item.

    Attributes:
        values: a number for each thing, ``[things]``.
        observed: which of them are there, bool ``[things]``; what the others hold is not looked at.
    """

    values: Any
    observed: Any


class Network(NamedTuple):
    """Parameters of ``tanh_network``.

    Attributes:
        hidden: weights of the hidden units, ``[dim, units]``.
        output: their weights in the output, ``[units]``.
    """

    hidden: Any
    output: Any


def welsch(
    feature_bound: float, scale: float = 1.0, domain: Domain | None = None, ridge: float = 0.0
) -> Objective:
    """Robust regression by c²(1 - exp(-r²/(2c²))), r = ⟨params, x⟩ - label; any real label.

    Near the label it is ½r², far from it the constant c², so that outliers have no gradient.

    Args:
        feature_bound: positive ℓ2 norm onto which features are projected.
        scale: c > 0, in the units of the label.
        domain: of the parameters; ``None`` is the whole space.
        ridge: λ ≥ 0 of the regularizer (λ/2)·‖params‖².
    """
    _checks.require_positive("scale", scale)

    def weight(m, y):
        return jnp.exp(-0.5 * jnp.square((m - y) / scale))

    return _links.objective(
        link=lambda m, y: -(scale**2) * jnp.expm1(-0.5 * jnp.square((m - y) / scale)),
        derivative=lambda m, y: (m - y) * weight(m, y),
        slope=scale * math.exp(-0.5),
        curvature=1.0,
        feature_bound=feature_bound,
        domain=domain,
        ridge=ridge,
        third=_GAUSSIAN_THIRD / scale,
        loss_range=scale**2,
        least_curvature=-2.0 * math.exp(-1.5),
    )


def cauchy(
    feature_bound: float,
    label_bound: float,
    scale: float = 1.0,
    domain: Domain | None = None,
    ridge: float = 0.0,
) -> Objective:
    """Robust regression by (c²/2)·log(1 + r²/c²), r = ⟨params, x⟩ - label.

    Near the label it is ½r²; outliers keep a gradient, which falls as c²/r. It has a range where the domain
    is bounded.

    Args:
        feature_bound: positive ℓ2 norm onto which features are projected.
        label_bound: Y > 0; labels are clipped to [-Y, Y].
        scale: c > 0, in the units of the label.
        domain: of the parameters; ``None`` is the whole space.
        ridge: λ ≥ 0 of the regularizer (λ/2)·‖params‖².
    """
    _checks.require_positive("scale", scale)
    _checks.require_positive("label_bound", label_bound)
    _checks.require_positive("feature_bound", feature_bound)

    def residual(m, y):
        return (m - jnp.clip(y, -label_bound, label_bound)) / scale

    def value(t: float) -> float:
        return scale**2 * math.log(math.hypot(1.0, t))

    reach = _links.reach(domain, feature_bound)
    farthest, nearest = (reach + label_bound) / scale, max(label_bound - reach, 0.0) / scale
    return _links.objective(
        link=lambda m, y: 0.5 * scale**2 * jnp.log1p(jnp.square(residual(m, y))),
        derivative=lambda m, y: scale * residual(m, y) / (1.0 + jnp.square(residual(m, y))),
        slope=0.5 * scale,
        curvature=1.0,
        feature_bound=feature_bound,
        domain=domain,
        ridge=ridge,
        label_range=LabelRange(-label_bound, label_bound),
        third=(3.0 + 2.0 * math.sqrt(2.0)) / (4.0 * scale),
        loss_range=_links.known(value(farthest) - value(nearest)),
        least_curvature=-0.125,
    )


def tukey(
    feature_bound: float, scale: float = 1.0, domain: Domain | None = None, ridge: float = 0.0
) -> Objective:
    """Robust regression by Tukey's biweight, (c²/6)(1 - (1 - min(r²/c², 1))³), r = ⟨params, x⟩ - label.

    Near the label it is ½r²; an outlier beyond c has no gradient at all. Its Hessian is Lipschitz, but has no
    derivative at r = ±c. Any real label.

    Args:
        feature_bound: positive ℓ2 norm onto which features are projected.
        scale: c > 0, in the units of the label.
        domain: of the parameters; ``None`` is the whole space.
        ridge: λ ≥ 0 of the regularizer (λ/2)·‖params‖².
    """
    _checks.require_positive("scale", scale)

    def share(m, y):
        return jnp.square(jnp.clip((m - y) / scale, -1.0, 1.0))

    return _links.objective(
        # The same as the cube in the docstring, without its cancellation near 0.
        link=lambda m, y: scale**2 * share(m, y) * (0.5 + share(m, y) * (share(m, y) / 6.0 - 0.5)),
        derivative=lambda m, y: (
            scale * jnp.clip((m - y) / scale, -1.0, 1.0) * jnp.square(1.0 - share(m, y))
        ),
        slope=16.0 * scale / (25.0 * math.sqrt(5.0)),
        curvature=1.0,
        feature_bound=feature_bound,
        domain=domain,
        ridge=ridge,
        third=8.0 / scale,
        loss_range=scale**2 / 6.0,
        least_curvature=-0.8,
    )


def phase_retrieval(
    feature_bound: float,
    label_bound: float,
    radius: float,
    domain: Domain | None = None,
    ridge: float = 0.0,
) -> Objective:
    """Least squares of squared products, ¼(⟨params, x⟩² - label)², for params of norm at most ``radius``.

    The origin is a stationary point, and a strict saddle or maximum of data with positive labels. Beyond
    margins of S = feature_bound·radius the quartic is continued: its second derivative falls to 0 with slope
    -6S, and stays 0. So the constants hold on the whole space. With k = 3S² - y ≥ 0, the second derivative at
    S, the slope grows by k²/(12S) beyond S; S(S² - y) + k²/(12S) is largest for y = 0, where it is 7S³/4. The
    slope within is largest at S, or at √(y/3), where it is -2(y/3)^(3/2).

    Args:
        feature_bound: positive ℓ2 norm onto which features are projected.
        label_bound: Y in (0, 3S²]; labels, squares of products, are clipped to [0, Y].
        radius: R > 0 of the ball in which the loss is the quartic.
        domain: of the parameters; ``None`` is the whole space, on which there is no range.
        ridge: λ ≥ 0 of the regularizer (λ/2)·‖params‖².
    """
    _checks.require_positive("feature_bound", feature_bound)
    _checks.require_positive("radius", radius)
    edge = feature_bound * radius
    most = _checks.require_real("label_bound", label_bound, 0, 3.0 * edge**2 * (1 + 1e-12))

    def beyond(m, y):
        """How far the margin is beyond S: where curvature falls, and where it is 0; and that at S."""
        bend = 3.0 * edge**2 - y
        excess = jnp.maximum(jnp.abs(m) - edge, 0.0)
        falling = jnp.minimum(excess, jnp.maximum(bend, 0.0) / (6.0 * edge))
        return falling, excess - falling, bend

    def link(m, y):
        y = jnp.clip(y, 0.0, most)
        falling, straight, bend = beyond(m, y)
        slope = edge * (edge**2 - y)
        within = 0.25 * jnp.square(jnp.minimum(jnp.square(m), edge**2) - y)
        bent = falling * (slope + falling * (0.5 * bend - edge * falling))
        return within + bent + straight * (slope + falling * (bend - 3.0 * edge * falling))

    def derivative(m, y):
        y = jnp.clip(y, 0.0, most)
        falling, _, bend = beyond(m, y)
        within = jnp.clip(m, -edge, edge)
        more = falling * (bend - 3.0 * edge * falling)
        return within * (jnp.square(within) - y) + jnp.sign(m) * more

    # The range is largest for a label at an end: 0, where it is the value of the largest margin, or Y.
    reach = _links.reach(domain, feature_bound)
    excess = max(reach - edge, 0.0)
    falling = min(excess, edge / 2.0)
    bent = falling * edge * (edge**2 + falling * (1.5 * edge - falling))
    straight = (excess - falling) * edge * (edge**2 + 3.0 * falling * (edge - falling))
    at_zero = 0.25 * min(reach, edge) ** 4 + bent + straight
    at_most = 0.25 * most**2 - 0.25 * max(most - reach**2, 0.0) ** 2
    return _links.objective(
        link=link,
        derivative=derivative,
        slope=max(1.75 * edge**3, 2.0 * (most / 3.0) ** 1.5),
        curvature=3.0 * edge**2,
        feature_bound=feature_bound,
        domain=domain,
        ridge=ridge,
        label_range=LabelRange(0.0, most),
        third=6.0 * edge,
        loss_range=_links.known(max(at_zero, at_most)),
        least_curvature=-most,
    )


def low_rank_completion(
    rating_bound: float, factor_ridge: float, domain: Domain | None = None, ridge: float = 0.0
) -> Objective:
    """Factors of things, ``[things, rank]``, with the user's own factor minimized out.

    The loss of a user with ratings r of the things whose rows of params are A is
    min over u of ½‖r - Au‖² + (λ/2)‖u‖² = ½·rᵀ(I + AAᵀ/λ)⁻¹r, λ the ``factor_ridge``. An item is one user's
    ``Ratings``; users have one item each. The origin is a stationary point.

    Derivation, with ‖r‖ ≤ ρ, u the minimizer and q = r - Au = (I + AAᵀ/λ)⁻¹r. The gradient is -q·uᵀ. In the
    singular basis of A/√λ, with values t_i = tan θ_i, ‖q‖² and λ‖u‖² are averages over i, weighted by the
    squares of r, of cos⁴θ_i and sin²θ_i·cos²θ_i; these points lie on the graph of the concave √a - a, so that
    what grows in both is largest at a single angle.

    - Lipschitz: ‖q‖‖u‖ ≤ ρ²/√λ · max cos³·sin = (3√3/16)·ρ²/√λ.
    - Smoothness: the loss is a minimum over u with ‖u‖ ≤ ρ/(2√λ) of functions of A of curvature at most
      ‖u‖², and a maximum over p with ‖p‖ ≤ ρ of ⟨p, r⟩ - ½‖p‖² - ‖Aᵀp‖²/(2λ), which are (ρ²/λ)-weakly convex.
      So its curvature lies in [-ρ²/λ, ρ²/(4λ)]; the lower end is attained at A = 0.
    - Hessian-Lipschitz: along A + tD the third derivative is -6⟨Du', q'⟩, by differentiating the equations of
      u. With ‖D‖ ≤ 1: ‖u'‖ ≤ ‖q‖/λ + ‖u‖/(2√λ) and ‖q'‖ ≤ ‖u‖ + ‖q‖/(2√λ), hence at most 4.8298·ρ²/λ^(3/2).
    - Range: the loss lies in [0, ρ²/2].

    Args:
        rating_bound: ρ > 0, ℓ2 norm onto which a user's ratings are projected.
        factor_ridge: λ > 0 of the user's factor.
        domain: of the parameters; ``None`` is the whole space.
        ridge: ≥ 0, of the regularizer (ridge/2)·‖params‖².
    """
    _checks.require_positive("rating_bound", rating_bound)
    _checks.require_positive("factor_ridge", factor_ridge)
    _checks.require_nonnegative("ridge", ridge)

    def loss(params: Float[Array, "things rank"], item: Ratings) -> Any:
        values, observed = jnp.asarray(item.values), jnp.asarray(item.observed)
        wanted = f"{params.shape[:1]}, a number for each row of params"
        for name, shape in (("values", values.shape), ("observed", observed.shape)):
            _checks.require(shape == params.shape[:1], f"{name} of an item", shape, wanted)
        ratings = jnp.where(observed, values, jnp.zeros_like(values))
        ratings = clip_to_norm(ratings, rating_bound)
        rows = jnp.where(observed[:, None], params, jnp.zeros_like(params))
        system = rows.T @ rows + factor_ridge * jnp.eye(params.shape[1], dtype=params.dtype)
        factor = _solved(system, rows.T @ ratings)
        left = ratings - rows @ factor
        return 0.5 * jnp.sum(jnp.square(left)) + 0.5 * factor_ridge * jnp.sum(jnp.square(factor))

    square = rating_bound**2
    made = Objective(
        loss=loss,
        lipschitz=3.0 * math.sqrt(3.0) / 16.0 * square / math.sqrt(factor_ridge),
        smoothness=square / factor_ridge,
        domain=_links.or_whole_space(domain),
        loss_strong_convexity=-square / factor_ridge,
        ridge=ridge,
        hessian_lipschitz=_COMPLETION_THIRD * square / factor_ridge**1.5,
        loss_range=0.5 * square,
    )
    return _proofs.register(made)


def _solved(system: Any, right: Any) -> Any:
    """The solution for a positive definite matrix, by elimination, which needs no pivots there.

    A call of LAPACK for each of many users costs more than the few operations, and on a CPU several such
    calls at once wait for one another's threads, forever where there are as many calls as cores.
    """
    rows = jnp.concatenate([system, right[:, None]], axis=1)
    for k in range(len(right)):
        pivot = rows[k] / rows[k, k]
        rows = (rows - rows[:, k, None] * pivot).at[k].set(pivot)
    return rows[:, -1]


def tanh_network(
    feature_bound: float, num_units: int, radius: float, ridge: float = 0.0
) -> Objective:
    """Logistic loss of ⟨output, tanh(hiddenᵀx)⟩, labels in {0, 1} or {-1, 1}; params is a ``Network``.

    The constants hold on the ball ‖params‖ ≤ R. For biases add a column of ones to the features.

    Derivation, with h units, ‖x‖ ≤ B and g the output. Unit i adds tanh² + B²v_i²(1 - tanh²)² to ‖∇g‖², which
    is convex in tanh²: at most max(1, B²v_i²), and in total G² = h - 1 + max(1, B²R²). The Hessian of g has
    a block for each unit, with norm at most that of [[0, B], [B, c]], c = 4B²R/(3√3) since |tanh''| ≤
    4/(3√3): H = c/2 + √(c²/4 + B²). The third derivative of g along a unit vector is at most T = 2B³R +
    (8/9)B², from |tanh'''| ≤ 2 and the largest product a·b² on the unit sphere, 2/(3√3). The logistic loss ℓ
    has |ℓ'| ≤ 1, ℓ'' ≤ ¼ and |ℓ'''| ≤ √3/18, and the chain rule gives Lipschitz constant G, smoothness
    G²/4 + H, and Hessian-Lipschitz constant (√3/18)G³ + ¾GH + T.

    Args:
        feature_bound: B > 0, ℓ2 norm onto which features are projected.
        num_units: h ≥ 1, hidden units.
        radius: R > 0 of the domain of the parameters.
        ridge: λ ≥ 0 of the regularizer (λ/2)·‖params‖².
    """
    _checks.require_positive("feature_bound", feature_bound)
    num_units = _checks.require_count("num_units", num_units)
    _checks.require_positive("radius", radius)
    _checks.require_nonnegative("ridge", ridge)

    def loss(params: Network, item: Example) -> Any:
        _links.require_one_label(item.label)
        units = jnp.shape(params.output)
        _checks.require(units == (num_units,), "output of params", units, f"({num_units},)")
        there = all_finite(jnp.asarray(item.label, float))
        label = jnp.clip(jnp.where(there, item.label, 0.0), 0.0, 1.0)
        active = jnp.tanh(bounded_row(item.features, feature_bound) @ params.hidden)
        output = jnp.vdot(active, params.output)
        return jnp.where(there, jax.nn.softplus(output) - label * output, 0.0)

    own = feature_bound * radius
    gradient = math.sqrt(num_units - 1.0 + max(1.0, own**2))
    bend = 4.0 / (3.0 * math.sqrt(3.0)) * feature_bound * own
    hessian = bend / 2.0 + math.hypot(bend / 2.0, feature_bound)
    third = 2.0 * feature_bound**2 * own + 8.0 / 9.0 * feature_bound**2
    smoothness = gradient**2 / 4.0 + hessian
    made = Objective(
        loss=loss,
        lipschitz=gradient,
        smoothness=smoothness,
        domain=ball(radius),
        # Of the two parts of the Hessian, that of ℓ'' is positive.
        loss_strong_convexity=-hessian,
        ridge=ridge,
        label_range=TWO_CLASSES,
        hessian_lipschitz=_LOGISTIC_THIRD * gradient**3 + 0.75 * gradient * hessian + third,
        loss_range=math.sqrt(num_units) * radius,
    )
    return _proofs.register(made)
