"""Per-user clipped DP-SGD, also known as DP-FedSGD: the baseline of everything else.

What it computes: in each step a random set of users takes part; their gradients (a user's loss is the mean
over the user's items) are clipped, summed, divided by a public number and covered with Gaussian noise; the
parameters move against the result, are projected onto the domain and averaged.

Source: Abadi et al. 2016 (DP-SGD); McMahan et al. 2018 (per-user clipping, DP-FedSGD); Bassily, Smith and
Thakurta 2014 (excess risk). The step size is that of projected subgradient descent, R/√(T·V).

Formal guarantee: (ε, δ)-DP for a user's whole data, at every point of the run, under REPLACE_ONE with
``"fixed"`` or ``"full"``, and with ``sampling="poisson"`` (of the places for users; one without items is
nobody) under the relation asked for, ADD_OR_REMOVE_ONE by default. The noise covers 2·``clip_norm`` under
REPLACE_ONE and ``clip_norm`` else. Nothing is assumed of the loss: gradients are clipped. The
regularizer's gradient is exact and added outside. Assumed: the key and the samples stay secret.
Utility, for uniform averaging, no ridge, a convex loss and clip_norm ≥ its Lipschitz constant:
E F(average) - F* ≤ (1 + 1/(2T))·R·√(V/T), V = clip_norm²·(1 + v) + dim·σ²/batch_size², where v = (1 -
rate)/batch_size under Poisson sampling, for the number of users who take part is random and the divisor is
not, and 0 else. The average is of the points after the steps: docs/theory/average.md.

Cost: num_steps·batch_size user gradients; memory of one chunk of user gradients;
a linear model's data are held
in a second copy, prepared once.

Example:
    >>> import jax
    >>> from dpsco_jax import Budget
    >>> from dpsco_jax.problems import synthetic
    >>> from dpsco_jax.solvers.user_level import sgd
    >>> made = synthetic.logistic_regression(jax.random.key(0), num_users=100, items_per_user=2, dim=3)
    >>> plan = sgd.plan(made.problem(distance=5.0), Budget(1.0, 1e-5), num_steps=20, batch_size=20)
    >>> run = jax.jit(lambda key: sgd.solve(key, plan, made.objective, made.data, jax.numpy.zeros(3)))
    >>> solution = run(jax.random.key(1))
    >>> solution.params.shape, int(solution.status), plan.certificate().epsilon <= 1.0
    ((3,), 0, True)
"""

from collections.abc import Callable
from typing import Any

import jax
from dp_accounting import NeighboringRelation

from dpsco_jax import _checks, _sharding, privacy
from dpsco_jax._pytrees import Number, pytree, static
from dpsco_jax.privacy.releases import ACCOUNTANTS, GaussianReleases, fixed_size, poisson
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.problem import Problem
from dpsco_jax.problems.stored import StoredUsers
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers import _arguments, _averaged_steps, _plan_base, first_order, means, plans
from dpsco_jax.solvers._by_mean import ByMean
from dpsco_jax.solvers.solution import Solution

_SAMPLING = ("poisson", "fixed", "full")


@pytree
class Plan(ByMean):
    """What ``solve`` will do. Sizes are static, numbers are leaves of the pytree (may be batched).

    Attributes:
        num_users: N.
        dim: number of parameters.
        num_steps: T.
        batch_size: users per step; under Poisson sampling their expected number, N times the rate.
        sampling: ``"poisson"``, ``"fixed"`` or ``"full"``.
        averaging: ``"uniform"``, ``"polynomial"`` (towards the last iterates) or ``"last"``.
        chunk_size: users whose gradients are held at once.
        noise_multiplier: σ over the ℓ2 sensitivity of the clipped sum: 2·``clip_norm`` under REPLACE_ONE,
            ``clip_norm`` else.
        clip_norm: bound on a user's gradient.
        step_size: η.
        epsilon: ε of the budget that the noise was calibrated for.
        delta: δ of that budget.
        excess_bound: proven bound on the expected excess risk, ``inf`` where none applies.
        poisson_relation: which data sets are neighbours under Poisson sampling; REPLACE_ONE else.
    """

    num_users: int = static()
    dim: int = static()
    num_steps: int = static()
    batch_size: int = static()
    sampling: str = static(choices=_SAMPLING)
    averaging: str = static(choices=tuple(_averaged_steps.DECAY))
    chunk_size: int = static()
    noise_multiplier: Number
    clip_norm: Number
    step_size: Number
    epsilon: Number
    delta: Number
    excess_bound: Number
    poisson_relation: NeighboringRelation = static(
        default=NeighboringRelation.ADD_OR_REMOVE_ONE, kw_only=True
    )

    @property
    def mean(self) -> means.Clipped:
        """Of the users' gradients of a step."""
        return means.Clipped(self.chunk_size, "user", self.releases, self.clip_norm, None)

    @property
    def releases(self) -> GaussianReleases:
        """The private releases of the run."""
        return GaussianReleases(
            population_size=self.num_users,
            batch_size=self.batch_size,
            num_steps=self.num_steps,
            sampling="poisson" if self.sampling == "poisson" else "fixed",
            noise_multiplier=self.noise_multiplier,
            delta=self.delta,
            poisson_relation=self.poisson_relation,
        )

    @property
    def user_gradients(self) -> int:
        """User gradients of the whole run; the expected number under Poisson sampling."""
        return self.num_steps * self.batch_size

    def __str__(self) -> str:
        return plans.describe("user-level DP-SGD", self)


