"""Learning from finitely many candidates under pure user-level differential privacy.

What it computes: the candidate with the smallest noisy mean loss over users, among N draws of a candidate
with fresh noise, N geometric. The noisy mean of a candidate is winsorized (the losses of users with many
items lie close together), or plain where that has less noise.

Source: L Algorithm 5, Lemma 1, Theorem 7, Corollary 3. With these corrections: γ = α/(5K), since the printed
1/K misses the best candidate every second time; candidates get ε/3, with which noise and numbers of users are
three times the printed ones; the radius of the losses is range·√(log(2Kn/α)/(2m)).

Formal guarantee: pure ε-DP for a user's whole data under REPLACE_ONE, for any losses: the mean of a user's
losses is clamped into ``loss_range``, a loss that is not finite counts as its middle. Each draw is ε/3-DP,
and the choice among draws ε-DP (``mechanisms.private_selection``). This covers the candidate and its value,
but not the number of draws, which has to stay secret like the key. Loss and certificate are
3·``candidate_epsilon``, of the number that runs, and infinite where a number of the plan is out of its range.
Utility: ``excess_bound``, from five events of probability α/5 each: losses within the radius, the best
candidate drawn, N <= L = log(5/α)·5K/α, all noise within s·log(5L/α) for noise of scale s, population risks
near the users' means; and the intervals of all draws (``failure_probability`` has them all).

Cost: 5K/α draws on average, each with a sort of n numbers; K·n·m loss evaluations if the matrix of user
losses fits in memory (64 MiB), else n·m evaluations a draw.

Example:
    >>> import jax
    >>> from dpsco_jax import Budget
    >>> from dpsco_jax.problems import synthetic
    >>> from dpsco_jax.solvers.user_level import finite_class
    >>> made = synthetic.mean_estimation(jax.random.key(0), num_users=100, items_per_user=2, dim=3)
    >>> candidates = jax.numpy.eye(4, 3)
    >>> plan = finite_class.plan(made.problem(), Budget(1.0), num_candidates=4, loss_range=(0.0, 2.0))
    >>> run = jax.jit(lambda key: finite_class.solve(key, plan, made.objective, made.data, candidates))
    >>> solution = run(jax.random.key(1))
    >>> solution.params.shape, plan.certificate().epsilon <= 1.0, plan.certificate().delta
    ((3,), True, 0.0)
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from dp_accounting import NeighboringRelation

from dpsco_jax import _checks, _counts, _record_keys, _sharding, privacy
from dpsco_jax._argument_kinds import Count, Inside
from dpsco_jax._conditions import drawable, positive_and_finite
from dpsco_jax._numerics import array_namespace, as_floats
from dpsco_jax._pytrees import Number, pytree, static
from dpsco_jax.mechanisms import additive, private_selection
from dpsco_jax.mechanisms.winsorized import private_range, winsorized_mean
from dpsco_jax.oracles import _convolutions
from dpsco_jax.problems import concentration
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.problem import Problem
from dpsco_jax.problems.users import UserData, user_loss
from dpsco_jax.solvers import _arguments, _costs, _plan_base, plans
from dpsco_jax.solvers._plan_base import MadeFor
from dpsco_jax.solvers.solution import Solution, Status
from dpsco_jax.solvers.work import Work

_MATRIX_ENTRIES = 2**24


@pytree
class Plan(MadeFor):
    """What ``solve`` will do. Sizes are static, numbers are leaves of the pytree (may be batched).

    Attributes:
        num_users: n.
        items_per_user: m.
        num_candidates: K.
        winsorized: whether candidates release winsorized means, or plain ones.
        middle: of the range of losses.
        bound: half of its length, to which values are clipped.
        radius: τ of the user losses.
        candidate_epsilon: ε₁ = ε/3, what a draw costs.
        stopping_probability: γ.
        epsilon: the budget that was planned for; what is spent follows from ``candidate_epsilon``.
        failure_probability: bound on the probability that the excess is larger than the first part of:
        excess_bound: proven bound on the expected excess risk.
    """

    num_users: int = static()
    items_per_user: int = static()
    num_candidates: int = static()
    winsorized: bool = static()
    middle: Number
    bound: Number
    radius: Number
    candidate_epsilon: Number
    stopping_probability: Number
    epsilon: Number
    failure_probability: Number
    excess_bound: Number

    @property
    def noise_scale(self) -> Any:
        """Scale of the Laplace noise of a candidate."""
        return _noise_scale(
            self.winsorized, self.radius, self.bound, self.num_users, self.candidate_epsilon
        )

    @property
    def expected_draws(self) -> float:
        """E N."""
        return 1 / float(self.stopping_probability)

    @property
    def user_gradients(self) -> int:
        """None: losses are evaluated, not gradients."""
        return 0

    @property
    def assumes(self) -> tuple[str, ...]:
        """What the bound assumes; privacy assumes none of it."""
        return (
            "losses lie in the range",
            "users are independent, with i.i.d. items of the same law",
        )

    @property
    def relation(self) -> NeighboringRelation:
        """Which data sets are neighbours: one user is replaced."""
        return NeighboringRelation.REPLACE_ONE

    @property
    def accounted(self) -> Any:
        """Whether the guarantee covers a run with these numbers; a bool, may be traced."""
        xp, (radius, bound) = as_floats(self.radius, self.bound)
        good = positive_and_finite(self.candidate_epsilon, radius, bound)
        # No more than the scale of the noise, which has to be one in float32.
        good = good & drawable(xp.minimum(radius, bound) / self.num_users / self.candidate_epsilon)
        gamma = self.stopping_probability
        return good & (gamma >= private_selection.LEAST_STOPPING_PROBABILITY) & (gamma <= 1)

    def work_for(self, item: _costs.Item) -> Work:
        """What the whole run costs, with as many draws as are expected."""
        # Losses are kept while they fit, and computed for every draw else.
        kept = self.num_candidates * self.num_users <= _MATRIX_ENTRIES
        times = self.num_candidates if kept else self.expected_draws
        draw = _costs.released_value(self.num_users, self.winsorized)
        return _costs.values(times * self.num_users, item) + draw * self.expected_draws

    def loss(self) -> privacy.PrivacyLoss:
        """What a run of these numbers costs, infinite where one is out of its range; may be traced."""
        proven = private_selection.geometric_selection_loss(self.candidate_epsilon)
        return privacy.unbounded_unless(self.accounted, proven)

    def certificate(self) -> privacy.Certificate:
        """(3ε₁, 0), pure differential privacy of candidate and value; infinite as ``loss`` is."""
        epsilon = 3 * float(self.candidate_epsilon) if bool(self.accounted) else math.inf
        return privacy.Certificate(
            epsilon,
            0.0,
            self.relation,
            "geometric selection",
            ("the key and the draws stay secret",),
        )

    def __str__(self) -> str:
        return plans.describe("private choice from a finite class", self)


@_plan_base.remembers(least_users=1, pure=True, convex=False)
def plan(
    problem: Problem,
    budget: privacy.Budget,
    *,
    num_candidates: Count,
    loss_range: tuple[float, float],
    failure: Inside = 0.05,
    stopping_probability: float | None = None,
) -> Plan:
    """Checks all arguments and sets the noise. All of them are public.

    Args:
        problem: for the loss, which is evaluated and must come without a ridge, n and m. Its number of
            parameters and its distance are not used.
        budget: ε of the run; δ may be zero, and nothing is spent of it: the privacy is pure.
        num_candidates: K ≥ 1.
        loss_range: the least and the largest value that a loss may have.
        failure: α in (0, 1).
        stopping_probability: γ; α/(5K) if left out.

    Raises:
        ValueError: an argument is out of range, or γ is so small that the draws could not be counted.
    """
    if problem.objective.ridge:
        raise ValueError(f"ridge must be 0: put it into the loss, got {problem.objective.ridge!r}")
    num_users, items_per_user = problem.num_users, problem.items_per_user
    _checks.require_instance("loss_range", loss_range, tuple | list)
    _checks.require(len(loss_range) == 2, "loss_range", loss_range, "two numbers")
    low, high = (_checks.require_real("loss_range", value, -math.inf) for value in loss_range)
    length = _checks.require_real("length of loss_range", high - low, 0)
    each = failure / 5
    stop = each / num_candidates if stopping_probability is None else stopping_probability
    stop = _checks.require_real(
        "stopping_probability",
        stop,
        private_selection.LEAST_STOPPING_PROBABILITY,
        1 + 1e-12,
        closed=True,
    )
    radius = concentration.loss_radius(length, num_candidates, items_per_user, num_users, each)

    bound, first = length / 2, budget.epsilon / 3
    draws = max(1.0, math.log(1 / each) / stop)
    missed = (1 - 1 / num_candidates) * stop / (stop + (1 - stop) / num_candidates)
    sampling = length * math.sqrt(
        math.log(2 * num_candidates / each) / (2 * items_per_user * num_users)
    )

    def outcome(winsorized: bool) -> tuple[float, float]:
        """Failure probability and excess risk."""
        scale = _noise_scale(winsorized, radius, bound, num_users, first)
        chance = 3 * each + missed
        if winsorized:
            width = private_range.default_bin_width(radius)
            intervals = private_range.miss_probability(num_users, first / 2, bound, width)
            chance += each + draws * intervals
        chance = min(1.0, chance)
        likely = 2 * scale * math.log(draws / each) + 2 * sampling
        return chance, min(length, likely + chance * length)

    best = min((True, False), key=lambda winsorized: outcome(winsorized)[1])
    chance, excess = outcome(best)
    return Plan(
        num_users=num_users,
        items_per_user=items_per_user,
        num_candidates=num_candidates,
        winsorized=best,
        middle=(low + high) / 2,
        bound=bound,
        radius=radius,
        candidate_epsilon=first,
        stopping_probability=stop,
        epsilon=budget.epsilon,
        failure_probability=chance,
        excess_bound=excess,
    )


@_sharding.solver
def solve(
    key: jax.Array, plan: Plan, objective: Objective, data: UserData, params: Any
) -> Solution:
    """Runs the plan. Pure JAX: jit and map over key, the plan's numbers and data.

    Args:
        key: a typed key.
        plan: of ``plan``.
        objective: static; close over it when compiling.
        data: with ``plan.num_users`` users.
        params: the candidates, with a leading axis ``[num_candidates, ...]`` on every leaf.

    Returns:
        The candidate selected. ``unprivate`` holds its index ``choice`` and the ``value`` released with it,
        which the guarantee covers, and the number of ``draws``, which it does not cover.

    Raises:
        ValueError: if the number of users or of candidates is not the planned one, or a number of the plan
            that is not traced is out of its range.
    """
    _arguments.require_run(Plan, key, plan, objective, data, params)
    found = {np.shape(leaf)[:1] for leaf in jax.tree.leaves(params)}
    planned = f"plan.num_candidates = {plan.num_candidates} points, an axis of every leaf"
    _checks.require(found == {(plan.num_candidates,)}, "params", found, planned)
    points = jax.tree.map(jnp.asarray, params)
    return select(key, plan, objective, data, lambda i: jax.tree.map(lambda leaf: leaf[i], points))


def select(
    key: jax.Array, plan: Plan, objective: Objective, data: UserData, point: Any
) -> Solution:
    """``solve`` for candidates that are computed when needed: ``point(index) -> params``."""
    # The points are the caller's, made by index: there is no start.
    _arguments.require_run(Plan, key, plan, objective, data, params=())
    _checks.require_callable("point", point)
    one_user = _convolutions.kept_apart(user_loss(objective), user_loss(objective))
    axes = (None, 0, None if data.mask is None else 0)

    def losses(index: jax.Array) -> jax.Array:
        per_user = _record_keys.over_users(one_user, axes)
        return per_user(point(index), data.items, data.mask)

    if plan.num_candidates * plan.num_users <= _MATRIX_ENTRIES:
        matrix = jax.lax.map(losses, jnp.arange(plan.num_candidates))
        column = matrix.__getitem__
    else:
        column = losses

    def candidate(value_key: jax.Array, index: jax.Array) -> jax.Array:
        values = column(index) - plan.middle
        if plan.winsorized:
            mean = winsorized_mean.winsorized_mean_1d(
                value_key, values, plan.candidate_epsilon, plan.radius, plan.bound
            )
        else:
            values = jnp.where(jnp.isfinite(values), values, 0.0)
            mean = jnp.mean(jnp.clip(values, -plan.bound, plan.bound))
            mean = additive.laplace(value_key, mean, plan.noise_scale)
        return plan.middle + mean

    chosen = private_selection.geometric_selection(
        key, candidate, plan.num_candidates, plan.stopping_probability
    )
    return Solution(
        params=point(chosen.choice),
        # In the precision in which the noise was drawn.
        privacy=jax.tree.map(lambda leaf: jnp.asarray(leaf, float), plan).loss(),
        status=jnp.asarray(int(Status.OK), jnp.int32),
        gradients=_counts.count(0),
        unprivate={"gradients": _counts.count(0), "trace": None, **chosen._asdict()},
    )


def _noise_scale(winsorized: bool, radius: Any, bound: Any, num_users: int, epsilon: Any) -> Any:
    """Of ``winsorized_mean_1d`` at ε₁, or of the plain mean of values in [-bound, bound]."""
    if not winsorized:
        return 2 * bound / (num_users * epsilon)
    half = private_range.half_width(radius, private_range.default_bin_width(radius))
    half = array_namespace(half, bound).minimum(half, bound)
    return 4 * half / (num_users * epsilon)
