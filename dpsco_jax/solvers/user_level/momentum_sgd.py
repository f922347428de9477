"""Per-user clipped DP-SGD with heavy-ball momentum and linearly decaying steps: the tuned practice.

What it computes: the noisy mean of clipped user gradients of ``sgd`` drives v ← β·v + (1 - β)·gradient and
w ← Π(w - η_t·v), with η_t = η·(T - t)/(T + 1) or constant; the last point is returned.

Source: Polyak 1964 (heavy ball); Abadi et al. 2016 (DP-SGD); Zamani and Glineur 2023 (linearly decaying steps
are optimal for the last point), with the proof for stochastic gradients in docs/theory/linear_decay.md.

Formal guarantee: that of ``sgd``, with the same releases: (ε, δ)-DP for a user's whole data, at every point
of the run, under the relation asked for with ``sampling="poisson"``, under REPLACE_ONE else. Velocity and
steps are post-processing. Assumed: the key and the samples stay secret. Utility, for linear decay, β = 0, no
ridge, a convex loss, clip_norm ≥ its Lipschitz constant and gradients of second moment V, as in ``sgd``:
E F(last) - F* ≤ R·√(V/(T + 1)). Nothing is proven with momentum.

Cost: num_steps·batch_size user gradients; memory of one chunk of user gradients;
a linear model's data are held
in a second copy, prepared once.

Example:
    >>> import jax
    >>> from dpsco_jax import Budget
    >>> from dpsco_jax.problems import synthetic
    >>> from dpsco_jax.solvers.user_level import momentum_sgd
    >>> made = synthetic.logistic_regression(jax.random.key(0), num_users=100, items_per_user=2, dim=3)
    >>> plan = momentum_sgd.plan(made.problem(distance=5.0), Budget(1.0, 1e-5), num_steps=20, batch_size=20)
    >>> start = jax.numpy.zeros(3)
    >>> run = jax.jit(lambda key: momentum_sgd.solve(key, plan, made.objective, made.data, start))
    >>> solution = run(jax.random.key(1))
    >>> solution.params.shape, int(solution.status), plan.certificate().epsilon <= 1.0
    ((3,), 0, True)
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
from dp_accounting import NeighboringRelation

from dpsco_jax import _checks, _sharding, privacy
from dpsco_jax._pytrees import Number, pytree, static
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.problem import Problem
from dpsco_jax.problems.stored import StoredUsers
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers import _arguments, _plan_base, _planning, first_order, plans
from dpsco_jax.solvers.solution import Solution
from dpsco_jax.solvers.user_level import sgd

__all__ = ["Plan", "plan", "solve"]

_STEP_DECAYS = ("linear", "none")


@pytree
class Plan(sgd.Plan):
    """What ``solve`` will do: the plan of ``sgd``, whose releases are the same, and how steps are made.

    Attributes:
        step_decay: ``"linear"`` or ``"none"``.
        momentum: β.
    """

    step_decay: str = static(choices=_STEP_DECAYS)
    momentum: Number

    def __str__(self) -> str:
        return plans.describe("user-level DP-SGD with momentum", self)


@_plan_base.remembers
def plan(
    problem: Problem,
    budget: privacy.Budget,
    *,
    num_steps: int,
    momentum: float = 0.9,
    step_decay: str = "linear",
    batch_size: int | None = None,
    sampling: str = "poisson",
    clip_norm: float | None = None,
    step_size: float | None = None,
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
        momentum: β in [0, 1).
        step_decay: ``"linear"`` or ``"none"``.
        batch_size: users per step, in [1, N]; to be left out for ``"full"`` only.
        sampling: ``"poisson"``, ``"fixed"`` (without replacement) or ``"full"``.
        clip_norm: the objective's Lipschitz constant if left out.
        step_size: η; R/√(T·V), with T + 1 in place of T under linear decay, if left out.
        accountant: what is calibrated to ε: ``"pld"`` the certificate (least noise), ``"rdp"`` the ledger.
        chunk_size: users whose gradients are held at once.
        relation: ADD_OR_REMOVE_ONE (if left out), REPLACE_ONE or REPLACE_SPECIAL under Poisson sampling;
            REPLACE_ONE, left out or not, else.

    Raises:
        ValueError: an argument is out of range, or the step size is left out and R is not finite.
    """
    _checks.require_within("momentum", momentum, 0.0, 1.0, open_high=True)
    linear = _checks.require_choice("step_decay", step_decay, _STEP_DECAYS) == "linear"
    base = sgd.plan(
        problem,
        budget,
        num_steps=num_steps,
        batch_size=batch_size,
        sampling=sampling,
        clip_norm=clip_norm,
        step_size=step_size,
        accountant=accountant,
        chunk_size=chunk_size,
        relation=relation,
    )
    # R·√(V/T), proven of the points before sgd's steps, holds for the last one with T + 1 in place of T.
    shrink = math.sqrt(base.num_steps / (base.num_steps + 1)) if linear else 1.0
    last = base.excess_bound / _planning.after_steps(base.num_steps) * shrink
    given = {field.name: getattr(base, field.name) for field in dataclasses.fields(base)}
    given |= {
        "averaging": "last",
        "step_size": base.step_size * (shrink if step_size is None else 1.0),
        "excess_bound": last if linear and momentum == 0 else math.inf,
    }
    return Plan(**given, step_decay=step_decay, momentum=float(momentum))


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
    step, domain, steps = plan.step_size, objective.domain, plan.num_steps
    method = (
        first_order.linear_decay(step, steps, domain, plan.momentum)
        if plan.step_decay == "linear"
        else first_order.momentum(step, plan.momentum, domain)
    )
    items = plan.user_gradients * jax.tree.leaves(data.items)[0].shape[1]
    return first_order.run(
        key, plan.mean, method, objective, data, params, steps, items, trace=trace
    )
