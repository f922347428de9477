"""The oracle of users' clipped gradients, one row each, and the data in the form that it takes.

What it computes: see ``loop.user_rows_oracle``, in two parts: data are prepared once for oracles of several
samplers.

Source: none.

Formal guarantee: that of ``oracles.linear_users`` and ``oracles.gradients``.

Cost: see there; a linear model's data are copied once.
"""

from typing import Any

from dpsco_jax.oracles import Oracle, gradients, linear, linear_users, smoothed
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


def prepared(objective: Objective, data: UserData, params: Any, smoothing_radius: Any) -> Any:
    """The data in the form that the oracle takes."""
    model = _model(objective, smoothing_radius)
    return data if model is None else linear.prepare(model, data, len(params))


def _model(objective: Objective, smoothing_radius: Any) -> LinearModel | None:
    return objective.linear_model if smoothing_radius is None else objective.vector_model
