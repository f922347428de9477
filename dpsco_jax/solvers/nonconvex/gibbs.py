"""The Gibbs mechanism for losses that are not convex: one exact draw from exp(-k·F) on a ball, by rejection.

What it computes: a point of the law π ∝ exp(-k·(F(x) + (μ/2)‖x - c‖²)) on the ball with centre c and radius
R, F the mean of users' losses, each clipped to L·‖x - c‖ around its value at c. Two samplers:
- "rejection": proposals from a law that is bent towards the sphere, which count with probability exp(-k·(F(x)
  - F(c) + L·‖x - c‖)); the first that counts is released, and one more proposal if none of N does. Exact;
- "chain": the alternating sampler by ``rejection_oracle``, as long as the log-Sobolev constant of π asks for.
  It reads a few losses in each of many steps: a reference.

Source: T, Theorems 6.4.1, 6.4.6 and 6.4.7, Lemmas 6.4.2 to 6.4.5, Algorithm 19. The rejection sampler and the
proof by bounded range are this package's; with docs/corrections.md, X22 to X24, C6-11 and C6-15.

Formal guarantee: for a user's whole data under REPLACE_ONE. What replaces a user moves log-weights by a
function whose range is at most ε = 4kLR/n, whatever the losses: the exact law is pure ε-DP, of bounded range
even. The public regularizer cancels. A capped loop releases a density that is within a known factor of that
of π on every data set, so ε grows a little and no δ is spent. T proves less, by a log-Sobolev constant C:
ρ-zCDP, ρ = 2C(kL)²/n², for losses that are Lipschitz by construction. That is C/R² times what bounded range
says, so less only where C < R², and there no bound on the risk is better than that of a public point (C6-15).
Where it is proven the smaller of both is charged at every order. A chain is (ε, (1 + e^ε)·τ)-DP, τ its
distance from π in total variation on every data set; it runs on losses of ``problems.losses`` and
``problems.nonconvex_losses``. Only the point is released: how many proposals were made is in
``Solution.unprivate``, and in the time that a run takes, unless ``constant_time``.

Utility, L-Lipschitz losses: E F - min F ≤ (d/k)(1 + log((2v + 2w)/d)) + μR²/2, v = kLR, w = kμR²; and for n
independent users the least of 2LR·tanh(ε/4) and 2CkL²/n more for the population's risk. Better than a public
point for few parameters only: d·log(1 + 2v/d) < 2v. k is what the budget allows, up to where proposals are
too many: they are e^v or so, times n values each. For more parameters there is noisy gradient descent, as
``user_level.sgd`` with sampling="full": the same budget, no regard to the risk, and the first choice.

Cost: N/log(N) proposals or fewer on average, of n values of losses each.

Example:
    >>> import jax
    >>> from dpsco_jax import Budget, Problem, geometry
    >>> from dpsco_jax.problems import nonconvex_losses, synthetic
    >>> from dpsco_jax.solvers.nonconvex import gibbs
    >>> with jax.enable_x64(True):
    ...     made = synthetic.linear_regression(jax.random.key(0), num_users=500, items_per_user=1, dim=2)
    ...     objective = nonconvex_losses.welsch(1.0, domain=geometry.ball(1.0))
    ...     problem = Problem(objective, num_users=500, dim=2)
    ...     plan = gibbs.plan(problem, Budget(1.0), most_proposals=2000)
    ...     start = jax.numpy.zeros(2)
    ...     run = jax.jit(lambda key: gibbs.solve(key, plan, objective, made.data, start))
    ...     solution = run(jax.random.key(1))
    >>> solution.params.shape, plan.certificate().epsilon < 1.0, plan.certificate().delta
    ((2,), True, 0.0)
"""

import math
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy import optimize

