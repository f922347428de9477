"""What private ReSQue solvers share around their accountant: lists of calls, their loss, and what plans say.

It has the list of localized calls of a run, the largest β within a budget, the loss of the run in
float32, rounded up, for programs to carry; and, of every plan that makes calls, loss, certificate and work.

The accountant works on the host, where a program's numbers are not known. A plan therefore holds, static, the
numbers that its loss is for (``Proven``); the loss is a function of these and of the static sizes, formed
whenever it is asked for, and a run is charged it where its own numbers are no worse, and an unbounded loss
elsewhere. No proven number is stored beside what it was proven from.

The guarantee is that of ``privacy.resque`` (thesis, sections 2.4.1 and 2.4.5) for the calls listed: whoever
lists them names every call that could be made. It takes about a second for each size of call, once in a
process.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
from dp_accounting import NeighboringRelation

from dpsco_jax import _checks, privacy
from dpsco_jax._numerics import array_namespace
from dpsco_jax.privacy import resque
from dpsco_jax.privacy.certificates import accounted_by
from dpsco_jax.privacy.resque import ResqueCall
from dpsco_jax.solvers import _costs
from dpsco_jax.solvers._plan_base import MadeFor
from dpsco_jax.solvers.resque._sizes import levels
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


def loss(calls: Calls, delta: float) -> privacy.PrivacyLoss:
    """The loss of all calls, float64, read-only; computed once for each list of calls."""
    return _loss(tuple(calls), float(delta))


@functools.lru_cache(maxsize=1024)
def _loss(calls: tuple[tuple[ResqueCall, int], ...], delta: float) -> privacy.PrivacyLoss:
    found = resque.calls_loss(calls, _FAILURE_SHARE * delta)
    for part in found:
        np.asarray(part).setflags(write=False)
    return found


def proven_loss(calls_at: Callable[[float, float], Calls], proven: Proven) -> privacy.PrivacyLoss:
    """A loss in float32 that is not smaller than that of the calls at the proven numbers.

    Args:
        calls_at: the calls that could be made as a function of β and ρ/r.
        proven: of the plan.

    Raises:
        ValueError: if there is no such call: a size or a number is out of range.
    """

    def above(value: Any) -> np.ndarray:
        wide = np.maximum(np.asarray(value, np.float64), _LEAST_LOSS) * (1 + 2.0**-22)
        return wide.astype(np.float32)

    found = loss(calls_at(proven.beta, proven.radius_ratio), proven.delta)
    return privacy.PrivacyLoss(above(found.rdp), above(found.delta))


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


class OfCalls(MadeFor):
    """What every plan of private calls says of its privacy, from the list of calls that it could make.

    A plan that inherits has the fields ``num_users``, ``proven``, ``smoothing_radius``, ``beta``, ``epsilon``
    and ``delta``, says ``ball_radius``, ``lipschitz``, ``quadratics`` and ``user_gradients``, and lists its
    calls in ``calls_at``.
    """

    @property
    def single(self) -> Any:
        """The plan that holds the numbers."""
        return self

    @property
    def radius_ratio(self: Any) -> float:
        """ρ/r."""
        return float(self.smoothing_radius) / float(self.ball_radius)

    @property
    def numbers(self: Any) -> Numbers:
        """What privacy asks of the leaves."""
        return Numbers(
            self.beta, self.ball_radius, self.smoothing_radius, self.lipschitz, self.quadratics
        )

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
        return carried(self.calls_at, self.single.proven, self.single.numbers)

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
        require_numbers(self.single.numbers)
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


def proved(
    plan: _Plan, calls_at: Callable[[float, float], Calls], beta: float, delta: float
) -> _Plan:
    """The plan with that β, whose loss for these calls is formed now, not when a program is traced."""
    proven = Proven(beta, plan.radius_ratio, delta)
    proven_loss(calls_at, proven)
    return dataclasses.replace(plan, beta=beta, proven=proven)


def calibrated(plan: _Plan, calls_at: Callable[[float, float], Calls]) -> _Plan:
    """The plan with the largest β at which the calls stay within its budget."""
    require_numbers(plan.numbers)
    return proved(plan, calls_at, largest_beta(plan, calls_at), float(plan.delta))


def largest_beta(
    plan: Any, calls_at: Callable[[float, float], Calls], near: float | None = None
) -> float:
    """The largest β at which the calls stay within the plan's budget, searched for from ``near``."""
    ratio, epsilon, delta = plan.radius_ratio, float(plan.epsilon), float(plan.delta)
    return calibrated_beta(lambda beta: calls_at(beta, ratio), epsilon, delta, near)


def spent(
    point: Any, loss: privacy.PrivacyLoss, budgeted: int, made: Any, trace: Any = None
) -> Solution:
    """The solution of a run that is charged this loss; ``budgeted`` and ``made`` count item gradients."""
    ledger = privacy.open_ledger(NeighboringRelation.REPLACE_ONE, sampled=True)
    return finished(point, privacy.charge(ledger, loss), budgeted, made, trace)
