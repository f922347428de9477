"""A round of queries of a private call on a ball: slopes around the centre, reweighted to where they serve.

What it computes: for drawn users, how their losses slope at the centre plus shifts of N(0, ρ²I), all at once
before the first step; and the gradient of one of them at a point, reweighted. The loss of an item is
link(⟨a, x⟩): its slope at c + ξ needs ⟨a, ξ⟩ alone, and the weight exp(⟨v, ξ⟩/ρ² - ‖v‖²/(2ρ²)) needs ⟨v, ξ⟩,
which given ⟨a, ξ⟩ is normal with mean ⟨v, a⟩·⟨a, ξ⟩/‖a‖² and variance ρ²·(‖v‖² - ⟨v, a⟩²/‖a‖²). So two normal
numbers stand for the ``dim`` of a shift, and gradients and weights have the same joint law. Every item has
its own shift.

Source: thesis, Definition 2.2.2 (the reweighting); own: two numbers for a shift.

Formal guarantee: that of the calls (``_calls``), whose accounts are for this joint law.

Cost: the gradients of all drawn users, made at once; memory of their features.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike

from dpsco_jax.geometry.domains import Domain
from dpsco_jax.mechanisms import _draws
from dpsco_jax.oracles import _linear_rows
from dpsco_jax.oracles.linear import LinearData
from dpsco_jax.problems.objective import LinearModel


class Setting(NamedTuple):
    """What all calls of a run have in common.

    Attributes:
        model: the linear model of the loss; static.
        data: of ``oracles.linear.prepare``.
        radius: r, of the balls.
        smoothing_radius: ρ, standard deviation of a shift in each coordinate.
        lipschitz: L, of every user's loss on all of space.
        replacement: whether a user may be drawn several times in a call; static.
        domain: with ``moves``; ``None`` for all of space. Static.
    """

    model: LinearModel
    data: LinearData
    radius: ArrayLike
    smoothing_radius: ArrayLike
    lipschitz: ArrayLike
    replacement: bool = False
    domain: Domain | None = None


class Queries(NamedTuple):
    """A round of queries: for each of the T - 1 steps a user's rows and how the loss slopes along them."""

    rows: LinearData
    slopes: Array  # [steps, items]: derivative over the number of items, at the shifted point
    inverse_norms: Array  # [steps, items]
    along: Array  # [steps, items]: the shift along the row, over ρ
    across: (
        Array  # [steps, items]: the shift along the rest of whatever it is multiplied with, over ρ
    )


def query(
    key: Array,
    setting: Setting,
    users: Array,
    center: Array,
    normal: Callable[..., Array] = _draws.normal,
) -> Queries:
    """One parallel round: the slopes of the drawn users' losses at the centre plus their shifts.

    Args:
        key: of the shifts.
        setting: of the call.
        users: positions of all drawn users.
        center: of the ball.
        normal: ``normal(key, shape, dtype)``, of standard Gaussian variables.
    """
    rows = jax.tree.map(lambda x: x.at[users].get(mode="promise_in_bounds"), setting.data)
    along_key, across_key = jax.random.split(key)
    along = normal(along_key, rows.labels.shape, center.dtype)
    across = normal(across_key, rows.labels.shape, center.dtype)
    entry = _linear_rows.entry(setting.model, rows)
    if _linear_rows.is_sparse(rows):
        present = jnp.sum(rows.features < center.shape[0], axis=-1, dtype=center.dtype)
        norms = entry * jnp.sqrt(present)
    else:
        norms = jnp.linalg.norm(rows.features, axis=-1)
    everyone = jnp.ones(len(users), bool)
    offsets = jnp.asarray(setting.smoothing_radius * norms * along)
    relative, unit = _linear_rows.slopes(setting.model, center, rows, everyone, offsets)
    inverse = jnp.where(norms > 0, 1.0 / jnp.where(norms > 0, norms, 1.0), 0.0)
    return Queries(rows, relative * unit[:, None], inverse, along, across)


def gradient(setting: Setting, queries: Queries, j: Array, v: Array) -> Array:
    """The mean over the items of user j of weight times gradient, at the centre plus v."""
    rows = jax.tree.map(lambda x: x[j][None], queries.rows)
    dots = _linear_rows.dots(setting.model, v, rows)[0]
    towards = dots * queries.inverse_norms[j] / setting.smoothing_radius
    square = jnp.vdot(v, v) / setting.smoothing_radius**2
    rest = jnp.sqrt(jnp.maximum(square - towards**2, 0.0))
    log_weight = towards * queries.along[j] + rest * queries.across[j] - 0.5 * square
    coefficients = queries.slopes[j] * jnp.exp(log_weight)
    sums = _linear_rows.row_sums(coefficients[None], rows, v.shape[0])[0, : v.shape[0]]
    return _linear_rows.entry(setting.model, rows) * sums
