"""AC-SA without privacy: accelerated stochastic approximation, in one stage or several.

What it computes: minimizes the mean over users of convex losses, plus a ridge and, if wanted, a composite
term h, over the objective's domain. Gradients are full, or means over batches of exactly B users, or either
at randomly shifted points, which makes a loss smooth in expectation. ``optimizer`` alone runs a schedule on
gradients from anywhere.

Source: Ghadimi and Lan 2012 and 2013; thesis, Algorithm 3 and Theorem 1.4.1 (with the corrections of
docs/corrections/accelerated.md, C), Claim 1.4.2 (smoothing). Stages and their bounds: ``ac_sa_stages``. The
smoothing radius is the one that minimizes G·r·d/(d+1) + k·c_d·G·R²/(r·T(T+1)), with k = 2 or, for the convex
policy with its step parameter 2L, 4 (thesis, proof of Lemma 1.4.5, with the sharp constants of
``geometry.smoothing``); under several stages the smoothing bias may be half of the excess.

Formal guarantee: none of privacy: ``Solution.privacy`` is unbounded. Utility: for losses convex and
G-Lipschitz within r of the domain (the latter only where gradients are sampled or points shifted), and a
minimizer within R of the start, the expected excess is at most

    Plan.excess_bound = β + the bound of the schedule for smoothness L + u, strong convexity μ, variance V

with u the ridge; without smoothing β = 0, L is the loss's own constant and V = G²/B·(N - B)/(N - 1); with
smoothing in the ball of radius r, β = G·r·d/(d+1), L = c_d·G/r and V = G²/B. The smoothing bias counts once:
f ≤ f_r ≤ f + β, so that F(w) - F* ≤ F_r(w) - F_r(w*) + β. By default the plan smooths where that proves
more, with the radius that balances β with the term of the initial distance.

Cost: T·B user gradients; one compiled program for all stages. Memory of one chunk of users, of whom no
gradient is formed, and for linear models of a second copy of the data, prepared once.

Example:
    >>> import jax
    >>> from dpsco_jax.problems import synthetic
    >>> from dpsco_jax.solvers.convex import ac_sa
    >>> made = synthetic.logistic_regression(jax.random.key(0), num_users=100, items_per_user=2, dim=3)
    >>> plan = ac_sa.plan(made.problem(distance=5.0), num_steps=300)
    >>> run = jax.jit(lambda key: ac_sa.solve(key, plan, made.objective, made.data, jax.numpy.zeros(3)))
    >>> solution = run(jax.random.key(1))
    >>> bool(abs(solution.params - made.minimizer).max() < 0.01)
    True
"""

import math
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from dp_accounting import NeighboringRelation

from dpsco_jax import _checks, _sharding, privacy, transforms
from dpsco_jax._argument_kinds import Count, Positive, one_of
from dpsco_jax._infeasible import Infeasible
from dpsco_jax._pytrees import Number, pytree, static
from dpsco_jax.geometry import smoothing
from dpsco_jax.geometry.domains import Domain
from dpsco_jax.geometry.prox import Term
from dpsco_jax.oracles import Oracle, sampling, unclipped, user_gradients
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.problem import Problem
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers import _arguments, _costs, _plan_base, loop, plans
from dpsco_jax.solvers._plan_base import MadeFor
from dpsco_jax.solvers.convex import ac_sa_stages
from dpsco_jax.solvers.convex.ac_sa_stages import MOST_STEPS, POLICIES, Setting, Stages
from dpsco_jax.solvers.solution import Solution, finished
from dpsco_jax.solvers.work import Work


@pytree
class Plan(MadeFor):
    """What ``solve`` will do. Sizes are static, numbers are leaves of the pytree.

    Attributes:
        num_users: N.
        dim: number of parameters.
        batch_size: B; at B = N there is no sampling.
        smoothed: whether gradients are taken at shifted points.
        chunk_size: users whose losses are evaluated at once.
        stages: the schedule: lengths, step parameters, and its own bound.
        smoothing_radius: r, zero if not ``smoothed``.
        distance: R.
        excess_bound: proven bound on the expected excess.
    """

    num_users: int = static()
    dim: int = static()
    batch_size: int = static()
    smoothed: bool = static()
    chunk_size: int = static()
    stages: Any
    smoothing_radius: Number
    distance: Number
    excess_bound: Number

    @property
    def num_steps(self) -> int:
        """T, over all stages."""
        return self.stages.num_steps

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
        return plans.describe("AC-SA (not private)", self, [("assumes", near)])