from dpsco_jax import _checks, _counts, _keys, _sharding, privacy
from dpsco_jax._argument_kinds import Constants, Flag, integer, one_of
from dpsco_jax._infeasible import Infeasible
from dpsco_jax._numerics import as_floats
from dpsco_jax._pytrees import Number, pytree, static
from dpsco_jax.geometry.domains import ball, proven_maker
from dpsco_jax.problems import _proofs
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.problem import Problem
from dpsco_jax.problems.users import UserData, user_loss
from dpsco_jax.solvers import _costs, _plan_base, plans
from dpsco_jax.solvers.nonconvex import _gibbs_numbers as numbers
from dpsco_jax.solvers.sampling import (
    _cells,
    _draw,
    alternating_sampler,
    rejection_oracle,
    restricted_gaussian,
)
from dpsco_jax.solvers.sampling import _rejection_certificate as rejection
from dpsco_jax.solvers.sampling._precision import require_x64
from dpsco_jax.solvers.solution import Solution
from dpsco_jax.solvers.work import Work

__all__ = ["Plan", "plan", "solve"]

_SAMPLERS = ("rejection", "chain")
_BLOCK = 64  # proposals that are made at once
_MOST = 2.0**36  # proposals that are ever made
_UP = 1.0 + 2.0**-30
_FURTHEST = 700.0
_SHARE = 2.0**-24  # of ε: what the cap on proposals takes
_CHAIN = 0.8  # of δ: what a chain takes
_COMPUTED = 2.0**-40  # what values of losses are computed to, over L·R
_TOLERANCE = 2.0**-20


class Chain(NamedTuple):
    """What a chain runs with, and for which numbers it was certified."""

    step_size: float
    num_terms: int
    num_steps: int
    num_trials: int
    escape: float
    inverse_temperature: float
    regularization: float
    radius: float


