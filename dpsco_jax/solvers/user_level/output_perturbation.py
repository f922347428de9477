"""Output perturbation: gradient descent on a strongly convex objective, Gaussian noise on its last point.

What it computes: K steps of projected gradient descent on F + (u/2)·‖w - start‖², F the mean user loss plus
ridge, over all users; then Gaussian noise on the last point, and a projection onto the domain.

Source: Chaudhuri, Monteleoni and Sarwate 2011 (output perturbation); Wu et al. 2017 and Zhang et al. 2017
(noise for the stability of the program instead of the exact minimizer). Baseline of U section 1, T section
10.1 and L section 1: privacy for one item, carried over to users by group privacy (``constants="paper"``).

Formal guarantee: (ε, δ)-DP for a user's whole data under REPLACE_ONE. Let the loss of every user be convex,
L-Lipschitz and H-smooth, λ and H' the strong convexity and the smoothness of the mean with its regularizers.
A step of length η, w - η·∇F(w), moves two points closer by the factor c = max(|1 - ηλ|, |1 - ηH'|) = 1 - r,
r = min(ηλ, 2 - ηH'), and a projection expands nothing. Replacing a user changes the mean gradient by at most
2L/N at any point. So a_(t+1) ≤ c·a_t + 2ηL/N for the distance between the runs on two neighbours, and if
r > 0,

    ‖w_K - w'_K‖ ≤ 2ηL/N·(1 - c^K)/r ≤ 2ηL/(N·r), which is 2L/(λN) for η ≤ 2/(H' + λ).

If r ≤ 0 nothing is proven and the loss is infinite. The minimizers themselves may be that far apart: nothing
has to be added for stopping early, and the data decide nothing on the way. Here L is 2^-10 larger than the
objective's, so that the oracle's clip never acts (it only drops users with NaN). A step that is computed with
an error e instead of exactly adds e/r to each run: 2·(2^-20·L/λ + 2^-22·D·H'/λ) is added for rounding, D how
far iterates can be from the start plus the norm of the start. This is an allowance for float32 sums in
blocks, not a proof. What the proof needs of the loss is never taken from the caller: losses, with their
constants, and domains are those that ``problems.losses`` and ``geometry.domains`` made; others are refused.
λ has to be there in every data set. A user without items, or with NaN, has the loss zero, which only ridge
and regularization make strongly convex; if the loss itself is strongly convex, with μ, a user without items
gets (μ/2)·‖w‖², whose gradient is no longer than L in the domain.
Utility, R ≥ ‖start - minimizer‖, σ the noise, S = σ·√dim, τ = c^K·R the distance from the minimizer:
- whole space: E F - F* ≤ uR²/2 + uRτ + (H + ridge)·(S + τ)²/2;
- other domains: E F - F* ≤ uR²/2 + (L + ridge·D)·(S + τ), D the diameter or the largest norm of a point.

Cost: K·N user gradients, K of the order of H'/λ; memory of one chunk of user gradients, and for linear models
of a second copy of the data, prepared once.

Example:
    >>> import jax
    >>> from dpsco_jax import Budget
    >>> from dpsco_jax.problems import synthetic
    >>> from dpsco_jax.solvers.user_level import output_perturbation
    >>> made = synthetic.logistic_regression(jax.random.key(0), num_users=100, items_per_user=2, dim=3)
    >>> plan = output_perturbation.plan(made.problem(distance=5.0), Budget(1.0, 1e-5))
    >>> start = jax.numpy.zeros(3)
    >>> run = jax.jit(lambda key: output_perturbation.solve(key, plan, made.objective, made.data, start))
    >>> solution = run(jax.random.key(1))
    >>> solution.params.shape, int(solution.status), plan.certificate().epsilon <= 1.0
    ((3,), 0, True)
"""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import optax
from dp_accounting import NeighboringRelation

