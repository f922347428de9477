"""Item-level DP-SGD whose guarantee is carried over to users: the baseline that ignores who owns an item.

What it computes: in each step the gradients of all items, or of a few items drawn with replacement, are
clipped one by one, summed, divided by a public number and covered with Gaussian noise; the parameters move
against the result, are projected onto the domain and averaged.

Source: the "trivial" algorithm of T section 10.1 (footnote 2), U section 1 and L section 1: item-level
privacy at (ε/m, δ₀) and group privacy of the m items of a user. Averaging and step size as in ``sgd``.

Formal guarantee: (ε, δ)-DP for a user's whole data under REPLACE_ONE, at every point of the run. A user has
at most m items, the public number of item slots; replacing a user replaces what is in those m slots.
- All items in every step: the sum moves by at most 2mC. A Gaussian for that sensitivity is accounted
  exactly; group privacy of Gaussians loses nothing.
- B draws from the N·m slots: a user's slots are drawn k ~ Bin(B, 1/N) times, which moves the sum by at
  most 2kC. This is sampling of users with replacement (docs/theory/subsampling.md, section 5).
That is ``constants="tight"``. ``"paper"`` takes the noise from the black box: an (ε₀, δ₀) guarantee for
one item is (m·ε₀, δ₀·(e^(mε₀) - 1)/(e^ε₀ - 1)) for m. Its certificate and ledger are still computed as
above, so they show how much the black box gives away. Assumed: the key and the draws stay secret.
Utility, for a convex loss, no ridge, clip_norm ≥ its Lipschitz constant and m items for every user:
E F(average) - F* ≤ (1 + 1/(2T))·R·√(V/T), V = clip_norm² + dim·σ². Users with fewer items weigh less.

Cost: T·N·m item gradients, or T·B; memory of one chunk, and for linear models of a second copy of the data,
prepared once.

Example:
    >>> import jax
    >>> from dpsco_jax import Budget
    >>> from dpsco_jax.problems import synthetic
    >>> from dpsco_jax.solvers.user_level import item_group_privacy
    >>> made = synthetic.logistic_regression(jax.random.key(0), num_users=100, items_per_user=2, dim=3)
    >>> plan = item_group_privacy.plan(made.problem(distance=5.0), Budget(1.0, 1e-5), num_steps=20)
    >>> start = jax.numpy.zeros(3)
    >>> run = jax.jit(lambda key: item_group_privacy.solve(key, plan, made.objective, made.data, start))
    >>> solution = run(jax.random.key(1))
    >>> solution.params.shape, int(solution.status), plan.certificate().epsilon <= 1.0
    ((3,), 0, True)
"""

import math
from collections.abc import Callable
from typing import Any

import jax
from dp_accounting import NeighboringRelation

from dpsco_jax import _checks, _sharding, privacy
from dpsco_jax._argument_kinds import Constants, Count, Positive
from dpsco_jax._conditions import positive_and_finite
from dpsco_jax._pytrees import Number, pytree, static
from dpsco_jax.privacy._renyi_noise import least_multiplier, rule_of_thumb
from dpsco_jax.privacy.certificates import accounted_by
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.problem import Problem
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers import (
    _arguments,
    _averaged_steps,
    _costs,
    _plan_base,
    _planning,
    first_order,
    means,
    methods,
    plans,
)
from dpsco_jax.solvers._plan_base import MadeFor
from dpsco_jax.solvers.solution import Solution
from dpsco_jax.solvers.work import Work

__all__ = ["Plan", "item_budget", "plan", "solve"]

_ASSUMES = ("the key and the items drawn in each step stay secret",)