@pytree
class Plan(_draw.Draw):
    """What ``solve`` will do. Sizes are static, numbers are leaves of the pytree (may be batched).

    Attributes:
        num_users: n.
        dim: d.
        lipschitz: L, to which losses are clipped.
        sampler: ``"rejection"`` or ``"chain"``.
        log_sobolev: what is proven of the law, for losses that are Lipschitz by construction; else ``None``.
        chain: of the chain; ``None`` for rejection.
        inverse_temperature: k.
        regularization: μ, centred at c.
        radius: R.
        center: c, ``[dim]``.
        num_proposals: N; 0 for a chain.
    """

    num_users: int = static()
    dim: int = static()
    lipschitz: float = static()
    sampler: str = static(choices=_SAMPLERS)
    log_sobolev: numbers.LogSobolev | None = static()
    chain: Chain | None = static()
    inverse_temperature: Number
    regularization: Number
    radius: Number
    center: Number
    num_proposals: Number

    @property
    def _sound(self) -> Any:
        given = self.inverse_temperature, self.regularization, self.radius
        _, (k, mu, radius) = as_floats(*given)
        good = (k > 0) & (k < math.inf) & (radius > 1e-150) & (radius < math.inf)
        return good & (mu >= 0) & (mu < math.inf) & (0.0 < self.lipschitz < math.inf)

    @property
    def steepness(self) -> Any:
        """The v = kLR: half of what log-weights range over; infinite for numbers that cannot be run."""
        xp, (k, radius) = as_floats(self.inverse_temperature, self.radius)
        good = self._sound
        return xp.where(
            good, xp.where(good, k, 1.0) * xp.where(good, radius, 1.0) * self.lipschitz, xp.inf
        )

    @property
    def bend(self) -> Any:
        """The w = kμR²; infinite as ``steepness`` is."""
        given = self.inverse_temperature, self.regularization, self.radius
        xp, numbers_given = as_floats(*given)
        good = self._sound
        k, mu, radius = (xp.where(good, x, 1.0) for x in numbers_given)
        return xp.where(good, k * mu * radius**2, xp.inf)

    @property
    def acceptance(self) -> Any:
        """How likely a proposal counts, at least."""
        return numbers.acceptance(self.steepness, self.bend, self.dim)

    @property
    def slack(self) -> numbers.Slack:
        """How far the density that runs is from that of the exact law."""
        xp, (most,) = as_floats(self.num_proposals)
        return numbers.slack(self.steepness, self.bend, self.dim, xp.minimum(most, _MOST))

    @property
    def range(self) -> Any:
        """ε by bounded range, with what the cap and roundings cost; infinite where nothing is proven."""
        xp, (k, radius) = as_floats(self.inverse_temperature, self.radius)
        good = self._sound
        k, radius = xp.where(good, k, 1.0), xp.where(good, radius, 1.0)
        spent = _cells.range_of(k, self.lipschitz, radius * (1.0 + 1e-8), self.num_users)
        if self.chain is None:
            _, (trials,) = as_floats(self.num_proposals)
            off = self.slack
            good = good & (trials >= 1)
            spent = spent + 2.0 * (off.below + off.above)
        return xp.where(good, spent, xp.inf)

    @property
    def concentration(self) -> Any:
        """ρ of the exact law by its log-Sobolev constant; infinite where that is not proven."""
        if self.log_sobolev is None:
            return 0.0 * self.acceptance + math.inf
        return numbers.concentrated(self.steepness, self.bend, self.num_users, self.log_sobolev)

    @property
    def variation(self) -> float:
        """τ: how far the law of a chain's last point is from its target; 0 for rejection."""
        if self.chain is None:
            return 0.0
        return float(_certified(self.chain, self.num_users, self.dim, self.lipschitz).variation)

    @property
    def failure(self) -> Any:
        """δ of a chain: (1 + e^ε)·τ."""
        xp, (spent,) = as_floats(self.range)
        return xp.minimum(1.0, _UP * self.variation * (1.0 + xp.exp(xp.minimum(spent, _FURTHEST))))

    @property
    def accounted(self) -> Any:
        """Whether the proof covers a run with these numbers; a bool, may be traced."""
        _, (spent,) = as_floats(self.range)
        good = (spent < _FURTHEST) & ((self.sampler == "chain") == (self.chain is not None))
        if self.chain is None:
            return good
        for number, certified in (
            (self.inverse_temperature, self.chain.inverse_temperature),
            (self.regularization, self.chain.regularization),
            (self.radius, self.chain.radius),
        ):
            good = good & (abs(number - certified) <= 0.25 * _TOLERANCE * certified)
        return good & (self.variation < 1.0)

    @property
    def user_gradients(self) -> Any:
        """Losses of single users that are evaluated, at most, or by a chain as a rule; no gradients."""
        if self.chain is not None:
            return math.ceil(2.0 * (math.e - 1.0) * self.chain.num_trials)
        xp, (most,) = as_floats(self.num_proposals)
        return self.num_users * (_BLOCK * xp.ceil(most / _BLOCK) + 1.0)

    @property
    def assumes(self) -> tuple[str, ...]:
        """What the guarantee assumes."""
        computed = (
            "losses are computed to within 2^-40 of the largest difference that they may have"
        )
        rests = self.chain is not None or self.log_sobolev is not None
        return (*super().assumes, computed) if rests else super().assumes

    def work_for(self, item: _costs.Item) -> Work:
        """What a run costs at most: values of losses."""
        return _costs.values(self.user_gradients, item)

    def loss(self) -> privacy.PrivacyLoss:
        """What a run of these numbers costs, infinite where the proof does not cover them; may be traced."""
        xp, (spent, good) = as_floats(self.range, self.accounted)
        good = (good > 0) & (spent < xp.inf)
        spent = xp.where(good, spent, 1.0)
        if self.chain is not None:
            return privacy.unbounded_unless(good, privacy.approximate_dp(spent, self.failure))
        found = privacy.bounded_range(spent)
        if self.log_sobolev is not None:
            other = numbers.concentrated_loss(self.concentration, self._computed_slack)
            found = found._replace(rdp=xp.minimum(found.rdp, other.rdp))
        return privacy.unbounded_unless(good, found)

    @property
    def _computed_slack(self) -> numbers.Slack:
        """The slack where privacy rests on the slope of the losses, which are computed and cut off."""
        cut = 2.0 ** ((self.num_users - 1).bit_length() - 51)
        wrong = 2.0 * self.steepness * (_COMPUTED + cut)
        return numbers.Slack(*(part + wrong for part in self.slack))

    def certificate(self) -> privacy.Certificate:
        """(ε, 0) by bounded range; (ε, δ) of a chain, or where a log-Sobolev constant says less at δ.

        Raises:
            ValueError: the plan is a batch of plans.
        """
        good = bool(np.asarray(self.accounted))
        spent, delta, by = float(self.range) if good else math.inf, 0.0, "bounded range"
        if self.chain is not None:
            delta, by = float(self.delta), "bounded range with total variation"
            spent = spent if float(self.failure) <= delta else math.inf
        elif self.log_sobolev is not None and good:
            other = numbers.concentrated_loss(self.concentration, self._computed_slack)
            epsilon = float(privacy.epsilon(other, self.delta)) if self.delta else math.inf
            if epsilon < spent:
                spent, delta, by = epsilon, float(self.delta), "log-Sobolev constant"
        return privacy.Certificate(spent, delta, self.relation, by, self.assumes)

    def __str__(self) -> str:
        remarks = [("range of log-weights", f"{2.0 * float(self.steepness):.4g}")]
        if self.chain is None:
            remarks.append(("acceptance, at least", f"{float(self.acceptance):.3g}"))
        else:
            remarks.append(("total variation", f"{self.variation:.3g}"))
        if self.log_sobolev is not None:
            remarks.append(("zCDP by a log-Sobolev constant", f"{float(self.concentration):.4g}"))
        return plans.describe("Gibbs mechanism", self, remarks)


