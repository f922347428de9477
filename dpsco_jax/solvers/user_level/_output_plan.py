"""The plan of output perturbation: how far one user moves the last point, from the numbers that run.

What it computes: the contraction of a gradient step, the sensitivity that follows, and whether the proof of
``output_perturbation`` covers the numbers of a plan.

Source: as for ``output_perturbation``.

Formal guarantee: let the loss of every user be convex, L-Lipschitz and H-smooth, λ and H' the strong
convexity and the smoothness of the mean with its regularizers. A step of length η, w - η·∇F(w), moves two
points closer by the factor c = max(|1 - ηλ|, |1 - ηH'|) = 1 - r, r = min(ηλ, 2 - ηH'), and a projection
expands nothing. Replacing a user changes the mean gradient by at most 2L/N at any point. So a_(t+1) ≤ c·a_t
+ 2ηL/N for the distance between the runs on two neighbours, and if r > 0,

    ‖w_K - w'_K‖ ≤ 2ηL/N·(1 - c^K)/r ≤ 2ηL/(N·r), which is 2L/(λN) for η ≤ 2/(H' + λ).

If r ≤ 0 nothing is proven and the loss is infinite. λ has to be there in every data set: it is what ridge and
regularization give, and the strong convexity of the loss itself only because ``solve`` gives a user without
items the loss (μ/2)·‖w‖², whose gradient is no longer than L in the domain. A step that is computed with an
error e instead of exactly adds e/r to each run.

Cost: none.
"""

import math
from typing import Any, NamedTuple

from dp_accounting import NeighboringRelation

from dpsco_jax import privacy
from dpsco_jax._conditions import positive_and_finite
from dpsco_jax._numerics import as_floats
from dpsco_jax._pytrees import Number, pytree, static
from dpsco_jax.geometry import domains
from dpsco_jax.problems import _proofs
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.problem import Problem
from dpsco_jax.solvers import _costs, plans
from dpsco_jax.solvers._plan_base import MadeFor
from dpsco_jax.solvers.work import Work

REPLACE = NeighboringRelation.REPLACE_ONE
CLIP_ROOM = 1.0 + 2.0**-10
_LEAST_ROOM = 1.0 + 2.0**-11  # a float32 gradient of norm L is not clipped
_GRADIENT_ROUNDING = 2.0**-20  # of L: a mean over users, summed in blocks
_STEP_ROUNDING = 2.0**-22  # of the distance from the start, and of the start from the origin
_OWN_ROUNDING = 1.0 + 2.0**-20  # of the numbers here, in float32


class Constants(NamedTuple):
    """What is proven of an objective.

    Attributes:
        lipschitz: L of every item's loss.
        smoothness: H of every item's loss.
        loss_strong_convexity: μ of every item's loss.
        ridge: of the regularizer.
        diameter: of the domain.
    """

    lipschitz: float
    smoothness: float
    loss_strong_convexity: float
    ridge: float
    diameter: float


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
    proven_for: Constants = static()
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
        return REPLACE

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
        return privacy.certificate(event, float(self.delta), REPLACE, self.assumes)

    def __str__(self) -> str:
        group = "direct" if self.constants == "tight" else "black box"
        remarks = [
            ("from items to users", group),
            ("sensitivity", f"{float(self.sensitivity):.5g}"),
        ]
        return plans.describe("output perturbation", self, remarks)


def proven_constants(objective: Objective) -> Constants:
    """The constants of an objective, if they are proven and smooth.

    Raises:
        ValueError: nothing proves that the loss is convex, Lipschitz and smooth with these constants, or that
            the domain is a convex set of that diameter.
    """
    if objective.smoothness is None:
        raise ValueError("objective must be smooth, for gradient steps to contract, got None")
    _proofs.require_proven(objective)
    return Constants(
        float(objective.lipschitz),
        float(objective.smoothness),
        float(objective.loss_strong_convexity),
        float(objective.ridge),
        domains.proven_diameter(objective.domain),
    )


def bare(
    problem: Problem,
    budget: privacy.Budget,
    constants: str,
    chunk_size: int,
    own: Constants,
    multiplier: float,
    added: float,
) -> Plan:
    """The plan of one step of length 1/H' with regularization ``added``; no bound is set."""
    return Plan(
        num_users=problem.num_users,
        items_per_user=problem.items_per_user,
        dim=problem.dim,
        num_steps=1,
        constants=constants,
        chunk_size=chunk_size,
        proven_for=own,
        noise_multiplier=multiplier,
        clip_norm=own.lipschitz * CLIP_ROOM,
        step_size=1.0 / (own.smoothness + own.ridge + added),
        regularization=added,
        epsilon=budget.epsilon,
        delta=budget.delta,
        optimization_error=math.inf,
        excess_bound=math.inf,
    )
