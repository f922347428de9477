"""Noisy gradient descent that releases its last point only: private however many steps it makes.

What it computes: T times, on all users,

    x ← Π(x - η·(∇F(x) + ridge·x + u·(x - start)) + N(0, ν²·I)),

and the last x. Π projects onto the domain and keeps points within R of the start.

Source: own composition of known parts: Altschuler and Talwar 2022; Bok, Su and Altschuler 2024 (privacy of
the last point). With T → ∞ and η → 0 it is the Langevin diffusion, whose stationary law is the exponential
mechanism of T section 3.2 for the same F + (u/2)·‖w - start‖².

Formal guarantee: (ε, δ)-DP for a user's whole data under REPLACE_ONE, n public. Let the loss of every user
be convex, L-Lipschitz and M-smooth on the whole space, whatever the data, and m the strong convexity of
ridge and regularization together. A step without its noise has on every data set a symmetric Jacobian with
eigenvalues between 1 - η(M + m) and 1 - ηm, so it is c-Lipschitz with

    c = max(|1 - ηm|, |1 - η(M + m)|) = 1 - min(ηm, 2 - η(M + m)),   which is 1 - ηm for η ≤ 2/(M + 2m).

Ridge and regularization are the same for neighbours, whose steps differ at a point by at most Δ = η·G_Δ/n,
G_Δ how far apart the gradients of two users are: 2L, or what ``problems.losses`` proves for points within R
of the start. A start w ≠ 0 adds at most 2M·‖w‖ to G_Δ. A step that is computed with the error ηE adds 2ηE to
Δ. Errors are those of sums over users, a share of L, and of margins and pulls, a share of (M + m)·D for
points within D of the origin. In float32 these shares are 2^-20 and 2^-23, an allowance for sums in blocks,
not a proof; in float64 2^-52 for each term of a sum, in whatever order it is taken. If c > 1 nothing is
proven and the loss is infinite. By ``privacy.iteration`` the last point is μ-Gaussian DP with

    μ = (Δ/ν)·√((1 - c^T)(1 + c)/((1 + c^T)(1 - c))),

which gains on composition, (Δ/ν)·√T, once T > 2/(ηm). Only losses that are convex, Lipschitz and smooth on
the whole space by construction are taken: gradients that are clipped are those of no convex function. Here
they are clipped a little above L, which does nothing but drop users with NaN. Points on the way do not leave,
so there is no trace, no average, no stopping; η, u and T come from the plan alone.
Utility, if a minimizer lies within R of the start (docs/theory/langevin.md): with V = c^{2T}·R² + dim·ν²·(1 -
c^{2T})/(1 - c²), E F - F* ≤ uR²/2 plus the least of slope·√V; (M + m)·V/2 in the whole space; and for steps η
≤ 1/(M + m), R²/(2ηT) + (1 + log T)·dim·ν²/η. The plan is not chosen by a bound but by ``predicted_excess``,
what a quadratic with nominal curvatures would reach.

Cost: T·n user gradients in one compiled loop; memory of a second copy of a linear model's data, prepared
once, and of one chunk of user gradients, or of one number for a user of one item.

Example:
    >>> import jax
    >>> from dpsco_jax import Budget
    >>> from dpsco_jax.problems import synthetic
    >>> from dpsco_jax.solvers.item_level import langevin
    >>> made = synthetic.logistic_regression(jax.random.key(0), num_users=100, items_per_user=2, dim=3)
    >>> plan = langevin.plan(made.problem(distance=5.0), Budget(1.0, 1e-5), num_steps=20)
    >>> start = jax.numpy.zeros(3)
    >>> run = jax.jit(lambda key: langevin.solve(key, plan, made.objective, made.data, start))
    >>> solution = run(jax.random.key(1))
    >>> solution.params.shape, int(solution.status), plan.certificate().epsilon <= 1.0
    ((3,), 0, True)
"""

import dataclasses
import math
from typing import Annotated, Any

import jax
import jax.numpy as jnp
from dp_accounting import NeighboringRelation

from dpsco_jax import _checks, _counts, _float64, _sharding, privacy
from dpsco_jax._argument_kinds import Count, Nonnegative, Positive, integer, one_of
from dpsco_jax._conditions import drawable, positive_and_finite
from dpsco_jax._numerics import as_floats
from dpsco_jax._pytrees import Number, pytree, static
from dpsco_jax.geometry import domains
from dpsco_jax.geometry.norms import global_norm
from dpsco_jax.mechanisms import noisy_iteration
from dpsco_jax.oracles import user_gradients
from dpsco_jax.problems import _proofs
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.problem import Problem
from dpsco_jax.problems.users import UserData
from dpsco_jax.problems.users import items_per_user as items_of_each
from dpsco_jax.solvers import _arguments, _costs, _plan_base, _planning, plans
from dpsco_jax.solvers._plan_base import MadeFor
from dpsco_jax.solvers._schedules import langevin as schedule
from dpsco_jax.solvers._schedules import nominal_model
from dpsco_jax.solvers.solution import Solution, finished
from dpsco_jax.solvers.work import Work

