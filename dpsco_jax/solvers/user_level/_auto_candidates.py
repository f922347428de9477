"""The candidates of ``auto``: the arguments of each solver's ``plan`` that it does not choose by itself.

Each is here because it has the best prediction, or the best bound that says anything, on some kind of problem
where the others are more than 1.3 times worse (``experiments/studies/auto_choice.md``).
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from dpsco_jax.solvers._schedules import nominal_model
from dpsco_jax.solvers.item_level import private_ac_sa
from dpsco_jax.solvers.user_level import _auto_predictions as predict
from dpsco_jax.solvers.user_level import (
    item_group_privacy,
    momentum_sgd,
    phased_sgd,
    preconditioned_sgd,
    sgd,
    whitened_sgd,
    winsorized_erm,
)
from dpsco_jax.solvers.user_level._auto_predictions import Setting


class Candidate(NamedTuple):
    """A way to solve the problem.

    Attributes:
        name: shown, and how a plan finds its solver again.
        solver: a module with ``plan`` and ``solve``.
        settings: from the setting to arguments of ``plan``, beyond the problem and the budget. May raise
            ``ValueError``: the candidate does not apply.
        predict: from the setting and the plan to an excess risk; ``None`` for the plan's bound.
        nominal: whether the plan's bound rests on the nominal model; it is then not counted as proven.
        shorten: whether ``plan`` takes ``num_steps``, full batches, to fit a budget of gradients.
    """

    name: str
    solver: Any
    settings: Callable[[Setting], dict[str, Any]] = lambda p: {}
    predict: Callable[[Setting, Any], float] | None = None
    nominal: bool = False
    shorten: bool = False


def _full_steps(p: Setting) -> int:
    return p.enough_steps(p.passes)


def _tenth(p: Setting) -> int:
    return max(1, p.problem.num_users // 10)


def _near(p: Setting, multiple: float, worst: float) -> float:
    """A radius of users' gradients by the nominal model, where it is less than the worst case."""
    items, slope = p.problem.items_per_user, p.problem.lipschitz
    radius = multiple * slope / math.sqrt(items)
    if radius >= worst * slope:
        least = math.floor((multiple / worst) ** 2) + 1
        raise ValueError(f"items_per_user must be at least {least}, got {items}")
    return radius


def _small_clip(p: Setting) -> dict[str, Any]:
    """Users' gradients as near to zero as they are to each other, and steps for a smooth loss."""
    clip, steps = _near(p, 2.0, 1.0), _full_steps(p)
    settings = {"sampling": "full", "clip_norm": clip, "num_steps": steps}
    objective = p.problem.objective
    if objective.smoothness is not None:
        noise = math.sqrt(p.problem.dim) * 2 * clip * p.unit_noise / p.problem.num_users
        curvature = objective.smoothness + objective.ridge
        settings["step_size"] = 1 / (curvature + steps * noise / p.problem.farthest)
    return settings


def _typical_clip(p: Setting) -> float:
    """The length that a user's gradient may be expected to have: an item's, twice that at zero, over √m."""
    model, slope = p.problem.objective.vector_model, p.problem.lipschitz
    if model is not None:
        slope = min(slope, 2 * nominal_model.at_zero(p.problem) * model.feature_bound)
    return slope / math.sqrt(p.problem.items_per_user)


def _fast(p: Setting) -> dict[str, Any]:
    """Full batches for AC-SA, clipped where gradients are typically."""
    steps = min(100, p.passes)
    return {
        "num_steps": steps,
        "batch_size": p.problem.num_users,
        "clip_norm": _typical_clip(p),
    }


def _with_momentum(p: Setting) -> dict[str, Any]:
    """Full batches and steps for a smooth loss, clipped where gradients are typically."""
    steps, clip = min(200, p.passes), _typical_clip(p)
    settings = {"sampling": "full", "clip_norm": clip, "num_steps": steps}
    objective = p.problem.objective
    if objective.smoothness is not None:
        noise = math.sqrt(p.problem.dim * steps) * 2 * clip * p.unit_noise / p.problem.num_users
        curvature = objective.smoothness + objective.ridge
        settings["step_size"] = 1 / (curvature / 8 + math.sqrt(steps) * noise / p.problem.farthest)
    return settings


def _whitened(p: Setting) -> dict[str, Any]:
    """A run in time: at least half of the passes are for the two phases."""
    if p.columns_per_row is not None:
        raise ValueError(f"columns_per_row must be None, got {p.columns_per_row}")
    if p.problem.objective.vector_model is None:
        raise ValueError("objective must be a linear model whose parameters are a vector")
    start, radius = min(60, max(1, p.passes // 4)), min(30, max(1, p.passes // 16))
    before = 2 * radius + (0 if p.intercept is None else start)
    return {
        "intercept": p.intercept,
        "entry_bound": p.entry_bound,
        "num_steps": min(300, p.passes - before),
        "start_steps": start,
        "radius_steps": radius,
    }


def _preconditioned(p: Setting) -> dict[str, Any]:
    return {"columns_per_row": p.columns_per_row, "num_steps": min(200, p.passes)}


def _of_full_batches(p: Setting) -> dict[str, Any]:
    return {"sampling": "full", "num_steps": _full_steps(p)}


def _of_a_tenth(p: Setting) -> dict[str, Any]:
    steps = p.enough_steps(10 * p.passes)
    return {"sampling": "fixed", "batch_size": _tenth(p), "num_steps": steps}


def _of_drawn_items(p: Setting) -> dict[str, Any]:
    steps = p.enough_steps(min(20_000, 10 * p.passes * p.problem.items_per_user))
    return {"batch_size": _tenth(p), "num_steps": steps}


CANDIDATES: tuple[Candidate, ...] = (
    Candidate("sgd", sgd, _of_full_batches, predict.sgd),
    Candidate("sgd, a tenth of the users", sgd, _of_a_tenth, predict.sgd),
    Candidate("sgd, clipped at 2L/sqrt(m)", sgd, _small_clip, predict.sgd),
    # Both for their bounds; the second reads the data once.
    Candidate("private_ac_sa", private_ac_sa),
    Candidate("phased_sgd", phased_sgd),
    Candidate("private_ac_sa, full batches", private_ac_sa, _fast, predict.ac_sa),
    Candidate("momentum_sgd", momentum_sgd, _with_momentum, predict.momentum_sgd),
    Candidate("whitened_sgd", whitened_sgd, _whitened, predict.whitened_sgd),
    Candidate(
        "preconditioned_sgd", preconditioned_sgd, _preconditioned, predict.preconditioned_sgd
    ),
    Candidate("winsorized_erm", winsorized_erm, predict=predict.winsorized_erm, shorten=True),
    Candidate(
        "winsorized_erm, radius 1.2L/sqrt(m)",
        winsorized_erm,
        lambda p: {"radius": _near(p, 1.2, 2.0)},
        predict.winsorized_erm,
        nominal=True,
        shorten=True,
    ),
    Candidate("item_group_privacy, drawn", item_group_privacy, _of_drawn_items, predict.item_sgd),
)
"""A plain tuple: a further candidate is one more record."""
