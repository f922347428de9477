"""Private AC-SA in stages for convex losses: restarts that need no strong convexity to be known.

What it computes: K stages of accelerated stochastic approximation on noisy means of clipped user gradients,
each twice as long as the one before and started from its aggregate. Near a minimizer most losses curve more
than is known; a restart forgets the momentum of the way there.

Source: own; AC-SA is thesis, Lemma 1.4.5. It is for smooth losses: ``private_ac_sa`` smooths others.

Formal guarantee: (ε, δ)-DP for a user's whole data under REPLACE_ONE, at every point of the run. Nothing is
assumed of the losses: gradients are clipped to G. Assumed: the key and the batches stay secret. Utility, for
convex L-smooth G-Lipschitz losses, V = G²/B (0 if B = N) + dim·σ²/B² and stages of T_k steps:

    E F(w) - F* ≤ 2Γ_K·R_K²/(T_K(T_K + 1)) + V(2T_K + 1)/(6Γ_K),   R_{k+1}² = R_k² + V·c_k/(12Γ_k²)

with c_k = T_k(T_k + 1)(2T_k + 1) and Γ_k = max(2L, √(V·c_k/12)/R_k), or L if V = 0. Proof: AC-SA's potential
t(t + 1)/2·(F(aggregate) - F*) + Γ‖x_t - w*‖² grows by V·t²/(2Γ) at most in expectation, so no iterate, and no
mean of them as the aggregate is, has a larger expected squared distance to w* than R_{k+1}², which is at most
2R_k². The domain's diameter bounds it as well, and 2·(gap)/μ where the objective is μ-strongly convex.

Cost: T·B user gradients; memory of one chunk of them; a linear model's data are held in a
second copy, prepared once.

Example:
    >>> import jax
    >>> from dpsco_jax import Budget
    >>> from dpsco_jax.problems import synthetic
    >>> from dpsco_jax.solvers.item_level import staged_ac_sa
    >>> made = synthetic.logistic_regression(jax.random.key(0), num_users=100, items_per_user=2, dim=3)
    >>> plan = staged_ac_sa.plan(made.problem(distance=5.0), Budget(1.0, 1e-5), num_steps=8, num_stages=2)
    >>> start = jax.numpy.zeros(3)
    >>> run = jax.jit(lambda key: staged_ac_sa.solve(key, plan, made.objective, made.data, start))
    >>> solution = run(jax.random.key(1))
    >>> solution.params.shape, int(solution.status), plan.certificate().epsilon <= 1.0
    ((3,), 0, True)
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from dpsco_jax import _checks, _sharding, privacy
from dpsco_jax._pytrees import Number, pytree, static
from dpsco_jax.privacy.releases import ACCOUNTANTS, GaussianReleases, fixed_size
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.problem import Problem
from dpsco_jax.problems.stored import StoredUsers
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers import _arguments, _plan_base, _planning, first_order, means, plans
from dpsco_jax.solvers._by_mean import ByMean
from dpsco_jax.solvers.solution import Solution
from dpsco_jax.transforms import balanced_smoothness

__all__ = ["Plan", "plan", "solve"]


@pytree
class Plan(ByMean):
    """What ``solve`` will do. Sizes are static, numbers are leaves of the pytree (may be batched).

    Attributes:
        dim: number of parameters.
        lengths: T_k, steps of each stage.
        chunk_size: users whose gradients are held at once.
        releases: of all steps.
        clip_norm: G, the bound on a user's gradient.
        smoothness: Γ_k of each stage, ``[stages]``.
        epsilon: ε of the budget.
        excess_bound: proven bound on the expected excess risk, ``inf`` where none applies.
    """

    dim: int = static()
    lengths: tuple[int, ...] = static()
    chunk_size: int = static()
    releases: GaussianReleases
    clip_norm: Number
    smoothness: Number
    epsilon: Number
    excess_bound: Number

    def __post_init__(self) -> None:
        _planning.require_replacement(self.releases)

    @property
    def num_users(self) -> int:
        """N."""
        return self.releases.population_size

    @property
    def user_gradients(self) -> int:
        """User gradients of the whole run."""
        return self.releases.num_steps * self.releases.batch_size

    @property
    def delta(self) -> Number:
        """δ of the budget."""
        return self.releases.delta

    @property
    def mean(self) -> means.Clipped:
        """Of the users' gradients of a step."""
        return means.Clipped(self.chunk_size, "user", self.releases, self.clip_norm, None)

    def __str__(self) -> str:
        return plans.describe("private AC-SA in stages", self)


