"""What private ReSQue solvers share around their accountant: which losses it covers, the calls, the loss.

What it computes: the list of localized calls of a run, the largest β within a budget, and the loss of the run
in float32, rounded up, for programs to carry.

The accountant works on the host, where a program's numbers are not known. A plan therefore holds, static, the
numbers that its loss is for (``Proven``); the loss is a function of these and of the static sizes, formed
whenever it is asked for, and a run is charged it where its own numbers are no worse, and an unbounded loss
elsewhere. No proven number is stored beside what it was proven from.

Source: thesis, sections 2.4.1 and 2.4.5; see ``privacy.resque``.

Formal guarantee: that of ``privacy.resque`` for the calls listed. Whoever lists them names every call
that could be made.

Cost: about a second for each size of call, once in a process.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from dp_accounting import NeighboringRelation

from dpsco_jax import _checks, privacy
from dpsco_jax._numerics import array_namespace
from dpsco_jax.privacy import resque
from dpsco_jax.privacy.certificates import accounted_by
from dpsco_jax.privacy.resque import ResqueCall
from dpsco_jax.problems import _proofs
from dpsco_jax.problems.objective import Objective
from dpsco_jax.solvers.resque._levels import Level, levels

Calls = Sequence[tuple[ResqueCall, int]]

# Of δ, for events outside of the Rényi curves; as ``resque.calibrate_beta`` takes it.
FAILURE_SHARE = 0.25
_LEAST_LOSS = 1e-30  # float32 programs flush smaller numbers to zero

ROUNDED_RATIO = 1.0 - 1e-6  # the program divides radii in float32
_PLANNED_RATIO = 1.0 - 5e-7  # what the rounding of two radii and of their comparison leaves of ρ/r
_LENGTHS = (1e-12, 1e12)  # float32 squares these

SECRET = "the key, the sampled users, their shifts and weights stay secret"


class Proven(NamedTuple):
    """The numbers that the loss of a plan is for: Python numbers, static in the plan.

    Attributes:
        beta: the largest β of a call at level 0.
        radius_ratio: the least ρ/r.
        delta: a quarter of it is the failure probability of all calls together.
    """

    beta: float
    radius_ratio: float
    delta: float


class Numbers(NamedTuple):
    """The numbers of a run that its privacy rests on, traced or not.

    Attributes:
        beta: β of a call at level 0, above 0.
        ball_radius: r, in [1e-12, 1e12].
        smoothing_radius: ρ, in [1e-12, 1e12].
        lipschitz: L, above 0; a run takes the larger one of it and the objective's.
        quadratics: weights by name of all quadratic terms, each at least 0. Their size does not matter for
            privacy; a negative one would push neighbours apart.
    """

    beta: Any
    ball_radius: Any
    smoothing_radius: Any
    lipschitz: Any
    quadratics: Mapping[str, Any]


def require_linear(objective: Objective) -> None:
    """Refuses losses that the privacy proof does not cover.

    Raises:
        ValueError: unless the loss is a linear model, convex and Lipschitz on the whole space with the
            constants that ``problems.losses`` gave it: no declaration of the caller's is taken for a proof.
    """
    _checks.require_instance("objective", objective, Objective)
    known = objective.globally_convex_lipschitz
    if known and objective.vector_model is not None:
        known = _proofs.require_proven(objective).everywhere
        if known:
            return
    what = (
        "not known to be convex and Lipschitz on the whole space"
        if not known
        else "not a linear model with a vector of parameters"
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


def calibrated_beta(
    calls_at: Callable[[float], Calls], epsilon: float, delta: float, near: float | None = None
) -> float:
    """The largest β, as a float32 number, for which the certificate of the calls stays within (ε, δ).

    The Rényi curve that a program carries proves less: up to twice this ε where little is sampled. ``near``
    is where the search starts, if something is known.

    Raises:
        ValueError: if no β in [1e-7, 4] meets the budget.
    """
    beta = resque.calibrate_beta(calls_at, epsilon, delta, near=near)
    return float(np.float32(beta * (1 - 3 * 2.0**-23)))


@functools.lru_cache(maxsize=1024)
def _loss(calls: tuple[tuple[ResqueCall, int], ...], delta: float) -> privacy.PrivacyLoss:
    found = resque.calls_loss(calls, FAILURE_SHARE * delta)
    for part in found:
        np.asarray(part).setflags(write=False)
    return found


def loss(calls: Calls, delta: float) -> privacy.PrivacyLoss:
    """The loss of all calls, float64, read-only; computed once for each list of calls."""
    return _loss(tuple(calls), float(delta))


def float32_loss(loss: privacy.PrivacyLoss) -> privacy.PrivacyLoss:
    """A loss that is not smaller, in float32."""

    def above(value: Any) -> np.ndarray:
        wide = np.maximum(np.asarray(value, np.float64), _LEAST_LOSS) * (1 + 2.0**-22)
        return wide.astype(np.float32)

    return privacy.PrivacyLoss(above(loss.rdp), above(loss.delta))


def proven_loss(
    calls_at: Callable[[float, float], Calls], proven: Proven | None
) -> privacy.PrivacyLoss:
    """The loss, float32, of the calls at the proven numbers; unbounded where there are none.

    Args:
        calls_at: the calls that could be made as a function of β and ρ/r.
        proven: of the plan.

    Raises:
        ValueError: if there is no such call: a size or a number is out of range.
    """
    if proven is None:
        return privacy.unbounded()
    return float32_loss(loss(calls_at(proven.beta, proven.radius_ratio), proven.delta))


def require_numbers(numbers: Numbers) -> None:
    """Refuses numbers that no proof covers; those of a program, which are not known yet, pass.

    Raises:
        ValueError: with the name of the number.
    """
    _checks.require_positive("beta", numbers.beta)
    _checks.require_within("ball_radius", numbers.ball_radius, *_LENGTHS)
    _checks.require_within("smoothing_radius", numbers.smoothing_radius, *_LENGTHS)
    _checks.require_positive("lipschitz", numbers.lipschitz)
    for name, weight in numbers.quadratics.items():
        _checks.require_nonnegative(name, weight)


def carried(
    calls_at: Callable[[float, float], Calls], proven: Proven | None, numbers: Numbers
) -> privacy.PrivacyLoss:
    """The loss that a run is charged: that of the proven numbers where its own are no worse, else unbounded.

    No worse are a smaller β (more noise) and a larger ρ/r, if all numbers are in the range of ``Numbers``. In
    a batch of plans each has its own answer.

    Args:
        calls_at: the calls that could be made as a function of β and ρ/r, from static sizes alone.
        proven: of the plan.
        numbers: that the run uses.

    Raises:
        ValueError: if a static size is out of range.
    """
    if proven is None:
        return privacy.unbounded()
    largest = np.float32(proven.beta)
    if float(largest) > proven.beta:
        largest = np.nextafter(largest, np.float32(0))
    # On the host where all numbers are: a plan compiles nothing.
    given = numbers.beta, numbers.ball_radius, numbers.smoothing_radius, numbers.lipschitz
    xp = array_namespace(given)
    beta, radius, smoothing, lipschitz = map(xp.asarray, given)
    covered = (beta > 0) & (beta <= largest)
    covered &= (radius >= _LENGTHS[0]) & (smoothing <= _LENGTHS[1])
    covered &= smoothing >= proven.radius_ratio * _PLANNED_RATIO * radius
    covered &= (lipschitz > 0) & (lipschitz < math.inf)
    found = privacy.unbounded_unless(covered, proven_loss(calls_at, proven))
    for weight in numbers.quadratics.values():
        found = with_quadratics(weight, found)
    return found


def with_quadratics(weights: Any, loss: privacy.PrivacyLoss) -> privacy.PrivacyLoss:
    """The loss, if the weights of all public quadratics that are added are nonnegative and finite."""
    # An array of them is the plan's own; a batch of plans is a matter of vmap.
    xp = array_namespace(weights)
    each = xp.asarray(weights)
    return privacy.unbounded_unless(xp.all((each >= 0) & (each < math.inf)), loss)


def certificate(calls: Calls, delta: float, assumes: Sequence[str]) -> privacy.Certificate:
    """The (ε, δ) of all calls.

    Raises:
        ValueError: if δ is not in (0, 1).
    """
    delta = _checks.require_real("delta", delta, 0, 1)
    return privacy.Certificate(
        _epsilon(tuple(calls), delta),
        delta,
        NeighboringRelation.REPLACE_ONE,
        accounted_by("privacy loss distributions of coupled runs"),
        tuple(assumes),
    )


@functools.lru_cache(maxsize=1024)
def _epsilon(calls: tuple[tuple[ResqueCall, int], ...], delta: float) -> float:
    return resque.calls_epsilon(calls, delta)
