"""Private ERM over a small ball that is right with high probability: the best of several ReSQue calls.

What it computes: k independent runs of ``resque_erm``, strongly convex, and of their results the one that
most of them agree on.

Source: thesis, Algorithm 12 and Lemma 2.4.17, with k = ⌈20·log(1/ζ)⌉ throughout (Proposition 2.4.18 counts
18, for which the failure is above ζ) and without the radius that the print needs to know.

Formal guarantee: that of ``resque_erm`` for k calls; the choice looks at the results only. If every run is
within Δ/3 of the minimizer with probability 2/3, the choice is within Δ of it with probability 1 - ζ, where
(Δ/9)² = 2·C_sc·(L/λ)²·(d/(βT)² + 1/T).

Cost: k times that of a call, one after another.

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

import dataclasses
from typing import Any

import jax
import numpy as np
from jaxtyping import Float, Key

from dpsco_jax import _checks, _sharding, privacy
from dpsco_jax._pytrees import pytree, static
from dpsco_jax.mechanisms import robust_point
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.problem import Problem
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers import _arguments, _costs, _plan_base, plans
from dpsco_jax.solvers._plan_base import MadeFor
from dpsco_jax.solvers.resque import _accounting as accounting
from dpsco_jax.solvers.resque import _calls as subsolvers
from dpsco_jax.solvers.resque import _resque_plan as shared
from dpsco_jax.solvers.resque._levels import levels
from dpsco_jax.solvers.solution import Solution
from dpsco_jax.solvers.work import Work


@pytree
class Plan(MadeFor):
    """What ``solve`` will do.

    Attributes:
        num_runs: k.
        base: one run; its ``proven`` is for all of them, its own loss and certificate for a single one.
    """

    num_runs: int = static()
    base: Any

    @property
    def num_users(self) -> int:
        """N."""
        return self.base.num_users

    @property
    def dim(self) -> int:
        """Number of parameters."""
        return self.base.dim

    @property
    def calls(self) -> accounting.Calls:
        """The localized calls of the run, for the accountant."""
        return self.calls_at(float(self.base.beta), self.base.radius_ratio)

    def calls_at(self, beta: float, radius_ratio: float) -> accounting.Calls:
        """The same for another β and ρ/r."""
        runs = _checks.require_integer("num_runs", self.num_runs, 1)
        call = self.base.call_at(beta, radius_ratio)
        return accounting.repeated(accounting.strongly_convex_calls(call), runs)

    def loss(self) -> privacy.PrivacyLoss:
        """The privacy loss that a run is charged, float32, rounded up; infinite beyond what was proven."""
        return accounting.carried(self.calls_at, self.base.proven, self.base.numbers)

    @property
    def user_gradients(self) -> int:
        """Users drawn in the whole run."""
        return self.num_runs * shared.strongly_convex_gradients(self.base.num_queries)

    def certificate(self) -> privacy.Certificate:
        """The (ε, δ) of the run, of the numbers that the plan holds now.

        Raises:
            ValueError: if one is out of the range in which there is a proof.
        """
        accounting.require_numbers(self.base.numbers)
        return accounting.certificate(self.calls, float(self.base.delta), self.base.assumes)

    def work_for(self, item: _costs.Item) -> Work:
        """What the whole run costs."""
        once = _costs.prepared(self.num_users, item)
        return _costs.reweighted(self.user_gradients, item) + once

    def __str__(self) -> str:
        return plans.describe("private ERM over a ball, with high probability", self)


@_plan_base.remembers
def plan(
    problem: Problem,
    budget: privacy.Budget,
    *,
    failure: float = 0.01,
    num_runs: int | None = None,
    ball_radius: float,
    radius_ratio: float = 12.0,
    regularization: float = 0.0,
    num_queries: int | None = None,
    sampling: str | None = None,
    constants: str = "tight",
) -> Plan:
    """Checks all arguments and calibrates the noise. All of them are public.

    Args:
        problem: for the objective, a linear model with a loss that is convex and Lipschitz on the whole
            space, n ≥ 2 users, and the number of parameters.
        budget: (ε, δ) of the run, δ > 0.
        failure: ζ in (0, 1).
        num_runs: k, in place of ⌈20·log(1/ζ)⌉.
        ball_radius: r > 0, around the start.
        radius_ratio: ρ/r ≥ 2.001. Less of it means less smoothing, and more noise.
        regularization: λ ≥ 0, of the term (λ/2)·‖x - x_0‖²; above 0 where the objective has no ridge.
        num_queries: T of a run, rounded down to a power of two; a fifth of the users if left out (1/20 with
            replacement).
        sampling: ``"without_replacement"``: different users in a call; ``"with_replacement"``: as in the
            thesis. By default what ``constants`` says.
        constants: ``"tight"``: without replacement, steps as observed to be best. ``"paper"``: with
            replacement, steps as in the theorems.

    Raises:
        ValueError: an argument is out of range.
    """
    failure = _checks.require_real("failure", failure, 0, 1)
    runs = robust_point.runs_for(failure) if num_runs is None else num_runs
    runs = _checks.require_integer("num_runs", runs, 1)
    base = shared.draft(
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
    made = Plan(runs, base)
    return dataclasses.replace(made, base=shared.calibrated(base, made.calls_at))


@_sharding.solver
def solve(
    key: Key[jax.Array, ""],
    plan: Plan,
    objective: Objective,
    data: UserData,
    params: Float[jax.Array | np.ndarray, "dim"],
) -> Solution:
    """Runs the plan. Pure JAX: jit and map over key, the plan's numbers, data and params.

    Args:
        key: a typed key.
        plan: of ``plan``.
        objective: static; close over it when compiling.
        data: with the planned number of users.
        params: x_0, ``[dim]``; projected onto the domain.

    Raises:
        ValueError: if the number of users or of parameters is not the planned one, or a size of the plan was
            changed to one for which there is no proof.
    """
    _arguments.require_run(Plan, key, plan, objective, data, params)
    base = plan.base
    loss = accounting.carried(plan.calls_at, base.proven, base.numbers)
    center, weight, anchor = shared.combined_quadratics(base, objective, params)
    setting, sizes = shared.make_setting(objective, data, base), levels(base.num_queries)

    def one(run_key: jax.Array) -> jax.Array:
        return subsolvers.strongly_convex(
            run_key, setting, sizes, center, base.beta, weight, base.constant, anchor
        )

    points = jax.lax.map(one, jax.random.split(key, plan.num_runs))
    return shared.spent_on(robust_point.aggregate_points(points), loss, plan.user_gradients, data)
