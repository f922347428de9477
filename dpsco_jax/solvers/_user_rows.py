"""The oracle of users' clipped gradients, one row each, and the data in the form that it takes.

What it computes: see ``loop.user_rows_oracle``, in two parts: data are prepared once for oracles of several
samplers, among them those of turns (``solvers._together``), who are users one after another.

Source: none.

Formal guarantee: that of ``oracles.linear_users`` and ``oracles.gradients``.

Cost: see there; a linear model's data are copied once.
"""

from typing import Any

import jax
import jax.numpy as jnp

from dpsco_jax.oracles import Oracle, gradients, linear, linear_users, smoothed
from dpsco_jax.oracles.sampling import UserSample
from dpsco_jax.problems.objective import LinearModel, Objective
from dpsco_jax.problems.users import UserData


def oracle(
    objective: Objective,
    clip_norm: Any,
    sampler: gradients.Sampler | None,
    chunk_size: int,
    smoothing_radius: Any = None,
) -> Oracle:
    """The oracle that returns the rows clip(g_u) of ``prepared`` data."""
    model = _model(objective, smoothing_radius)
    if model is not None:
        return linear_users.per_user_gradients(
            model, clip_norm, sampler, chunk_size, smoothing_radius
        )
    gradient = (
        gradients.user_gradient(objective)
        if smoothing_radius is None
        else smoothed.user_gradient_by_item(objective, smoothing_radius)
    )
    return gradients.per_user_gradients(gradient, clip_norm, sampler, chunk_size)


def oracle_of_turn(
    objective: Objective,
    clip_norm: Any,
    first: Any,
    num_users: Any,
    capacity: int,
    data: Any,
    chunk_size: int,
    smoothing_radius: Any = None,
) -> Oracle:
    """As ``oracle``, of the ``num_users`` users from the position ``first`` on; ``capacity`` rows.

    Rows beyond these users stand for nobody, whatever they hold.
    """
    everybody = len(jax.tree.leaves(data)[0])
    places = first + jnp.arange(capacity, dtype=jnp.int32)
    # Beyond the users of this turn a place has no meaning.
    users = UserSample(jnp.minimum(places, everybody - 1), num_users)
    return oracle(objective, clip_norm, lambda key: users, chunk_size, smoothing_radius)


def prepared(objective: Objective, data: UserData, params: Any, smoothing_radius: Any) -> Any:
    """The data in the form that the oracle takes."""
    model = _model(objective, smoothing_radius)
    return data if model is None else linear.prepare(model, data, len(params))


def _model(objective: Objective, smoothing_radius: Any) -> LinearModel | None:
    return objective.linear_model if smoothing_radius is None else objective.vector_model