@_plan_base.remembers()
def plan(
    problem: Problem,
    *,
    num_steps: Count | None = None,
    excess: Positive | None = None,
    policy: Annotated[str, one_of("auto", *POLICIES)] = "auto",
    batch_size: int | None = None,
    chunk_size: Count = 4096,
) -> Plan:
    """Checks all arguments and sets the schedule: the best of T steps, or the shortest to an excess.

    Args:
        problem: for the objective, N, the number of parameters, and R; the diameter of the domain in its
            place if it has none.
        num_steps: T; this or ``excess``.
        excess: the bound on the expected excess to be reached; this or ``num_steps``.
        policy: ``"strongly_convex"``, ``"convex"``, ``"multi_stage"``, or ``"auto"``: the one that proves
            the least excess, or takes the fewest steps.
        batch_size: B; everybody if left out.
        chunk_size: users whose losses are evaluated at once.

    Raises:
        ValueError: an argument is out of range; the policy needs strong convexity and there is none; the
            loss is neither smooth nor Lipschitz.
    """
    _checks.require_instance("problem", problem, Problem)
    objective, num_users, dim = problem.objective, problem.num_users, problem.dim
    batch = num_users if batch_size is None else batch_size
    batch = _checks.require_integer("batch_size", batch, 1, num_users)
    if (num_steps is None) == (excess is None):
        raise ValueError(f"one of num_steps and excess must be given, got {num_steps}, {excess}")
    distance = problem.require_distance()
    if policy in ("strongly_convex", "multi_stage"):
        _checks.require_real("strong_convexity", objective.strong_convexity, 0)

    request = _Request(objective, num_users, dim, batch, distance)
    found = _candidates(request, policy, num_steps, excess)
    if excess is None:
        best = min(found, key=lambda choice: choice.excess_bound)
    else:
        best = min(found, key=lambda choice: choice.stages.num_steps)
    return Plan(
        num_users=num_users,
        dim=dim,
        batch_size=batch,
        smoothed=best.radius > 0,
        chunk_size=chunk_size,
        stages=best.stages,
        smoothing_radius=best.radius,
        distance=distance,
        excess_bound=best.excess_bound,
    )


class _Request(NamedTuple):
    """The public numbers that a schedule depends on."""

    objective: Objective
    num_users: int
    dim: int
    batch_size: int
    distance: float


class _Choice(NamedTuple):
    """A schedule, the radius of its smoothing (zero for none), and its proven excess, bias included."""

    stages: Stages
    radius: float
    excess_bound: float


def _candidates(
    request: _Request, policy: str, num_steps: int | None, excess: float | None
) -> list[_Choice]:
    """All schedules of a policy (of all policies that apply: ``"auto"``), with and without smoothing."""
    if policy != "auto":
        policies: tuple[str, ...] = (policy,)
    else:
        policies = POLICIES if request.objective.strong_convexity > 0 else ("convex",)
    ways = [False] if request.objective.smoothness is not None else []
    ways += [True] if math.isfinite(request.objective.lipschitz) else []
    if not ways:
        raise ValueError("objective must be smooth or Lipschitz, got one that is neither")
    found, refusals = [], []
    for name in policies:
        make = _of_stages if name == "multi_stage" else _of_one_stage
        for smoothed in ways:
            try:
                found.append(make(request, name, smoothed, num_steps, excess))
            except Infeasible as refusal:
                refusals.append(refusal)
    if not found:
        raise refusals[0]
    return found


def _setting(request: _Request, radius: float) -> tuple[Setting, float]:
    """What the gradients are those of, and the bias of its value."""
    objective, batch, users = request.objective, request.batch_size, request.num_users
    if radius > 0:
        smooth = smoothing.ball_smoothness(objective.lipschitz, radius, request.dim)
        bias = smoothing.ball_bias(objective.lipschitz, radius, request.dim)
        variance = objective.lipschitz**2 / batch
    else:
        assert objective.smoothness is not None
        smooth, bias, variance = objective.smoothness, 0.0, 0.0
        if batch < users:
            variance = objective.lipschitz**2 / batch * (users - batch) / (users - 1)
    convexity = objective.strong_convexity
    smooth = max(smooth + objective.ridge, convexity)
    return Setting(smooth, convexity, variance, request.distance), bias


def _of_one_stage(
    request: _Request, policy: str, smoothed: bool, num_steps: int | None, excess: float | None
) -> _Choice:
    dim, factor = request.dim, 4.0 if policy == "convex" else 2.0

    def of(steps: int) -> _Choice:
        balance = factor * smoothing.smoothness_factor(dim) * (dim + 1) / dim
        radius = request.distance * math.sqrt(balance / (steps * (steps + 1))) if smoothed else 0.0
        setting, bias = _setting(request, radius)
        stages = ac_sa_stages.one_stage(setting, policy, steps)
        return _Choice(stages, radius, bias + stages.excess_bound)

    if num_steps is not None:
        return of(num_steps)
    assert excess is not None
    return of(_fewest(lambda steps: of(steps).excess_bound, excess))


def _of_stages(
    request: _Request, policy: str, smoothed: bool, num_steps: int | None, excess: float | None
) -> _Choice:
    del policy

    def to(target: float) -> _Choice:
        radius = 0.0
        if smoothed:
            radius = target / 2 * (request.dim + 1) / (request.dim * request.objective.lipschitz)
        setting, bias = _setting(request, radius)
        stages = ac_sa_stages.stages_to(setting, target - bias)
        return _Choice(stages, radius, bias + stages.excess_bound)

    if excess is not None:
        return to(excess)
    assert num_steps is not None
    radius = 0.0
    if smoothed:
        # The least target, of a halving sequence, that the steps reach; it sets the radius.
        target = 2 * request.objective.lipschitz * request.distance
        best = to(target)
        while best.stages.num_steps <= num_steps:
            radius, target = best.radius, target / 2
            best = to(target)
        if radius == 0.0:
            least = best.stages.num_steps
            raise Infeasible(
                f"num_steps must be at least {least} for 'multi-stage', got {num_steps}",
                {"num_steps": least},
            )
    setting, bias = _setting(request, radius)
    stages = ac_sa_stages.stages_within(setting, num_steps)
    return _Choice(stages, radius, bias + stages.excess_bound)


