"""What plans of private calls say of their privacy: lists of calls, the largest β within a budget, the loss.

The accountant works on the host, where a program's numbers are not known. A plan therefore holds, static, the
numbers that its loss is for (``Proven``); the loss is a function of these and of the static sizes, formed
whenever it is asked for, and a run is charged it where its own numbers are no worse, and an unbounded loss
elsewhere (docs/theory/resque.md, Edited plans).
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
from dp_accounting import NeighboringRelation

from dpsco_jax import _checks, privacy
from dpsco_jax._infeasible import Infeasible
from dpsco_jax._numerics import array_namespace
from dpsco_jax.privacy import resque
from dpsco_jax.privacy.certificates import accounted_by
from dpsco_jax.privacy.resque import ResqueCall
from dpsco_jax.solvers import _costs
from dpsco_jax.solvers._plan_base import MadeFor
from dpsco_jax.solvers.resque._calls import levels
from dpsco_jax.solvers.solution import Solution, finished
from dpsco_jax.solvers.work import Work

_Plan = TypeVar("_Plan", bound=Any)

Calls = Sequence[tuple[ResqueCall, int]]

# Of δ, for events outside of the Rényi curves; as ``resque.calibrate_beta`` takes it.
_FAILURE_SHARE = 0.25
_LEAST_LOSS = 1e-30  # float32 programs flush smaller numbers to zero

_ROUNDED_RATIO = 1.0 - 1e-6  # the program divides radii in float32
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


def strongly_convex_calls(call: ResqueCall) -> list[tuple[ResqueCall, int]]:
    """The localized calls of one strongly convex call of that size and β, each with its own β."""
    made = []
    for level in levels(call.num_queries):
        beta = call.beta * level.beta_factor
        made.append((dataclasses.replace(call, num_queries=level.num_queries, beta=beta), 1))
    return made


def repeated(calls: Calls, count: int) -> list[tuple[ResqueCall, int]]:
    """All calls of ``count`` runs."""
    return [(call, times * count) for call, times in calls]


@functools.lru_cache(maxsize=1024)
def loss(calls: tuple[tuple[ResqueCall, int], ...], delta: float) -> privacy.PrivacyLoss:
    """The loss of all calls, float64, read-only."""
    found = resque.calls_loss(calls, _FAILURE_SHARE * delta)
    for part in found:
        np.asarray(part).setflags(write=False)
    return found


@functools.lru_cache(maxsize=1024)
def _epsilon(calls: tuple[tuple[ResqueCall, int], ...], delta: float) -> float:
    return resque.calls_epsilon(calls, delta)


def certificate(calls: Calls, delta: float, assumes: Sequence[str]) -> privacy.Certificate:
    """The (ε, δ) of all calls; ``ValueError`` if δ is not in (0, 1)."""
    delta = _checks.require_real("delta", delta, 0, 1)
    return privacy.Certificate(
        _epsilon(tuple(calls), delta),
        delta,
        NeighboringRelation.REPLACE_ONE,
        accounted_by("privacy loss distributions of coupled runs"),
        tuple(assumes),
    )


def with_quadratics(weights: Any, loss: privacy.PrivacyLoss) -> privacy.PrivacyLoss:
    """The loss, if the weights of all public quadratics that are added are nonnegative and finite."""
    # An array of them is the plan's own; a batch of plans is a matter of vmap.
    xp = array_namespace(weights)
    each = xp.asarray(weights)
    return privacy.unbounded_unless(xp.all((each >= 0) & (each < math.inf)), loss)


class OfCalls(MadeFor):
    """What every plan of private calls says of its privacy, from the list of calls that it could make.

    A plan that inherits has the fields ``num_users``, ``proven``, ``smoothing_radius``, ``beta``, ``epsilon``
    and ``delta``, says ``ball_radius``, ``lipschitz``, ``user_gradients`` and, by name, the weights of its
    ``quadratics``, and lists in ``calls_at(beta, radius_ratio)`` the localized calls that it could make, from
    static sizes alone.
    """

    @property
    def single(self) -> Any:
        """The plan that holds the numbers."""
        return self

    @property
    def radius_ratio(self: Any) -> float:
        """ρ/r."""
        return float(self.smoothing_radius) / float(self.ball_radius)

    def call_of(
        self: Any, num_queries: int, beta: float, radius_ratio: float, replacement: bool
    ) -> ResqueCall:
        """A call of that size, for the accountant."""
        ratio = radius_ratio * _ROUNDED_RATIO
        return ResqueCall(num_queries, beta, ratio, self.num_users, replacement)

    @property
    def calls(self: Any) -> Calls:
        """The localized calls that could be made, for the accountant."""
        return self.calls_at(float(self.single.beta), self.single.radius_ratio)

    def loss(self: Any) -> privacy.PrivacyLoss:
        """The privacy loss that a run is charged, float32, rounded up; infinite beyond what was proven."""
        return charged(self)

    @property
    def assumes(self) -> tuple[str, ...]:
        """What privacy assumes."""
        slope = float(self.single.lipschitz)
        return f"every user's loss is convex and {slope:.4g}-Lipschitz on the whole space", SECRET

    def certificate(self) -> privacy.Certificate:
        """The (ε, δ) of all calls that could be made, with the numbers that the plan holds now.

        Raises:
            ValueError: if one is out of the range in which there is a proof.
        """
        require_numbers(self.single)
        return certificate(self.calls, float(self.single.delta), self.single.assumes)

    @property
    def smoothing_bias(self: Any) -> float:
        """How much smoothing adds to the risk at most: a linear model is smoothed along its row only."""
        bias = math.sqrt(2 / math.pi) * float(self.lipschitz)  # E|N(0, 1)| = √(2/π)
        return bias * float(self.smoothing_radius)

    def work_for(self: Any, item: _costs.Item) -> Work:
        """What a run costs, at most where fewer calls may be made."""
        once = _costs.prepared(self.num_users, item)
        return _costs.reweighted(self.user_gradients, item) + once


def require_numbers(plan: Any) -> None:
    """``ValueError`` by name for a number that no proof covers; those of a program, not known yet, pass."""
    _checks.require_positive("beta", plan.beta)
    _checks.require_within("ball_radius", plan.ball_radius, *_LENGTHS)
    _checks.require_within("smoothing_radius", plan.smoothing_radius, *_LENGTHS)
    _checks.require_positive("lipschitz", plan.lipschitz)
    for name, weight in plan.quadratics.items():
        _checks.require_nonnegative(name, weight)


def require_runnable(plan: Any) -> None:
    """``Infeasible`` where balls or their smoothing leave the lengths that float32 squares."""
    low, high = _LENGTHS
    for name in ("ball_radius", "smoothing_radius"):
        if not low <= float(getattr(plan, name)) <= high:
            raise Infeasible(
                f"{name} would be {float(getattr(plan, name)):.3g}, which cannot be run: float32 squares"
                f" lengths in [{low:g}, {high:g}]; a smaller condition gives larger balls"
            )


def charged(plan: Any, further: Mapping[str, Any] | None = None) -> privacy.PrivacyLoss:
    """The loss that a run is charged: that of the proven numbers where its own are no worse, else unbounded.

    No worse are a smaller β (more noise) and a larger ρ/r, with all numbers in the range of
    ``require_numbers``. Quadratics, of the plan and ``further`` ones of the run, may have any size, but a
    negative one would push neighbours apart. In a batch of plans each has its own answer.
    """
    proven, numbers = plan.single.proven, plan.single
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
    found = privacy.unbounded_unless(covered, proven_loss(plan, proven))
    for weight in (*numbers.quadratics.values(), *(further or {}).values()):
        found = with_quadratics(weight, found)
    return found


def proven_loss(plan: Any, proven: Proven) -> privacy.PrivacyLoss:
    """A loss in float32 that is not smaller than that of the plan's calls at the proven numbers."""

    def above(value: Any) -> np.ndarray:
        wide = np.maximum(np.asarray(value, np.float64), _LEAST_LOSS) * (1 + 2.0**-22)
        return wide.astype(np.float32)

    calls = plan.calls_at(proven.beta, proven.radius_ratio)
    found = loss(tuple(calls), float(proven.delta))
    return privacy.PrivacyLoss(above(found.rdp), above(found.delta))


