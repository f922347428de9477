"""Which schedule of AC-SA an objective gets: policy, smoothing radius, number of steps.

What it computes: for every policy, with and without smoothing where both are possible, the schedule of T
steps, or the shortest that reaches an excess; ``ac_sa.plan`` takes the best of them.

Source: own; the bounds are those of ``ac_sa_stages``, the smoothing radius is the one that minimizes
G·r·d/(d+1) + k·c_d·G·R²/(r·T(T+1)), with k = 2 or, for the convex policy with its step parameter 2L, 4
(thesis, proof of Lemma 1.4.5, with the sharp constants of ``geometry.smoothing``). Under several stages
the smoothing bias may be half of the excess.

Formal guarantee: every schedule's bound is a theorem under the assumptions that ``ac_sa`` names.

Cost: none.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

from dpsco_jax._infeasible import Infeasible
from dpsco_jax.geometry import smoothing
from dpsco_jax.problems.objective import Objective
from dpsco_jax.solvers.convex import ac_sa_stages
from dpsco_jax.solvers.convex.ac_sa_stages import MOST_STEPS, POLICIES, Setting, Stages


class Request(NamedTuple):
    """The public numbers that a schedule depends on; see ``ac_sa.plan``."""

    objective: Objective
    num_users: int
    dim: int
    batch_size: int
    distance: float


class Choice(NamedTuple):
    """A schedule, the radius of its smoothing (zero for none), and its proven excess, bias included."""

    stages: Stages
    radius: float
    excess_bound: float


def candidates(
    request: Request, policy: str, num_steps: int | None, excess: float | None
) -> list[Choice]:
    """All schedules of a policy (of all policies that apply: ``"auto"``), with and without smoothing."""
    if policy != "auto":
        policies: tuple[str, ...] = (policy,)
    else:
        policies = POLICIES if request.objective.strong_convexity > 0 else ("convex",)
    ways = [False] if request.objective.smoothness is not None else []
    ways += [True] if math.isfinite(request.objective.lipschitz) else []
    if not ways:
        raise ValueError("objective must be smooth or Lipschitz, got one that is neither")
    found, refusals = [], []
    for name in policies:
        make = _of_stages if name == "multi_stage" else _of_one_stage
        for smoothed in ways:
            try:
                found.append(make(request, name, smoothed, num_steps, excess))
            except Infeasible as refusal:
                refusals.append(refusal)
    if not found:
        raise refusals[0]
    return found


def _setting(request: Request, radius: float) -> tuple[Setting, float]:
    """What the gradients are those of, and the bias of its value."""
    objective, batch, users = request.objective, request.batch_size, request.num_users
    if radius > 0:
        smooth = smoothing.ball_smoothness(objective.lipschitz, radius, request.dim)
        bias = smoothing.ball_bias(objective.lipschitz, radius, request.dim)
        variance = objective.lipschitz**2 / batch
    else:
        assert objective.smoothness is not None
        smooth, bias, variance = objective.smoothness, 0.0, 0.0
        if batch < users:
            variance = objective.lipschitz**2 / batch * (users - batch) / (users - 1)
    convexity = objective.strong_convexity
    smooth = max(smooth + objective.ridge, convexity)
    return Setting(smooth, convexity, variance, request.distance), bias


def _of_one_stage(
    request: Request, policy: str, smoothed: bool, num_steps: int | None, excess: float | None
) -> Choice:
    dim, factor = request.dim, 4.0 if policy == "convex" else 2.0

    def of(steps: int) -> Choice:
        balance = factor * smoothing.smoothness_factor(dim) * (dim + 1) / dim
        radius = request.distance * math.sqrt(balance / (steps * (steps + 1))) if smoothed else 0.0
        setting, bias = _setting(request, radius)
        stages = ac_sa_stages.one_stage(setting, policy, steps)
        return Choice(stages, radius, bias + stages.excess_bound)

    if num_steps is not None:
        return of(num_steps)
    assert excess is not None
    return of(_fewest(lambda steps: of(steps).excess_bound, excess))


def _of_stages(
    request: Request, policy: str, smoothed: bool, num_steps: int | None, excess: float | None
) -> Choice:
    del policy

    def to(target: float) -> Choice:
        radius = 0.0
        if smoothed:
            radius = target / 2 * (request.dim + 1) / (request.dim * request.objective.lipschitz)
        setting, bias = _setting(request, radius)
        stages = ac_sa_stages.stages_to(setting, target - bias)
        return Choice(stages, radius, bias + stages.excess_bound)

    if excess is not None:
        return to(excess)
    assert num_steps is not None
    radius = 0.0
    if smoothed:
        # The least target, of a halving sequence, that the steps reach; it sets the radius.
        target = 2 * request.objective.lipschitz * request.distance
        best = to(target)
        while best.stages.num_steps <= num_steps:
            radius, target = best.radius, target / 2
            best = to(target)
        if radius == 0.0:
            least = best.stages.num_steps
            raise Infeasible(
                f"num_steps must be at least {least} for 'multi-stage', got {num_steps}",
                {"num_steps": least},
            )
    setting, bias = _setting(request, radius)
    stages = ac_sa_stages.stages_within(setting, num_steps)
    return Choice(stages, radius, bias + stages.excess_bound)


def _fewest(bound: Callable[[int], float], excess: float) -> int:
    """The least number of steps with a bound of at most ``excess``; bounds fall with the steps."""
    few, enough = 0, 1
    while bound(enough) > excess:
        few, enough = enough, 2 * enough
        if enough > MOST_STEPS:
            raise Infeasible(f"excess must be reached in fewer than 2^31 steps, got {excess:g}")
    while enough - few > 1:
        middle = (few + enough) // 2
        few, enough = (few, middle) if bound(middle) <= excess else (middle, enough)
    return enough
