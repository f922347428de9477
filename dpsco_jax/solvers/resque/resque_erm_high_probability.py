"""Private ERM over a small ball that is right with high probability: the best of several ReSQue calls.

What it computes: k independent runs of ``resque_erm``, strongly convex, and of their results the one that
most of them agree on.

Source: thesis, Algorithm 12 and Lemma 2.4.17, with k = ⌈20·log(1/ζ)⌉ throughout (Proposition 2.4.18 counts
18, for which the failure is above ζ) and without the radius that the print needs to know.

Formal guarantee: (ε, δ)-DP for a user's whole data under REPLACE_ONE, by ``privacy.resque`` for all k calls
together; the choice looks at the results only. Losses must be convex and Lipschitz on the whole space. If
every run is within Δ/3 of the minimizer with probability 2/3, the choice is within Δ of it with probability
1 - ζ, where (Δ/9)² = 2·C_sc·(L/λ)²·(d/(βT)² + 1/T).

Cost: k times that of one call of ``resque_erm``, one after another.

Example:
    >>> import jax
    >>> from dpsco_jax import Budget
    >>> from dpsco_jax.problems import synthetic
    >>> from dpsco_jax.solvers.item_level import resque_erm_high_probability
    >>> made = synthetic.logistic_regression(jax.random.key(0), num_users=100, items_per_user=1, dim=3)
    >>> problem, budget = made.problem(distance=5.0), Budget(4.0, 1e-5)
    >>> plan = resque_erm_high_probability.plan(
    ...     problem, budget, ball_radius=0.1, num_queries=8, num_runs=2, regularization=1.0
    ... )
    >>> data, start = made.data, jax.numpy.zeros(3)
    >>> run = jax.jit(lambda key: resque_erm_high_probability.solve(key, plan, made.objective, data, start))
    >>> solution = run(jax.random.key(1))
    >>> solution.params.shape, int(solution.status), plan.certificate().epsilon <= 4.0
    ((3,), 0, True)
"""

from typing import Any

import jax

from dpsco_jax import _checks, privacy
from dpsco_jax._argument_kinds import Constants, Count, Inside, Nonnegative, Positive
from dpsco_jax._pytrees import pytree, static
from dpsco_jax.mechanisms import robust_point
from dpsco_jax.problems.problem import Problem
from dpsco_jax.solvers import _plan_base, plans
from dpsco_jax.solvers.resque import _accounting as accounting
from dpsco_jax.solvers.resque._one_ball import Call, OfBase, Ratio, Sampling, draft, solve

__all__ = ["Plan", "plan", "solve"]


@pytree
class Plan(OfBase):
    """What ``solve`` will do.

    Attributes:
        num_runs: k.
        base: one run; its ``proven`` is for all of them, its own loss and certificate for a single one.
    """

    num_runs: int = static()
    base: Any

    def calls_at(self, beta: float, radius_ratio: float) -> accounting.Calls:
        """The localized calls of all runs with another β and ρ/r."""
        runs = _checks.require_integer("num_runs", self.num_runs, 1)
        return accounting.repeated(self.base.calls_at(beta, radius_ratio), runs)

    @property
    def user_gradients(self) -> int:
        """Users drawn in the whole run."""
        return self.num_runs * self.base.user_gradients

    def point(self, key: jax.Array, call: Call) -> jax.Array:
        """The result that most of the runs agree on."""
        keys = jax.random.split(key, self.num_runs)
        return robust_point.aggregate_points(jax.lax.map(lambda one: call(one, self.base), keys))

    def __str__(self) -> str:
        return plans.describe("private ERM over a ball, with high probability", self)


@_plan_base.remembers(least_users=2)
def plan(
    problem: Problem,
    budget: privacy.Budget,
    *,
    failure: Inside = 0.01,
    num_runs: Count | None = None,
    ball_radius: Positive,
    radius_ratio: Ratio = 12.0,
    regularization: Nonnegative = 0.0,
    num_queries: int | None = None,
    sampling: Sampling | None = None,
    constants: Constants = "tight",
) -> Plan:
    """Checks all arguments and calibrates the noise. All of them are public.

    Arguments are those of ``resque_erm.plan`` but ``method``, with T of a single run, a λ above 0 where the
    objective has no ridge, and ζ = ``failure`` in (0, 1); k = ``num_runs`` stands in place of ⌈20·log(1/ζ)⌉.

    Raises:
        ValueError: an argument is out of range.
    """
    runs = robust_point.runs_for(failure) if num_runs is None else num_runs
    base = draft(
        problem,
        budget,
        ball_radius=ball_radius,
        radius_ratio=radius_ratio,
        regularization=regularization,
        method="strongly_convex",
        num_queries=num_queries,
        sampling=sampling,
        constants=constants,
    )
    return accounting.calibrated(Plan(runs, base))
