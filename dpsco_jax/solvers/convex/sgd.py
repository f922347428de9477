"""Projected SGD without privacy: averaged steps of one length, for smooth losses or Lipschitz ones.

What it computes: minimizes F, the mean over users of convex losses plus a ridge, over the objective's domain
X: for t = 0, ..., T - 1

    w_{t+1} = the projection onto X of w_t - η·g_t,

g_t the mean gradient of everybody, or of exactly B users drawn without replacement, and reports the mean of
w_1, ..., w_T. The yardstick of faster methods, and what private SGD is without its noise and clips.

Source: U, Proposition 4.10; T, Proposition 9.4.10 (Bubeck 2015, Theorem 6.3) for smooth losses; Bassily,
Smith and Thakurta 2014 for Lipschitz ones, with the factor of docs/theory/average.md.

Formal guarantee: none of privacy: ``Solution.privacy`` is unbounded. Utility: for losses convex, and
G-Lipschitz unless they are smooth and B = N, and a minimizer within R of the start, the expected excess is at
most ``Plan.excess_bound``, the less of

    β·R²/(2T) + R·√(V/T)             by η = 1/(β + √(VT)/R), for an F of smoothness β,
    (1 + 1/(2T))·R·G/√T              by η = R/(G·√T), without a ridge,

V = G²/B·(N - B)/(N - 1), the variance of g_t; zero for B = N. Proof of the first: with e = g_t - ∇F(w_t), c =
β + 1/η′ and η = 1/c, smoothness and the optimality of the projection give

    F(w_{t+1}) - F* ≤ c/2·(‖w_t - w*‖² - ‖w_{t+1} - w*‖²) + η′/2·‖e‖² + ⟨e, w* - w_t⟩

of which the last term has mean zero; add up over t, and take η′ = R/√(VT).

Cost: T·B user gradients. Memory of one chunk of users, of whom no gradient is formed.

Example:
    >>> import jax
    >>> from dpsco_jax.problems import synthetic
    >>> from dpsco_jax.solvers.convex import sgd
    >>> made = synthetic.logistic_regression(jax.random.key(0), num_users=100, items_per_user=2, dim=3)
    >>> plan = sgd.plan(made.problem(distance=5.0), num_steps=300)
    >>> run = jax.jit(lambda key: sgd.solve(key, plan, made.objective, made.data, jax.numpy.zeros(3)))
    >>> solution = run(jax.random.key(1))
    >>> bool(abs(solution.params - made.minimizer).max() < 0.3)
    True
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import optax
from dp_accounting import NeighboringRelation

from dpsco_jax import _checks, _sharding, privacy
from dpsco_jax._argument_kinds import Count
from dpsco_jax._pytrees import Number, pytree, static
from dpsco_jax.oracles import sampling, unclipped
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.problem import Problem
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers import (
    _arguments,
    _averaged_steps,
    _costs,
    _plan_base,
    loop,
    methods,
    plans,
)
from dpsco_jax.solvers._plan_base import MadeFor
from dpsco_jax.solvers.solution import Solution, finished
from dpsco_jax.solvers.work import Work


@pytree
class Plan(MadeFor):
    """What ``solve`` will do. Sizes are static, numbers are leaves of the pytree.

    Attributes:
        num_users: N.
        dim: number of parameters.
        num_steps: T.
        batch_size: B; at B = N there is no sampling.
        chunk_size: users whose losses are evaluated at once.
        step_size: η.
        distance: R.
        excess_bound: proven bound on the expected excess, of ``step_size`` as planned.
    """

    num_users: int = static()
    dim: int = static()
    num_steps: int = static()
    batch_size: int = static()
    chunk_size: int = static()
    step_size: Number
    distance: Number
    excess_bound: Number

    @property
    def user_gradients(self) -> int:
        """T·B."""
        return self.num_steps * self.batch_size

    def work_for(self, item: _costs.Item) -> Work:
        """What the whole run costs."""
        step = _costs.losses_differentiated(self.batch_size, item) + _costs.method(item.dim)
        step += _costs.fixed_sample(self.batch_size, self.num_users)
        return step * self.num_steps

    def __str__(self) -> str:
        near = f"a minimizer within {float(self.distance):.4g} of the start"
        return plans.describe("projected SGD (not private)", self, [("assumes", near)])


@_plan_base.remembers()
def plan(
    problem: Problem,
    *,
    num_steps: Count,
    batch_size: int | None = None,
    chunk_size: Count = 4096,
) -> Plan:
    """Checks all arguments and takes the step size of the lesser bound. Host only.

    Args:
        problem: for the objective, N, the number of parameters, and R; the diameter of the domain in its
            place if it has none.
        num_steps: T.
        batch_size: B; everybody if left out.
        chunk_size: users whose losses are evaluated at once.

    Raises:
        ValueError: an argument is out of range, the loss is not convex, or no bound is finite: the loss is
            neither Lipschitz nor smooth, or it is sampled and not Lipschitz.
    """
    _checks.require_instance("problem", problem, Problem)
    objective, users = problem.objective, problem.num_users
    batch = users if batch_size is None else batch_size
    batch = _checks.require_integer("batch_size", batch, 1, users)
    convexity = objective.loss_strong_convexity
    _checks.require(convexity >= 0, "loss_strong_convexity", convexity, "at least 0")
    distance = problem.require_distance()

    found = []
    if objective.smoothness is not None:
        variance = 0.0
        if batch < users:
            variance = objective.lipschitz**2 / batch * (users - batch) / (users - 1)
        bend = objective.smoothness + objective.ridge
        if bend > 0 or variance > 0:  # else no step is too long
            found.append(_smooth_step(bend, variance, num_steps, distance))
    if math.isfinite(objective.lipschitz):
        found.append(
            _averaged_steps.step_and_bound(
                problem,
                num_steps=num_steps,
                batch_size=batch,
                rate=None,
                clip_norm=objective.lipschitz,
                noise_stddev=0.0,
                step_size=None,
                averaging="uniform",
            )
        )
    step_size, bound = min(found, key=lambda pair: pair[1], default=(0.0, math.inf))
    _checks.require(bound < math.inf, "objective", objective, "one with a finite bound")
    return Plan(
        num_users=users,
        dim=problem.dim,
        num_steps=num_steps,
        batch_size=batch,
        chunk_size=chunk_size,
        step_size=step_size,
        distance=distance,
        excess_bound=bound,
    )


def _smooth_step(
    smoothness: float, variance: float, num_steps: int, distance: float
) -> tuple[float, float]:
    """η and the bound for smoothness β and variance V, not both zero."""
    inverse = smoothness + math.sqrt(variance * num_steps) / distance
    noise = distance * math.sqrt(variance / num_steps)
    return 1 / inverse, smoothness * distance**2 / (2 * num_steps) + noise


@_sharding.solver
def solve(
    key: jax.Array,
    plan: Plan,
    objective: Objective,
    data: UserData,
    params: Any,
    trace: Callable[[Any, Any, Any], Any] | None = None,
) -> Solution:
    """Runs the plan. Pure JAX: jit and map over key, the plan's numbers, data and params.

    Args:
        key: a typed key; of no effect for full gradients.
        plan: of ``plan``.
        objective: static; close over it when compiling.
        data: with ``plan.num_users`` users.
        params: the starting point; projected onto the domain.
        trace: see ``loop.run``; its output goes to ``unprivate["trace"]``.

    Raises:
        ValueError: if users or parameters are not as many as planned.
    """
    _arguments.require_run(Plan, key, plan, objective, data, params, trace)
    start = objective.domain.project(params)

    def draw(key: jax.Array) -> sampling.UserSample:
        return sampling.without_replacement(key, plan.num_users, plan.batch_size)

    sampler = draw if plan.batch_size < plan.num_users else None
    oracle = unclipped.mean_gradient(
        objective, plan.batch_size, sampler, chunk_size=plan.chunk_size
    )

    def add_regularizer(gradient: Any, point: Any) -> Any:
        ridge = objective.regularizer_gradient(point)
        return jax.tree.map(lambda g, r: g + r, gradient, ridge)

    chain = methods.ProjectedSgd(plan.step_size).on(objective.domain, plan.num_steps)
    steps = optax.chain(optax.stateless(add_regularizer), chain.steps)
    end = loop.run(key, oracle, steps, start, data, plan.num_steps, trace)
    reported = chain.report(end.opt_state, end.params)
    gradients = plan.user_gradients * jax.tree.leaves(data.items)[0].shape[1]
    # Exact gradients: of what they reveal nothing is proven, under any relation.
    ledger = privacy.open_ledger(NeighboringRelation.REPLACE_ONE)
    ledger = privacy.charge(ledger, privacy.unbounded())
    return finished(reported, ledger, gradients, end.num_gradients, end.trace)