from dpsco_jax import _checks, _sharding, privacy, transforms
from dpsco_jax._argument_kinds import Constants, Count, Nonnegative
from dpsco_jax._conditions import positive_and_finite
from dpsco_jax._numerics import as_floats
from dpsco_jax._pytrees import Number, pytree, static
from dpsco_jax.geometry.norms import global_norm
from dpsco_jax.oracles import user_gradients
from dpsco_jax.problems import _proofs
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.problem import Problem
from dpsco_jax.problems.users import UserData
from dpsco_jax.problems.users import items_per_user as items_of_each
from dpsco_jax.solvers import _arguments, _costs, _plan_base, _planning, loop, plans
from dpsco_jax.solvers._plan_base import MadeFor
from dpsco_jax.solvers.solution import Solution, finished
from dpsco_jax.solvers.user_level.item_group_privacy import item_budget
from dpsco_jax.solvers.work import Work

__all__ = ["Plan", "plan", "solve"]

_SOLVED_TO = 0.01  # optimization error as a share of the noise
_CLIP_ROOM = 1.0 + 2.0**-10
_LEAST_ROOM = 1.0 + 2.0**-11  # a float32 gradient of norm L is not clipped
_GRADIENT_ROUNDING = 2.0**-20  # of L: a mean over users, summed in blocks
_STEP_ROUNDING = 2.0**-22  # of the distance from the start, and of the start from the origin
_OWN_ROUNDING = 1.0 + 2.0**-20  # of the numbers here, in float32


@pytree
class Plan(MadeFor):
    """What ``solve`` will do. Sizes are static, numbers are leaves of the pytree (may be batched).

    Attributes:
        num_users: N.
        items_per_user: m, item slots of a user.
        dim: number of parameters.
        num_steps: K.
        constants: ``"tight"`` or ``"paper"``: where the noise comes from.
        chunk_size: users whose gradients are held at once.
        proven_for: the constants of the objective that ``solve`` has to be given.
        noise_multiplier: σ over ``sensitivity``.
        clip_norm: bound on a user's gradient, a little above the objective's Lipschitz constant.
        step_size: η.
        regularization: u.
        epsilon: the budget that was planned for; what is spent follows from ``noise_multiplier``.
        delta: δ of that budget; the certificate is for this δ.
        optimization_error: τ, bound on the distance of the last point from the regularized minimizer.
        excess_bound: proven bound on the expected excess risk.
    """

    num_users: int = static()
    items_per_user: int = static()
    dim: int = static()
    num_steps: int = static()
    constants: str = static(choices=("tight", "paper"))
    chunk_size: int = static()
    proven_for: _proofs.Contracting = static()
    noise_multiplier: Number
    clip_norm: Number
    step_size: Number
    regularization: Number
    epsilon: Number
    delta: Number
    optimization_error: Number
    excess_bound: Number

    @property
    def user_gradients(self) -> int:
        """User gradients of the whole run."""
        return self.num_steps * self.num_users

    @property
    def contraction(self) -> Any:
        """r: by what share of their distance a step brings two points closer; at most 0 if by none."""
        own = self.proven_for
        xp, (step, added) = as_floats(self.step_size, self.regularization)
        convexity = own.loss_strong_convexity + own.ridge + added
        bend = (own.smoothness + own.ridge + added) * _OWN_ROUNDING
        return xp.minimum(step * convexity, 2.0 - step * bend)

    @property
    def farthest(self) -> Any:
        """How far any two users could put the last point apart, if all were replaced."""
        _, (step, clip) = as_floats(self.step_size, self.clip_norm)
        return 2.0 * clip * step / self.contraction

    @property
    def rounding(self) -> Any:
        """How far rounding moves the last point of a run that starts at the origin."""
        xp, (step, clip) = as_floats(self.step_size, self.clip_norm)
        reach = xp.minimum(self.farthest, self.proven_for.diameter)
        error = _GRADIENT_ROUNDING * clip * step + _STEP_ROUNDING * reach
        return error / self.contraction

    @property
    def sensitivity(self) -> Any:
        """Bound on how far one replaced user moves the last point, of a run that starts at the origin."""
        return (self.farthest / self.num_users + 2.0 * self.rounding) * _OWN_ROUNDING

    def start_rounding(self, norm: Any) -> Any:
        """What a start of that norm adds to the sensitivity: its iterates are rounded at that size."""
        return 2.0 * _STEP_ROUNDING * norm / self.contraction * _OWN_ROUNDING

    @property
    def noise_stddev(self) -> float:
        """σ of the noise on each parameter, of a run that starts at the origin."""
        return float(self.noise_multiplier) * float(self.sensitivity)

    @property
    def assumes(self) -> tuple[str, ...]:
        """What the guarantee assumes."""
        return ("float32 sums over users are exact to 2^-20",)

    @property
    def relation(self) -> NeighboringRelation:
        """Which data sets are neighbours: one user is replaced."""
        return _planning.REPLACE_ONE

    @property
    def accounted(self) -> Any:
        """Whether the proof covers a run with these numbers; a bool, may be traced."""
        good = positive_and_finite(
            self.noise_multiplier,
            self.clip_norm,
            self.step_size,
            self.contraction,
            self.sensitivity,
        )
        good = good & (self.clip_norm >= self.proven_for.lipschitz * _LEAST_ROOM)
        return good & (self.regularization >= 0)

    def work_for(self, item: _costs.Item) -> Work:
        """What the whole run costs, with its one release."""
        step = _costs.clipped_sum(self.num_users, item) + _costs.method(item.dim)
        once = _costs.prepared(self.num_users, item) + _costs.release(item.dim)
        return step * self.num_steps + once

    def loss(self) -> privacy.PrivacyLoss:
        """What a run of these numbers costs, infinite where the proof does not cover them; may be traced."""
        return privacy.unbounded_unless(self.accounted, privacy.gaussian(self.noise_multiplier))

    def certificate(self) -> privacy.Certificate:
        """The (ε, δ) of a run of these numbers, by the closed form of the Gaussian; infinite as ``loss`` is.

        Raises:
            ValueError: ``delta`` is not in (0, 1), or ``noise_multiplier`` is no noise multiplier.
        """
        multiplier = float(self.noise_multiplier) if bool(self.accounted) else 0.0
        event = privacy.events.gaussian(multiplier)
        return privacy.certificate(event, float(self.delta), _planning.REPLACE_ONE, self.assumes)

    def __str__(self) -> str:
        group = "direct" if self.constants == "tight" else "black box"
        remarks = [
            ("from items to users", group),
            ("sensitivity", f"{float(self.sensitivity):.5g}"),
        ]
        return plans.describe("output perturbation", self, remarks)


