"""Private ERM with a strongly convex term by ball acceleration: rounds with shrinking balls and targets.

What it computes: a minimizer of the mean loss of the users plus (μ/2)·‖x - x'‖² with a public center x' and
the objective's ridge, together a quadratic of weight μ_0. Round i = 0, ..., k - 1 runs
``ball_accelerated_erm`` from the point x_i where the round before has ended, looks for the minimizer within
R_i = min(R, √(2D_i/μ_0)) of it, and aims at L·R_i/κ_i. D_0 = L²/(2μ_0); x_0 minimizes the quadratic.

Source: thesis, Corollary 2.4.20 (printed for λ ≥ 0; it needs λ > 0), which names no schedule. This one is
that of Algorithm 10: a call of round i has T·2^(i-k+1) queries and β·2^((k-1-i)/2), so that its cost, of the
order of (β_i·T_i)², doubles from round to round, and κ_i grows like √2^i.

Formal guarantee: (ε, δ)-DP of a user under REPLACE_ONE by ``privacy.resque`` for the calls of all rounds in
one list. Sizes, distances and targets are set before the run from public numbers. Of accuracy, none is
claimed. Proved are ‖x_0 - x*‖ ≤ L/μ_0, and ‖x_i - x*‖ ≤ √(2D_i/μ_0) where D_i bounds the excess of x_i.
Observed is D_{i+1} = L·R_i/(10κ_i) + L·r_i·(predicted error of the plan): runs end 20 to 100 times below
their targets, and predicted errors are observed laws themselves. Should a D_i be too small, later rounds
still search the whole domain, with smaller balls and fewer of them than they need.

Cost: that of the rounds; the last has more than half of the gradients.

Example:
    >>> import math, jax
    >>> from dpsco_jax import Budget
    >>> from dpsco_jax.problems import synthetic
    >>> from dpsco_jax.solvers.item_level import ball_accelerated_regularized_erm
    >>> made = synthetic.logistic_regression(jax.random.key(0), num_users=100, items_per_user=1, dim=3)
    >>> problem, budget = made.problem(distance=5.0), Budget(4.0, 1e-5)
    >>> plan = ball_accelerated_regularized_erm.plan(
    ...     problem, budget, regularization=0.5, num_rounds=1, largest_error=math.inf,
    ...     calls=ball_accelerated_regularized_erm.Calls(num_iterations=2, num_queries=16),
    ... )
    >>> objective, data, start = made.objective, made.data, jax.numpy.zeros(3)
    >>> run = jax.jit(lambda key: ball_accelerated_regularized_erm.solve(key, plan, objective, data, start))
    >>> solution = run(jax.random.key(1))
    >>> solution.params.shape, int(solution.status), plan.certificate().epsilon <= 4.0
    ((3,), 0, True)
"""

import dataclasses
import functools
import math
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from dpsco_jax import _checks, _sharding, privacy
from dpsco_jax._argument_kinds import Nonnegative, Positive
from dpsco_jax._infeasible import Infeasible
from dpsco_jax._pytrees import Number, pytree, static
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.problem import Problem
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers import _arguments, _plan_base, _sequence, plans
from dpsco_jax.solvers._plan_base import MadeFor
from dpsco_jax.solvers.resque import _accounting as accounting
from dpsco_jax.solvers.resque import _ball_accelerated_plan as planner
from dpsco_jax.solvers.resque import _calls, ball_accelerated_erm
from dpsco_jax.solvers.resque._ball_accelerated_plan import Calls
from dpsco_jax.solvers.solution import Solution

__all__ = ["Calls", "Plan", "plan", "solve"]

_REACHED = 10.0  # target over the excess that is reached, observed; 1 is what exact answers prove


@pytree
class Plan(_sequence.OfParts, MadeFor):
    """What ``solve`` will do.

    Attributes:
        num_users: n.
        parts: the plan of every round, of ``ball_accelerated_erm``.
        regularization: μ of the term (μ/2)·‖x - x'‖²; the objective's ridge comes on top.
        excesses: D_0, ..., D_k, ``[rounds + 1]``: what is predicted of the excess of x_0, ..., x_k.
        epsilon: ε of the budget, of all rounds.
        delta: δ of the budget, of all rounds.
    """

    num_users: int = static()
    parts: Any
    regularization: Number
    excesses: Number
    epsilon: Number
    delta: Number

    @property
    def calls(self) -> accounting.Calls:
        """The localized calls that the rounds could make, for the accountant."""
        return [call for made in self.parts for call in made.calls]

    def loss(self) -> privacy.PrivacyLoss:
        """The sum of the losses of the rounds, float32; infinite beyond what was proven."""
        total = privacy.compose(*(made.loss() for made in self.parts))
        return accounting.with_quadratics(self.regularization, total)

    @property
    def predicted_error(self) -> float:
        """The largest ``predicted_error`` of a round."""
        return max(made.predicted_error for made in self.parts)

    def certificate(self) -> privacy.Certificate:
        """The (ε, δ) of all calls that could be made, with the numbers that the plan holds now.

        Raises:
            ValueError: if one is out of the range in which there is a proof.
        """
        _checks.require_nonnegative("regularization", self.regularization)
        for made in self.parts:
            accounting.require_numbers(made)
        return accounting.certificate(self.calls, float(self.delta), self.parts[0].assumes)

    def __str__(self) -> str:
        return plans.describe("private regularized ERM by ball acceleration", self)


