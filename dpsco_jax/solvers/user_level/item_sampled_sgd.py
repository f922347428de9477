"""DP-SGD that samples items, not users, with a guarantee for users: example-level sampling.

What it computes: in each step every item of every user takes part with probability q = B/(N·k),
independently; the gradients of these items are clipped one by one, summed, divided by B and covered with
Gaussian noise; the parameters move against the result, are projected onto the domain and averaged.

Source: Charles et al. 2024, "Fine-tuning large language models with user-level differential privacy"
(DP-SGD-ELS). ``sgd`` with Poisson sampling is its DP-SGD-ULS; ``sampling_choice`` says which has less noise.

Formal guarantee: (ε, δ)-DP for a user's whole data, at every point of the run, under ADD_OR_REMOVE_ONE or
REPLACE_SPECIAL. A user has at most k items, the public number of slots, which is enforced by the shape of
the data; how many are drawn is binomial, and j of them move the sum by at most j·C in whatever directions
(docs/theory/mixtures.md, section 8). The noise multiplier is over C, for ONE item. Nothing is assumed of
the loss: gradients are clipped. Nothing is proven here for a user who is replaced by another. Assumed: the
key and the samples stay secret; which of a user's items are kept, where there are more than k, was decided
by a rule that looks at that user alone (``tables.from_rows``).
Utility, for uniform averaging, no ridge, a
convex loss, clip_norm ≥ its Lipschitz constant and k items for every user: E F(average) - F* ≤ (1 +
1/(2T))·R·√(V/T), V = clip_norm²·(1 + (1 - q)/B) + dim·(σ·clip_norm/B)². Users with fewer items weigh less: F
is the sum over all items over N·k.

Cost: num_steps·batch_size item gradients, in expectation; memory of one chunk of item gradients. A
calibration by ``"pld"`` takes several seconds.

Example:
    >>> import jax
    >>> from dpsco_jax import Budget
    >>> from dpsco_jax.problems import synthetic
    >>> from dpsco_jax.solvers.user_level import item_sampled_sgd
    >>> made = synthetic.logistic_regression(jax.random.key(0), num_users=100, items_per_user=2, dim=3)
    >>> sizes = {"num_steps": 20, "batch_size": 20, "accountant": "rdp"}
    >>> plan = item_sampled_sgd.plan(made.problem(distance=5.0), Budget(1.0, 1e-5), **sizes)
    >>> start = jax.numpy.zeros(3)
    >>> run = jax.jit(lambda key: item_sampled_sgd.solve(key, plan, made.objective, made.data, start))
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
from dpsco_jax.privacy.releases import ACCOUNTANTS
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.problem import Problem
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers import _arguments, _averaged_steps, _plan_base, first_order, plans
from dpsco_jax.solvers._by_mean import ByMean
from dpsco_jax.solvers.solution import Solution
from dpsco_jax.solvers.user_level import _sampled_items
from dpsco_jax.solvers.user_level._sampled_items import ItemReleases, SampledItems

__all__ = ["Plan", "plan", "solve"]


@pytree
class Plan(ByMean):
    """What ``solve`` will do. Sizes are static, numbers are leaves of the pytree (may be batched).

    Attributes:
        num_users: N.
        items_per_user: k, item slots of a user in the data: the most items that a user has.
        dim: number of parameters.
        num_steps: T.
        batch_size: B, the expected number of items of a step, N·k times the rate.
        relation: ADD_OR_REMOVE_ONE or REPLACE_SPECIAL, of a user with all items.
        averaging: ``"uniform"``, ``"polynomial"`` (towards the last iterates) or ``"last"``.
        chunk_size: items whose gradients are held at once.
        noise_multiplier: σ over ``clip_norm``, which is how far ONE item moves the sum.
        clip_norm: bound on an item's gradient.
        step_size: η.
        epsilon: ε of the budget that the noise was calibrated for.
        delta: δ of that budget.
        excess_bound: proven bound on the expected excess risk, ``inf`` where none applies.
    """

    num_users: int = static()
    items_per_user: int = static()
    dim: int = static()
    num_steps: int = static()
    batch_size: int = static()
    relation: NeighboringRelation = static()
    averaging: str = static(choices=tuple(_averaged_steps.DECAY))
    chunk_size: int = static()
    noise_multiplier: Number
    clip_norm: Number
    step_size: Number
    epsilon: Number
    delta: Number
    excess_bound: Number

    @property
    def mean(self) -> SampledItems:
        """Of the gradients of the items of a step."""
        return SampledItems(self.chunk_size, self.releases, self.clip_norm)

    @property
    def releases(self) -> ItemReleases:
        """The private releases of the run."""
        return ItemReleases(
            num_users=self.num_users,
            items_per_user=self.items_per_user,
            batch_size=self.batch_size,
            num_steps=self.num_steps,
            relation=self.relation,
            noise_multiplier=self.noise_multiplier,
            delta=self.delta,
        )

    @property
    def item_gradients(self) -> int:
        """Item gradients of the whole run, empty slots included; their expected number."""
        return self.num_steps * self.batch_size

    def __str__(self) -> str:
        return plans.describe("item-sampled DP-SGD, for users", self)


@_plan_base.remembers
def plan(
    problem: Problem,
    budget: privacy.Budget,
    *,
    num_steps: int,
    batch_size: int,
    clip_norm: float | None = None,
    step_size: float | None = None,
    averaging: str = "uniform",
    accountant: str = "pld",
    chunk_size: int = 64,
    relation: NeighboringRelation = NeighboringRelation.ADD_OR_REMOVE_ONE,
) -> Plan:
    """Checks all arguments and calibrates the noise. All of them are public.

    Args:
        problem: for the Lipschitz constant, domain and ridge, N, the number of parameters, k = m, which must
            be the number of item slots of a user, and the distance R, needed for the step size only.
        budget: (ε, δ) of the run, δ > 0, for a user with all items.
        num_steps: T ≥ 1.
        batch_size: B, items of a step in expectation, in [1, N·k].
        clip_norm: of an item's gradient; the objective's Lipschitz constant if left out.
        step_size: R/√(T·V) if left out.
        averaging: ``"uniform"``, ``"polynomial"`` or ``"last"``.
        accountant: what is calibrated to ε: ``"pld"`` the certificate (least noise), ``"rdp"`` the ledger.
        chunk_size: items whose gradients are held at once.
        relation: ADD_OR_REMOVE_ONE or REPLACE_SPECIAL.

    Raises:
        ValueError: an argument is out of range, or the step size is left out and R is not finite.
    """
    problem, budget = _arguments.require_request(problem, budget, least_users=1)
    num_steps = _checks.require_count("num_steps", num_steps)
    chunk_size = _checks.require_count("chunk_size", chunk_size)
    _checks.require_choice("averaging", averaging, tuple(_averaged_steps.DECAY))
    _checks.require_choice("accountant", accountant, ACCOUNTANTS)
    _checks.require_relation("relation", relation, _sampled_items.RELATIONS)
    slots = problem.num_users * problem.items_per_user
    batch_size = _checks.require_integer("batch_size", batch_size, 1, slots)
    clip_norm = problem.lipschitz if clip_norm is None else clip_norm
    clip_norm = _checks.require_real("clip_norm", clip_norm, 0)
    sizes = (problem.num_users, problem.items_per_user, batch_size, num_steps, relation)
    steps = ItemReleases(*sizes, noise_multiplier=1.0, delta=budget.delta).steps
    multiplier = steps.noise_multiplier(budget.epsilon, budget.delta, accountant)
    step_size, excess_bound = _averaged_steps.step_and_bound(
        problem,
        num_steps=num_steps,
        batch_size=batch_size,
        rate=batch_size / slots,
        clip_norm=clip_norm,
        noise_stddev=multiplier * clip_norm / batch_size,
        step_size=step_size,
        averaging=averaging,
    )
    return Plan(
        num_users=problem.num_users,
        items_per_user=problem.items_per_user,
        dim=problem.dim,
        num_steps=num_steps,
        batch_size=batch_size,
        relation=relation,
        averaging=averaging,
        chunk_size=chunk_size,
        noise_multiplier=multiplier,
        clip_norm=clip_norm,
        step_size=step_size,
        epsilon=budget.epsilon,
        delta=budget.delta,
        excess_bound=excess_bound,
    )


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
        key: a typed key.
        plan: of ``plan``.
        objective: static; close over it when compiling. Its loss is that of an item.
        data: with ``plan.num_users`` users and ``plan.items_per_user`` item slots.
        params: the starting point; projected onto the domain.
        trace: see ``loop.run``; its output goes to ``unprivate["trace"]``.

    Raises:
        ValueError: if the number of users, of item slots or of parameters is not the planned one.
    """
    _arguments.require_run(Plan, key, plan, objective, data, params, trace)
    _sampled_items.require_slots(plan.items_per_user, data)
    method = first_order.projected_sgd(
        plan.step_size, objective.domain, _averaged_steps.DECAY[plan.averaging]
    )
    return first_order.run(
        key,
        plan.mean,
        method,
        objective,
        data,
        params,
        plan.num_steps,
        plan.item_gradients,
        trace=trace,
    )