@_plan_base.remembers(least_users=2, pure=True, convex=False)
def plan(
    problem: Problem,
    budget: privacy.Budget,
    *,
    sampler: Annotated[str, one_of(*_SAMPLERS)] = "rejection",
    risk: Annotated[str, one_of("empirical", "population")] = "empirical",
    most_proposals: Annotated[int, integer(2, 2**31 - 1)] = 100_000,
    constants: Constants = "tight",
    constant_time: Flag = False,
) -> Plan:
    """Checks all arguments and finds the temperature. All of them are public.

    Args:
        problem: for an objective without a ridge whose domain is a ball. Rejection clips any loss; a chain,
            and constants="paper", need one that ``problems`` proves to be Lipschitz.
        budget: ε, and δ for a chain and for constants="paper".
        sampler: how the draw is made.
        risk: whose excess is bounded and made small: that of the users who are there, or of the law that they
            were drawn from, independently.
        most_proposals: the most that are ever made, or trials of a chain. Where the budget allows a colder
            law than so many can draw from, as is usual for more than a few users, less of it is spent.
        constants: "tight" has no regularizer, which costs risk and no privacy, and the temperature of bounded
            range; "paper" has μ = d/(kD²) and the temperature at which the log-Sobolev constant gives (ε, δ),
            solved exactly by Lambert's W; what is charged is the smaller of both proofs.
        constant_time: whether all proposals, or trials, are made.

    Raises:
        ValueError: an argument is out of range, or ``jax_enable_x64`` is off.
        Infeasible: no chain is private enough, or has as few trials.
    """
    require_x64("gibbs")
    objective, dim, users = problem.objective, problem.dim, problem.num_users
    _checks.require(objective.ridge == 0.0, "problem.objective.ridge", objective.ridge, "0")
    slope = _checks.require_real("problem.objective.lipschitz", objective.lipschitz, 1e-100, 1e100)
    radius, center = _ball_of(problem)
    paper, chained = constants == "paper", sampler == "chain"
    _checks.require(
        not (paper and chained), "sampler", sampler, "'rejection' for constants='paper'"
    )
    if paper or chained:
        _proofs.require_lipschitz(objective)
        _checks.require(budget.delta > 0.0, "budget.delta", budget.delta, "positive here")
    bend = 2.0 * dim if chained else 0.25 * dim if paper else 0.0

    def made(v: float) -> Plan:
        k = v / (slope * radius)
        mu = bend / (k * radius**2)
        proven = numbers.log_sobolev_of(v, bend) if paper else None
        chain, count = None, 0
        if chained:
            chain = _chain(problem, budget, k, mu, radius)
        else:
            count = numbers.proposals_for(v, bend, dim, _SHARE * min(budget.epsilon, 1.0))
        found = Plan(
            num_users=users,
            dim=dim,
            lipschitz=slope,
            sampler=sampler,
            log_sobolev=proven,
            chain=chain,
            constant_time=constant_time,
            inverse_temperature=k,
            regularization=mu,
            radius=radius,
            center=center,
            num_proposals=float(count),
            epsilon=budget.epsilon,
            delta=budget.delta,
            excess_bound=0.0,
        )
        return found.replace(excess_bound=_excess(found, risk == "population"))

    def fits(log_v: float) -> bool:
        v = math.exp(log_v)
        count = numbers.proposals_for(v, bend, dim, _SHARE * min(budget.epsilon, 1.0))
        return count <= most_proposals and float(made(v).range) <= budget.epsilon

    most = 0.25 * budget.epsilon * users * (1.0 - _TOLERANCE) / (1.0 + users * 2.0**-46)
    if paper:
        rho = numbers.zcdp_within(budget.epsilon, budget.delta)
        most = min(most, 0.5 * numbers.concentrated_exponent(users, dim, rho) * (1.0 - 2.0**-18))
    top = math.log(most)
    if chained:
        top = _longest_chain(lambda log_v: made(math.exp(log_v)), top, most_proposals)
    elif not fits(top):
        low = min(top, 0.0)
        while not fits(low):
            low -= 1.0
            if low < -60.0:
                raise Infeasible(
                    f"most_proposals must be larger for any draw, got {most_proposals}"
                )
        top = rejection.bisected(fits, low, top, 20)
    if risk == "population" and not chained:
        # Colder than this the law overfits.
        best = optimize.minimize_scalar(
            lambda log_v: made(math.exp(log_v)).excess_bound,
            bounds=(top - 12.0, top),
            method="bounded",
            options={"xatol": 1e-4},
        )
        top = min(top, float(best.x)) if made(math.exp(top)).excess_bound > best.fun else top
    return made(math.exp(top))