def _fewest(bound: Callable[[int], float], excess: float) -> int:
    """The least number of steps with a bound of at most ``excess``; bounds fall with the steps."""
    few, enough = 0, 1
    while bound(enough) > excess:
        few, enough = enough, 2 * enough
        if enough > MOST_STEPS:
            raise Infeasible(f"excess must be reached in fewer than 2^31 steps, got {excess:g}")
    while enough - few > 1:
        middle = (few + enough) // 2
        few, enough = (few, middle) if bound(middle) <= excess else (middle, enough)
    return enough


def optimizer(
    stages: Stages, domain: Domain | None = None, term: Term | None = None
) -> optax.GradientTransformationExtraArgs:
    """The transformation that runs a schedule: the last of a chain; report ``ac_sa_eval_params``.

    Args:
        stages: of a plan, or made by ``ac_sa_stages`` from constants of your own.
        domain: the set to stay in; the whole space if None.
        term: composite term h, see ``geometry.prox``.

    Raises:
        ValueError: the term has no closed form over the domain.
    """
    _checks.require_instance("stages", stages, Stages)
    if domain is not None:
        _checks.require_instance("domain", domain, Domain)
    if term is not None:
        _checks.require_instance("term", term, Term)
    if len(stages.lengths) == 1:
        return transforms.ac_sa(stages.smoothness[0], stages.strong_convexity, domain, term)
    smoothness = jnp.asarray(stages.smoothness)
    return transforms.restart_stages(
        lambda stage: transforms.ac_sa(smoothness[stage], stages.strong_convexity, domain, term),
        stages.lengths,
        transforms.ac_sa_eval_params,
    )


@_sharding.solver
def solve(
    key: jax.Array,
    plan: Plan,
    objective: Objective,
    data: UserData,
    params: Any,
    term: Term | None = None,
    trace: Callable[[Any, Any, Any], Any] | None = None,
) -> Solution:
    """Runs the plan. Pure JAX: jit and map over key, the plan's numbers, data and params.

    Args:
        key: a typed key; of no effect for full gradients without smoothing.
        plan: of ``plan``.
        objective: static; close over it when compiling.
        data: with ``plan.num_users`` users.
        params: the starting point; projected onto the domain.
        term: composite term h that is added to the objective; the plan's bound holds with it.
        trace: see ``loop.run``; its output goes to ``unprivate["trace"]``.

    Raises:
        ValueError: if users or parameters are not as many as planned, or the term has no closed form over
            the domain.
    """
    _arguments.require_run(Plan, key, plan, objective, data, params, trace)
    if term is not None:
        _checks.require_instance("term", term, Term)
    start = objective.domain.project(params)
    oracle, oracle_data, divisor = _oracle(plan, objective, data, start)

    def add_regularizer(gradient: Any, point: Any) -> Any:
        ridge = objective.regularizer_gradient(point)
        return jax.tree.map(lambda g, r: g / divisor + r, gradient, ridge)

    method = optax.chain(
        optax.stateless(add_regularizer), optimizer(plan.stages, objective.domain, term)
    )
    end = loop.run(key, oracle, method, start, oracle_data, plan.num_steps, trace)
    reported = transforms.ac_sa_eval_params(end.opt_state, end.params)
    gradients = plan.user_gradients * jax.tree.leaves(data.items)[0].shape[1]
    # Exact gradients: of what they reveal nothing is proven, under any relation.
    ledger = privacy.open_ledger(NeighboringRelation.REPLACE_ONE)
    ledger = privacy.charge(ledger, privacy.unbounded())
    return finished(reported, ledger, gradients, end.num_gradients, end.trace)


def _oracle(
    plan: Plan, objective: Objective, data: UserData, params: Any
) -> tuple[Oracle, Any, int]:
    """The fastest oracle, the data in its form, and what its gradients are to be divided by."""
    users, batch, smoothed = plan.num_users, plan.batch_size, plan.smoothed
    radius = plan.smoothing_radius if smoothed else None

    def draw(key: jax.Array) -> sampling.UserSample:
        return sampling.without_replacement(key, users, batch)

    sampler = draw if batch < users else None
    single = jax.tree.leaves(data.items)[0].shape[1] == 1
    if smoothed and single and objective.vector_model is not None:
        # One number for a shift in d dimensions. No gradient is longer than half of this clip.
        settings = (2 * objective.lipschitz, sampler, plan.chunk_size, radius)
        return *user_gradients.clipped_sum_oracle(objective, data, params, *settings), batch
    oracle = unclipped.mean_gradient(objective, batch, sampler, radius, plan.chunk_size)
    return oracle, data, 1
