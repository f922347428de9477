"""Sizes of whitened SGD: columns of a row, users at once, and what a run of an edited plan can have.

What it computes: nothing; it checks, and chooses how many users are held at once.

Source: none.

Formal guarantee: none. No size that is checked here changes what a user can add to a sum.

Cost: none.
"""

from typing import Any

from dpsco_jax import _checks
from dpsco_jax.problems.objective import LinearModel

SMALL_CHUNK = 64
NO_COVARIANCE = "where parameters are a matrix: the Hessian of all of them is not released"
_AT_ONCE = 2**24  # numbers: slices of the data cost more time than one pass over all of them


def columns_of(model: LinearModel, dim: int) -> int:
    """Numbers of a row, from the number of parameters; ``ValueError`` if outputs do not divide it."""
    outputs = model.outputs or 1
    _checks.require(
        dim % outputs == 0, "problem.dim", dim, f"a multiple of the {outputs} outputs of the model"
    )
    return dim // outputs


def chunk(asked: Any, num_users: int, dim: int) -> int:
    """Users whose gradients are held at once: what was asked for, all, or few of many."""
    if asked is not None:
        return _checks.require_count("chunk_size", asked)
    return num_users if num_users * dim <= _AT_ONCE else SMALL_CHUNK


def require_sizes(plan: Any, model: LinearModel) -> None:
    """``ValueError``, by the name of the field, unless a run can have the plan's sizes, edited or not."""
    _checks.require(plan.outputs == model.outputs, "plan.outputs", plan.outputs, str(model.outputs))
    columns = columns_of(model, plan.dim)
    if plan.intercept is not None:
        _checks.require_integer("plan.intercept", plan.intercept, 0, columns - 1)
        for name in ("start_multiplier", "means_multiplier"):
            given = getattr(plan, name) is not None
            _checks.require(given, f"plan.{name}", None, "a number where there is an intercept")
    _checks.require_integer("plan.start_steps", plan.start_steps, int(plan.intercept is not None))
    for name in ("radius_steps", "warm_steps", "num_steps", "chunk_size"):
        _checks.require_count(f"plan.{name}", getattr(plan, name))
    covariance = plan.covariance_multiplier
    possible = covariance is None or model.outputs is None
    name = "plan.covariance_multiplier"
    _checks.require(possible, name, covariance, f"None {NO_COVARIANCE}")
