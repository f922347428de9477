"""A private certificate that a point is nearly stationary, wherever the point comes from.

What it computes: for one point, of any trainer, a noisy ‖∇F‖ and a noisy λ_min(∇²F), F the mean over users
and the regularizer, with an upper bound on the first and a lower bound on the second that each hold with
probability 1 - ω; and the least α for which the bounds say that the point is α-second-order stationary:
‖∇F‖ ≤ α and λ_min ≥ -√(ρα).

Source: own; what is bounded and why is that of T Lemma 6.3.8 (``oracles.second_order``).

Formal guarantee: (ε, δ) for a user's whole data under REPLACE_ONE, for any losses, by two Gaussian releases
of equal multipliers, with sensitivities 2G/n for gradients clipped to G, and (a + b)/n for Hessians clipped
to [-a, b]. The point has to be public, or released with a loss of its own, which adds to this one where the
users are the same. The bounds: noise of standard deviation σ is above z·σ with probability ω exactly, z the
quantile of the normal law. They are about the users at hand; ``rates.uniform_convergence`` says by how much a
population may differ. A point that is not finite has an infinite bound, and so has one at which the
regularizer has a gradient of over 256·G, beside which float64 would round a user by more than the noise.

Why numbers are released and not the noisy gradient, whose norm would have to be bounded: replacing a user
moves both by 2G/n, so σ is the same. Were the gradient's direction known, all that the vector N(∇F, σ²I) says
of ‖∇F‖ would be its component along it, N(‖∇F‖, σ²), which is the number that is released here. Not knowing
the direction, no test of the vector is more powerful at all of them; with the exact quantile of its norm, a
noncentral χ, the mean bound is as large for long gradients and larger for short ones, more so with d.

Cost: a gradient and a Hessian of every user, d ≤ 512; float64.

Example:
    >>> import jax
    >>> from dpsco_jax import Budget
    >>> from dpsco_jax.problems import fixtures
    >>> from dpsco_jax.solvers.nonconvex import certify
    >>> made = fixtures.two_wells(jax.random.key(0), num_users=20_000, items_per_user=1, dim=2)
    >>> with jax.enable_x64(True):
    ...     plan = certify.plan(made.problem(), Budget(1.0, 1e-6))
    ...     point = jax.numpy.asarray(made.minimizer)
    ...     run = jax.jit(lambda key: certify.solve(key, plan, made.objective, made.data, point))
    ...     released = run(jax.random.key(1)).released
    >>> float(released["gradient_bound"]) < 0.01, float(released["curvature_bound"]) > 0.3
    (True, True)
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import scipy.special
from jax.scipy.special import ndtri

from dpsco_jax import _counts, _float64, _sharding, privacy
from dpsco_jax._argument_kinds import Inside, Positive
from dpsco_jax._conditions import drawable
from dpsco_jax._pytrees import Number, pytree
from dpsco_jax.mechanisms import additive
from dpsco_jax.privacy.releases import GaussianReleases, fixed_size
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.problem import Problem
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers import _arguments, _costs, _plan_base, _planning, plans
from dpsco_jax.solvers.nonconvex import _second_order_bounds
from dpsco_jax.solvers.solution import Solution, Status
from dpsco_jax.solvers.work import Work

__all__ = ["Plan", "plan", "solve"]


@pytree
class Plan(_second_order_bounds.Bounded):
    """What ``solve`` will do. Sizes are static, numbers are leaves of the pytree (may be batched).

    Attributes:
        noise_multiplier: standard deviation of each of the two releases over its sensitivity.
        hessian_lipschitz: ρ; ``None`` if none is known, and no α is stated then.
        failure: ω, of each bound.
        epsilon: ε of the budget that the noise was calibrated for.
        delta: δ of that budget, for which the certificate is.
    """

    noise_multiplier: Number
    hessian_lipschitz: Number | None
    failure: Number
    epsilon: Number
    delta: Number

    @property
    def releases(self) -> GaussianReleases:
        """Both, on all users."""
        users = self.num_users
        return GaussianReleases(users, users, 2, "fixed", self.noise_multiplier, self.delta)

    @property
    def gradient_stddev(self) -> Any:
        """σ of the noise on ‖∇F‖."""
        return self.noise_multiplier * self.gradient_sensitivity

    @property
    def curvature_stddev(self) -> Any:
        """σ of the noise on λ_min(∇²F)."""
        return self.noise_multiplier * self.curvature_sensitivity

    @property
    def user_gradients(self) -> int:
        """One of each user."""
        return self.num_users

    def work_for(self, item: _costs.Item) -> Work:
        """What a run costs."""
        return self.work_for_points(item, 1)

    @property
    def accounted(self) -> Any:
        """Whether the guarantee covers a run with these numbers; a bool, may be traced."""
        return self.bounded & drawable(self.gradient_stddev, self.curvature_stddev)

    def loss(self) -> privacy.PrivacyLoss:
        """What a run of these numbers costs, infinite where one is out of its range; may be traced."""
        return privacy.unbounded_unless(self.accounted, self.releases.loss())

    def certificate(self) -> privacy.Certificate:
        """The (ε, δ) of the two releases by the tightest accountant; infinite as ``loss`` is."""
        found = self.releases.certificate()
        return found if bool(self.accounted) else found._replace(epsilon=math.inf)

    def __str__(self) -> str:
        quantile = -float(scipy.special.ndtri(float(self.failure)))
        remarks = (
            (
                "bound above the true gradient norm",
                f"{2 * quantile * float(self.gradient_stddev):.4g} at most",
            ),
            (
                "bound below the true eigenvalue",
                f"{2 * quantile * float(self.curvature_stddev):.4g} at most",
            ),
            ("both, with probability", f"{1 - float(self.failure):.4g} each"),
        )
        return plans.describe("certificate of a stationary point", self, remarks)


@_plan_base.remembers(least_users=2, convex=False)
def plan(
    problem: Problem,
    budget: privacy.Budget,
    *,
    clip_norm: Positive | None = None,
    failure: Inside = 0.05,
    accountant: _planning.Accountant = "pld",
) -> Plan:
    """Checks all arguments and sets the noise. All of them are public.

    Args:
        problem: for n, d ≤ 512, and a loss with a smoothness; its Hessian-Lipschitz constant, if it has one.
        budget: (ε, δ) of the two releases.
        clip_norm: G, of a user's gradient; the Lipschitz constant of the loss if left out.
        failure: ω in (0, 1), of each bound.
        accountant: by which the noise is calibrated, ``"pld"`` or ``"rdp"``.

    Raises:
        ValueError: an argument is out of range, or ``jax_enable_x64`` is off.
    """
    _float64.require_x64("certify")
    users = problem.num_users
    multiplier = fixed_size(users, users, 2).noise_multiplier(
        budget.epsilon, budget.delta, accountant
    )
    return Plan(
        **_second_order_bounds.bounds(problem, clip_norm, symmetric=False),
        noise_multiplier=multiplier,
        hessian_lipschitz=problem.objective.hessian_lipschitz,
        failure=failure,
        epsilon=budget.epsilon,
        delta=budget.delta,
    )


@_sharding.solver
def solve(
    key: jax.Array, plan: Plan, objective: Objective, data: UserData, params: Any
) -> Solution:
    """Runs the plan. Pure JAX: jit and map over key, the plan's numbers, data and the point.

    Args:
        key: a typed key.
        plan: of ``plan``.
        objective: static; close over it when compiling.
        data: with ``plan.num_users`` users.
        params: the point: public, or released with a loss of its own.

    Returns:
        The point, projected onto the domain. ``released`` holds ``gradient_norm`` and ``least_curvature``,
        with noise, their bounds ``gradient_bound`` and ``curvature_bound``, and ``stationarity``, the α, if ρ
        is known.

    Raises:
        ValueError: the number of users or of parameters is not the planned one, or ``jax_enable_x64`` is off.
    """
    _arguments.require_run(Plan, key, plan, objective, data, params)
    point = objective.domain.project(_second_order_bounds.in_float64("certify", params))
    at = _second_order_bounds.statistics("certify", plan, objective, data, point)
    multiplier = plan.noise_multiplier
    norm, least = at(point)
    # Public. NaN, of a point that is no number or too far away, is not noised but left out.
    good = _second_order_bounds.usable(plan, objective, point)
    norm, least = (jnp.where(good, number, 0.0) for number in (norm, least))
    first, second = jax.random.split(key)
    norm = _released(first, norm, plan.gradient_sensitivity, multiplier)
    least = _released(second, least, plan.curvature_sensitivity, multiplier)
    quantile = -ndtri(jnp.asarray(plan.failure, jnp.float64))
    steep = jnp.maximum(norm + quantile * plan.gradient_stddev, 0.0)
    bent = least - quantile * plan.curvature_stddev
    steep, bent = jnp.where(good, steep, jnp.inf), jnp.where(good, bent, -jnp.inf)
    released = {
        "gradient_norm": norm,
        "gradient_bound": steep,
        "least_curvature": least,
        "curvature_bound": bent,
    }
    if plan.hessian_lipschitz is not None:
        down = jnp.maximum(-bent, 0.0)
        safe = jnp.maximum(jnp.asarray(plan.hessian_lipschitz, jnp.float64), 1e-300)
        released["stationarity"] = jnp.maximum(steep, jnp.square(down) / safe)
    each = jax.tree.leaves(data.items)[0].shape[1] * plan.num_users
    return Solution(
        params=jax.tree.map(lambda x, p: x.astype(p.dtype), point, params),
        privacy=plan.loss(),
        status=jnp.where(good, int(Status.OK), int(Status.DIVERGED)).astype(jnp.int32),
        gradients=_counts.count(each),
        unprivate={"gradients": _counts.count(each), "trace": None},
        released=released,
    )


def _released(key: jax.Array, value: jax.Array, sensitivity: Any, multiplier: Any) -> jax.Array:
    """The number with Gaussian noise of so many sensitivities."""
    noisy: jax.Array = additive.gaussian(key, value, multiplier * sensitivity)
    return noisy