@_plan_base.remembers(least_users=2)
def plan(
    problem: Problem,
    budget: privacy.Budget,
    *,
    regularization: Nonnegative = 0.0,
    condition: planner.Condition = 5.0,
    smoothing_radius: Positive | None = None,
    num_rounds: int | None = None,
    calls: Calls = planner.DEFAULT,
    largest_error: planner.LargestError = planner.WORST_ERROR,
) -> Plan:
    """Checks all arguments, plans the rounds and calibrates their noise together. All arguments are public.

    Args:
        problem: for the objective, a linear model with a loss that is convex and Lipschitz on the whole
            space, n ≥ 2 users, the number of parameters, and R, where one is known that is below
            L/(μ + ridge); the domain's diameter in its place if it has none.
        budget: (ε, δ) of all rounds together, δ > 0.
        regularization: μ ≥ 0; positive together with the objective's ridge.
        condition: κ of the last round; the one of each round before is smaller by √2, and at least 1.
        smoothing_radius: ρ for a round of distance R and condition κ; those of the rounds are in proportion
            to their targets. The target over L if left out.
        num_rounds: k; ⌈log2 log2 n⌉ if left out, or as many as leave 4 queries in a call of the first.
        calls: how private calls are made, a ``Calls``; its ``num_queries`` is that of the last round.
        largest_error: refuse plans with a round whose ``predicted_error`` is above.

    Raises:
        ValueError: an argument is out of range, the loss has no proof, nothing is strongly convex, or a round
            would return noise.
    """
    _checks.require_instance("calls", calls, Calls)
    objective, num_users = problem.objective, problem.num_users
    _calls.require_linear(objective)
    weight = regularization + float(objective.ridge)
    if weight <= 0:
        raise ValueError(
            f"regularization must be above 0 where the objective has no ridge, got {regularization!r}"
        )
    lipschitz = problem.lipschitz
    farthest = min(problem.diameter, lipschitz / weight, problem.farthest)

    def round_plan(distance: float, kappa: float, size: int | None) -> Any:
        radius = smoothing_radius
        if radius is not None:
            radius *= distance / farthest * condition / kappa
        own = dataclasses.replace(problem, distance=distance)
        sized = dataclasses.replace(calls, num_queries=size)
        return planner.draft(own, budget, kappa, radius, sized)

    last = round_plan(farthest, condition, calls.num_queries)
    most = last.num_queries.bit_length() - 2
    if num_rounds is None:
        num_rounds = min(most, max(1, math.ceil(math.log2(max(math.log2(num_users), 1)))))
    count = _checks.require_integer("num_rounds", num_rounds, 1, most)
    before = range(count - 1, -1, -1)  # rounds that come after each one
    queries = [last.num_queries >> j for j in before]
    kappas = [max(1.0, condition * 2.0 ** (-j / 2)) for j in before]
    factors = [2.0 ** (j / 2) for j in before]

    # Which calls are made, and their errors over the radii, do not depend on the distances.
    drafts = [round_plan(farthest, k, t) for k, t in zip(kappas, queries, strict=True)]
    epsilon, delta = budget.epsilon, budget.delta

    def calls_at(beta: float) -> accounting.Calls:
        listed: list[Any] = []
        for made, factor in zip(drafts, factors, strict=True):
            listed += made.calls_at(beta * factor, made.radius_ratio)
        return listed

    base = accounting.calibrated_beta(calls_at, epsilon, delta)
    excesses = [min(lipschitz**2 / (2 * weight), lipschitz * farthest)]
    total = sum(sum(made.budgeted) for made in drafts)
    rounds = []
    for i, (kappa, size, factor) in enumerate(zip(kappas, queries, factors, strict=True)):
        distance = min(farthest, math.sqrt(2 * excesses[i] / weight))
        # Down, as the calibrated product may lie between two float32 numbers.
        beta = float(np.float32(base * factor * (1 - 2.0**-23)))
        made = round_plan(distance, kappa, size)
        made = dataclasses.replace(made, beta=beta)
        if made.predicted_error > largest_error:
            raise Infeasible(
                f"num_rounds = {count} with condition = {condition:g} is out of reach of {num_users} users"
                f" at epsilon = {epsilon:g}: answers of round {i} would be {made.predicted_error:.3g} ball"
                f" radii from their targets, which is above largest_error = {largest_error:g}",
                {"largest_error": made.predicted_error},
            )
        share = sum(made.budgeted) / total
        rounds.append(accounting.proved(made, beta, delta * share))
        noise = made.predicted_error * float(made.ball_radius)
        excesses.append(float(made.outer.excess) / _REACHED + lipschitz * noise)
    return Plan(
        num_users=num_users,
        parts=tuple(rounds),
        regularization=regularization,
        excesses=np.asarray(excesses),
        epsilon=epsilon,
        delta=delta,
    )


@_sharding.solver
def solve(
    key: Key[Array, ""],
    plan: Plan,
    objective: Objective,
    data: UserData,
    params: Float[Array | np.ndarray, "dim"],
) -> Solution:
    """Runs the plan. Pure JAX: jit over the arguments of ``ball_accelerated_erm.solve``; ``params`` is x'.

    x', ``[dim]``, is public or private already. The start is where the quadratic is least in the domain: x'
    if there is no ridge, the point nearest to the origin if there is nothing else.

    Returns:
        The last point. The losses of the rounds add up; ``unprivate`` holds the sum of the realized gradients
        and the tuple of the traces of the rounds.

    Raises:
        ValueError: if the number of users or of parameters is not the planned one.
    """
    _arguments.require_run(Plan, key, plan, objective, data, params)
    anchor = jnp.asarray(params, float)
    weight = plan.regularization
    solver = functools.partial(ball_accelerated_erm.solve, regularization=weight, anchor=anchor)
    start = anchor * (weight / (weight + objective.ridge))
    return _sequence.run(
        key, plan.parts, solver, objective, data, start, "sequential", on_blocks=False
    )