@_sharding.solver
def solve(
    key: jax.Array, plan: Plan, objective: Objective, data: UserData, params: jax.Array
) -> Solution:
    """Makes the draw. Pure JAX: jit and map over key, the plan's numbers and data.

    Args:
        key: a typed key.
        plan: of ``plan``, for this very objective.
        objective: static; close over it when compiling.
        data: with ``plan.num_users`` users.
        params: ``[dim]``, for its shape and dtype. No sampler starts there.

    Raises:
        ValueError: the sizes are not the planned ones, ``jax_enable_x64`` is off, or privacy rests on a
            Lipschitz constant that is not proven.
    """
    plan = _draw.begun("gibbs", Plan, key, plan, objective, data, params)
    shape = plan.center.shape
    _checks.require(shape == (plan.dim,), "plan.center", shape, "of shape (plan.dim,)")
    _checks.require_real("plan.lipschitz", plan.lipschitz, 0.0)
    if plan.chain is not None or plan.log_sobolev is not None:
        proven = _proofs.require_lipschitz(objective)
        known = plan.lipschitz >= proven
        _checks.require(
            known, "plan.lipschitz", plan.lipschitz, f"at least the objective's {proven}"
        )
    domain = ball(plan.radius, plan.center)
    if plan.chain is not None:
        end = _last_point(key, plan, objective, data, domain)
        point, trials = end.params, end.num_trials
        read = 2.0 * plan.chain.num_terms * trials
    else:
        point, blocks = _first_accepted(key, plan, objective, data)
        trials = _BLOCK * blocks
        read = (trials + 1.0) * plan.num_users
    point = domain.project(point).reshape(params.shape).astype(params.dtype)
    most = _counts.count(jnp.asarray(plan.user_gradients, jnp.int64))
    made = _counts.count(jnp.minimum(read, plan.user_gradients).astype(jnp.int64))
    return _draw.solution(point, plan.loss(), most, gradients=made, trials=trials)


