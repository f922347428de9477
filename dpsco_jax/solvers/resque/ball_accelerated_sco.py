"""Private population risk minimization by ball acceleration: localization over disjoint halves of the users.

What it computes: x_i, near the minimizer of the mean loss of block S_i plus (μ_i/2)·‖x - x_{i-1}‖², for i =
1, ..., I, by ``ball_accelerated_erm`` around x_{i-1}. Block i has n/2^i users, μ_i = 8^i·μ with μ =
(L/R)·√(1/n + dim·log(1/δ)/(εn)²), and looks for its minimizer within R_i = min(R, L/μ_i) of x_{i-1}.

Source: thesis, Proposition 2.4.21 (a statement only, after Feldman, Koren and Talwar 2020 and Kulkarni, Lee
and Liu 2021), with Corollary 2.4.20 for a block. Budgets of (ε, δ)/2^i, as printed, are not needed. Of
Theorem 2.4.22, which combines the two, neither the risk nor the number of queries is claimed: accuracies
of blocks are predicted, not proven.

Formal guarantee: (ε, δ)-DP under REPLACE_ONE of a user: users are assigned to blocks by position, so
neighbours differ in one block, whose run is (ε, δ)-DP from any starting point; later ones post-process. For
the population risk, users must be independent draws. Blocks too small for a plan are left out: what remains
of the error is of the order L·‖x_I - x̂_I‖.

Cost: that of the blocks, which are turns of one compiled loop where their calls are made in the same way.

Example:
    >>> import math, jax
    >>> from dpsco_jax import Budget
    >>> from dpsco_jax.problems import synthetic
    >>> from dpsco_jax.solvers.item_level import ball_accelerated_sco
    >>> made = synthetic.logistic_regression(jax.random.key(0), num_users=100, items_per_user=1, dim=3)
    >>> problem, budget = made.problem(distance=5.0), Budget(4.0, 1e-5)
    >>> plan = ball_accelerated_sco.plan(
    ...     problem, budget, num_blocks=2, largest_error=math.inf,
    ...     calls=ball_accelerated_sco.Calls(num_iterations=2, num_queries=16),
    ... )
    >>> start = jax.numpy.zeros(3)
    >>> run = jax.jit(lambda key: ball_accelerated_sco.solve(key, plan, made.objective, made.data, start))
    >>> solution = run(jax.random.key(1))
    >>> solution.params.shape, int(solution.status), plan.certificate().epsilon <= 4.0
    ((3,), 0, True)
"""

import dataclasses
import functools
import math
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from dpsco_jax import _checks, _sharding, privacy
from dpsco_jax._argument_kinds import Positive
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

_RATIO = 8.0  # of successive regularizations; above 4, the errors of the blocks are a geometric sum
_SMALLER = 0.55  # about κ of the next block over that of the one before: where to look first


@pytree
class Plan(_sequence.OnBlocks, MadeFor):
    """What ``solve`` will do.

    Attributes:
        num_users: n; blocks take them in their order, those left over take no part.
        parts: the plan of every block, of ``ball_accelerated_erm``.
        regularizations: μ_i, ``[blocks]``.
        epsilon: ε of the budget, of every block.
        delta: δ of the budget, of every block.
        omitted: blocks that were too small, and why.
    """

    num_users: int = static()
    omitted: str = static()
    parts: Any
    regularizations: Number
    epsilon: Number
    delta: Number

    def loss(self) -> privacy.PrivacyLoss:
        """The loss of the run: order by order that of the worst block; infinite beyond what was proven."""
        return accounting.with_quadratics(self.regularizations, super().loss())

    def certificate(self) -> privacy.Certificate:
        """The (ε, δ) of the run: the largest ε and the largest δ of a block, which need not be the same one.

        Raises:
            ValueError: if a number is out of the range in which there is a proof.
        """
        _checks.require_nonnegative("regularizations", self.regularizations)
        return super().certificate()

    def __str__(self) -> str:
        return plans.describe("private SCO by ball acceleration", self)