@_plan_base.remembers
def plan(
    problem: Problem,
    budget: privacy.Budget,
    *,
    num_steps: int,
    num_stages: int = 3,
    batch_size: int | None = None,
    clip_norm: float | None = None,
    accountant: str = "pld",
    chunk_size: int = 64,
) -> Plan:
    """Checks all arguments, sets the stages and calibrates the noise. All of them are public.

    Args:
        problem: for a smooth loss with its constants, domain and ridge, N, the number of parameters and R.
        budget: (ε, δ) of the run, δ > 0.
        num_steps: T, of all stages together, at least 2^K - 1.
        num_stages: K.
        batch_size: B, users per step, in [1, N]; everybody if left out.
        clip_norm: G; the objective's Lipschitz constant if left out. With a smaller one nothing is proven.
        accountant: what is calibrated to ε: ``"pld"`` the certificate (least noise), ``"rdp"`` the ledger.
        chunk_size: users whose gradients are held at once.

    Raises:
        ValueError: an argument is out of range, the loss is not smooth, or R is not finite.
    """
    problem, budget = _arguments.require_request(problem, budget)
    objective, users = problem.objective, problem.num_users
    smooth = objective.smoothness is not None
    _checks.require(smooth, "problem.objective.smoothness", None, "given: the loss must be smooth")
    _checks.require_choice("accountant", accountant, ACCOUNTANTS)
    chunk_size = _checks.require_count("chunk_size", chunk_size)
    num_stages = _checks.require_integer("num_stages", num_stages, 1, 30)
    num_steps = _checks.require_integer("num_steps", num_steps, 2**num_stages - 1)
    batch = users if batch_size is None else batch_size
    batch = _checks.require_integer("batch_size", batch, 1, users)
    clip = problem.lipschitz if clip_norm is None else clip_norm
    clip = _checks.require_real("clip_norm", clip, 0)
    multiplier = fixed_size(users, batch, num_steps).noise_multiplier(
        budget.epsilon, budget.delta, accountant
    )
    sampling_error = clip**2 / batch if batch < users else 0.0
    variance = sampling_error + problem.dim * (2 * clip * multiplier / batch) ** 2
    lengths = [num_steps * 2**k // (2**num_stages - 1) for k in range(num_stages)]
    lengths[-1] += num_steps - sum(lengths)
    smoothness, bound = _stages(problem, variance, lengths)
    return Plan(
        dim=problem.dim,
        lengths=tuple(lengths),
        chunk_size=chunk_size,
        releases=GaussianReleases(users, batch, num_steps, "fixed", multiplier, budget.delta),
        clip_norm=clip,
        smoothness=np.array(smoothness),
        epsilon=budget.epsilon,
        excess_bound=bound if clip >= problem.lipschitz else math.inf,
    )


def _stages(problem: Problem, variance: float, lengths: list[int]) -> tuple[list[float], float]:
    """Γ_k of all stages, and what the last one proves."""
    objective = problem.objective
    curvature = float(objective.smoothness or 0.0) + objective.ridge
    convexity = objective.strong_convexity
    distance, bound, parameters = problem.require_distance(), math.inf, []
    for steps in lengths:
        gamma = float(np.asarray(balanced_smoothness(curvature, variance, steps, distance)))
        gamma = gamma if variance > 0 else curvature
        cube = steps * (steps + 1) * (2 * steps + 1)
        bound = 2 * gamma * distance**2 / (steps * (steps + 1))
        bound += variance * (2 * steps + 1) / (6 * gamma)
        distance = math.sqrt(distance**2 + variance * cube / (12 * gamma**2))
        nearer = math.sqrt(2 * bound / convexity) if convexity > 0 else math.inf
        distance = min(distance, nearer, problem.diameter)
        parameters.append(gamma)
    return parameters, bound


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
    method = first_order.staged_ac_sa(plan.smoothness, plan.lengths, objective.domain)
    steps, items = plan.releases.num_steps, jax.tree.leaves(data.items)[0].shape[1]
    gradients = plan.user_gradients * items
    return first_order.run(
        key, plan.mean, method, objective, data, params, steps, gradients, trace=trace
    )
