"""Reweighted stochastic queries (ReSQue): gradients all around a centre from queries made at the centre.

What it computes: estimates of the gradient of f_ρ(x) = E f(x + y), y ~ N(0, ρ²I), at any x near a centre c
from stochastic gradients of f at c + ξ, ξ ~ N(0, ρ²I): the gradient times the ratio of densities
w = exp(⟨v, ξ⟩/ρ² - ‖v‖²/(2ρ²)) with v = x - c. The queries do not depend on x: a whole pool of them is one
parallel round, and is then reweighted along a trajectory without any new query.

Source: thesis, chapter 2, Definition 2.2.2 and Lemmas 2.2.3 and 2.2.4; Carmon, Jambulapati, Jin, Lee, Liu,
Sidford and Tian 2023.

Formal guarantee: none of privacy by itself. If the stochastic gradient is unbiased with second moment at
most L², so is the estimate, with second moment at most L²·exp(‖v‖²/ρ²), that is e·L² within ρ of the
centre. The weights have E w^p = exp(p(p-1)‖v‖²/(2ρ²)), and for two offsets v, v' of norm at most aρ

    ‖w(v) - w(v')‖_p ≤ exp((p-1)a²/2)·((p-1)a + ‖N(0, 1)‖_p)·‖v - v'‖/ρ,   p ≥ 1:

write the difference as ∫⟨v - v', ∇w⟩ along the segment, with ∇w = w·(ξ - v)/ρ², use Minkowski's inequality,
and tilt: under w^p the shift ξ is N(p·v, ρ²I). The variance explodes with ‖v‖/ρ: whoever plans a run keeps
the radius of the ball at or below ρ. A linear function of the gradient is reweighted exactly; a clip is not:
the estimate is that of f_ρ only if gradients enter as they are.

Cost: one query round of the size of the pool; then, for each point, one pass over the shifts (a matrix
times a vector) and one over the gradients (its transpose times a vector).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Int, Key

from dpsco_jax._checks import (
    of_true_and_false,
    require_callable,
    require_count,
    require_each,
    require_instance,
    require_key,
    require_number,
    require_positive,
)
from dpsco_jax.oracles import Estimate, Oracle, _convolutions, gradients
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.users import UserData, num_users, user_loss

_BLOCK = 256

BatchGradient = Callable[[Any, Any], Any]
"""``(keys [n], points [n, dim]) -> gradients [n, dim]``: one parallel round of n stochastic gradients."""


class Pool(NamedTuple):
    """Queries made around a centre in one round, and what they returned.

    Attributes:
        center: c, ``[dim]``.
        shifts: the ξ, of standard deviation ρ in each coordinate, ``[queries, dim]``.
        gradients: a stochastic gradient at each c + ξ, ``[queries, dim]``.
    """

    center: Float[Array, "dim"]
    shifts: Float[Array, "queries dim"]
    gradients: Float[Array, "queries dim"]


class Reweighted(NamedTuple):
    """An estimate of the gradient of the smoothed function.

    Attributes:
        gradient: the mean over the pool of weight times gradient, ``[dim]``.
        effective_sample_size: (Σw)²/Σw², between 1 and the size of the pool: how many equally weighted
            queries are as good. About exp(-‖v‖²/ρ²) of the pool.
    """

    gradient: Float[Array, "dim"]
    effective_sample_size: Float[Array, ""]


def log_weights(
    shifts: Float[Array | np.ndarray, "queries dim"],
    offset: Float[Array | np.ndarray, "dim"],
    smoothing_radius: ArrayLike,
) -> Float[Array, "queries"]:
    """The logarithms ⟨v, ξ⟩/ρ² - ‖v‖²/(2ρ²) of the weights, by one matrix-vector product.

    They are normal with standard deviation ‖v‖/ρ, in any dimension; densities, which float32 cannot hold
    in high dimensions, and differences of shifts and offset are never formed.

    Args:
        shifts: ξ, ``[queries, dim]``, of standard deviation ρ.
        offset: v = x - c, ``[dim]``.
        smoothing_radius: ρ > 0, the standard deviation in each coordinate; may be traced.
    """
    require_each(require_number, shifts=shifts, offset=offset)
    require_positive("smoothing_radius", smoothing_radius)
    scaled = offset / smoothing_radius
    # Divided twice by ρ rather than by ρ², which underflows for radii that are sound.
    products = jnp.matmul(shifts, scaled, precision=jax.lax.Precision.HIGHEST) / smoothing_radius
    return products - 0.5 * jnp.sum(jnp.square(scaled))


def log_weight(
    shift: Float[Array | np.ndarray, "dim"],
    offset: Float[Array | np.ndarray, "dim"],
    smoothing_radius: ArrayLike,
) -> Float[Array, ""]:
    """``log_weights`` of a single shift ``[dim]``."""
    require_each(require_number, shift=shift, offset=offset)
    return log_weights(shift[None], offset, smoothing_radius)[0]


def draw_pool(
    key: Key[Array, ""],
    gradient: BatchGradient,
    center: Float[Array | np.ndarray, "dim"],
    smoothing_radius: ArrayLike,
    num_queries: int,
) -> Pool:
    """Queries a stochastic gradient at ``num_queries`` points around the centre: one parallel round.

    Args:
        key: used once; shifts and gradients have streams of their own.
        gradient: the stochastic gradient, for the whole batch at once; see ``BatchGradient``.
        center: c, ``[dim]``.
        smoothing_radius: ρ > 0; may be traced.
        num_queries: static.
    """
    require_key(key)
    require_callable("gradient", gradient)
    require_number("center", center)
    require_count("num_queries", num_queries)
    require_positive("smoothing_radius", smoothing_radius)
    middle = jnp.asarray(center)
    shift_key, gradient_key = jax.random.split(key)
    normal = jax.random.normal(shift_key, (num_queries, middle.shape[0]), middle.dtype)
    shifts = normal * smoothing_radius
    keys = jax.random.split(gradient_key, num_queries)
    return Pool(middle, shifts, gradient(keys, middle + shifts))


def reweighted_gradient(
    pool: Pool, point: Float[Array | np.ndarray, "dim"], smoothing_radius: ArrayLike
) -> Reweighted:
    """The pool's estimate of the gradient of the smoothed function at a point.

    Unbiased for a point that does not depend on the pool. Along a trajectory that does, it is the exact
    gradient of the pool's own weighted sum, and no longer unbiased.

    Args:
        pool: from ``draw_pool``.
        point: x, ``[dim]``.
        smoothing_radius: ρ > 0, as the pool was drawn with; may be traced.
    """
    require_instance("pool", pool, Pool)
    require_number("point", point)
    weights = jnp.exp(log_weights(pool.shifts, point - pool.center, smoothing_radius))
    total = weighted_sum(weights, pool.gradients)
    size = jnp.square(jnp.sum(weights)) / jnp.sum(jnp.square(weights))
    return Reweighted(total / weights.shape[0], size)


def weighted_sum(
    weights: Float[Array, "queries"], rows: Float[Array, "queries dim"]
) -> Float[Array, "dim"]:
    """Σ_i weights_i·rows_i, block by block, ``[dim]``.

    One product over all rows adds them one after the other: at 10^6 rows float32 is then off by a percent,
    and on a CPU it is slower by half.
    """
    require_each(require_number, weights=weights, rows=rows)
    count = rows.shape[0]
    whole = count - count % _BLOCK if count > _BLOCK else count
    per_block = min(count, _BLOCK)
    highest = jax.lax.Precision.HIGHEST
    blocks = jnp.einsum(
        "bi,bij->bj",
        weights[:whole].reshape(-1, per_block),
        rows[:whole].reshape(-1, per_block, rows.shape[1]),
        precision=highest,
    )
    rest = jnp.matmul(weights[whole:], rows[whole:], precision=highest)
    return jnp.sum(blocks, axis=0) + rest


def sampled_user_gradient(objective: Objective, data: UserData) -> BatchGradient:
    """The gradient of the mean loss of a user drawn uniformly anew for each query; params ``[dim]``.

    Unbiased for the gradient of the mean over users, with norm at most ``objective.lipschitz`` at points
    where that constant holds, which for Gaussian shifts must be all of space. The regularizer, which needs
    no queries, is not part of it.
    """
    require_instance("objective", objective, Objective)
    require_instance("data", data, UserData)
    loss = user_loss(objective)
    at_point = _convolutions.kept_apart(jax.grad(loss), loss)
    users = num_users(data)
    if data.mask is not None:
        data = data._replace(mask=of_true_and_false(data.mask))

    def one_query(key: jax.Array, point: jax.Array) -> Any:
        user = jax.random.randint(key, (), 0, users)
        items, mask = jax.tree.map(lambda leaf: jnp.asarray(leaf)[user], tuple(data))
        return at_point(point, items, mask)

    return jax.vmap(one_query)


def user_gradient(
    objective: Objective, center: Float[Array | np.ndarray, "dim"], smoothing_radius: ArrayLike
) -> gradients.UserGradient:
    """One user's gradient, queried at the centre plus a shift of the user's own and reweighted to the point.

    For ``gradients.per_user_gradients``: an oracle of the smoothed objective whose queries never leave the
    neighbourhood of the centre.

    Args:
        objective: its regularizer is not part of the gradient.
        center: c, ``[dim]``.
        smoothing_radius: ρ > 0; may be traced.
    """
    require_number("center", center)
    require_positive("smoothing_radius", smoothing_radius)
    at_point = gradients.user_gradient(objective)

    def evaluate(key: jax.Array, params: Any, items: Any, mask: Any) -> Any:
        shift_key, gradient_key = jax.random.split(key)
        shift = smoothing_radius * jax.random.normal(shift_key, params.shape, params.dtype)
        weight = jnp.exp(log_weight(shift, params - center, smoothing_radius))
        return weight * at_point(gradient_key, center + shift, items, mask)

    return evaluate


def pool_oracle(smoothing_radius: ArrayLike) -> Oracle:
    """The oracle that reweights a whole pool, given to it as its data, at every step; draws nothing.

    Its ``gradient`` is the mean ``[dim]``; ``extra_args`` holds nothing, and ``num_gradients`` is zero: all
    queries were made when the pool was drawn.
    """
    require_positive("smoothing_radius", smoothing_radius)

    def oracle(key: jax.Array, params: Any, data: Pool) -> Estimate:
        del key
        estimate = reweighted_gradient(data, params, smoothing_radius)
        none: Int[Array, ""] = jnp.zeros((), jnp.int32)
        return Estimate(estimate.gradient, {}, none)

    return oracle