@_plan_base.remembers(least_users=2)
def plan(
    problem: Problem,
    budget: privacy.Budget,
    *,
    regularization: Nonnegative | None = None,
    constants: Constants = "tight",
    chunk_size: Count = 64,
) -> Plan:
    """Checks all arguments and calibrates the noise. All of them are public.

    Args:
        problem: for the objective, which must be a smooth loss of ``problems.losses`` on a domain of
            ``geometry.domains``, N ≥ 2, the number of parameters, m, which is without effect for
            ``"tight"``, and R, the distance from the start to a minimizer, which must be finite.
        budget: (ε, δ) of the run, δ > 0.
        regularization: u ≥ 0; the one with the smallest ``excess_bound`` if left out.
        constants: ``"tight"``: the noise for a user, at once. ``"paper"``: the noise that makes one item
            (ε/m, δ₀)-private, and group privacy (``item_group_privacy.item_budget``).
        chunk_size: users whose gradients are held at once.

    Raises:
        ValueError: an argument is out of range, the loss is not of these kinds or claims more than is proven
            of it, or nothing is strongly convex (``regularization=0`` without ridge).
    """
    num_users, items_per_user = problem.num_users, problem.items_per_user
    own = _proofs.require_contracting(problem.objective)
    convex, distance = own.loss_strong_convexity + own.ridge, problem.require_distance()

    once = _planning.fixed_size(num_users, num_users, 1)
    if constants == "tight":
        multiplier = once.noise_multiplier(budget.epsilon, budget.delta, "pld")
    else:
        each = item_budget(budget.epsilon, budget.delta, items_per_user)
        multiplier = once.noise_multiplier(*each, "pld")
        multiplier = _planning.float32_above(multiplier / items_per_user)

    def under(added: float) -> Plan:
        draft = Plan(
            num_users=num_users,
            items_per_user=items_per_user,
            dim=problem.dim,
            num_steps=1,
            constants=constants,
            chunk_size=chunk_size,
            proven_for=own,
            noise_multiplier=multiplier,
            clip_norm=own.lipschitz * _CLIP_ROOM,
            step_size=1.0 / (own.smoothness + own.ridge + added),
            regularization=added,
            epsilon=budget.epsilon,
            delta=budget.delta,
            optimization_error=math.inf,
            excess_bound=math.inf,
        )
        kept = 1.0 - draft.step_size * (convex + added)
        spread = draft.noise_stddev * math.sqrt(problem.dim)
        goal = _SOLVED_TO * spread / distance
        steps = max(1, math.ceil(math.log(goal) / math.log(kept))) if kept > 0 else 1
        error = distance * max(kept, 0.0) ** steps + draft.rounding
        off = spread + error
        excess = added * distance**2 / 2
        if math.isinf(own.diameter):
            excess += added * distance * error + (own.smoothness + own.ridge) * off**2 / 2
        else:
            excess += (draft.clip_norm + problem.slope - problem.lipschitz) * off
        return dataclasses.replace(
            draft, num_steps=steps, optimization_error=error, excess_bound=excess
        )

    if regularization is not None:
        if regularization + convex <= 0:
            raise ValueError("regularization must be positive where nothing else is convex, got 0")
        return under(regularization)
    unit = own.lipschitz / distance
    choices = [unit * 2.0 ** (k / 4) for k in range(-80, 41)]
    if convex > 0:
        choices.append(0.0)
    return min(map(under, choices), key=lambda candidate: candidate.excess_bound)


