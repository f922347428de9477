"""The candidates of ``auto``: how each is planned from public numbers.

What it computes: the arguments of each solver's ``plan`` for a problem: only what the solver does not choose
by itself, such as the number of steps that a budget of gradients allows.

Source: own.

Formal guarantee: none needed; nothing here reads data.

Cost: that of the solvers' plans.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from dpsco_jax.solvers.item_level import private_ac_sa
from dpsco_jax.solvers.user_level import _auto_predictions as predict
from dpsco_jax.solvers.user_level import _auto_scaled as scaled
from dpsco_jax.solvers.user_level import (
    accelerated_phased_erm,
    accelerated_sgd,
    accelerated_strongly_convex,
    item_group_privacy,
    localized_sgd,
    momentum_sgd,
    multipass_sgd,
    output_perturbation,
    phased_erm,
    phased_sgd,
    preconditioned_sgd,
    sgd,
    whitened_sgd,
    winsorized_erm,
)
from dpsco_jax.solvers.user_level._auto_setting import Setting


class Candidate(NamedTuple):
    """A way to solve the problem.

    Attributes:
        name: shown, and how a plan finds its solver again.
        solver: a module with ``plan`` and ``solve``.
        settings: from the setting to arguments of ``plan``, beyond the problem and the budget. May raise
            ``ValueError``: the candidate does not apply.
        predict: from the setting and the plan to an excess risk; ``None`` for the plan's bound.
        population: whether ``excess_bound`` is about the population, not about the data at hand.
        nominal: whether the bound rests on the nominal model; it is then not counted as proven.
        shorten: whether ``plan`` takes ``num_steps``, full batches, to fit a budget of gradients.
        least: from the setting to what no prediction is below, known before there is a plan. A candidate
            that cannot win by prediction is not planned then; ``None`` for one that always is.
    """

    name: str
    solver: Any
    settings: Callable[[Setting], dict[str, Any]] = lambda p: {}
    predict: Callable[[Setting, Any], float] | None = None
    population: bool = True
    nominal: bool = False
    shorten: bool = False
    least: Callable[[Setting], float] | None = None


def _small_clip(p: Setting) -> dict[str, Any]:
    """Users' gradients as near to zero as they are to each other, and steps for a smooth loss."""
    clip, steps = 2 * p.slope / math.sqrt(p.items_per_user), _full_steps(p)
    if clip >= p.slope:
        raise ValueError(f"items_per_user must be at least 5, got {p.items_per_user}")
    settings = {"sampling": "full", "clip_norm": clip, "num_steps": steps}
    if p.objective.smoothness is not None:
        noise = math.sqrt(p.dim) * 2 * clip * p.unit_noise / p.num_users
        curvature = p.objective.smoothness + p.objective.ridge
        settings["step_size"] = 1 / (curvature + steps * noise / p.distance)
    return settings


def _full_steps(p: Setting) -> int:
    return p.enough_steps(p.passes)


