"""The plan of noisy gradient descent: how far one user moves a step, from the numbers that run.

Let the loss of every user be convex and M-smooth, whatever the data, and m the strong
convexity of ridge and regularization together. φ(x) = x - η·(∇F(x) + ridge·x + u·(x - start)) has on every
data set a symmetric Jacobian with eigenvalues between 1 - η(M + m) and 1 - ηm, so it is c-Lipschitz with

    c = max(|1 - ηm|, |1 - η(M + m)|) = 1 - min(ηm, 2 - η(M + m)),   which is 1 - ηm for η ≤ 2/(M + 2m).

Ridge and regularization are the same for neighbours, so that φ and φ' differ at a point by at most Δ =
η·G_Δ/n, G_Δ how far apart the gradients of two users are: twice the Lipschitz constant, or what
``problems.losses`` proves for points within R of the start, which is where the projection keeps them. A start
w ≠ 0 adds at most 2M·‖w‖ to G_Δ. A step that is computed with the error ηE adds 2ηE to Δ. Errors are those
of sums over users, a share of L, and of margins and pulls, a share of (M + m)·D for points within D of the
origin. In float32 these shares are 2^-20 and 2^-23, an allowance for sums in blocks, not a proof; in float64
2^-52 for each term of a sum, in whatever order it is taken. If c > 1 nothing is proven here and the loss is
infinite.
"""

import math
from typing import Any, NamedTuple

from dp_accounting import NeighboringRelation

from dpsco_jax import privacy
from dpsco_jax._conditions import drawable, positive_and_finite
from dpsco_jax._numerics import as_floats
from dpsco_jax._pytrees import Number, pytree, static
from dpsco_jax.geometry import domains
from dpsco_jax.problems import _proofs
from dpsco_jax.problems.objective import Objective
from dpsco_jax.solvers import _costs, plans
from dpsco_jax.solvers._plan_base import MadeFor
from dpsco_jax.solvers._schedules import langevin as schedule
from dpsco_jax.solvers.work import Work

REPLACE = NeighboringRelation.REPLACE_ONE
CLIP_ROOM = 1.0 + 2.0**-12  # a float32 gradient of norm L is not clipped
PRECISIONS = ("float32", "float64")
_BLOCKS = 2.0**-20  # of L: float32 sums over users
_MARGINS = 2.0**-23  # of (M + m)·D: float32 margins and pulls
_EACH = 2.0**-52  # of both, for each term of a sum in float64
MOST_SLOTS = 2**20  # items of a user whose mean is taken in float64
_OWN_ROUNDING = 1.0 + 2.0**-20  # of the numbers here, in float32


class Constants(NamedTuple):
    """What is proven of an objective.

    Attributes:
        lipschitz: L of every item's loss, on the whole space.
        smoothness: M of every item's loss.
        ridge: of the regularizer.
        diameter: of the domain.
        gap: how far apart the gradients of two items are, at points within R of the origin.
    """

    lipschitz: float
    smoothness: float
    ridge: float
    diameter: float
    gap: float


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
    precision: str = static(choices=PRECISIONS)
    chunk_size: int = static()
    radius: float = static()
    proven_for: Constants = static()
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
        each = _EACH * (self.num_users + self.dim + MOST_SLOTS)
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
        return REPLACE

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
        return privacy.certificate(event, float(self.delta), REPLACE, self.assumes)

    def __str__(self) -> str:
        composed = math.sqrt(self.num_steps) / float(self.noise_multiplier)
        remarks = [
            ("contraction", f"{1.0 - float(self.shrinkage):.6g}"),
            ("sensitivity of a step", f"{float(self.sensitivity):.5g}"),
            ("Gaussian privacy", f"{float(self.mu):.5g} (of all points {composed:.5g})"),
        ]
        return plans.describe("noisy gradient descent, last point", self, remarks)


def proven_constants(objective: Objective, radius: float) -> Constants:
    """The constants of an objective, if they are proven, and the loss is smooth.

    Args:
        objective: of ``problems.losses``, on a domain of ``geometry.domains``.
        radius: R, how far from the origin points may be.

    Raises:
        ValueError: nothing proves that the loss is smooth, convex and Lipschitz on the whole space with these
            constants, or that the domain is a convex set of that diameter.
    """
    if objective.smoothness is None:
        raise ValueError("objective must be smooth, for gradient steps to contract, got None")
    proof = _proofs.require_proven(objective)
    if not (proof.everywhere and objective.globally_convex_lipschitz):
        raise ValueError(
            "objective must be globally_convex_lipschitz: convex and Lipschitz on the whole space by"
            f" construction, got {objective.globally_convex_lipschitz}"
        )
    return Constants(
        float(objective.lipschitz),
        float(objective.smoothness),
        float(objective.ridge),
        domains.proven_diameter(objective.domain),
        proof.gradient_gap(radius),
    )