@_sharding.solver
def solve(
    key: jax.Array, plan: Plan, objective: Objective, data: UserData, params: Any
) -> Solution:
    """Runs the plan. Pure JAX: jit and map over key, the plan's numbers, data and params.

    Args:
        key: a typed key.
        plan: of ``plan``, for this very objective.
        objective: static; close over it when compiling.
        data: with ``plan.num_users`` users.
        params: the starting point; projected onto the domain.

    Raises:
        ValueError: if the number of users or of parameters is not the planned one, the parameters are
            narrower than float32, or the objective does not have the proven constants that were planned for.
    """
    _arguments.require_run(Plan, key, plan, objective, data, params)
    for leaf in jax.tree.leaves(params):
        # The sensitivity allows for the rounding of float32: iterates in fewer bits are rounded apart.
        kind = jnp.result_type(leaf)
        wide = jnp.promote_types(kind, jnp.float32) == kind
        _checks.require(wide, "params", kind, "real floating, at least float32")
    found = _proofs.require_contracting(objective)
    if found != plan.proven_for:
        raise ValueError(f"objective must have plan.proven_for = {plan.proven_for}, got {found}")
    oracle_key, noise_key = jax.random.split(key)
    start = objective.domain.project(params)
    oracle, oracle_data = user_gradients.clipped_sum_oracle(
        objective, data, start, plan.clip_norm, None, plan.chunk_size, unaltered=True
    )

    # So that every user's loss is as convex as is said, there is one of a user without items as well.
    bare_users = jnp.sum(items_of_each(data) == 0)
    missing = plan.proven_for.loss_strong_convexity * bare_users

    def regularized(total: Any, point: Any) -> Any:
        def add(g: Any, ridge: Any, w: Any, origin: Any) -> Any:
            mean = (g + missing * w) / plan.num_users
            return mean + ridge + plan.regularization * (w - origin)

        return jax.tree.map(add, total, objective.regularizer_gradient(point), point, start)

    descent = optax.chain(
        optax.stateless(regularized),
        optax.scale(-plan.step_size),
        transforms.project(objective.domain),
    )
    end = loop.run(oracle_key, oracle, descent, start, oracle_data, plan.num_steps)

    # The statistic is how far the program moved; its sensitivity is that of the last point.
    statistic = transforms.Aggregate(
        lambda params: optax.EmptyState(),
        lambda updates, state, params=None, **extra: (updates, state),
        plan.sensitivity + plan.start_rounding(global_norm(start)),
        _planning.REPLACE_ONE,
    )
    release = transforms.privatize(statistic, noise_key, plan.noise_multiplier)
    moved = jax.tree.map(jnp.subtract, end.params, start)
    noised, state = release.update(moved, release.init(moved))
    reported = objective.domain.project(jax.tree.map(jnp.add, start, noised))
    slots = jax.tree.leaves(data.items)[0].shape[1]
    solution = finished(reported, state, plan.user_gradients * slots, end.num_gradients, None)
    return solution._replace(privacy=privacy.unbounded_unless(plan.accounted, solution.privacy))
