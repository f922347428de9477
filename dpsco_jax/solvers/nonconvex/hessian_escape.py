"""Descent that leaves saddles by its Hessian: a second-order stationary point, provably found.

What it computes: x_{t+1} = x_t - v_t/M, v_t the private estimate of ∇F(x_t) of ``drift_spider``, while v_t is
longer than s. Where it is not, the Hessian is released: the mean of users' Hessians, clipped in Frobenius
norm, with noise on every entry. If its least eigenvalue is at least -τ the point is reported; else x_t jumps
along its eigenvector u, to the side on which v_t says that F falls, by

    r = (c + √(c² - 2ρe))/ρ,   c = -λ_min - h,

e and h what estimates and Hessians may be off by. Everybody takes part in every step (``sampling="full"``),
for the risk on the data, or in one step at most (``"one_pass"``), for that on the population.

Source: thesis, sections 6.3 and 7.3, whose escape by random pushes is false (C6-5 in
docs/corrections/nonconvex.md: an error oracle within its assumptions never lets a saddle go); this one is
proven in docs/theory/nonconvex.md, section 5. A random sign, which takes the slope at the saddle away in
expectation, would bound jumps in expectation only; that of v_t does it in every run.

Formal guarantee: (ε, δ)-DP for a user's whole data, at every point of the run, under REPLACE_ONE, or
REPLACE_SPECIAL: Gaussian releases of clipped sums, at most N of gradients, T - 1 of differences and K of
Hessians, of sensitivities 2G/n, 2M·‖x_t - x_{t-1}‖/n and 2C/n, all paid for whatever is released. Nothing is
assumed of the loss. Utility, for losses that are G-Lipschitz, M-smooth and have a ρ-Lipschitz Hessian of
Frobenius norm at most C on the whole space, with F(x_0) - inf F ≤ B: with probability 1 - ω a point is found,
in T steps with K looks at most, and it has

    ‖∇F(x)‖ ≤ α = s + e   and   λ_min(∇²F(x)) ≥ -√(ρα) = -(τ + h).

``released`` says whether a point was found, which is public; if none was, the last one is reported, with the
status HALTED.

Cost: 2·T·n user gradients at most, or 2·n in one pass; K·n Hessians, or one of a user; memory of a chunk of
either. It ends with the point that is found; under ``jax.vmap`` all lanes look at Hessians in every step.

Example:
    >>> import jax
    >>> from dpsco_jax import Budget
    >>> from dpsco_jax.problems import fixtures
    >>> from dpsco_jax.solvers.nonconvex import hessian_escape
    >>> made = fixtures.two_wells(jax.random.key(0), num_users=1000, items_per_user=1, dim=2)
    >>> plan = hessian_escape.plan(made.problem(), Budget(100.0, 1e-5))
    >>> saddle = jax.numpy.zeros(2)
    >>> run = jax.jit(lambda key: hessian_escape.solve(key, plan, made.objective, made.data, saddle))
    >>> solution = run(jax.random.key(1))
    >>> bool(solution.released["found"]), abs(float(solution.params[0])) > 1.0
    (True, True)
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from dp_accounting import NeighboringRelation
from jax.flatten_util import ravel_pytree

from dpsco_jax import _checks, _counts, _sharding, privacy, transforms
from dpsco_jax._argument_kinds import Count, Inside, Positive
from dpsco_jax._numerics import as_floats, float32_above
from dpsco_jax._pytrees import Number, pytree, static
from dpsco_jax.geometry.norms import all_finite, global_norm
from dpsco_jax.oracles import ByState, hessians, sampling
from dpsco_jax.oracles.second_order import LARGEST_DIM
from dpsco_jax.privacy.releases import fixed_size
from dpsco_jax.privacy.sampling import FullBatch
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.problem import Problem
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers import (
    _arguments,
    _costs,
    _plan_base,
    _planning,
    _sequence,
    plans,
)
from dpsco_jax.solvers.nonconvex import _escape_schedule, _stationary
from dpsco_jax.solvers.nonconvex._drift_schedule import Goal
from dpsco_jax.solvers.nonconvex._spider_mean import Spider, SpiderReleases
from dpsco_jax.solvers.nonconvex.drift_spider import Sampling
from dpsco_jax.solvers.solution import Solution, Status
from dpsco_jax.solvers.work import Work

__all__ = ["Plan", "plan", "solve"]


@pytree
class Plan(_plan_base.MadeFor):
    """What ``solve`` will do. Sizes are static, numbers are leaves of the pytree (may be batched).

    Attributes:
        dim: d.
        most_looks: K, how many Hessians may be released.
        hessian_batch: users of a Hessian.
        mean: of gradients, with their releases.
        hessian_multiplier: standard deviation of the noise on a Hessian over its sensitivity.
        hessian_clip: C, of the Frobenius norm of a user's Hessian.
        step_size: 1/M.
        threshold: s, of the estimate's norm: at a shorter one the Hessian is looked at.
        floor: τ: of a saddle the least eigenvalue that is released is below -τ.
        gradient_error: e.
        hessian_error: h.
        hessian_lipschitz: ρ.
        failure: ω.
        epsilon: ε of the budget that the noise was calibrated for.
        delta: δ of that budget, for which the certificate is.
    """

    dim: int = static()
    most_looks: int = static()
    hessian_batch: int = static()
    mean: Spider
    hessian_multiplier: Number
    hessian_clip: Number
    step_size: Number
    threshold: Number
    floor: Number
    gradient_error: Number
    hessian_error: Number
    hessian_lipschitz: Number
    failure: Number
    epsilon: Number
    delta: Number

    def __post_init__(self) -> None:
        users, batch = self.mean.releases.population_size, self.hessian_batch
        good = self.sampling == "one_pass" or batch == users
        _checks.require(good, "hessian_batch", batch, f"{users}, everybody, as of gradients")

    @property
    def sampling(self) -> str:
        """``"full"``, or ``"one_pass"``."""
        return self.mean.releases.sampling

    @property
    def num_users(self) -> int:
        """n: in one pass those of gradients, and after them those of Hessians."""
        apart = self.most_looks * self.hessian_batch if self.sampling == "one_pass" else 0
        return self.mean.releases.population_size + apart

    @property
    def num_steps(self) -> int:
        """T, at most."""
        return self.mean.releases.num_steps

    @property
    def relation(self) -> NeighboringRelation:
        """Which data sets are neighbours."""
        return self.mean.releases.relation

    @property
    def user_gradients(self) -> int:
        """Two of each user of a step, and one of each of a look."""
        gradients = self.num_steps * self.mean.releases.batch_size * self.mean.gradients_per_user
        return gradients + self.most_looks * self.hessian_batch

    @property
    def guaranteed_norm(self) -> Any:
        """α = s + e: with probability 1 - ω no point that is found has a longer gradient."""
        return self.threshold + self.gradient_error

    @property
    def guaranteed_curvature(self) -> Any:
        """-(τ + h): with probability 1 - ω no point that is found has a lower eigenvalue."""
        return -(self.floor + self.hessian_error)

    @property
    def hessian_stddev(self) -> Any:
        """σ of the noise on a diagonal entry of a Hessian; it is σ/√2 on any other."""
        return self.hessian_multiplier * self._sensitivity

    @property
    def _sensitivity(self) -> Any:
        return _stationary.per_norm(self.relation) * self.hessian_clip / self.hessian_batch

    @property
    def assumes(self) -> tuple[str, ...]:
        """What the bounds assume; privacy assumes none of it."""
        drawn = ("users are drawn independently",) if self.sampling == "one_pass" else ()
        within = "gradients, their differences and Hessians of users are within the clips"
        return (*_stationary.PREMISES, within, *drawn)

    def loss(self) -> privacy.PrivacyLoss:
        """What a run may cost, infinite where a number is out of its range; may be traced."""
        one = FullBatch().gaussian_loss(self.hessian_multiplier, self.relation)
        good = _planning.accounted(self.hessian_clip, self.hessian_stddev)
        one = privacy.unbounded_unless(good, one)
        if self.sampling == "one_pass":
            return privacy.parallel(self.mean.loss(), one)
        return privacy.compose(self.mean.loss(), privacy.scale(one, self.most_looks))

    @property
    def joint_multiplier(self) -> Any:
        """The multiplier of one Gaussian release that costs as much as all of them; may be traced."""
        of_gradients = self.mean.releases.joint_multiplier
        xp, (first, other) = as_floats(of_gradients, self.hessian_multiplier)
        if self.sampling == "one_pass":
            return xp.minimum(first, other)
        return (first**-2 + self.most_looks * other**-2) ** -0.5

    def certificate(self) -> privacy.Certificate:
        """The (ε, δ) of all releases; ``ValueError`` for a number that proves nothing."""
        self.mean.certificate()
        _checks.require_real("hessian_multiplier", self.hessian_multiplier, 0.0)
        _planning.require_accounted_length("hessian_clip", self.hessian_clip, self.hessian_stddev)
        one = fixed_size(self.num_users, self.num_users, 1)._replace(relation=self.relation)
        return one.certificate(float(self.joint_multiplier), self.delta)

    def work_for(self, item: _costs.Item) -> Work:
        """What the whole run costs, if it is as long as it may be."""
        steps = self.mean.work_for(item) * self.num_steps
        # d products with a Hessian, each as dear as two gradients.
        each = _costs.gradients(2 * item.dim * self.hessian_batch, item)
        look = each + _costs.release(item.dim**2) + _costs.decomposition(item.dim)
        return steps + look * self.most_looks

    def __str__(self) -> str:
        likely = f"both, and that a point is found, with probability {1 - float(self.failure):.4g}"
        remarks = (
            ("gradient norm that is guaranteed", f"{float(self.guaranteed_norm):.4g}"),
            ("least eigenvalue that is guaranteed", f"{float(self.guaranteed_curvature):.4g}"),
            ("guaranteed are", likely),
        )
        return plans.describe("private descent that leaves saddles by Hessians", self, remarks)


@_plan_base.remembers(least_users=2, convex=False)
def plan(
    problem: Problem,
    budget: privacy.Budget,
    *,
    initial_gap: Positive | None = None,
    sampling: Sampling = "full",
    failure_probability: Inside = 0.05,
    most_steps: Count = 10_000,
    gradient_clip: Positive | None = None,
    difference_clip: Positive | None = None,
    hessian_clip: Positive | None = None,
    chunk_size: Count = 64,
    accountant: _planning.Accountant = "pld",
    relation: NeighboringRelation = NeighboringRelation.REPLACE_ONE,
) -> Plan:
    """Chooses all numbers such that the α that is proven is least. All arguments are public.

    Args:
        problem: for n, d ≤ 512, and the constants of the loss up to the third derivative; on the whole space.
        budget: (ε, δ) of the run, δ > 0.
        initial_gap: B ≥ F(x_0) - inf F; the range of the loss, if it has one, if left out.
        sampling: ``"full"``, everybody in every step, for the risk on the data; or ``"one_pass"``, everybody
            in one step at most, by their positions, for that on the population.
        failure_probability: ω.
        most_steps: T is at most this.
        gradient_clip: G; the objective's Lipschitz constant if left out.
        difference_clip: M; the objective's smoothness constant if left out.
        hessian_clip: C; if left out M of a linear model, and √d·M of any other loss.
        chunk_size: users whose gradients are held at once.
        accountant: what is calibrated to ε: ``"pld"`` the certificate (least noise), ``"rdp"`` the ledger.
        relation: of neighbours: REPLACE_ONE, or REPLACE_SPECIAL, where a user is replaced by nobody.

    Raises:
        ValueError: an argument is out of range, or left out although the loss does not know it.
        Infeasible: one pass has too few users for a step of each kind.
    """
    users, objective, dim = problem.num_users, problem.objective, problem.dim
    whole = math.isinf(problem.diameter)
    wanted = "the whole space: nothing is proven of steps that are projected"
    _checks.require(whole, "problem.objective.domain", objective.domain, wanted)
    _checks.require(dim <= LARGEST_DIM, "problem.dim", dim, f"at most {LARGEST_DIM}, for a Hessian")
    third = _checks.require_real("hessian_lipschitz", objective.hessian_lipschitz, 0)
    clip = _stationary.smoothness_of(problem, difference_clip, "difference_clip")
    lipschitz = problem.lipschitz if gradient_clip is None else gradient_clip
    if hessian_clip is None:
        hessian_clip = clip if objective.vector_model is not None else math.sqrt(dim) * clip
    goal = Goal(
        initial_gap=_stationary.gap_of(problem, initial_gap),
        lipschitz=lipschitz,
        smoothness=clip,
        curvature=clip + objective.ridge,
        dim=dim,
        num_users=users,
        per_norm=_stationary.per_norm(relation),
        failure=failure_probability,
        one_pass=sampling == "one_pass",
    )
    joint = fixed_size(users, users, 1).noise_multiplier(budget.epsilon, budget.delta, accountant)
    bends = _escape_schedule.Bends(third, hessian_clip, 2 * clip)
    found = _escape_schedule.schedule(goal, bends, float(joint) ** -2, most_steps)
    multipliers = [float32_above(share**-0.5) for share in found.shares]
    apart = found.most_looks * found.hessian_batch if goal.one_pass else 0
    releases = SpiderReleases(
        population_size=users - apart,
        num_steps=found.num_steps,
        most_refreshes=found.most_refreshes,
        most_differences=found.num_steps - 1,
        batch_sizes=found.batch_sizes if goal.one_pass else (users, users),
        refresh_multiplier=multipliers[0],
        difference_multiplier=multipliers[1],
        delta=budget.delta,
        neighbours=relation,
    )
    return Plan(
        dim=dim,
        most_looks=found.most_looks,
        hessian_batch=found.hessian_batch,
        mean=Spider(chunk_size, "drift", releases, lipschitz, clip, found.drift),
        hessian_multiplier=multipliers[2],
        hessian_clip=hessian_clip,
        step_size=1 / goal.curvature,
        threshold=found.threshold,
        floor=math.sqrt(third * found.stationarity) - found.hessian_error,
        gradient_error=found.gradient_error,
        hessian_error=found.hessian_error,
        hessian_lipschitz=third,
        failure=failure_probability,
        epsilon=budget.epsilon,
        delta=budget.delta,
    )


class _State(NamedTuple):
    """Of a run; but for what covers gradients a function of what was released, and the count a secret."""

    point: Any
    gradients: Any
    made: jax.Array
    looks: jax.Array
    found: jax.Array
    over: jax.Array
    covered: jax.Array
    evaluated: _counts.Count


@_sharding.solver
def solve(
    key: jax.Array, plan: Plan, objective: Objective, data: UserData, params: Any
) -> Solution:
    """Runs the plan. Pure JAX: jit and map over key, the plan's numbers, data and the start.

    Args:
        key: a typed key.
        plan: of ``plan``.
        objective: static; close over it when compiling.
        data: with ``plan.num_users`` users.
        params: the starting point. Must not depend on the data.

    Returns:
        The point that was found, or the last one, with the status HALTED. ``released`` says whether one was
        ``found``, after how many ``steps``, and with how many ``looks`` at a Hessian.

    Raises:
        ValueError: the number of users or of parameters is not the planned one.
    """
    _arguments.require_run(Plan, key, plan, objective, data, params)
    oracle_key, gradient_key, hessian_key = jax.random.split(key, 3)
    first = data
    if plan.sampling == "one_pass":
        first = _sequence.slice_users(data, 0, plan.mean.releases.population_size)
    oracle, rows, gradients, _ = plan.mean.open(gradient_key, objective, first, params)
    assert isinstance(oracle, ByState)
    impl = jax.random.key_impl(key)
    divided = transforms.summed_contributions(1.0, plan.hessian_batch, plan.relation)

    def look(words: Any, state: _State) -> tuple[Any, jax.Array, _counts.Count]:
        """The Hessian of F at the point, noised; whether the noise could be drawn."""
        sampler = None if plan.sampling == "full" else _following(plan, state.looks)
        ask = hessians.clipped_hessian_sum(objective, params, plan.hessian_clip, sampler)
        # Under ``vmap`` lanes that look and lanes that do not choose between words, as keys are used once.
        drawn_key, own = (jax.random.wrap_key_data(each, impl=impl) for each in words)
        found = ask(drawn_key, state.point, data)
        release = transforms.privatize(divided, own, plan.hessian_multiplier)
        begun = release.init(found.gradient)
        vector, after = release.update(found.gradient, begun, **found.extra_args)
        matrix = plan.hessian_clip * hessians.symmetric(vector, plan.dim)
        matrix = matrix + objective.ridge * jnp.eye(plan.dim, dtype=matrix.dtype)
        covered = jnp.any(jnp.isfinite(privacy.privacy_spent(after).rdp))
        return matrix, covered, _counts.add(state.evaluated, found.num_gradients)

    def no_look(words: Any, state: _State) -> tuple[Any, jax.Array, _counts.Count]:
        del words
        return jnp.zeros((plan.dim, plan.dim), float), jnp.ones([], bool), state.evaluated

    def step(state: _State) -> _State:
        first_key, other_key = jax.random.split(jax.random.fold_in(oracle_key, state.made))
        found = oracle.at(state.gradients, state.point)(first_key, state.point, rows)
        covering = _with_key(state.gradients, jax.random.fold_in(gradient_key, state.made))
        estimate, after = gradients.update(
            found.gradient, covering, state.point, **found.extra_args
        )
        after = _with_key(after, ())
        state = state._replace(
            gradients=after, evaluated=_counts.add(state.evaluated, found.num_gradients)
        )
        slope = jax.tree.map(jnp.add, estimate, objective.regularizer_gradient(state.point))
        # False on NaN.
        short = ~after.halted & (global_norm(slope) <= plan.threshold)
        looks = short & (state.looks < plan.most_looks)
        own = jax.random.fold_in(hessian_key, state.made)
        words = jax.random.key_data(other_key), jax.random.key_data(own)
        matrix, covered, evaluated = jax.lax.cond(looks, look, no_look, words, state)
        saddle, jumped = _jump(plan, matrix, slope)
        over = after.halted | (short & ~looks) | (looks & ~saddle)

        def moved(x: Any, v: Any, u: Any) -> Any:
            new = jnp.where(looks, x + u.astype(x.dtype), x - (plan.step_size * v).astype(x.dtype))
            return jnp.where(over, x, new)

        return _State(
            point=jax.tree.map(moved, state.point, slope, jumped),
            gradients=after,
            made=state.made + 1,
            looks=state.looks + looks.astype(jnp.int32),
            found=looks & ~saddle,
            over=over,
            covered=state.covered & covered,
            evaluated=evaluated,
        )

    zero, no = jnp.zeros([], jnp.int32), jnp.zeros([], bool)
    begun = _with_key(gradients.init(params), ())
    start = _State(params, begun, zero, zero, no, no, ~no, _counts.count(0))
    end = jax.lax.while_loop(lambda s: ~s.over & (s.made < plan.num_steps), step, start)
    # What was charged beforehand is that of the plan, and infinite where noise could not be drawn.
    covered = end.covered & jnp.any(jnp.isfinite(privacy.privacy_spent(end.gradients).rdp))
    cost = privacy.unbounded_unless(covered, plan.loss())
    good = all_finite(end.point)
    status = jnp.where(end.found, int(Status.OK), int(Status.HALTED))
    return Solution(
        params=end.point,
        privacy=cost,
        status=jnp.where(good, status, int(Status.DIVERGED)).astype(jnp.int32),
        gradients=_counts.count(plan.gradients(jax.tree.leaves(data.items)[0].shape[1])),
        unprivate={"gradients": end.evaluated, "trace": None},
        released={"found": end.found & good, "steps": end.made, "looks": end.looks},
    )


def _with_key(state: transforms.SpiderState, key: Any) -> transforms.SpiderState:
    """The state of estimates with another key, or none: a loop whose lanes end apart must not carry one."""
    return state._replace(release=state.release._replace(key=key))


def _following(plan: Plan, looks: jax.Array) -> Any:
    """The users of the next Hessian, by position: after those of gradients and of the Hessians before."""
    size = plan.hessian_batch
    begun = plan.mean.releases.population_size + looks * size
    return sampling.one_pass(plan.num_users, begun, jnp.asarray(size, jnp.int32), size)


def _jump(plan: Plan, matrix: jax.Array, slope: Any) -> tuple[jax.Array, Any]:
    """Whether the Hessian is that of a saddle, and the jump from it; functions of what was released."""
    values, vectors = jnp.linalg.eigh(matrix)
    numbers, restored = ravel_pytree(jax.tree.map(lambda x: x.astype(matrix.dtype), slope))
    along = vectors[:, 0]
    side = jnp.where(jnp.vdot(numbers, along) > 0, -1.0, 1.0).astype(matrix.dtype)
    bend = -values[0] - plan.hessian_error
    length = _escape_schedule.jump(bend, plan.gradient_error, plan.hessian_lipschitz, jnp.sqrt)
    return values[0] < -plan.floor, restored(side * length * along)
