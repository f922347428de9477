"""What private ReSQue solvers share around their accountant: which losses it covers, the calls, the loss.

What it computes: the list of localized calls of a run, the largest β within a budget, and the loss of the run
in float32, rounded up, for programs to carry.

Source: thesis, sections 2.4.1 and 2.4.5; see ``privacy.resque``.

Formal guarantee: that of ``privacy.resque`` for the calls listed. Whoever lists them names every call
that could be made.

Cost: about a second for each size of call.
"""

import dataclasses
import importlib.metadata
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from dp_accounting import NeighboringRelation

from dpsco_jax import _checks, privacy
from dpsco_jax.privacy import resque
from dpsco_jax.privacy.resque import ResqueCall
from dpsco_jax.problems.objective import Objective
from dpsco_jax.solvers.item_level._resque_levels import Level, levels

Calls = Sequence[tuple[ResqueCall, int]]

# Of δ, for events outside of the Rényi curves; as ``resque.calibrate_beta`` takes it.
FAILURE_SHARE = 0.25
_LEAST_LOSS = 1e-30  # float32 programs flush smaller numbers to zero

ROUNDED_RATIO = 1.0 - 1e-6  # the program divides radii in float32

SECRET = "the key, the sampled users, their shifts and weights stay secret"


def require_linear(objective: Objective) -> None:
    """Refuses losses that the privacy proof does not cover.

    Raises:
        ValueError: unless the loss is a linear model, convex and Lipschitz on the whole space.
    """
    _checks.require_instance("objective", objective, Objective)
    if objective.globally_convex_lipschitz and objective.linear_model is not None:
        return
    what = (
        "not known to be convex and Lipschitz on the whole space"
        if not objective.globally_convex_lipschitz
        else "not a linear model"
    )
    raise ValueError(
        "objective must be a linear model whose loss is convex and Lipschitz on the whole space, by"
        f" construction, got one that is {what}. Gradients are queried at Gaussian shifts, which are"
        " unbounded, and privacy rests on convexity at every one of them: clipping gradients would break"
        " it. Use losses.absolute, hinge, quantile, huber or logistic, or a solver that clips."
    )


def strongly_convex_calls(call: ResqueCall) -> list[tuple[ResqueCall, int]]:
    """The localized calls of one strongly convex call of that size and β, each with its own β."""

    def of(level: Level) -> ResqueCall:
        beta = call.beta * level.beta_factor
        return dataclasses.replace(call, num_queries=level.num_queries, beta=beta)

    return [(of(level), 1) for level in levels(call.num_queries)]


def repeated(calls: Calls, count: int) -> list[tuple[ResqueCall, int]]:
    """All calls of ``count`` runs."""
    return [(call, times * count) for call, times in calls]


def calibrated_beta(calls_at: Callable[[float], Calls], epsilon: float, delta: float) -> float:
    """The largest β, as a float32 number, for which the certificate of the calls stays within (ε, δ).

    The Rényi curve that a program carries proves less: up to twice this ε where little is sampled.

    Raises:
        ValueError: if no β in [1e-7, 4] meets the budget.
    """
    beta = resque.calibrate_beta(calls_at, epsilon, delta)
    return float(np.float32(beta * (1 - 3 * 2.0**-23)))


def loss(calls: Calls, delta: float) -> privacy.PrivacyLoss:
    """The loss of all calls, float64."""
    return resque.calls_loss(calls, FAILURE_SHARE * delta)


def float32_loss(loss: privacy.PrivacyLoss) -> privacy.PrivacyLoss:
    """A loss that is not smaller, in float32."""

    def above(value: Any) -> np.ndarray:
        wide = np.maximum(np.asarray(value, np.float64), _LEAST_LOSS) * (1 + 2.0**-22)
        return wide.astype(np.float32)

    return privacy.PrivacyLoss(above(loss.rdp), above(loss.delta))


def carried(plan: Any) -> privacy.PrivacyLoss:
    """The loss that a run of the plan is charged: unbounded where its numbers are not those accounted for.

    More noise (a smaller β) and smaller balls than accounted for are covered. In a batch of plans each has
    its own answer; sizes, which are static, are those of the plan that was made.

    Args:
        plan: with ``loss``, ``accounted_for`` (β and ρ/r of the loss, or ``None``), ``beta``,
            ``smoothing_radius`` and ``ball_radius``.
    """
    if plan.accounted_for is None:
        return privacy.unbounded()
    beta, ratio = plan.accounted_for
    covered = plan.beta <= jnp.asarray(beta, jnp.float32)
    covered &= plan.smoothing_radius >= ratio * ROUNDED_RATIO * plan.ball_radius
    return privacy.PrivacyLoss(jnp.where(covered, plan.loss.rdp, jnp.inf), plan.loss.delta)


def certificate(calls: Calls, delta: float, assumes: Sequence[str]) -> privacy.Certificate:
    """The (ε, δ) of all calls."""
    version = importlib.metadata.version("dpsco-jax")
    return privacy.Certificate(
        resque.calls_epsilon(calls, delta),
        float(delta),
        NeighboringRelation.REPLACE_ONE,
        f"privacy loss distributions of coupled runs (dpsco_jax {version})",
        tuple(assumes),
    )
