"""Localized SGD for strongly convex losses: multi-pass SGD on growing blocks of users, ever nearer.

What it computes: the users are cut into disjoint blocks, each twice as large as the one before. Each block
runs ``multipass_sgd`` from where the last one has ended, with the steps for the distance to the minimizer
that is proven by then. The last average is returned; once a block halts, the point where it has started.

Source: U, Algorithm 3 and Theorem 4.11 (T, Algorithm 30, Theorem 9.4.11). With these corrections: the
number of blocks is the logarithm to base 2 of that to base 2; distances follow from the proven excess risk
of each block, not from an unnamed constant; the comparator is the minimizer of the population.

Formal guarantee: (ε, δ)-DP for a user's whole data under REPLACE_ONE, in all: every block is (ε, δ)-DP for
any starting point, a user is in one block, by position (parallel composition). Utility, for
μ-strongly convex G-Lipschitz losses and users with i.i.d. items: ``excess_bound``, that of the last block
for the distance R_k with R_1 = min(R, 2G/μ) and R_{j+1}² = min(D², 4G²/μ², 2/μ times the bound of block j),
since μ/2·‖w - w*‖² is at most the excess risk of w, in expectation; D is the diameter.

Cost: that of multi-pass SGD on each block. Blocks with means of one kind are turns of one compiled loop.

Example:
    >>> import jax
    >>> from dpsco_jax import Budget
    >>> from dpsco_jax.problems import synthetic
    >>> from dpsco_jax.solvers.user_level import localized_sgd
    >>> made = synthetic.logistic_regression(jax.random.key(0), num_users=100, items_per_user=2, dim=3)
    >>> plan = localized_sgd.plan(made.problem(distance=5.0), Budget(1.0, 1e-5), num_blocks=2, num_steps=4)
    >>> start = jax.numpy.zeros(3)
    >>> run = jax.jit(lambda key: localized_sgd.solve(key, plan, made.objective, made.data, start))
    >>> solution = run(jax.random.key(1))
    >>> solution.params.shape, int(solution.status), plan.certificate().epsilon <= 1.0
    ((3,), 0, True)
"""

import dataclasses
import math

from dpsco_jax import _checks, privacy
from dpsco_jax._argument_kinds import Constants, Count, Inside, Positive
from dpsco_jax._infeasible import Infeasible
from dpsco_jax.problems.problem import Problem
from dpsco_jax.solvers import _plan_base, _planning, _sequence, means
from dpsco_jax.solvers.first_order import FirstOrder
from dpsco_jax.solvers.phased import Phased, solve
from dpsco_jax.solvers.plans import Remarks
from dpsco_jax.solvers.user_level import multipass_sgd

__all__ = ["plan", "printed_num_blocks", "solve"]


@_plan_base.remembers(least_users=2)
@_planning.says_enough_users
def plan(
    problem: Problem,
    budget: privacy.Budget,
    *,
    num_blocks: int | None = None,
    num_steps: Count | None = None,
    radius: Positive | None = None,
    step_size: Positive | None = None,
    constants: Constants = "tight",
    smoothing: multipass_sgd.Smoothing | None = None,
    smoothing_radius: Positive | None = None,
    selection: means.Selection = "weighted",
    failure: Inside | None = None,
    chunk_size: Count = 64,
) -> Phased:
    """Checks all arguments, cuts the users and plans the blocks. All arguments are public.

    Args:
        problem: for the constants and domain of the objective, which must be strongly convex, and without a
            ridge or smooth, n ≥ 2, the number of parameters, m, and R, the distance from the start to a
            minimizer; 2G/μ is a bound on it too if there is no ridge.
        budget: (ε, δ) of each block and so of all, δ > 0.
        num_blocks: k ≥ 1; if left out, of the numbers up to ⌈log₂ log₂(mn)⌉ for which there are users enough
            the one that proves most, and that number itself for ``constants="paper"``.
        num_steps: T of each block; by its bound if left out.
        radius: on the distance of users' gradients from their mean, as in ``multipass_sgd.plan``.
        step_size: γ of each block, in place of the one that balances its bound. Nothing is proven then, and
            every block but the first counts on no more than what is known of any point.
        constants: ``"tight"`` or ``"paper"``, for each block as in ``multipass_sgd``; with ``"paper"`` the
            blocks have ⌊n/2^(k+1-i)⌋ users each and a few users are left over.
        smoothing: ``"none"``, ``"per_item"`` or ``"per_round"``, as there.
        smoothing_radius: r > 0 of each block, if smoothing; by its bound if left out.
        selection: ``"weighted"`` or ``"bernoulli"``, as there.
        failure: probability, for each block, that honest users are filtered or halt the run; 1/(n'm) for a
            block of n' users if left out.
        chunk_size: users whose items are read at once.

    Raises:
        ValueError: an argument is out of range.
        Infeasible: too few users; ``needed["num_users"]`` would do.
    """
    objective, num_users = problem.objective, problem.num_users
    convexity = _checks.require_real("strong_convexity", objective.strong_convexity, 0)
    if objective.ridge and objective.smoothness is None:
        raise ValueError("objective must be smooth if it has a ridge, got smoothness None")
    farthest = problem.diameter
    if not objective.ridge:
        farthest = min(farthest, 2 * problem.lipschitz / convexity)
    first = min(problem.farthest, farthest)

    def block(size: int, distance: float) -> FirstOrder:
        return multipass_sgd.plan(
            dataclasses.replace(problem, num_users=size, distance=distance),
            budget,
            num_steps=num_steps,
            radius=radius,
            step_size=step_size,
            constants=constants,
            smoothing=smoothing,
            smoothing_radius=smoothing_radius,
            selection=selection,
            failure=failure,
            chunk_size=chunk_size,
        )

    def under(count: int) -> Phased:
        sizes = (
            tuple(num_users >> (count - i) for i in range(count))
            if constants == "paper"
            else _sequence.block_sizes(num_users, 2.0, count, least=2)
        )
        parts, distances = _sequence.nearer(block, sizes, first, farthest, convexity)
        return Phased(
            title="localized SGD for strongly convex losses",
            num_users=num_users,
            parts=parts,
            epsilon=budget.epsilon,
            delta=budget.delta,
            excess_bound=parts[-1].excess_bound,
            details={"distances": distances, "strong_convexity": convexity},
            premises=Remarks([f"the risk is {convexity:.4g}-strongly convex"]),
        )

    printed = printed_num_blocks(num_users, problem.items_per_user)
    if num_blocks is None and constants != "paper":
        candidates = [under(1)]
        for count in range(2, printed + 1):
            try:
                candidates.append(under(count))
            except Infeasible:  # too few users in the first block; fewer blocks are possible
                break
        return min(candidates, key=lambda candidate: candidate.excess_bound)
    count = printed if num_blocks is None else num_blocks
    return under(_checks.require_integer("num_blocks", count, 1, num_users.bit_length() - 1))


def printed_num_blocks(num_users: int, items_per_user: int) -> int:
    """⌈log₂ log₂(mn)⌉, at least 1.

    Raises:
        ValueError: if mn < 4, where the second logarithm is not positive.
    """
    _checks.require_each(_checks.require_count, num_users=num_users, items_per_user=items_per_user)
    items = _checks.require_integer("num_users * items_per_user", num_users * items_per_user, 4)
    return max(1, math.ceil(math.log2(math.log2(items)) - 1e-12))
