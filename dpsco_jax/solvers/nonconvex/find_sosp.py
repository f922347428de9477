"""A second-order stationary point: a run of Spider past saddles, and a choice among its points.

What it computes: the points x_0, ..., x_T of ``drift_spider`` with pushes, and the first of them, from x_T on
backwards, that ``select_sosp`` finds to have ‖∇F‖ ≤ α and λ_min(∇²F) ≥ -√(ρα).

- ``risk="empirical"``: both see all users, so that their costs add up;
- ``risk="population"``: Spider makes one pass over the first half of the users, and the choice looks at the
  others: the halves are fixed by position, beforehand, and the dearer of the two costs is that of the whole.

Source: thesis, Theorems 6.3.9 and 6.3.12; corrections C6-1 to C6-9 in docs/corrections/nonconvex.md.

Formal guarantee: (ε, δ)-DP for a user's whole data under REPLACE_ONE: that of the two parts, composed or in
parallel. The points are released by Spider, in full, and the choice sees nothing else of it. Utility: a point
that is found has ‖∇F‖ ≤ ``guaranteed_norm`` and λ_min(∇²F) ≥ ``guaranteed_curvature``, whatever Spider does:

- ``"empirical"``: with probability 1 - ω, F the mean over the users;
- ``"population"``: with probability 1 - 2ω, F the expectation over users who are drawn independently. The
  choice's users, m of them, were not seen when its T candidates were made, so that at all of these at once
  but with probability ω their mean gradient is off by at most (G/√m)·(1 + √(2·log(2T/ω))) and the
  least eigenvalue of their mean Hessian is too high by at most h·(√(2l + 4l²/9) + 2l/3), l = log(2dT/ω)/m,
  h half the width of the interval of eigenvalues: ``sampling_errors``, proof in docs/theory/nonconvex.md,
  section 6. The bounds include them.

If one of the points is stationary for the users of the choice and the α of its tests, one is found, with
probability 1 - ω. That one is, nobody has proven (C6-5): ``released`` says whether one was found, and
otherwise x_T is reported. For α the plan takes what Spider proves of the least gradient, and of a population
what the sample may add to it, so that only curvature is open.

Cost: those of the parts; the points, ``[T + 1, d]``, are kept. Float64.

Example:
    >>> import jax
    >>> from dpsco_jax import Budget
    >>> from dpsco_jax.problems import fixtures
    >>> from dpsco_jax.solvers.nonconvex import find_sosp
    >>> made = fixtures.two_wells(jax.random.key(0), num_users=2000, items_per_user=1, dim=2)
    >>> with jax.enable_x64(True):
    ...     plan = find_sosp.plan(made.problem(), Budget(8.0, 1e-5), most_steps=20)
    ...     start = jax.numpy.zeros(2)
    ...     run = jax.jit(lambda key: find_sosp.solve(key, plan, made.objective, made.data, start))
    ...     solution = run(jax.random.key(1))
    >>> solution.params.shape, bool(solution.released["found"]), plan.certificate().epsilon <= 8.0
    ((2,), True, True)
"""

import dataclasses
import math
from typing import Annotated, Any

import jax
import jax.numpy as jnp
from dp_accounting import NeighboringRelation

from dpsco_jax import _counts, _float64, _sharding, privacy
from dpsco_jax._argument_kinds import Count, Inside, Positive, one_of
from dpsco_jax._numerics import as_floats
from dpsco_jax._pytrees import Number, pytree, static
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.problem import Problem
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers import (
    _arguments,
    _costs,
    _plan_base,
    _planning,
    _sequence,
    first_order,
)
from dpsco_jax.solvers.first_order import FirstOrder
from dpsco_jax.solvers.nonconvex import drift_spider, select_sosp
from dpsco_jax.solvers.solution import Solution, Status
from dpsco_jax.solvers.work import Work

__all__ = ["Plan", "plan", "solve"]

_RISKS = ("empirical", "population")
Risk = Annotated[str, one_of(*_RISKS)]


