"""Randomized smoothing: user gradients at points shifted within a small ball, also from values alone.

What it computes: an unbiased estimate of the gradient of f_r(w) = E f(w + y), y uniform in the ball of
radius r around the origin: the gradient of f at shifted points, with a shift for each user, for each item,
or one for all; or, of values alone, the mean over m directions y, uniform on the unit sphere, of

    (d/2r)·(f(w + r·y) - f(w - r·y))·y.

And unbiased estimates of a difference ∇f_r(w) - ∇f_r(v), in proportion to how near v is to w: two-point
estimates with the same directions at both points, or gradients at points p of the ball around w and p' of
that around v, p' = p where p is in both balls, and else p reflected, w + v - p.

Source: thesis, Claim 1.4.2 and Fact 1.4.3, Algorithm 29 (a shift for each item), and Fact 8.2.3 with (8.4)
and (8.17) (two points; there without the last y, and with ball and sphere exchanged: docs/corrections, C8-8);
Yousefian, Nedić and Shanbhag 2012; Flaxman, Kalai and McMahan 2005. The couplings are ours.
For f convex and G-Lipschitz in dimension d: f ≤ f_r ≤ f + G·r·d/(d+1), and f_r is (c_d·G/r)-smooth with
c_d = ``geometry.smoothing.smoothness_factor(d)`` ≤ √d.

Formal guarantee: none of privacy. The law of the shift knows no data, so whatever is proved of a user's
gradient at a fixed point (its clip) holds here. The estimate has variance at most G² per user, hence G²/B
in a mean over B users: shifts are independent over users; one shift for all leaves G², one for each of m
items G²/(mB). A two-point estimate of one direction has norm at most G·d and second moment at most
G²·d²/(d - 1) for d ≥ 2 (Poincaré on the sphere: a linear f has G²·d, so that the ball in place of the sphere
would shrink it by d/(d + 2)); with the same directions a difference has norm at most (d/r)·G·‖w - v‖ for
each. A reflected p' is uniform in its ball, and differs from p with the probability of the total variation
distance, at most ½c_d·‖w - v‖/r; the difference is zero else.
Gradients of users with shifts of their own are up to 2G apart even if their data are alike: aggregates that
look for outliers need shifts for each item, which average out, or one for all.

Cost: as without smoothing, plus dim + 2 normal draws per shift, made inside of the chunk; a shift for each
item takes memory of items × dim for each user of the chunk. Of m directions 2m values of a user's loss, 4m
of a difference, one direction at a time; in float32 rounding adds about d·|f|·1e-7/r to an estimate.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from dpsco_jax._checks import (
    require_callable,
    require_count,
    require_instance,
    require_nonnegative,
    require_number,
    require_positive,
)
from dpsco_jax.geometry import norms
from dpsco_jax.geometry.smoothing import uniform_ball, uniform_sphere
from dpsco_jax.oracles import Estimate, Oracle, _convolutions, gradients
from dpsco_jax.problems.objective import LinearModel, Objective
from dpsco_jax.problems.users import user_loss


def user_gradient(objective: Objective, radius: ArrayLike) -> gradients.UserGradient:
    """The gradient of one user's mean loss at a point shifted uniformly within a ball.

    The loss must be defined within ``radius`` around the domain, and Lipschitz there.

    Args:
        objective: its regularizer is not part of the gradient.
        radius: r ≥ 0; may be traced.
    """
    require_instance("objective", objective, Objective)
    require_nonnegative("radius", radius)
    at_point = gradients.user_gradient(objective)

    def evaluate(key: jax.Array, params: Any, items: Any, mask: Any) -> Any:
        shift_key, gradient_key = jax.random.split(key)
        shift = uniform_ball(shift_key, params, radius)
        return at_point(gradient_key, _add(params, shift), items, mask)

    return evaluate


def user_gradient_by_item(objective: Objective, radius: ArrayLike) -> gradients.UserGradient:
    """The mean over a user's items of gradients at points shifted independently for each item.

    Args:
        objective: its regularizer is not part of the gradient.
        radius: r ≥ 0; may be traced.
    """
    require_instance("objective", objective, Objective)
    require_nonnegative("radius", radius)

    def shifted_loss(params: Any, item_and_shift: Any) -> Any:
        item, shift = item_and_shift
        return objective.loss(_add(params, shift), item)

    loss = user_loss(objective._replace(loss=shifted_loss))
    gradient = _convolutions.kept_apart(jax.grad(loss), loss)

    def evaluate(key: jax.Array, params: Any, items: Any, mask: Any) -> Any:
        slots = jax.tree.leaves(items)[0].shape[0]
        keys = jax.random.split(key, slots)
        shifts = jax.vmap(lambda item_key: uniform_ball(item_key, params, radius))(keys)
        return gradient(params, (items, shifts), mask)

    return evaluate


def at_shifted_point(oracle: Oracle, radius: ArrayLike) -> Oracle:
    """The oracle evaluated, for all users and items alike, at one point shifted within the ball.

    Args:
        oracle: any oracle.
        radius: r ≥ 0; may be traced.
    """
    require_callable("oracle", oracle)
    require_nonnegative("radius", radius)

    def shifted(key: jax.Array, params: Any, data: Any) -> Estimate:
        shift_key, oracle_key = jax.random.split(key)
        return oracle(oracle_key, _add(params, uniform_ball(shift_key, params, radius)), data)

    return shifted


def two_point_gradient(
    objective: Objective, radius: ArrayLike, directions: int
) -> gradients.UserGradient:
    """The two-point estimate of one user's smoothed gradient, along directions of its own.

    Args:
        objective: its regularizer is not part of the gradient.
        radius: r > 0; may be traced.
        directions: m ≥ 1.
    """
    loss, slope = user_loss(objective), _two_point(objective, radius, directions)

    def evaluate(key: jax.Array, params: Any, items: Any, mask: Any) -> Any:
        return slope(key, params, lambda shift: _central(loss, params, shift, items, mask))

    return evaluate


def two_point_difference(
    objective: Objective, radius: ArrayLike, directions: int
) -> gradients.UserGradient:
    """The two-point estimate of how one user's smoothed gradient differs between two points.

    Of the parameters ``(w, v)``, a pair of points, it returns an estimate of ∇f_r(w) - ∇f_r(v); of ``(w, v,
    share)`` one of ∇f_r(w) - share·∇f_r(v).

    Args:
        objective: its regularizer is not part of the gradient.
        radius: r > 0; may be traced.
        directions: m ≥ 1, the same at both points.
    """
    loss, slope = user_loss(objective), _two_point(objective, radius, directions)

    def evaluate(key: jax.Array, params: Any, items: Any, mask: Any) -> Any:
        point, previous, *share = params

        def change(shift: Any) -> jax.Array:
            now = _central(loss, point, shift, items, mask)
            then = _central(loss, previous, shift, items, mask)
            return now - (share[0] * then if share else then)

        return slope(key, point, change)

    return evaluate


def gradient_difference(
    objective: Objective, radius: ArrayLike, draws: int
) -> gradients.UserGradient:
    """The mean of coupled differences of one user's gradients at points of two balls.

    Of the parameters ``(w, v)``, a pair of points, it returns an estimate of ∇f_r(w) - ∇f_r(v).

    Args:
        objective: its regularizer is not part of the gradient.
        radius: r > 0; may be traced.
        draws: m ≥ 1, pairs of points.
    """
    require_instance("objective", objective, Objective)
    require_positive("radius", radius)
    draws = require_count("draws", draws)
    at_point = gradients.user_gradient(objective)

    def evaluate(key: jax.Array, params: Any, items: Any, mask: Any) -> Any:
        point, previous = params

        def one(key: jax.Array) -> Any:
            shift_key, gradient_key = jax.random.split(key)
            drawn = _add(point, uniform_ball(shift_key, point, radius))
            inside = norms.global_norm(jax.tree.map(jnp.subtract, drawn, previous)) <= radius
            reflected = jax.tree.map(lambda w, v, p: w + v - p, point, previous, drawn)
            there = at_point(jax.random.clone(gradient_key), reflected, items, mask)
            here = at_point(gradient_key, drawn, items, mask)
            return jax.tree.map(lambda a, b: jnp.where(inside, 0, a - b), here, there)

        return _mean_over(key, point, draws, one)

    return evaluate


def two_point_slopes(
    model: LinearModel,
    rows: Float[Array, "users dim"],
    labels: Float[Array, "users"],
    params: Float[Array, "dim"],
    directions: Float[Array, "directions dim"],
    width: ArrayLike,
    clip_norm: ArrayLike,
) -> Float[Array, "users directions"]:
    """Of a linear model every user's (f(w + h·u) - f(w - h·u))/(2h) along common directions u.

    The slopes of a user are clipped together to ``clip_norm``; they are zero if one is not finite.

    Args:
        model: of one row a user.
        rows: features.
        labels: of the rows.
        params: w.
        directions: u, one a row, the same for all users.
        width: h > 0; may be traced.
        clip_norm: may be traced.
    """
    require_instance("model", model, LinearModel)
    require_number("rows", rows, "an array of real numbers")
    require_number("params", params, "an array of real numbers")
    require_positive("width", width)
    require_positive("clip_norm", clip_norm)
    margins, changes = (rows @ params)[:, None], width * (rows @ directions.T)
    above, below = (model.link(margins + sign * changes, labels[:, None]) for sign in (1.0, -1.0))
    found = (above - below) / (2.0 * width)
    found = jnp.where(jnp.all(jnp.isfinite(found), axis=1, keepdims=True), found, 0.0)
    squares = jnp.sum(jnp.square(found), axis=1, keepdims=True)
    return found * jnp.minimum(1.0, clip_norm / jnp.sqrt(jnp.maximum(squares, 1e-30)))


def _two_point(objective: Objective, radius: ArrayLike, directions: int) -> Callable[..., Any]:
    """Of a key, a point and the central difference along a shift: the mean over directions."""
    require_instance("objective", objective, Objective)
    require_positive("radius", radius)
    directions = require_count("directions", directions)

    def slope(key: jax.Array, point: Any, difference: Callable[[Any], jax.Array]) -> Any:
        dim = sum(leaf.size for leaf in jax.tree.leaves(point))

        def one(key: jax.Array) -> Any:
            direction = uniform_sphere(key, point)
            shift = jax.tree.map(lambda y: (radius * y).astype(y.dtype), direction)
            weight = dim / (2 * radius) * difference(shift)
            return jax.tree.map(lambda y: (weight * y).astype(y.dtype), direction)

        return _mean_over(key, point, directions, one)

    return slope


def _central(loss: Callable[..., Any], point: Any, shift: Any, items: Any, mask: Any) -> jax.Array:
    ahead = loss(_add(point, shift), items, mask)
    behind = loss(jax.tree.map(jnp.subtract, point, shift), items, mask)
    return jnp.asarray(ahead - behind)


def _mean_over(key: jax.Array, like: Any, count: int, one: Callable[[jax.Array], Any]) -> Any:
    """The mean of ``one(key)`` over so many keys, one after the other."""

    def add(j: jax.Array, total: Any) -> Any:
        return jax.tree.map(jnp.add, total, one(jax.random.fold_in(key, j)))

    zeros = jax.tree.map(jnp.zeros_like, like)
    total = jax.lax.fori_loop(0, count, add, zeros)
    return jax.tree.map(lambda leaf: leaf / count, total)


def _add(params: Any, shift: Any) -> Any:
    return jax.tree.map(lambda p, y: p + y.astype(p.dtype), params, shift)
