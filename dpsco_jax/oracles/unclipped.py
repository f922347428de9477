"""The mean gradient of users, without bounds on single users: for methods that are not private.

What it computes: the gradient of the mean loss over all users, or an unbiased estimate of it from a sample
of users; and, with a smoothing radius, of the gradient of f_r(w) = E f(w + y), y uniform in the ball of
radius r, each user at a point shifted independently.

Source: thesis, Claim 1.4.2 and Fact 1.4.3 (smoothing); otherwise none.

Formal guarantee: none of privacy: a user's share is not bounded, and nothing here may feed a private
mechanism. If user losses are G-Lipschitz, a mean over B users drawn without replacement from N has
variance at most G²/B·(N - B)/(N - 1), and at most G²/B with shifts.

Cost: one backward pass through the summed loss of a chunk of users. No gradient of a single user is formed,
which is what makes this cheaper than ``gradients``; with smoothing, a shifted point for each user of a chunk.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import ArrayLike

from dpsco_jax import _sharding
from dpsco_jax._checks import (
    require_callable,
    require_count,
    require_given,
    require_instance,
    require_nonnegative,
)
from dpsco_jax.geometry.smoothing import uniform_ball
from dpsco_jax.oracles import Estimate, Oracle
from dpsco_jax.oracles.chunks import sum_over_users
from dpsco_jax.oracles.gradients import Sampler, count_items
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.users import UserData, user_loss


def mean_gradient(
    objective: Objective,
    count: int,
    sampler: Sampler | None = None,
    smoothing_radius: ArrayLike | None = None,
    chunk_size: int = 4096,
) -> Oracle:
    """The oracle that returns the mean over users of their gradients; its data are ``UserData``.

    Args:
        objective: its regularizer is not part of the gradient.
        count: what sums are divided by: the number of users of a sample, or its expectation.
        sampler: draws the users of a step from a key; all users if ``None``.
        smoothing_radius: r ≥ 0, and then the loss must be defined within r of the domain; no shifts if
            ``None``. May be traced.
        chunk_size: how many users, at least 1, whose losses are evaluated at once.
    """
    require_instance("objective", objective, Objective)
    require_given(require_callable, sampler=sampler)
    require_count("count", count)
    require_count("chunk_size", chunk_size)
    if smoothing_radius is not None:
        require_nonnegative("smoothing_radius", smoothing_radius)
    one_user = user_loss(objective)
    radius = 0.0 if smoothing_radius is None else smoothing_radius

    def oracle(key: jax.Array, params: Any, data: UserData) -> Estimate:
        sample_key, shift_key = jax.random.split(key)
        sample = None if sampler is None else sampler(sample_key)

        def shifted(params: Any, position: jax.Array) -> Any:
            user_key = jax.random.fold_in(shift_key, position)
            shift = uniform_ball(user_key, params, radius)
            return jax.tree.map(lambda p, y: p + y.astype(p.dtype), params, shift)

        def chunk_sum(rows: UserData, counted: jax.Array, position: jax.Array) -> Any:
            masked = None if rows.mask is None else 0

            def total(params: Any) -> Any:
                if smoothing_radius is None:
                    losses = jax.vmap(one_user, (None, 0, masked))(params, rows.items, rows.mask)
                else:
                    points = jax.vmap(shifted, (None, 0))(params, position)
                    losses = jax.vmap(one_user, (0, 0, masked))(points, rows.items, rows.mask)
                return jnp.sum(jnp.where(counted, losses, 0.0))

            return jax.grad(total)(_sharding.here(params)), count_items(rows, counted)

        total, num_gradients = sum_over_users(chunk_sum, data, sample, chunk_size)
        mean = jax.tree.map(lambda leaf: leaf / count, total)
        return Estimate(mean, {}, num_gradients)

    return _sharding.automatic(oracle, "data")