@pytree
class Plan(_plan_base.MadeFor):
    """What ``solve`` will do.

    Attributes:
        risk: whose stationary point is meant, ``"empirical"`` or ``"population"``.
        search: Spider.
        choice: among its last points.
        epsilon: ε of the budget.
        delta: δ of that budget.
    """

    risk: str = static(choices=_RISKS)
    search: FirstOrder
    choice: select_sosp.Plan
    epsilon: Number
    delta: Number

    @property
    def num_users(self) -> int:
        """n, of both parts."""
        apart = self.risk == "population"
        return self.search.num_users + (self.choice.num_users if apart else 0)

    @property
    def dim(self) -> int:
        """D."""
        return self.search.dim

    @property
    def relation(self) -> NeighboringRelation:
        """Which data sets are neighbours: one user is replaced."""
        return NeighboringRelation.REPLACE_ONE

    @property
    def user_gradients(self) -> int:
        """Of both parts."""
        return self.search.user_gradients + self.choice.user_gradients

    @property
    def sampling_errors(self) -> tuple[Any, Any]:
        """By how much ‖∇F‖ of the population may be longer than that of the choice's users, and λ_min lower.

        At all candidates at once, but with probability ω; zero for ``risk="empirical"``.
        """
        if self.risk == "empirical":
            return 0.0, 0.0
        choice = self.choice
        width = choice.most_curvature - choice.least_curvature
        return deviations(
            choice.num_users,
            choice.num_candidates,
            self.dim,
            choice.clip_norm,
            width,
            choice.failure,
        )

    @property
    def guaranteed_norm(self) -> Any:
        """What no point that is found has a longer gradient than, with probability 1 - ω, or 1 - 2ω."""
        return self.choice.guaranteed_norm + self.sampling_errors[0]

    @property
    def guaranteed_curvature(self) -> Any:
        """What no point that is found has a lower eigenvalue than, with probability 1 - ω, or 1 - 2ω."""
        return self.choice.guaranteed_curvature - self.sampling_errors[1]

    @property
    def assumes(self) -> tuple[str, ...]:
        """What the bounds assume; privacy assumes none of it."""
        drawn = ("users are drawn independently from the population",)
        apart = drawn if self.risk == "population" else ()
        return (*self.search.assumes, *self.choice.assumes, *apart)

    def loss(self) -> privacy.PrivacyLoss:
        """What a run of these numbers costs; may be traced."""
        return self._both(self.search.loss(), self.choice.loss())

    def _both(self, first: privacy.PrivacyLoss, second: privacy.PrivacyLoss) -> privacy.PrivacyLoss:
        joined = privacy.compose if self.risk == "empirical" else privacy.parallel
        return joined(first, second)

    def certificate(self) -> privacy.Certificate:
        """The (ε, δ) of both parts."""
        apart = self.risk == "population"
        both = privacy.parallel_certificate if apart else privacy.sequential_certificate
        return both([self.search.certificate(), self.choice.certificate()])

    def work_for(self, item: _costs.Item) -> Work:
        """What the whole run costs, if the last candidate is the one."""
        return self.search.work_for(item) + self.choice.work_for(item)

    def __str__(self) -> str:
        parts = f"{self.search}\n{self.choice}\n{self.certificate()}"
        if self.risk == "empirical":
            return parts
        norm, least = float(self.guaranteed_norm), float(self.guaranteed_curvature)
        chance = 1 - 2 * float(self.choice.failure)
        return (
            f"{parts}\nof the population: gradient norm {norm:.4g}, least eigenvalue {least:.4g}, "
            f"both with probability {chance:.4g}"
        )


def deviations(
    num_users: int, num_points: int, dim: int, clip_norm: Any, width: Any, failure: Any
) -> tuple[Any, Any]:
    """What independent users add at fixed points: to the norm of a gradient, to a least eigenvalue.

    Args:
        num_users: m, who had no part in the points.
        num_points: T, at all of which both hold at once.
        dim: d.
        clip_norm: G, of a user's gradient.
        width: of the interval in which eigenvalues of a user's Hessian are.
        failure: ω.
    """
    xp, (slope, wide, omega) = as_floats(clip_norm, width, failure)
    steep = slope / math.sqrt(num_users) * (1.0 + xp.sqrt(2.0 * xp.log(2.0 * num_points / omega)))
    level = xp.log(2.0 * dim * num_points / omega) / num_users
    spread = xp.sqrt(2.0 * level + 4.0 / 9.0 * level**2) + 2.0 / 3.0 * level
    return steep, 0.5 * wide * spread


