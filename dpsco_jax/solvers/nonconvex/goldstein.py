"""How near a point is to being stationary in Goldstein's sense: for evaluation, of all users' data.

What it computes: for the risk h of a data set, ∂_α h(x), the convex hull of its subgradients within α of x,
is approximated from inside by gradients at points that are drawn in the ball around x, and x itself. Returned
is the length of the shortest vector of that hull, an upper bound of the distance of 0 from ∂_α h(x), by
Frank-Wolfe's method. ``component_goldstein_norm`` lets every user have a point of its own, as in the larger
hull of the component-wise definition. ``generalization_bound`` says how far the population's risk may be.

Source: Goldstein 1977; thesis, Definitions 8.2.1 and 8.10.1, and Proposition 8.5.1, which holds for smoothed
losses only (C8-7 in docs/corrections/nonconvex.md). Pairwise steps: Lacoste-Julien and Jaggi 2015.

Formal guarantee: none of privacy: norms are those of all data, as they are. At kinks, which are drawn with
probability 0, automatic differentiation has one of the subgradients.

Cost: one gradient of the risk a point, or the gradients of all users, ``[users, points, dim]``, for the
component-wise norm; then a product of a vector with these an iteration.

Example:
    >>> import jax
    >>> from dpsco_jax.problems import synthetic
    >>> from dpsco_jax.solvers.nonconvex import goldstein
    >>> made = synthetic.logistic_regression(jax.random.key(0), num_users=20, items_per_user=2, dim=3)
    >>> key, point = jax.random.key(1), jax.numpy.zeros(3)
    >>> near = goldstein.goldstein_norm(key, made.objective, made.data, point, radius=0.1, num_points=8)
    >>> bool(0 < near.norm < 1), bool(near.gap < 1e-3)
    (True, True)
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from dpsco_jax import _checks
from dpsco_jax.geometry.smoothing import ball_smoothness, uniform_ball
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.users import UserData, mean_loss, user_loss

__all__ = ["Norm", "component_goldstein_norm", "generalization_bound", "goldstein_norm"]


class Norm(NamedTuple):
    """The length of a short vector of a hull of gradients.

    Attributes:
        norm: of the vector found.
        gap: how much longer its square is, at most, than that of the shortest one of the hull.
    """

    norm: jax.Array
    gap: jax.Array


def goldstein_norm(
    key: jax.Array,
    objective: Objective,
    data: UserData,
    params: Any,
    radius: jax.typing.ArrayLike,
    num_points: int,
    num_iterations: int = 500,
) -> Norm:
    """An upper bound of the distance of 0 from ∂_α of the empirical risk at a point; not private.

    Args:
        key: a typed key.
        objective: its regularizer is part of the risk.
        data: of all users.
        params: x.
        radius: α ≥ 0; may be traced.
        num_points: drawn in the ball, beside x.
        num_iterations: of Frank-Wolfe's method.
    """
    points = _points(key, objective, data, params, radius, num_points)
    count = _checks.require_count("num_iterations", num_iterations)
    slope = jax.grad(mean_loss(objective))

    def gradient(point: Any) -> jax.Array:
        return ravel_pytree(slope(point, data))[0]

    rows = jax.lax.map(gradient, points)
    # In units of the longest, so that products neither over- nor underflow.
    unit = jnp.maximum(jnp.max(jnp.abs(rows)), jnp.finfo(rows.dtype).tiny)
    scaled = rows / unit
    gram = jnp.dot(scaled, scaled.T, precision="highest")

    def step(_: jax.Array, weights: jax.Array) -> jax.Array:
        products = gram @ weights
        toward = jnp.argmin(products)
        away = jnp.argmax(jnp.where(weights > 0, products, -jnp.inf))
        curvature = gram[toward, toward] + gram[away, away] - 2 * gram[toward, away]
        best = (products[away] - products[toward]) / jnp.where(curvature > 0, curvature, 1.0)
        size = jnp.where(curvature > 0, jnp.clip(best, 0.0, weights[away]), 0.0)
        return weights.at[toward].add(size).at[away].add(-size)

    first = jnp.zeros(len(rows), rows.dtype).at[jnp.argmin(jnp.diag(gram))].set(1.0)
    weights = jax.lax.fori_loop(0, count, step, first)
    shortest = weights @ scaled
    gap = jnp.vdot(shortest, shortest) - jnp.min(scaled @ shortest)
    return Norm(unit * jnp.linalg.norm(shortest), 2 * unit**2 * jnp.maximum(gap, 0.0))


def component_goldstein_norm(
    key: jax.Array,
    objective: Objective,
    data: UserData,
    params: Any,
    radius: jax.typing.ArrayLike,
    num_points: int,
    num_iterations: int = 500,
) -> Norm:
    """The same where every user has a point of its own: of the mean of hulls, not the hull of means.

    It is at most ``goldstein_norm`` of the same key, but for the gaps. Arguments are the same.
    """
    points = _points(key, objective, data, params, radius, num_points)
    count = _checks.require_count("num_iterations", num_iterations)
    slope = jax.grad(user_loss(objective))

    def of_user(user: UserData) -> jax.Array:
        one = lambda point: ravel_pytree(slope(point, user.items, user.mask))[0]  # noqa: E731
        return jax.lax.map(one, points)

    rows = jax.lax.map(of_user, data)
    regular = jax.vmap(lambda point: ravel_pytree(objective.regularizer_gradient(point))[0])(points)
    rows = rows + regular

    def least(vector: jax.Array) -> jax.Array:
        """The mean of every user's gradient that has the least product with the vector."""
        chosen = jnp.argmin(rows @ vector, axis=1)
        return jnp.mean(jnp.take_along_axis(rows, chosen[:, None, None], axis=1)[:, 0], axis=0)

    def step(_: jax.Array, vector: jax.Array) -> jax.Array:
        way = least(vector) - vector
        square = jnp.vdot(way, way)
        size = jnp.clip(-jnp.vdot(vector, way) / jnp.where(square > 0, square, 1.0), 0.0, 1.0)
        return vector + size * way

    shortest = jax.lax.fori_loop(0, count, step, jnp.mean(rows[:, 0], axis=0))
    gap = jnp.vdot(shortest, shortest - least(shortest))
    return Norm(jnp.linalg.norm(shortest), 2 * jnp.maximum(gap, 0.0))