__all__ = ["Plan", "plan", "solve"]

_PASSES = 1000
_CLIP_ROOM = 1.0 + 2.0**-12  # a float32 gradient of norm L is not clipped
_PRECISIONS = ("float32", "float64")
_BLOCKS = 2.0**-20  # of L: float32 sums over users
_MARGINS = 2.0**-23  # of (M + m)·D: float32 margins and pulls
_EACH = 2.0**-52  # of both, for each term of a sum in float64
_MOST_SLOTS = 2**20  # items of a user whose mean is taken in float64
_OWN_ROUNDING = 1.0 + 2.0**-20  # of the numbers here, in float32


@pytree
class Plan(MadeFor):
    """What ``solve`` will do. Sizes are static, numbers are leaves of the pytree (may be batched).

    Attributes:
        num_users: n.
        items_per_user: m, item slots of a user.
        dim: number of parameters.
        num_steps: T.
        precision: in which steps are computed.
        chunk_size: users whose gradients are held at once.
        radius: R, how far from the start points are kept.
        proven_for: the constants of the objective that ``solve`` has to be given.
        noise_multiplier: ν/Δ, the noise of a step over how far apart the steps of neighbours may be.
        step_size: η.
        regularization: u.
        epsilon: the budget that was planned for; what is spent follows from ``noise_multiplier``.
        delta: δ of that budget; the certificate is for this δ.
        predicted_excess: the excess risk that is expected on the nominal problem; no bound.
        excess_bound: proven bound on the expected excess risk. Both are those of a run from the origin.
    """

    num_users: int = static()
    items_per_user: int = static()
    dim: int = static()
    num_steps: int = static()
    precision: str = static(choices=_PRECISIONS)
    chunk_size: int = static()
    radius: float = static()
    proven_for: _proofs.Contracting = static()
    noise_multiplier: Number
    step_size: Number
    regularization: Number
    epsilon: Number
    delta: Number
    predicted_excess: Number
    excess_bound: Number

    @property
    def user_gradients(self) -> int:
        """User gradients of the whole run."""
        return self.num_steps * self.num_users

    @property
    def shrinkage(self) -> Any:
        """1 - c: by what share of their distance a step brings two points closer; below 0 if by none."""
        own = self.proven_for
        return schedule.shrinkage(self.step_size, own.smoothness, own.ridge + self.regularization)

    def sensitivity_from(self, norm: Any) -> Any:
        """Δ of a run from a start of this norm, which may be traced."""
        own = self.proven_for
        xp, (step, added, far) = as_floats(self.step_size, self.regularization, norm)
        gap = xp.minimum(own.gap + 2.0 * own.smoothness * far, 2.0 * own.lipschitz)
        each = _EACH * (self.num_users + self.dim + _MOST_SLOTS)
        sums, margins = (_BLOCKS, _MARGINS) if self.precision == "float32" else (each, each)
        bend = (own.smoothness + own.ridge + added) * (self.radius + far)
        error = sums * own.lipschitz + margins * bend
        return step * (gap / self.num_users + 2.0 * error) * _OWN_ROUNDING

    @property
    def sensitivity(self) -> Any:
        """Δ: how far apart a step of neighbours may be, of a run that starts at the origin."""
        return self.sensitivity_from(0.0)

    @property
    def noise_stddev(self) -> float:
        """ν of the noise on each parameter in each step, of a run that starts at the origin."""
        return float(self.noise_multiplier) * float(self.sensitivity)

    @property
    def mu(self) -> Any:
        """The Gaussian privacy of the last point; infinite where nothing is proven."""
        xp, (found,) = as_floats(self.shrinkage)
        share = xp.where(self.accounted, found, 0.0)
        sigma = xp.where(self.accounted, self.noise_multiplier, 0.0)
        return privacy.last_iterate_mu(self.num_steps, share, sigma)

    @property
    def assumes(self) -> tuple[str, ...]:
        """What the guarantee assumes."""
        if self.precision == "float64":
            return ()
        return ("float32 sums over users are exact to 2^-20, margins to 2^-23",)

    @property
    def relation(self) -> NeighboringRelation:
        """Which data sets are neighbours: one user is replaced."""
        return _planning.REPLACE_ONE

    @property
    def accounted(self) -> Any:
        """Whether the proof covers a run with these numbers; a bool, may be traced."""
        _, (sigma, step, added, q) = as_floats(
            self.noise_multiplier, self.step_size, self.regularization, self.shrinkage
        )
        good = positive_and_finite(sigma, step, self.sensitivity)
        good = good & (added >= 0) & (added < math.inf) & (q >= 0)
        return good & drawable(sigma * self.sensitivity)

    def work_for(self, item: _costs.Item) -> Work:
        """What the whole run costs."""
        step = _costs.clipped_sum(self.num_users, item) + _costs.release(item.dim)
        step += _costs.method(item.dim)
        return step * self.num_steps + _costs.prepared(self.num_users, item)

    def loss(self) -> privacy.PrivacyLoss:
        """What a run of these numbers costs, infinite where the proof does not cover them; may be traced."""
        xp, (mu,) = as_floats(self.mu)
        proven = mu < xp.inf
        return privacy.unbounded_unless(proven, privacy.gdp(xp.where(proven, mu, 0.0)))

    def certificate(self) -> privacy.Certificate:
        """The (ε, δ) of a run of these numbers, by the closed form of the Gaussian; infinite as ``loss`` is.

        Raises:
            ValueError: ``delta`` is not in (0, 1), or numbers are arrays.
        """
        multiplier = 1.0 / float(self.mu) if bool(self.accounted) else 0.0
        event = privacy.events.gaussian(multiplier)
        return privacy.certificate(event, float(self.delta), _planning.REPLACE_ONE, self.assumes)

    def __str__(self) -> str:
        composed = math.sqrt(self.num_steps) / float(self.noise_multiplier)
        remarks = [
            ("contraction", f"{1.0 - float(self.shrinkage):.6g}"),
            ("sensitivity of a step", f"{float(self.sensitivity):.5g}"),
            ("Gaussian privacy", f"{float(self.mu):.5g} (of all points {composed:.5g})"),
        ]
        return plans.describe("noisy gradient descent, last point", self, remarks)


