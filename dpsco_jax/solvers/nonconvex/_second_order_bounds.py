"""What selection and certification of a stationary point share: how users are bounded, and what is looked at.

A plan holds the clip norm of a user's gradient and the interval to which eigenvalues of a user's Hessian are
clipped: sensitivities are computed from these and n, for REPLACE_ONE (``oracles.second_order``), and rounded
up by what float64 is off. ``statistics`` are ‖∇F‖ and λ_min(∇²F) of the mean over users and the regularizer,
which knows no data.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from dp_accounting import NeighboringRelation
from jax.flatten_util import ravel_pytree

from dpsco_jax import _checks, _float64
from dpsco_jax._conditions import positive_and_finite
from dpsco_jax._infeasible import Infeasible
from dpsco_jax._numerics import as_floats
from dpsco_jax._pytrees import Number, pytree, static
from dpsco_jax.geometry import norms
from dpsco_jax.oracles.second_order import LARGEST_DIM, rounding, second_order
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.problem import Problem
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers import _costs
from dpsco_jax.solvers._plan_base import MadeFor
from dpsco_jax.solvers.work import Work

_FARTHEST = 256.0  # at which roundings of a norm are within what ``rounding`` allows for
_LEAST = 1e-200


@pytree
class Bounded(MadeFor):
    """Of a plan that looks at gradients and Hessians. Sizes are static, numbers are leaves of the pytree.

    Attributes:
        num_users: n.
        dim: d.
        clip_norm: G, of a user's gradient.
        least_curvature: -a, below which no eigenvalue of a user's Hessian is counted.
        most_curvature: b, above which none is.
    """

    num_users: int = static()
    dim: int = static()
    clip_norm: Number
    least_curvature: Number
    most_curvature: Number

    @property
    def gradient_sensitivity(self) -> Any:
        """Δ₁ = 2G/n: how far one user moves ‖∇F‖."""
        return 2.0 * self.clip_norm * self._share

    @property
    def curvature_sensitivity(self) -> Any:
        """Δ₂ = (a + b)/n: how far one user moves λ_min(∇²F)."""
        return (self.most_curvature - self.least_curvature) * self._share

    @property
    def _share(self) -> float:
        return (1.0 + rounding(self.num_users, self.dim)) / self.num_users

    @property
    def bounded(self) -> Any:
        """Whether users are bounded by the numbers; a bool, may be traced."""
        moves = self.gradient_sensitivity, self.curvature_sensitivity
        xp, (least, *both) = as_floats(self.least_curvature, *moves)
        good = positive_and_finite(self.clip_norm, self.most_curvature, *moves)
        # Scores are over the sensitivities, which must not be subnormal.
        good = good & (both[0] >= _LEAST) & (both[1] >= _LEAST)
        return good & (least <= 0) & (least > -xp.inf)

    @property
    def relation(self) -> NeighboringRelation:
        """Which data sets are neighbours: one user is replaced."""
        return NeighboringRelation.REPLACE_ONE

    @property
    def assumes(self) -> tuple[str, ...]:
        """What the bounds assume; privacy assumes none of it."""
        return ("gradients and Hessians of users are within the bounds to which they are clipped",)

    def work_for_points(self, item: _costs.Item, points: int) -> Work:
        """Gradient and Hessian of every user at so many points, and the eigenvalues of their means."""
        users = self.num_users
        sums = _costs.clipped_sum(users, item) + _costs.hessians(users, item)
        return _costs.prepared(users, item) + (sums + _costs.decomposition(self.dim)) * points


def bounds(problem: Problem, clip_norm: float | None, symmetric: bool) -> dict[str, Any]:
    """The fields of ``Bounded`` for a problem: by the constants of its loss.

    Args:
        problem: for a loss with a smoothness, and at most ``LARGEST_DIM`` parameters.
        clip_norm: G; the Lipschitz constant of the loss if ``None``.
        symmetric: whether a is the smoothness too, or what the loss says of its least curvature.
    """
    objective = problem.objective
    most = _checks.require_real("problem.objective.smoothness", objective.smoothness, 0)
    slope = problem.lipschitz if clip_norm is None else clip_norm
    slope = _checks.require_real("problem.objective.lipschitz", slope, 0)
    fits = problem.dim <= LARGEST_DIM
    _checks.require(fits, "problem.dim", problem.dim, f"at most {LARGEST_DIM}, for a Hessian")
    if rounding(problem.num_users, problem.dim) > 0.01:
        raise Infeasible(
            f"problem.num_users must be such that float64 tells users apart, got {problem.num_users}"
        )
    least = -most if symmetric else max(-most, min(0.0, float(objective.loss_strong_convexity)))
    return {
        "num_users": problem.num_users,
        "dim": problem.dim,
        "clip_norm": slope,
        "least_curvature": least,
        "most_curvature": most,
    }


def statistics(
    name: str, plan: Bounded, objective: Objective, data: UserData, params: Any
) -> Callable[[Any], tuple[jax.Array, jax.Array]]:
    """The function from a point to ‖∇F‖ and λ_min(∇²F), both NaN where ``usable`` is false.

    Args:
        name: of the solver, which runs in float64.
        plan: how users are bounded.
        objective: of the loss and the regularizer.
        data: all users.
        params: a point in float64, for its shapes.
    """
    _float64.require_x64(name)
    means = second_order(
        objective, data, params, plan.clip_norm, plan.least_curvature, plan.most_curvature
    )

    def at(point: Any) -> tuple[jax.Array, jax.Array]:
        flat, _ = ravel_pytree(point)
        found = means(point)
        gradient = found.gradient + objective.ridge * flat
        least = jnp.linalg.eigvalsh(found.hessian)[0] + objective.ridge
        good = usable(plan, objective, point)
        norm = jnp.linalg.norm(gradient)
        return jnp.where(good, norm, jnp.nan), jnp.where(good, least, jnp.nan)

    return at


def usable(plan: Bounded, objective: Objective, point: Any) -> jax.Array:
    """Whether a point has statistics: public, of the point, the plan and the regularizer alone; a bool.

    Not where it is not finite, nor where the regularizer's gradient or curvature is over 256 times what users
    are clipped to: beside that a user would be rounded by more than the noise.
    """
    flat, _ = ravel_pytree(point)
    # False on NaN.
    good = norms.global_norm(objective.ridge * flat) <= _FARTHEST * plan.clip_norm
    good &= objective.ridge <= _FARTHEST * (plan.most_curvature - plan.least_curvature)
    return good & norms.all_finite(point)


def in_float64(name: str, params: Any) -> Any:
    """The leaves in float64, whatever they were, and not on a TPU."""
    wide = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), params)
    return _float64.exact(name, wide)