def calibrated_beta(
    calls_at: Callable[[float], Calls], epsilon: float, delta: float, near: float | None = None
) -> float:
    """The largest β in [1e-7, 4], as a float32 number, for which the calls stay within (ε, δ).

    The Rényi curve that a program carries proves less: 1.05 to 1.5 times this ε. ``near``
    is where the search starts, if something is known. ``ValueError`` if there is no such β.
    """
    beta = resque.calibrate_beta(calls_at, epsilon, delta, near=near)
    return float(np.float32(beta * (1 - 3 * 2.0**-23)))


def largest_beta(plan: Any, near: float | None = None) -> float:
    """The largest β at which the calls stay within the plan's budget, searched for from ``near``."""
    numbers = plan.single
    ratio, budget = numbers.radius_ratio, (float(numbers.epsilon), float(numbers.delta))
    return calibrated_beta(lambda beta: plan.calls_at(beta, ratio), *budget, near)


def proved(plan: _Plan, beta: float, delta: float) -> _Plan:
    """The plan with that β, whose loss is formed now, not when a program is traced."""
    proven = Proven(beta, plan.single.radius_ratio, delta)
    proven_loss(plan, proven)
    if plan.single is plan:
        return dataclasses.replace(plan, beta=beta, proven=proven)
    return dataclasses.replace(plan, base=dataclasses.replace(plan.base, beta=beta, proven=proven))


def calibrated(plan: _Plan) -> _Plan:
    """The plan with the largest β at which its calls stay within its budget."""
    require_numbers(plan.single)
    return proved(plan, largest_beta(plan), float(plan.single.delta))


def spent(
    point: Any, loss: privacy.PrivacyLoss, budgeted: int, made: Any, trace: Any = None
) -> Solution:
    """The solution of a run that is charged this loss; ``budgeted`` and ``made`` count item gradients."""
    ledger = privacy.open_ledger(NeighboringRelation.REPLACE_ONE, sampled=True)
    return finished(point, privacy.charge(ledger, loss), budgeted, made, trace)
