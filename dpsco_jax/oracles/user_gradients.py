"""The oracle of users' clipped gradients that suits an objective: their sum, or a row for each user.

What it computes: for an objective, the fastest exact way to Σ_u clip(g_u), or to the rows clip(g_u): a closed
form for linear models, ghost sums or chunks of user gradients elsewhere (``oracles.clipped_sums``). An oracle
comes with what makes data into the form that it takes, which is the same for all samplers and numbers.

Cost: a linear model's data are copied once.
"""

from collections.abc import Callable
from typing import Any

import jax

from dpsco_jax.oracles import Oracle, clipped_sums, gradients, linear, linear_users, smoothed
from dpsco_jax.problems.objective import LinearModel, Objective
from dpsco_jax.problems.stored import StoredUsers
from dpsco_jax.problems.users import UserData

__all__ = ["clipped_sum_form", "clipped_sum_oracle", "rows_form", "user_rows_oracle"]


def clipped_sum_oracle(
    objective: Objective,
    data: UserData | StoredUsers,
    params: Any,
    clip_norm: Any,
    sampler: gradients.Sampler | None,
    chunk_size: int,
    smoothing_radius: Any = None,
    unaltered: bool = False,
) -> tuple[Oracle, Any]:
    """The fastest oracle for Σ_u clip(g_u) of an objective, and the data in the form that it takes.

    The closed form where the objective is a linear model, ghost sums or chunks of user gradients elsewhere
    (``oracles.clipped_sums``), or what ``objective.clipped_sums`` asks for. Smoothing (``smoothing_radius``
    not ``None``) with several items a user, a shift for each user then, or of a model whose parameters are a
    matrix, is by chunks: users have no point in common.

    Args:
        objective: static.
        data: of all users; they may be on disk.
        params: a point, for its shapes.
        clip_norm: bound on a user's gradient.
        sampler: draws the users of a step; all if ``None``.
        chunk_size: users who are held at once.
        smoothing_radius: of the shifts; ``None`` for none.
        unaltered: whether a gradient that is not longer than the clip norm must be summed as it is, for a
            proof that is about gradients: no ghost sum, whose clip is to an upper bound of the norm.

    Raises:
        ValueError: if ``objective.clipped_sums`` is unknown, or asks for ghost sums where they cannot be.
    """
    shapes = data.shapes if isinstance(data, StoredUsers) else data
    oracle, prepare = clipped_sum_form(
        objective, shapes, params, clip_norm, sampler, chunk_size, smoothing_radius, unaltered
    )
    return oracle, data.mapped(prepare) if isinstance(data, StoredUsers) else prepare(data)


def user_rows_oracle(
    objective: Objective,
    data: UserData,
    params: Any,
    clip_norm: Any,
    sampler: gradients.Sampler | None,
    chunk_size: int,
    smoothing_radius: Any = None,
) -> tuple[Oracle, Any]:
    """As ``clipped_sum_oracle``, but the oracle returns the rows clip(g_u), ``[users, ...]``, unsummed.

    Under smoothing the point is shifted for each item independently, so that a user's gradient is as near to
    its mean as without; linear models keep their closed form, but those whose parameters are a matrix.
    """
    oracle, prepare = rows_form(objective, params, clip_norm, sampler, chunk_size, smoothing_radius)
    return oracle, prepare(data)


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

    Of the data, which may be shapes, no number is looked at.
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


def rows_form(
    objective: Objective,
    params: Any,
    clip_norm: Any,
    sampler: gradients.Sampler | None,
    chunk_size: int,
    smoothing_radius: Any = None,
) -> tuple[Oracle, Callable[[UserData], Any]]:
    """``user_rows_oracle`` in two parts, for data that are prepared once for oracles of several samplers."""
    unshifted = smoothing_radius is None
    model: LinearModel | None = objective.linear_model if unshifted else objective.vector_model
    if model is not None:
        rows = linear_users.per_user_gradients(
            model, clip_norm, sampler, chunk_size, smoothing_radius
        )
        return rows, lambda users: linear.prepare(model, users, len(params))
    gradient = (
        gradients.user_gradient(objective)
        if unshifted
        else smoothed.user_gradient_by_item(objective, smoothing_radius)
    )
    rows = gradients.per_user_gradients(gradient, clip_norm, sampler, chunk_size)
    return rows, lambda users: users
