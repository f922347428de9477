"""Private proximal points with little bias: multilevel Monte Carlo over strongly convex ReSQue calls.

What it computes: an estimate of the minimizer x̂ of f_ρ(x) + (λ/2)·‖x - x_0‖² over ‖x - x_0‖ ≤ r whose mean is
closer to x̂ than its deviation: the average of m copies of

    x_0' + 2^J·(x_J - x_{J-1})   with P(J = j) = 2^-j for j = 1..m, else x_0' alone,

where x_j is ``resque_erm`` with 2^j·T queries and 2^(-j/2)·β. ``prox="plain"`` is one such x_0.

Source: thesis, Algorithm 11 and Proposition 2.4.15, with its bias corrected: the mean is that of the last
level, which runs with 2^(-m/2)·β, so that the bias is of order (L/λ)·(√d/(β·√(nT)) + 1/√n) where 2^m·T ≈ n,
not √d/(βn) + 1/√n. Where that is not enough, ``"mlmc_extended"`` has m = ⌈2·log2(n/T)⌉ levels and bias
(L/λ)·(√d/(βn) + √T/n); levels of more than n queries are drawn with replacement, and paid for as such.

Formal guarantee: (ε, δ)-DP for a user's whole data under REPLACE_ONE, by ``privacy.resque`` for all calls
together. Losses must be convex and Lipschitz on the whole space. The levels are public coins, drawn when the
plan is made: the accountant sees the calls that will be made. Deviation of order (L/λ)·√(d/(βT)² + 1/T); the
result may lie outside of the ball.

Cost: T·(1 + 1.5·2^J) user gradients for a copy. In expectation m·(1 + 1.5m) times T; a plain one costs T, and
its bias is below its deviation already (two fifths to two thirds of it where noise fills the ball).

Example:
    >>> import jax
    >>> from dpsco_jax import Budget
    >>> from dpsco_jax.problems import synthetic
    >>> from dpsco_jax.solvers.item_level import resque_prox
    >>> made = synthetic.logistic_regression(jax.random.key(0), num_users=100, items_per_user=1, dim=3)
    >>> problem, budget = made.problem(distance=5.0), Budget(4.0, 1e-5)
    >>> plan = resque_prox.plan(problem, budget, ball_radius=0.1, num_queries=4, regularization=1.0)
    >>> run = jax.jit(lambda key: resque_prox.solve(key, plan, made.objective, made.data, jax.numpy.zeros(3)))
    >>> solution = run(jax.random.key(1))
    >>> solution.params.shape, int(solution.status), plan.certificate().epsilon <= 4.0
    ((3,), 0, True)
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np

from dpsco_jax import _checks, _keys, privacy
from dpsco_jax._argument_kinds import Constants, Nonnegative, Positive, integer, one_of
from dpsco_jax._pytrees import pytree, static
from dpsco_jax.oracles import multilevel
from dpsco_jax.problems.problem import Problem
from dpsco_jax.solvers import _plan_base, plans
from dpsco_jax.solvers.resque import _accounting as accounting
from dpsco_jax.solvers.resque import _calls, _one_ball
from dpsco_jax.solvers.resque._one_ball import Call, OfBase, Ratio, Sampling, draft, solve

__all__ = ["PROXES", "Plan", "plan", "solve"]

PROXES = ("mlmc", "mlmc_extended", "plain")


@pytree
class Plan(OfBase):
    """What ``solve`` will do.

    Attributes:
        prox: one of ``PROXES``.
        max_level: m; 0 for ``"plain"``.
        drawn: J of every copy, 0 for no correction.
        base: level 0; its ``proven`` is for the whole run, its own loss and certificate for a single call.
    """

    prox: str = static(choices=PROXES)
    max_level: int = static(least=0)
    drawn: tuple[int, ...] = static()
    base: Any

    @property
    def made(self) -> list[int]:
        """The levels of all strongly convex calls of the run.

        Raises:
            ValueError: if a copy has a level that there is not.
        """
        most = _checks.require_integer("max_level", self.max_level, 0)
        for j in self.drawn:
            _checks.require_integer("drawn", j, 0, most)
        return [level for j in self.drawn for level in ([0, j, j - 1] if j else [0])]

    def calls_at(self, beta: float, radius_ratio: float) -> accounting.Calls:
        """The localized calls of the run with another β of level 0 and ρ/r."""
        calls: list[Any] = []
        for j in self.made:
            calls += _level(self.base, j).calls_at(beta * _beta_factor(j), radius_ratio)
        return calls

    @property
    def user_gradients(self) -> int:
        """Users drawn in the whole run."""
        return sum(_level(self.base, j).user_gradients for j in self.made)

    def point(self, key: jax.Array, call: Call) -> jax.Array:
        """The mean of the multilevel estimates, perhaps outside of the ball: projections would bias them."""

        def at(j: int) -> Callable[[jax.Array], tuple[jax.Array, tuple[()]]]:
            return lambda key: (call(key, _level(self.base, j)), ())

        solvers = [at(j) for j in range(self.max_level + 1)]
        copies = [
            multilevel.estimate(_keys.of_part(key, i), solvers, j)[0]
            for i, j in enumerate(self.drawn)
        ]
        return jnp.mean(jnp.stack(copies), axis=0)

    def __str__(self) -> str:
        return plans.describe("private proximal point", self)


@_plan_base.remembers(least_users=2)
def plan(
    problem: Problem,
    budget: privacy.Budget,
    *,
    prox: Annotated[str, one_of(*PROXES)] = "mlmc",
    levels_seed: Annotated[int, integer(0)] = 0,
    ball_radius: Positive,
    radius_ratio: Ratio = 12.0,
    regularization: Nonnegative = 0.0,
    num_queries: int | None = None,
    sampling: Sampling | None = None,
    constants: Constants = "tight",
) -> Plan:
    """Checks all arguments, sets the levels and calibrates the noise. All of them are public.

    Arguments are those of ``resque_erm.plan`` but ``method``, with a λ above 0 where the objective has no
    ridge, and T of level 0: if left out, that of a single call for ``prox="plain"``, and an eighth of it for
    ``"mlmc"`` and ``"mlmc_extended"``. ``levels_seed`` is of the public coins for the levels; no secret, and
    nothing of the run's key.

    Raises:
        ValueError: an argument is out of range, or there is no room for levels above 0.
    """
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
    users, max_level = base.num_users, 0
    if prox != "plain":
        most = _calls.power_of_two(users, None, base.sampling, least=4, most=users + 1)
        if num_queries is None:
            base = dataclasses.replace(base, num_queries=max(4, most // 8))
        max_level = most.bit_length() - base.num_queries.bit_length()
        if max_level < 1:
            raise ValueError(
                f"num_queries must be at most {most // 2} here, got {base.num_queries}: no room for levels"
            )
        if prox == "mlmc_extended":
            max_level = math.ceil(2 * math.log2(users / base.num_queries))
    coins = jax.random.key(levels_seed)
    drawn = np.asarray(multilevel.draw_levels(coins, max_level, (max(max_level, 1),))).tolist()
    return accounting.calibrated(Plan(prox, max_level, tuple(drawn) if max_level else (0,), base))


def _beta_factor(j: int) -> float:
    """β of level j over that of level 0."""
    return 2.0 ** (-j / 2)


def _level(base: _one_ball.Plan, j: int) -> _one_ball.Plan:
    """The plan of level j."""
    queries = _checks.require_integer("num_queries", base.num_queries, 4) << j
    sampling = base.sampling if queries - 1 <= base.num_users else "with_replacement"
    return dataclasses.replace(
        base, num_queries=queries, beta=base.beta * _beta_factor(j), sampling=sampling
    )