def generalization_bound(
    lipschitz: float, radius: float, dim: int, num_users: int, reach: float, failure: float
) -> float:
    """How far ∇F_α of a population may be from that of a sample, at all points of a ball at once.

    e = 2L·√(2(d·log(1 + 2R'/r) + log(2/ζ))/n) + 2Hr, R' = R + 2α, r = α/√(dn): with probability 1 - ζ a point
    within R of the start with a vector of ∂_α F̂_α of length β has one of ∂_{2α} F of length β + e. A run of
    T moves of O2NC has R = 2DT.

    Args:
        lipschitz: L of a user's loss, on the whole space.
        radius: α > 0 of the smoothing.
        dim: d.
        num_users: n, i.i.d.
        reach: R ≥ 0.
        failure: ζ in (0, 1).
    """
    lipschitz = _checks.require_real("lipschitz", lipschitz, 0)
    radius = _checks.require_real("radius", radius, 0)
    dim = _checks.require_count("dim", dim)
    users = _checks.require_count("num_users", num_users)
    reach = _checks.require_real("reach", reach, 0, closed=True)
    failure = _checks.require_real("failure", failure, 0, 1)
    mesh = radius / math.sqrt(dim * users)
    points = dim * math.log1p(2 * (reach + 2 * radius) / mesh) + math.log(2 / failure)
    near = 2 * ball_smoothness(lipschitz, radius, dim) * mesh
    return 2 * lipschitz * math.sqrt(2 * points / users) + near


def _points(
    key: jax.Array, objective: Any, data: Any, params: Any, radius: Any, num_points: int
) -> Any:
    """The point x and some of the ball around it, ``[1 + points, ...]``."""
    _checks.require_key(key)
    _checks.require_instance("objective", objective, Objective)
    _checks.require_instance("data", data, UserData)
    _checks.require_real_leaves("params", params)
    _checks.require_nonnegative("radius", radius)
    keys = jax.random.split(key, _checks.require_count("num_points", num_points))
    shifts = jax.vmap(lambda one: uniform_ball(one, params, radius))(keys)
    return jax.tree.map(lambda x, y: jnp.concatenate([jnp.asarray(x)[None], x + y]), params, shifts)