@_plan_base.remembers
def plan(
    problem: Problem,
    budget: privacy.Budget,
    *,
    num_steps: int,
    batch_size: int | None = None,
    sampling: str = "poisson",
    clip_norm: float | None = None,
    step_size: float | None = None,
    averaging: str = "uniform",
    accountant: str = "pld",
    chunk_size: int = 64,
    relation: NeighboringRelation | None = None,
) -> Plan:
    """Checks all arguments and calibrates the noise. All of them are public.

    Args:
        problem: for the Lipschitz constant, domain and ridge, N, the number of parameters, and the distance
            R, which is needed for the step size only.
        budget: (ε, δ) of the run, δ > 0.
        num_steps: T ≥ 1.
        batch_size: users per step, in [1, N]; to be left out for ``"full"`` only.
        sampling: ``"poisson"``, ``"fixed"`` (without replacement) or ``"full"``.
        clip_norm: the objective's Lipschitz constant if left out.
        step_size: R/√(T·V) if left out.
        averaging: ``"uniform"``, ``"polynomial"`` or ``"last"``.
        accountant: what is calibrated to ε: ``"pld"`` the certificate (least noise), ``"rdp"`` the ledger.
        chunk_size: users whose gradients are held at once.
        relation: ADD_OR_REMOVE_ONE (if left out), REPLACE_ONE or REPLACE_SPECIAL under Poisson sampling;
            REPLACE_ONE, left out or not, else.

    Raises:
        ValueError: an argument is out of range, or the step size is left out and R is not finite.
    """
    problem, budget = _arguments.require_request(problem, budget, least_users=1)
    num_steps = _checks.require_count("num_steps", num_steps)
    chunk_size = _checks.require_count("chunk_size", chunk_size)
    _checks.require_choice("sampling", sampling, _SAMPLING)
    _checks.require_choice("averaging", averaging, tuple(_averaged_steps.DECAY))
    _checks.require_choice("accountant", accountant, ACCOUNTANTS)
    everybody, num_users = sampling == "full", problem.num_users
    batch_size = _checks.require_integer(
        "batch_size",
        num_users if everybody and batch_size is None else batch_size,
        num_users if everybody else 1,
        num_users,
    )
    clip_norm = problem.lipschitz if clip_norm is None else clip_norm
    clip_norm = _checks.require_real("clip_norm", clip_norm, 0)

    if sampling == "poisson":
        relation = NeighboringRelation.ADD_OR_REMOVE_ONE if relation is None else relation
        steps = poisson(num_users, batch_size, num_steps, relation)
    else:
        steps = fixed_size(num_users, batch_size, num_steps)
        good = relation is None or relation is steps.relation
        _checks.require(good, "relation", relation, f"REPLACE_ONE for sampling={sampling!r}")
    noise_multiplier = steps.noise_multiplier(budget.epsilon, budget.delta, accountant)
    replaced = steps.relation is NeighboringRelation.REPLACE_ONE
    sensitivity = (2 if replaced else 1) * clip_norm
    step_size, excess_bound = _averaged_steps.step_and_bound(
        problem,
        num_steps=num_steps,
        batch_size=batch_size,
        rate=batch_size / num_users if sampling == "poisson" else None,
        clip_norm=clip_norm,
        noise_stddev=noise_multiplier * sensitivity / batch_size,
        step_size=step_size,
        averaging=averaging,
    )
    return Plan(
        num_users=num_users,
        dim=problem.dim,
        num_steps=num_steps,
        batch_size=batch_size,
        sampling=sampling,
        averaging=averaging,
        chunk_size=chunk_size,
        noise_multiplier=noise_multiplier,
        clip_norm=clip_norm,
        step_size=step_size,
        epsilon=budget.epsilon,
        delta=budget.delta,
        excess_bound=excess_bound,
        **({"poisson_relation": steps.relation} if sampling == "poisson" else {}),
    )


@_sharding.solver
def solve(
    key: jax.Array,
    plan: Plan,
    objective: Objective,
    data: UserData | StoredUsers,
    params: Any,
    trace: Callable[[Any, Any, Any], Any] | None = None,
) -> Solution:
    """Runs the plan. Pure JAX: jit and map over key, the plan's numbers, data and params.

    Args:
        key: a typed key.
        plan: of ``plan``.
        objective: static; close over it when compiling.
        data: with ``plan.num_users`` users; not under ``jit`` if they are on disk.
        params: the starting point; projected onto the domain.
        trace: see ``loop.run``; its output goes to ``unprivate["trace"]``.

    Raises:
        ValueError: if the number of users or of parameters is not the planned one.
    """
    _arguments.require_run(Plan, key, plan, objective, data, params, trace, stored=True)
    method = first_order.projected_sgd(
        plan.step_size, objective.domain, _averaged_steps.DECAY[plan.averaging]
    )
    gradients = plan.user_gradients * jax.tree.leaves(data.items)[0].shape[1]
    return first_order.run(
        key, plan.mean, method, objective, data, params, plan.num_steps, gradients, trace=trace
    )