@_plan_base.remembers(least_users=2)
def plan(
    problem: Problem,
    budget: privacy.Budget,
    *,
    regularization: Nonnegative | None = None,
    num_steps: Annotated[int, integer(1, 2**31 - 1)] | None = None,
    step_size: Positive | None = None,
    columns_per_row: Count | None = None,
    gradient_budget: int | None = None,
    precision: Annotated[str, one_of(*_PRECISIONS)] = "float32",
    chunk_size: Count = 64,
) -> Plan:
    """Checks all arguments, chooses the numbers and calibrates the noise. All of them are public.

    Args:
        problem: for the objective, which must be a smooth loss of ``problems.losses`` that is Lipschitz on
            the whole space, on a domain of ``geometry.domains``; n ≥ 2, the number of parameters, m, and R,
            which must be finite: points are kept within R of the start.
        budget: (ε, δ) of the run, δ > 0.
        regularization: u ≥ 0; what is not given of u, T and η is what ``predicted_excess`` is least for.
        num_steps: T.
        step_size: η, at most 2/(M + 2m), m the strong convexity of ridge and u together.
        columns_per_row: entries of a one-hot row, which the prediction counts with; ``None`` for dense rows.
        gradient_budget: item gradients that a run may take; 1000·n·m if left out. Not looked at where
            ``num_steps`` is given.
        precision: ``"float32"``, with an allowance for the rounding of sums over users that matters from some
            1e5 users on, or ``"float64"``, which needs ``jax_enable_x64`` and parameters of that type.
        chunk_size: users whose gradients are held at once; without effect for users of one item.

    Raises:
        ValueError: an argument is out of range, the loss is not of these kinds or claims more than is proven
            of it, or the step is so long that nothing is proven.
    """
    one_pass = problem.num_users * problem.items_per_user
    if gradient_budget is None:
        gradient_budget = _PASSES * one_pass
    gradient_budget = _checks.require_integer("gradient_budget", gradient_budget, one_pass)
    radius = problem.require_distance()
    own = _proofs.require_contracting(problem.objective, radius)
    if step_size is not None:
        longest = schedule.longest_step(own.smoothness, own.ridge + (regularization or 0.0))
        within = (
            f"in (0, {longest:.6g}], at most 2/(M + 2m) for steps to contract by 1 - step_size*m"
        )
        _checks.require(step_size <= longest, "step_size", step_size, within)

    draft = Plan(
        num_users=problem.num_users,
        items_per_user=problem.items_per_user,
        dim=problem.dim,
        num_steps=1,
        precision=precision,
        chunk_size=chunk_size,
        radius=radius,
        proven_for=own,
        noise_multiplier=1.0,
        step_size=1.0,
        regularization=0.0,
        epsilon=budget.epsilon,
        delta=budget.delta,
        predicted_excess=math.inf,
        excess_bound=math.inf,
    )
    setting = schedule.Setting(
        nominal=nominal_model.nominal(problem, columns_per_row),
        dim=problem.dim,
        smoothness=own.smoothness,
        ridge=own.ridge,
        slope=problem.slope,
        distance=radius,
        move=float(draft.sensitivity),  # of a step of length 1
        mu=privacy.gdp_within(budget.epsilon, budget.delta),
        whole_space=math.isinf(own.diameter),
        exact_projection=math.isinf(own.diameter) or radius >= own.diameter,
    )
    most = max(1, gradient_budget // one_pass)
    numbers = schedule.best(setting, most, num_steps, step_size, regularization)
    chosen = dataclasses.replace(
        draft, **numbers._asdict(), noise_multiplier=schedule.noise_multiplier(setting, numbers)
    )
    setting = setting._replace(move=float(chosen.sensitivity) / numbers.step_size)
    bound = schedule.bound(setting, numbers)
    # The model knows nothing of the ball that points are kept in.
    predicted = min(schedule.expected(setting, numbers), bound)
    return dataclasses.replace(chosen, predicted_excess=predicted, excess_bound=bound)


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
        params: the starting point, public; projected onto the domain.

    Raises:
        ValueError: if the number of users or of parameters is not the planned one, the parameters are
            narrower than planned, or the objective does not have the proven constants that were planned for.
    """
    _arguments.require_run(Plan, key, plan, objective, data, params)
    kind = _require_kind(plan.precision, params)
    if plan.precision == "float64":
        params = _float64.exact("langevin of precision 'float64'", params)
    slots = jax.tree.leaves(data.items)[0].shape[1]
    _checks.require(slots <= _MOST_SLOTS, "data.items", slots, f"of at most {_MOST_SLOTS} slots")
    found = _proofs.require_contracting(objective, plan.radius)
    if found != plan.proven_for:
        raise ValueError(f"objective must have plan.proven_for = {plan.proven_for}, got {found}")
    oracle_key, noise_key = jax.random.split(key)
    start = objective.domain.project(params)
    clip = plan.proven_for.lipschitz * _CLIP_ROOM
    oracle, oracle_data = user_gradients.clipped_sum_oracle(
        objective, data, start, clip, None, plan.chunk_size, unaltered=True
    )
    # Once and here, or all rows are converted in every step.
    oracle_data = jax.tree.map(
        lambda x: x.astype(kind) if jnp.issubdtype(jnp.result_type(x), jnp.floating) else x,
        oracle_data,
    )

    def move(t: Any, point: Any) -> Any:
        total = oracle(jax.random.fold_in(oracle_key, t), point, oracle_data).gradient

        def one(g: Any, ridge: Any, w: Any, origin: Any) -> Any:
            slope = g / plan.num_users + ridge + plan.regularization * (w - origin)
            return (-plan.step_size * slope).astype(w.dtype)

        return jax.tree.map(one, total, objective.regularizer_gradient(point), point, start)

    near = domains.ball(plan.radius, start)

    def project(point: Any) -> Any:
        # The second moves along a segment to the start, which does not leave the domain.
        return near.project(objective.domain.project(point))

    sensitivity = jnp.asarray(plan.sensitivity_from(global_norm(start)))
    end = noisy_iteration.last_point(
        noise_key, start, move, project, plan.num_steps, sensitivity, plan.noise_multiplier
    )
    loss = privacy.unbounded_unless(jnp.isfinite(sensitivity), plan.loss())
    ledger = privacy.charge(privacy.open_ledger(_planning.REPLACE_ONE), loss)
    items = jnp.sum(items_of_each(data), dtype=jnp.int32)
    return finished(
        end,
        ledger,
        plan.user_gradients * slots,
        _counts.times(items, plan.num_steps),
        None,
    )


def _require_kind(precision: str, params: Any) -> Any:
    """The one dtype of the parameters; ``ValueError`` if it is narrower than planned."""
    if precision == "float64" and jnp.result_type(float) != jnp.float64:
        raise ValueError("jax_enable_x64 must be on for a plan of precision 'float64', got False")
    kinds = {jnp.result_type(leaf) for leaf in jax.tree.leaves(params)}
    for kind in kinds:
        wide = jnp.promote_types(kind, precision) == kind
        _checks.require(wide, "params", kind, f"real floating, at least {precision}")
    return jnp.result_type(*kinds)
