"""The form of a clipped sum: which oracle sums users' gradients, and what makes data into what it takes.

What it computes: for an objective, the fastest exact way to Σ_u clip(g_u): a closed form for linear models,
ghost sums or chunks of user gradients elsewhere (``oracles.clipped_sums``).

Source: this package.

Formal guarantee: that of the oracle chosen.

Cost: none; shapes alone are looked at.
"""

from collections.abc import Callable
from typing import Any

import jax

from dpsco_jax.oracles import Oracle, clipped_sums, gradients, linear, smoothed
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.users import UserData


def clipped_sum_form(
    objective: Objective,
    data: UserData,
    params: Any,
    clip_norm: Any,
    sampler: gradients.Sampler | None,
    chunk_size: int,
    smoothing_radius: Any = None,
    unaltered: bool = False,
) -> tuple[Oracle, Callable[[UserData], Any]]:
    """``clipped_sum_oracle`` in two parts, for data that are prepared once for oracles of several samplers.

    Of the data, which may be shapes, no number is looked at. Returns the oracle, and what makes data into the
    form that it takes, which is the same for all samplers and numbers.
    """
    asked = clipped_sums.require_way(objective)
    shifted = smoothing_radius is not None
    if shifted or unaltered:
        why = ", as users are shifted apart" if shifted else ", as gradients must stay unaltered"
        clipped_sums.require_way(objective, "ghost", why)
    model = objective.vector_model if shifted else objective.linear_model
    single = jax.tree.leaves(data.items)[0].shape[1] == 1
    if asked == "auto" and model is not None and (single or not shifted):
        form = linear.clipped_gradient_sum(model, clip_norm, sampler, chunk_size, smoothing_radius)
        return form, lambda users: linear.prepare(model, users, len(params))
    if shifted:
        gradient = smoothed.user_gradient(objective, smoothing_radius)
        shifted_sum = gradients.clipped_gradient_sum(gradient, clip_norm, sampler, chunk_size)
        return shifted_sum, lambda users: users
    way = "chunks" if unaltered else clipped_sums.choice(objective, data, params).way
    oracle = clipped_sums.clipped_gradient_sum(objective, way, clip_norm, sampler, chunk_size)
    return oracle, lambda users: users