@pytree
class Plan(MadeFor):
    """What ``solve`` will do. Sizes are static, numbers are leaves of the pytree (may be batched).

    Attributes:
        num_users: N.
        items_per_user: m, the number of item slots of a user.
        dim: number of parameters.
        num_steps: T.
        batch_size: B, items drawn in a step; ``None`` for all N·m slots.
        constants: ``"tight"`` or ``"paper"``: where the noise comes from.
        chunk_size: items whose gradients are held at once.
        noise_multiplier: σ over the ℓ2 sensitivity of the sum: 2·m·``clip_norm`` to a user if all items
            take part, 2·``clip_norm`` to one draw else.
        clip_norm: bound on an item's gradient.
        step_size: η.
        epsilon: the budget that was planned for; what is spent follows from the numbers that run.
        delta: δ of that budget; the certificate is for this δ.
        excess_bound: proven bound on the expected excess risk, ``inf`` where none applies.
    """

    num_users: int = static()
    items_per_user: int = static()
    dim: int = static()
    num_steps: int = static()
    batch_size: int | None = static()
    constants: str = static(choices=("tight", "paper"))
    chunk_size: int = static()
    noise_multiplier: Number
    clip_norm: Number
    step_size: Number
    epsilon: Number
    delta: Number
    excess_bound: Number

    @property
    def scheme(self) -> privacy.FullBatch | privacy.WithReplacement:
        """How users take part in a step."""
        return _scheme(self.num_users, self.batch_size)

    @property
    def mean(self) -> means.ClippedItems:
        """What a step releases."""
        return means.ClippedItems(
            self.chunk_size, self.scheme, self.clip_norm, self.noise_multiplier
        )

    @property
    def item_gradients(self) -> int:
        """Item gradients of the whole run, empty slots included."""
        return self.num_steps * (self.batch_size or self.num_users * self.items_per_user)

    @property
    def noise_stddev(self) -> float:
        """σ of the noise on the mean gradient of a step."""
        return _noise_stddev(self.noise_multiplier, self.clip_norm, self.num_users, self.batch_size)

    @property
    def assumes(self) -> tuple[str, ...]:
        """What the bound on the excess risk assumes; privacy assumes none of it."""
        return (
            f"losses are convex and {float(self.clip_norm):.4g}-Lipschitz",
            f"every user has {self.items_per_user} items",
        )

    @property
    def relation(self) -> NeighboringRelation:
        """Which data sets are neighbours: one user is replaced."""
        return _planning.REPLACE_ONE

    @property
    def accounted(self) -> Any:
        """Whether the guarantee covers a run with these numbers; a bool, may be traced."""
        return positive_and_finite(self.noise_multiplier, self.clip_norm)

    def work_for(self, item: _costs.Item) -> Work:
        """What the whole run costs."""
        step = self.mean.work_for(self.num_users, item) + _costs.method(item.dim)
        return step * self.num_steps + _costs.prepared(self.num_users, item)

    def loss(self) -> privacy.PrivacyLoss:
        """What a run of these numbers costs, infinite where one is out of its range; may be traced."""
        return privacy.unbounded_unless(self.accounted, self._steps(self.noise_multiplier))

    def certificate(self) -> privacy.Certificate:
        """The (ε, δ) of a run of these numbers, by the tightest accountant; infinite as ``loss`` is.

        Raises:
            ValueError: ``delta`` is not in (0, 1), or a number is none of its kind.
        """
        delta, multiplier = float(self.delta), float(self.noise_multiplier)
        if not bool(self.accounted):
            return privacy.Certificate(
                math.inf, delta, _planning.REPLACE_ONE, "definition", _ASSUMES
            )
        if self.batch_size is None:
            releases = _planning.fixed_size(self.num_users, self.num_users, self.num_steps)
            return releases.certificate(multiplier, delta)
        epsilon = float(privacy.epsilon(self._steps(multiplier), delta))
        accountant = accounted_by("Rényi curves")
        return privacy.Certificate(epsilon, delta, _planning.REPLACE_ONE, accountant, _ASSUMES)

    def _steps(self, multiplier: Any) -> privacy.PrivacyLoss:
        return _run_loss(self.num_users, self.batch_size, self.num_steps, multiplier)

    def __str__(self) -> str:
        tight = self.constants == "tight"
        group = "all items change at once" if tight else "black box"
        return plans.describe(
            "item-level DP-SGD, for users", self, [("from items to users", group)]
        )