def _first_accepted(
    key: jax.Array, plan: Plan, objective: Objective, data: UserData
) -> tuple[jax.Array, jax.Array]:
    """The first proposal that counts, and how many blocks of them were made."""
    sums = _cells.clipped_sums(objective, data, plan.center, plan.lipschitz, plan.radius)
    last_key, blocks_key = jax.random.split(_keys.alone(key))

    def attempt(index: jax.Array) -> tuple[jax.Array, jax.Array]:
        made, coins = jax.random.split(jax.random.fold_in(blocks_key, index))
        offsets = _proposals(made, plan, _BLOCK)
        counts = _count(coins, sums(offsets), offsets, plan)
        return offsets[jnp.argmax(counts)], jnp.any(counts)

    instead = _proposals(last_key, plan, 1)[0]
    most = jnp.ceil(jnp.minimum(plan.num_proposals, _MOST) / _BLOCK)
    found, counted, made = restricted_gaussian.until_one_counts(
        attempt, instead, most.astype(jnp.int64), plan.constant_time
    )
    return plan.center + jnp.where(counted, found, instead), made


def _count(key: jax.Array, sums: jax.Array, offsets: jax.Array, plan: Plan) -> jax.Array:
    """Which proposals count: each with probability exp(-k·(sum/n + L·‖offset‖)), at most 1."""
    lengths = jnp.sqrt(jnp.sum(offsets * offsets, axis=1))
    lost = plan.inverse_temperature * (sums / plan.num_users + plan.lipschitz * lengths)
    coins = rejection_oracle.unit_interval(jax.random.bits(key, sums.shape, jnp.uint64))
    return coins < jnp.exp(-jnp.maximum(lost, 0.0))