@_plan_base.remembers(least_users=2)
def plan(
    problem: Problem,
    budget: privacy.Budget,
    *,
    num_blocks: int | None = None,
    condition: planner.Condition | None = None,
    smoothing_radius: Positive | None = None,
    calls: Calls = planner.DEFAULT,
    largest_error: planner.LargestError = planner.WORST_ERROR,
) -> Plan:
    """Checks all arguments and plans the blocks. All of them are public.

    Args:
        problem: for the objective, a linear model with a loss that is convex and Lipschitz on the whole
            space, n ≥ 2 users, the number of parameters, and R, bound on the distance from the start to a
            minimizer of the population risk; the domain's diameter in its place if it has none.
        budget: (ε, δ) of the run, and of every block, δ > 0.
        num_blocks: I; as many as there are plans for if left out.
        condition: κ ≥ 1 of the target LR_i/κ of every block; if left out, of each block the largest one from
            5 on at which the ``predicted_error`` is harmless, at most 0.2.
        smoothing_radius: ρ of a block with distance R, and scaled with the distances of the others; the
            target over L if left out.
        calls: how private calls are made, a ``Calls``.
        largest_error: leave out blocks whose ``predicted_error`` is above, and refuse the plan if it is the
            first one, or the number of blocks was given.

    Raises:
        ValueError: an argument is out of range, the loss has no proof, or there is no plan for a block that
            was asked for (for the first, if none was).
    """
    _calls.require_linear(problem.objective)
    num_users, distance = problem.num_users, problem.require_distance()
    most = math.floor(math.log2(num_users))
    if num_blocks is not None:
        most = _checks.require_integer("num_blocks", num_blocks, 1, most)
    lipschitz = problem.lipschitz
    noise = problem.dim * math.log(1 / budget.delta) / (budget.epsilon * num_users) ** 2
    accuracy = math.sqrt(1 / num_users + noise)
    blocks: list[Any] = []
    regularizations: list[float] = []
    omitted = ""
    for i in range(1, most + 1):
        weight = _RATIO**i * lipschitz / distance * accuracy
        reach = min(distance, lipschitz / weight)
        radius = smoothing_radius
        if radius is not None:
            radius *= reach / distance
        required = num_blocks is not None or i == 1
        try:
            own = dataclasses.replace(problem, num_users=num_users >> i, distance=reach)
            # A refusal of a block that may be left out need not say what would do.
            worst = largest_error if required else math.inf
            near = _next_beta([float(each.beta) for each in blocks])
            drafted = functools.partial(
                planner.draft, own, budget, smoothing_radius=radius, calls=calls
            )
            first = _SMALLER * blocks[-1].outer.condition if blocks else planner.LEAST_CONDITION
            block = planner.conditioned(drafted, condition, worst, near, first)
        except Infeasible as refusal:
            if required:
                raise
            omitted = f"block {i} and later: {refusal}"
            break
        if block.predicted_error > largest_error:
            omitted = f"block {i} and later: {num_users >> i} users are too few"
            break
        blocks.append(block)
        regularizations.append(weight)
    return Plan(
        num_users=num_users,
        omitted=omitted,
        parts=tuple(blocks),
        regularizations=np.asarray(regularizations),
        epsilon=budget.epsilon,
        delta=budget.delta,
    )


def _next_beta(betas: list[float]) -> float | None:
    """About β of the next block: blocks halve, and β changes by about the same factor each time."""
    if not betas:
        return None
    guess = betas[-1] * (betas[-1] / betas[-2] if len(betas) > 1 else 0.5)
    return guess if 1e-6 < guess < 2.0 else None


@_sharding.solver
def solve(
    key: Key[Array, ""],
    plan: Plan,
    objective: Objective,
    data: UserData,
    params: Float[Array | np.ndarray, "dim"],
) -> Solution:
    """Runs the plan. Pure JAX: jit over the arguments of ``ball_accelerated_erm.solve``; ``params`` is x_0.

    Returns:
        The last point. The loss is, order by order, that of the worst block; ``unprivate`` holds the sum of
        the realized gradients and the tuple of the traces of the blocks.

    Raises:
        ValueError: if the number of users or of parameters is not the planned one.
    """
    _arguments.require_run(Plan, key, plan, objective, data, params)
    weights = jnp.asarray(plan.regularizations)
    blocks = [_Block(part.num_users, part, weights[i]) for i, part in enumerate(plan.parts)]
    start = jnp.asarray(params, float)
    return _sequence.run(key, blocks, _solve_block, objective, data, start, turns=_TURNS)


class _Block(NamedTuple):
    """A block: its users, its plan, and μ of the term around its start."""

    num_users: int
    plan: ball_accelerated_erm.Plan
    regularization: Any


def _solve_block(
    key: Any, block: _Block, objective: Objective, data: UserData, start: Any
) -> Solution:
    return ball_accelerated_erm.solve(
        key, block.plan, objective, data, start, regularization=block.regularization, anchor=start
    )


def _lowered(block: _Block) -> ball_accelerated_erm.Lowered | None:
    numbers = ball_accelerated_erm.lowered(block.plan, block.regularization)
    # The order of a sample of more than half of the users is drawn for one number of them.
    shuffled = any(sizes.shuffled for sizes in numbers.kinds)
    return None if shuffled else numbers


def _prepared(block: _Block, objective: Objective, data: UserData, params: Any) -> _calls.Setting:
    """The data of all users; a run puts the numbers of its own block in the place of these."""
    del params
    return _calls.make_setting(objective, data, block.plan)


def _solve_turn(
    key: Any, part: Any, objective: Objective, setting: _calls.Setting, first: Any, start: Any
) -> Solution:
    own = setting._replace(first=first)
    start = objective.domain.project(jnp.asarray(start, float))
    return ball_accelerated_erm.run(key, part, own, objective, start, start)


def _gradients(block: _Block, data: UserData) -> int:
    return ball_accelerated_erm.budgeted_gradients(block.plan, data)


def _check(block: _Block, objective: Objective, data: UserData, params: Any) -> None:
    made = ball_accelerated_erm.Plan
    _arguments.require_problem(made, block.plan, objective, data, params)
    _checks.require_nonnegative("regularization", block.regularization)


_TURNS = _sequence.Turns(_lowered, _prepared, _solve_turn, _gradients, _check)