@_plan_base.remembers(least_users=2)
def plan(
    problem: Problem,
    budget: privacy.Budget,
    *,
    num_steps: Count,
    batch_size: int | None = None,
    clip_norm: Positive | None = None,
    step_size: Positive | None = None,
    constants: Constants = "tight",
    chunk_size: Count = 64,
) -> Plan:
    """Checks all arguments and calibrates the noise. All of them are public.

    Args:
        problem: for the Lipschitz constant, domain and ridge of the objective, N ≥ 2, the number of
            parameters, m, which must be the number of item slots of a user, and R, the distance from the
            start to a minimizer, which is needed for the step size only.
        budget: (ε, δ) of the run, δ > 0.
        num_steps: T ≥ 1.
        batch_size: items drawn in a step, in [1, N]; all N·m slots if left out.
        clip_norm: the objective's Lipschitz constant if left out.
        step_size: R/√(T·V) if left out.
        constants: ``"tight"`` or ``"paper"``, see the file's docstring.
        chunk_size: items whose gradients are held at once.

    Raises:
        ValueError: an argument is out of range, or the step size is left out and R is not finite.
    """
    num_users, items_per_user = problem.num_users, problem.items_per_user
    if batch_size is not None:
        batch_size = _checks.require_integer("batch_size", batch_size, 1, num_users)
    clip_norm = problem.lipschitz if clip_norm is None else clip_norm
    clip_norm = _checks.require_real("clip_norm", clip_norm, 0)
    if constants == "tight":
        multiplier = _noise_multiplier(
            num_users, batch_size, num_steps, budget.epsilon, budget.delta
        )
    else:
        each = item_budget(budget.epsilon, budget.delta, items_per_user)
        multiplier = _noise_multiplier(num_users * items_per_user, batch_size, num_steps, *each)
        if batch_size is None:  # from the sensitivity to an item to that to a user
            multiplier = _planning.float32_above(multiplier / items_per_user)
    step_size, excess_bound = _averaged_steps.step_and_bound(
        problem,
        num_steps=num_steps,
        batch_size=num_users if batch_size is None else batch_size,
        rate=None,
        clip_norm=clip_norm,
        noise_stddev=_noise_stddev(multiplier, clip_norm, num_users, batch_size),
        step_size=step_size,
        averaging="uniform",
    )
    return Plan(
        num_users=num_users,
        items_per_user=items_per_user,
        dim=problem.dim,
        num_steps=num_steps,
        batch_size=batch_size,
        constants=constants,
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
        objective: static; close over it when compiling.
        data: with ``plan.num_users`` users and ``plan.items_per_user`` item slots.
        params: the starting point; projected onto the domain.
        trace: see ``loop.run``; its output goes to ``unprivate["trace"]``.

    Raises:
        ValueError: if the number of users, of item slots or of parameters is not the planned one.
    """
    _arguments.require_run(Plan, key, plan, objective, data, params, trace)
    slots = jax.tree.leaves(data.items)[0].shape[1]
    planned = f"of plan.items_per_user = {plan.items_per_user} slots"
    _checks.require(slots == plan.items_per_user, "data", slots, planned)
    method = methods.ProjectedSgd(plan.step_size)
    found = first_order.run(
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
    return found._replace(privacy=privacy.unbounded_unless(plan.accounted, found.privacy))


def item_budget(epsilon: float, delta: float, items_per_user: int) -> tuple[float, float]:
    """(ε₀, δ₀) for one item that group privacy makes (ε, δ) for all m items of a user.

    An (ε₀, δ₀) guarantee for one item is (m·ε₀, δ₀·(e^(mε₀) - 1)/(e^ε₀ - 1)) for m of them.

    Args:
        epsilon: for a user, positive.
        delta: for a user.
        items_per_user: m ≥ 1.

    Raises:
        ValueError: an argument is out of range.
    """
    _checks.require_positive("epsilon", epsilon)
    _checks.require_inside("delta", delta)
    items_per_user = _checks.require_count("items_per_user", items_per_user)
    each = epsilon / items_per_user
    return each, delta * math.expm1(each) / math.expm1(epsilon) if items_per_user > 1 else delta


def _scheme(population: int, batch_size: int | None) -> privacy.FullBatch | privacy.WithReplacement:
    """How the users of a step are drawn: everybody, or with replacement."""
    if batch_size is None:
        return privacy.FullBatch()
    return privacy.WithReplacement(population, batch_size)


def _run_loss(
    population: int, batch_size: int | None, num_steps: int, multiplier: Any
) -> privacy.PrivacyLoss:
    """What all steps cost: of plans, of their certificates, and what they are calibrated to."""
    step = _scheme(population, batch_size).gaussian_loss(multiplier, _planning.REPLACE_ONE)
    return privacy.scale(step, num_steps)


def _noise_multiplier(
    population: int, batch_size: int | None, num_steps: int, epsilon: float, delta: float
) -> float:
    """The smallest multiplier that meets (ε, δ) for one of a population of users, or of items."""
    if batch_size is None:
        releases = _planning.fixed_size(population, population, num_steps)
        return releases.noise_multiplier(epsilon, delta, "pld")
    most = 2 * math.sqrt(num_steps) / delta
    # The ledger adds in float32 and rounds up: leave it the room.
    room = epsilon * (1 - 2e-5)
    start = rule_of_thumb(room, delta, num_steps, batch_size / population)

    def spent(multiplier: float) -> float:
        return float(
            privacy.epsilon(_run_loss(population, batch_size, num_steps, multiplier), delta)
        )

    return _planning.float32_above(least_multiplier(spent, room, delta, start, most))


def _noise_stddev(multiplier: Any, clip_norm: Any, num_users: int, batch_size: int | None) -> float:
    """Standard deviation of the noise on the mean gradient of a step."""
    return 2 * float(multiplier) * float(clip_norm) / (batch_size or num_users)