def _tenth(p: Setting) -> int:
    return max(1, p.num_users // 10)


def _near(p: Setting, multiple: float, worst: float) -> dict[str, Any]:
    """A radius of users' gradients by the nominal model, where it is less than the worst case."""
    radius = multiple * p.slope / math.sqrt(p.items_per_user)
    if radius >= worst * p.slope:
        least = math.ceil((multiple / worst) ** 2)
        raise ValueError(f"items_per_user must be at least {least}, got {p.items_per_user}")
    return {"radius": radius}


def _typical_clip(p: Setting) -> float:
    """L/√m, with the slope that is typical in place of L."""
    return p.typical_slope / math.sqrt(p.items_per_user)


def _fast(p: Setting) -> dict[str, Any]:
    """Full batches for AC-SA, clipped where gradients are typically."""
    steps = min(100, p.passes)
    return {"num_steps": steps, "batch_size": p.num_users, "clip_norm": _typical_clip(p)}


def _with_momentum(p: Setting) -> dict[str, Any]:
    """Full batches and steps for a smooth loss, clipped where gradients are typically."""
    steps, clip = min(200, p.passes), _typical_clip(p)
    settings = {"sampling": "full", "clip_norm": clip, "num_steps": steps}
    if p.objective.smoothness is not None:
        noise = math.sqrt(p.dim * steps) * 2 * clip * p.unit_noise / p.num_users
        curvature = p.objective.smoothness + p.objective.ridge
        settings["step_size"] = 1 / (curvature / 8 + math.sqrt(steps) * noise / p.distance)
    return settings


def _whitened(p: Setting) -> dict[str, Any]:
    """A run in time: at least half of the passes are for the two phases."""
    if p.columns_per_row is not None:
        raise ValueError(f"columns_per_row must be None, got {p.columns_per_row}")
    if p.objective.vector_model is None:
        raise ValueError("objective must be a linear model whose parameters are a vector")
    start, radius = min(60, max(1, p.passes // 4)), min(30, max(1, p.passes // 16))
    before = 2 * radius + (0 if p.intercept is None else start)
    steps = min(300, p.passes - before)
    return {
        "intercept": p.intercept,
        "entry_bound": p.entry_bound,
        "num_steps": steps,
        "start_steps": start,
        "radius_steps": radius,
    }


def _clipped_at_lipschitz(p: Setting) -> float:
    """What is lost at least with noise for gradients of the length L."""
    return predict.least(p, p.slope)


def _clipped_as_near(p: Setting) -> float:
    """The same with noise for gradients that are within 2.5L/√m, if that is less."""
    return predict.least(p, p.slope * min(1.0, 2.5 / math.sqrt(p.items_per_user)))


def _statistical(p: Setting) -> float:
    """What no bound on the population is below."""
    return p.statistical


def _less_noise(p: Setting) -> dict[str, Any]:
    del p
    return {"mean": None}


CANDIDATES: tuple[Candidate, ...] = (
    Candidate(
        "sgd",
        sgd,
        lambda p: {"sampling": "full", "num_steps": _full_steps(p)},
        predict.sgd,
        population=False,
    ),
    Candidate(
        "sgd, a tenth of the users",
        sgd,
        lambda p: {
            "sampling": "fixed",
            "batch_size": _tenth(p),
            "num_steps": p.enough_steps(10 * p.passes),
        },
        predict.sgd,
        population=False,
        least=_clipped_at_lipschitz,
    ),
    Candidate(
        "sgd, clipped at 2L/sqrt(m)",
        sgd,
        _small_clip,
        predict.sgd,
        population=False,
    ),
    Candidate(
        "private_ac_sa",
        private_ac_sa,
        predict=predict.ac_sa,
        population=False,
        least=_clipped_at_lipschitz,
    ),
    Candidate("private_ac_sa, full batches", private_ac_sa, _fast, predict.ac_sa, population=False),
    Candidate("momentum_sgd", momentum_sgd, _with_momentum, predict.momentum_sgd, population=False),
    Candidate("whitened_sgd", whitened_sgd, _whitened, scaled.whitened_sgd, population=False),
    Candidate("multipass_sgd", multipass_sgd, predict=predict.multipass_sgd, shorten=True),
    Candidate(
        "multipass_sgd, clipped",
        multipass_sgd,
        lambda p: {"radius": p.slope},
        predict.multipass_sgd,
        shorten=True,
    ),
    Candidate(
        "multipass_sgd, radius 2.5L/sqrt(m)",
        multipass_sgd,
        lambda p: _near(p, 2.5, 1.0),
        predict.multipass_sgd,
        nominal=True,
        shorten=True,
    ),
    Candidate(
        "localized_sgd",
        localized_sgd,
        predict=predict.localized_sgd,
        shorten=True,
    ),
    Candidate("phased_sgd", phased_sgd, least=_statistical),
    Candidate(
        "accelerated_sgd",
        accelerated_sgd,
        _less_noise,
        predict.accelerated,
        least=_clipped_as_near,
    ),
    Candidate(
        "accelerated_phased_erm",
        accelerated_phased_erm,
        _less_noise,
        predict.accelerated,
        least=_clipped_as_near,
    ),
    Candidate(
        "accelerated_strongly_convex",
        accelerated_strongly_convex,
        _less_noise,
        predict.accelerated,
        least=_clipped_as_near,
    ),
    Candidate(
        "winsorized_erm",
        winsorized_erm,
        predict=predict.winsorized_erm,
        population=False,
        shorten=True,
    ),
    Candidate(
        "winsorized_erm, radius 1.2L/sqrt(m)",
        winsorized_erm,
        lambda p: _near(p, 1.2, 2.0),
        predict.winsorized_erm,
        population=False,
        nominal=True,
        shorten=True,
    ),
    Candidate("phased_erm", phased_erm, least=_statistical),
    Candidate(
        "output_perturbation",
        output_perturbation,
        predict=predict.output_perturbation,
        population=False,
    ),
    Candidate(
        "preconditioned_sgd",
        preconditioned_sgd,
        lambda p: {"columns_per_row": p.columns_per_row, "num_steps": min(200, p.passes)},
        scaled.preconditioned_sgd,
        population=False,
    ),
    Candidate(
        "item_group_privacy",
        item_group_privacy,
        lambda p: {"num_steps": _full_steps(p)},
        predict.item_sgd,
        population=False,
    ),
    Candidate(
        "item_group_privacy, drawn",
        item_group_privacy,
        lambda p: {
            "batch_size": _tenth(p),
            "num_steps": p.enough_steps(min(20_000, 10 * p.passes * p.items_per_user)),
        },
        predict.item_sgd,
        population=False,
        least=_clipped_at_lipschitz,
    ),
)
"""A plain tuple: a further candidate is one more record."""