def _proposals(key: jax.Array, plan: Plan, count: int) -> jax.Array:
    """Offsets from c of the density ∝ exp(kL‖x‖ - kμ‖x‖²/2) on the ball: public coins, without the data."""
    k, radius = plan.inverse_temperature, plan.radius

    def again(carry: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
        held, done, trip = carry
        way, far, coin = jax.random.split(jax.random.fold_in(key, trip), 3)
        arrow = jax.random.normal(way, (count, plan.dim), jnp.float64)
        arrow = arrow / jnp.sqrt(jnp.sum(arrow * arrow, axis=1, keepdims=True))
        share = jax.random.uniform(far, (count,), jnp.float64) ** (1.0 / plan.dim)
        logs = k * (
            plan.lipschitz * radius * (share - 1.0)
            - 0.5 * plan.regularization * (radius * share) ** 2
        )
        counts = jax.random.uniform(coin, (count,), jnp.float64) < jnp.exp(logs)
        new = radius * share[:, None] * arrow
        return jnp.where(done[:, None], held, new), done | counts, trip + 1

    none = (jnp.zeros((count, plan.dim)), jnp.zeros(count, bool), jnp.zeros((), jnp.int32))
    offsets, _, _ = jax.lax.while_loop(
        lambda carry: ~jnp.all(carry[1]) & (carry[2] < numbers.MOST_TRIPS), again, none
    )
    return offsets


def _last_point(
    key: jax.Array, plan: Plan, objective: Objective, data: UserData, domain: Any
) -> Any:
    """The end of a chain from c."""
    chain, loss = plan.chain, user_loss(objective)
    assert chain is not None
    bend = plan.inverse_temperature * plan.regularization
    law = restricted_gaussian.convex_set(chain.step_size, bend, plan.center, domain)

    def of_record(point: jax.Array, record: Any) -> jax.Array:
        items, mask = record
        found = jnp.asarray(loss(point, items, mask), jnp.float64)
        return jnp.where(jnp.isfinite(found), found, 0.0)

    oracle = rejection_oracle.oracle(
        of_record,
        (data.items, data.mask),
        law,
        num_records=plan.num_users,
        scale=plan.inverse_temperature,
        num_terms=chain.num_terms,
        constant_time=plan.constant_time,
    )
    return alternating_sampler.run(
        *(key, oracle, plan.center, chain.num_steps, chain.num_trials),
        constant_time=plan.constant_time,
    )


def _ball_of(problem: Problem) -> tuple[float, np.ndarray]:
    name, given = proven_maker(problem.objective.domain)
    where = "problem.objective.domain"
    _checks.require(name == "ball", where, name, "a ball, whose centre and radius are known")
    radius = _checks.require_real(
        f"{where}.radius", float(np.asarray(given["radius"])), 1e-100, 1e100
    )
    center = given.get("center")
    center = np.zeros(problem.dim) if center is None else np.asarray(center, np.float64)
    fits = center.shape == (problem.dim,)
    _checks.require(fits, where, center.shape, f"of centre ({problem.dim},) of problem.dim")
    return radius, center


def _excess(plan: Plan, population: bool) -> float:
    """docs/theory/gibbs.md: of a draw from the law that runs."""
    v, w, dim = float(plan.steepness), float(plan.bend), plan.dim
    widest = plan.lipschitz * plan.radius  # half of what a loss ranges over
    steep = 2.0 * (v + w) / dim
    spread = dim * (1.0 + math.log(steep)) if steep >= 1.0 else dim * steep
    bound = widest * (spread + 0.5 * w) / v
    if population:
        overfit = 2.0 * widest * math.tanh(min(float(plan.range), 100.0) / 4.0)
        if plan.log_sobolev is not None:
            overfit = min(overfit, widest * 2.0 * v / (plan.log_sobolev.rate * plan.num_users))
        bound += overfit
    lost = float(plan.failure) if plan.chain is not None else float(np.expm1(plan.slack.below))
    return min(bound + 2.0 * widest * lost, 2.0 * widest)


def _longest_chain(
    made: Callable[[float], Plan], top: float, most_trials: int, tries: int = 6
) -> float:
    """Where trials are hardly fewer than the most, from below: they are as v²e^{2v} and logarithms."""
    log_v = min(top, 0.0)
    for _ in range(tries):
        found = made(log_v).chain
        assert found is not None
        left = math.log(most_trials / found.num_trials)
        if left >= 0.0 and (log_v >= top or left < 0.2):
            return log_v
        # The derivative of 2·log(v) + 2v in log(v), at the colder end of the step.
        steep = 2.0 + 2.0 * math.exp(log_v + max(left, 0.0) / 2.0)
        log_v = min(log_v + (left - 0.05) / steep, top)
    raise Infeasible(f"most_proposals must be larger for any chain, got {most_trials}")


def _chain(problem: Problem, budget: privacy.Budget, k: float, mu: float, radius: float) -> Chain:
    """The chain for a temperature whose distance from its law costs a share of δ; ``Infeasible`` if none."""
    sizes = _sizes(k, mu, radius, problem.num_users, problem.dim, problem.lipschitz)
    found = rejection.planned(_draw.share(_CHAIN, budget), sizes)
    return Chain(
        step_size=float(found.step_size),
        num_terms=found.num_terms,
        num_steps=int(found.num_steps),
        num_trials=int(found.num_trials),
        escape=float(found.escape),
        inverse_temperature=k,
        regularization=mu,
        radius=radius,
    )


def _certified(chain: Chain, users: int, dim: int, slope: float) -> rejection.Chain:
    sizes = _sizes(*chain[5:], users, dim, slope)
    return rejection.certified(
        sizes, chain.step_size, chain.num_terms, chain.num_steps, chain.num_trials, chain.escape
    )


def _sizes(
    k: float, mu: float, radius: float, users: int, dim: int, slope: float
) -> rejection.Sizes:
    """What the certificate of a chain has to know; numbers may be off by what float32 rounds them."""
    above, below = 1.0 + _TOLERANCE, 1.0 - _TOLERANCE
    v, w = k * slope * radius, k * mu * radius**2
    return rejection.Sizes(
        num_records=users,
        dim=dim,
        lipschitz=k * slope * above,
        convexity=k * mu * below**2,
        start_distance=radius * above,
        rounding=rejection.Rounding(2.0 * v * _COMPUTED, 0.0),
        reach=radius * above,
        ball_radius=radius * below,
        log_sobolev=numbers.log_sobolev_of(v * above, w * below**2).rate / (radius * above) ** 2,
    )