@_plan_base.remembers(least_users=4, convex=False)
def plan(
    problem: Problem,
    budget: privacy.Budget,
    *,
    risk: Risk = "empirical",
    initial_gap: Positive | None = None,
    stationarity: Positive | None = None,
    num_candidates: Count | None = None,
    share: Inside = 0.8,
    failure_probability: Inside = 0.05,
    most_steps: Count = 10_000,
    num_steps: Count | None = None,
    drift: Positive | None = None,
    chunk_size: Count = 64,
    accountant: _planning.Accountant = "pld",
) -> Plan:
    """Plans both parts. All arguments are public.

    Args:
        problem: for n, d ≤ 512, and the constants of the loss up to the third derivative.
        budget: (ε, δ) of the run, δ > 0.
        risk: ``"empirical"``, a point for the users that there are; or ``"population"``, for whom they are
            drawn from, with one half of them for each part.
        initial_gap: B ≥ F(x_0) - inf F; the range of the loss, if it has one, if left out.
        stationarity: α of the tests; what Spider proves of the least gradient if left out, and of a
            population what the sample may add to it.
        num_candidates: how many of the last points the choice is among; all T + 1 if left out.
        share: of ε that Spider gets of users whom both parts see.
        failure_probability: ω, of each part, and of the sample.
        most_steps: T is at most this.
        num_steps: T; the best that is at most ``most_steps`` if left out.
        drift: κ of Spider; the best if left out.
        chunk_size: users whose gradients are held at once.
        accountant: what is calibrated to ε: ``"pld"`` the certificate (least noise), ``"rdp"`` the ledger.

    Raises:
        ValueError: an argument is out of range, or ``jax_enable_x64`` is off.
    """
    _float64.require_x64("find_sosp")
    users, apart = problem.num_users, risk == "population"
    halves = (users - users // 2, users // 2) if apart else (users, users)
    first, second = (dataclasses.replace(problem, num_users=size) for size in halves)
    shares = (1.0, 1.0) if apart else (share, 1.0 - share)
    budgets = [dataclasses.replace(budget, epsilon=budget.epsilon * part) for part in shares]
    search = drift_spider.plan(
        first,
        budgets[0],
        initial_gap=initial_gap,
        second_order=True,
        sampling="one_pass" if apart else "full",
        failure_probability=failure_probability,
        most_steps=most_steps,
        num_steps=num_steps,
        drift=drift,
        chunk_size=chunk_size,
        accountant=accountant,
    )
    # On a bounded domain nothing is proven, and the plan's threshold is the number that would be.
    alpha = search.threshold + search.estimate_error_bound
    count = search.num_steps + 1 if num_candidates is None else num_candidates
    if apart:
        slope = float(problem.lipschitz)
        omega = failure_probability
        alpha += float(deviations(halves[1], count, problem.dim, slope, 0.0, omega)[0])
    choice = select_sosp.plan(
        second,
        budgets[1],
        num_candidates=count,
        stationarity=alpha if stationarity is None else stationarity,
        failure=failure_probability,
    )
    return Plan(risk, search, choice, budget.epsilon, budget.delta)


@_sharding.solver
def solve(
    key: jax.Array, plan: Plan, objective: Objective, data: UserData, params: Any
) -> Solution:
    """Runs both parts. Pure JAX: jit and map over key, the plan's numbers, data and params.

    Args:
        key: a typed key.
        plan: of ``plan``.
        objective: static; close over it when compiling.
        data: with ``plan.num_users`` users.
        params: the starting point; projected onto the domain. Must not depend on the data.

    Returns:
        The point that was found, or the last one of the run, with the status HALTED. ``released`` says
        whether one was ``found``, and the number of the step after which, its ``index``.

    Raises:
        ValueError: the number of users or of parameters is not the planned one, there are more candidates
            than points, or ``jax_enable_x64`` is off.
    """
    _float64.require_x64("find_sosp")
    _arguments.require_run(Plan, key, plan, objective, data, params)
    search, choice = plan.search, plan.choice
    first, second = data, data
    if plan.risk == "population":
        first = _sequence.slice_users(data, 0, search.num_users)
        second = _sequence.slice_users(data, search.num_users, choice.num_users)
    search_key, choice_key = jax.random.split(key)
    walked = first_order.solve(
        search_key, search, objective, first, params, trace=lambda point, state, estimate: point
    )
    start = objective.domain.project(params)
    points = jax.tree.map(
        lambda x, path: jnp.concatenate([x[None].astype(path.dtype), path])[::-1],
        start,
        walked.unprivate["trace"],
    )
    candidates = jax.tree.map(lambda path: path[: choice.num_candidates], points)
    chosen = select_sosp.solve(choice_key, choice, objective, second, candidates)
    found = chosen.released["found"]  # type: ignore[index]
    made = [each.unprivate["gradients"] for each in (walked, chosen)]
    return Solution(
        params=jax.tree.map(
            lambda x, last: jnp.where(found, x, last), chosen.params, walked.params
        ),
        # What the runs have charged: infinite too where one of them could not draw its noise.
        privacy=plan._both(walked.privacy, chosen.privacy),
        status=jnp.where(found, int(Status.OK), jnp.maximum(walked.status, int(Status.HALTED))),
        gradients=_counts.add(walked.gradients, chosen.gradients),
        unprivate={"gradients": _counts.add(*made), "trace": None},
        released={
            "found": found,
            "index": jnp.where(
                found,
                search.num_steps - chosen.released["index"],  # type: ignore[index]
                search.num_steps,
            ),
        },
    )
