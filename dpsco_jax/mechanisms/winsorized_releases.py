"""What is released by winsorized means: sizes, radii, noise, and what they cost.

What it computes: sensitivities, standard deviations and privacy losses of the forms of ``winsorized_mean``,
from the numbers that ``winsorized_calibration`` chooses.

Source: L Algorithm 2, Theorems 2 and 3; the forms in two steps are ours.

Formal guarantee: ``query_loss`` bounds one answer of ``winsorized_mean`` under REPLACE_ONE, for any vectors;
the proofs are in ``docs/privacy/winsorized_mean.md``.

Cost: none.
"""

import dataclasses
from typing import Any

import jax
from dp_accounting import NeighboringRelation

from dpsco_jax import privacy
from dpsco_jax.geometry import rotations
from dpsco_jax.mechanisms import private_range as ranges
from dpsco_jax.privacy import events
from dpsco_jax.privacy._numerics import array_namespace
from dpsco_jax.privacy.certificates import accounted_by

BOXED = ("winsorized", "refined", "laplace")
"""Forms with intervals."""

TWO_STEPS = ("refined", "recentred")
"""Forms with a coarse mean."""


@dataclasses.dataclass(frozen=True)
class WinsorizedReleases:
    """Some queries, each a private mean. Sizes are static, numbers are leaves (may be traced).

    Attributes:
        num_users: n, in every query.
        dim: length of the vectors.
        num_queries: T.
        form: ``"clipped"``, ``"winsorized"``, ``"refined"``, ``"recentred"`` or ``"laplace"``.
        radius: τ, how far the vectors of a query are believed to lie from some point.
        bound: B, to which rows are clipped first.
        coordinate_radius: τ after the rotation, in each coordinate.
        bin_width: of the intervals' bins.
        range_epsilon: η of each interval.
        coarse_multiplier: standard deviation over sensitivity of the coarse mean (refined, recentred).
        ball_radius: r, of the ball around the coarse mean (likewise).
        noise_multiplier: standard deviation over ``sensitivity``; the scale of the Laplace noise over
            it for ``"laplace"``.
        failure: γ, what the radii were chosen for; in total over all queries.
        epsilon: budget of all queries.
        delta: likewise.
    """

    num_users: int
    dim: int
    num_queries: int
    form: str
    radius: Any
    bound: Any
    coordinate_radius: Any
    bin_width: Any
    range_epsilon: Any
    coarse_multiplier: Any
    ball_radius: Any
    noise_multiplier: Any
    failure: Any
    epsilon: Any
    delta: Any

    @property
    def padded(self) -> int:
        """Number of coordinates after the rotation: all of them are paid for."""
        return rotations.padded_size(self.dim)

    @property
    def half_width(self) -> Any:
        """h: half the side of the box."""
        half = ranges.half_width(self.coordinate_radius, self.bin_width)
        return array_namespace(half, self.bound).minimum(half, self.bound)

    @property
    def box_sensitivity(self) -> Any:
        """How far the mean over the box moves in ℓ2."""
        return 2 * self.half_width * self.padded**0.5 / self.num_users

    @property
    def coarse_sensitivity(self) -> Any:
        """How far the coarse mean moves in ℓ2."""
        return self.box_sensitivity if self.form == "refined" else 2 * self.bound / self.num_users

    @property
    def sensitivity(self) -> Any:
        """How far the final mean moves: in ℓ2; in each coordinate for ``"laplace"``."""
        if self.form == "clipped":
            return 2 * self.bound / self.num_users
        if self.form in TWO_STEPS:
            return 2 * self.ball_radius / self.num_users
        return self.box_sensitivity / (self.padded**0.5 if self.form == "laplace" else 1)

    @property
    def noise_stddev(self) -> Any:
        """Standard deviation of the noise in each coordinate of the result."""
        return self.noise_multiplier * self.sensitivity * (2**0.5 if self.form == "laplace" else 1)

    @property
    def noise_variance(self) -> Any:
        """E‖noise‖² of one result."""
        return self.dim * self.noise_stddev**2

    def query_loss(self) -> privacy.PrivacyLoss:
        """What one query costs."""
        parts = []
        if self.form in BOXED:
            parts.append(privacy.scale(privacy.bounded_range(self.range_epsilon), self.padded))
        if self.form == "laplace":
            parts.append(privacy.scale(privacy.laplace(self.noise_multiplier), self.padded))
        else:
            parts.append(privacy.gaussian(self.noise_multiplier))
        if self.form in TWO_STEPS:
            parts.append(privacy.gaussian(self.coarse_multiplier))
        return privacy.compose(*parts)

    def loss(self) -> privacy.PrivacyLoss:
        """What all queries cost."""
        return privacy.scale(self.query_loss(), self.num_queries)

    def certificate(self) -> privacy.Certificate:
        """The (ε, δ) of all queries, on the host."""
        relation, delta = NeighboringRelation.REPLACE_ONE, float(self.delta)
        if self.form not in BOXED:
            query = [events.gaussian(float(self.noise_multiplier))]
            if self.form in TWO_STEPS:
                query.append(events.gaussian(float(self.coarse_multiplier)))
            event = events.repeated(events.composed(*query), self.num_queries)
            return privacy.certificate(event, delta, relation)
        host = jax.tree.map(float, self)
        spent = float(privacy.epsilon(host.loss(), delta))
        return privacy.Certificate(spent, delta, relation, accounted_by("Rényi curves"))

    def failure_probability(self) -> float:
        """Bound on the probability that some query clips a row, if rows are within the radius.

        For the forms in two steps, also if they are independent with a common mean.
        """
        chance = 0.0
        if self.form in BOXED:
            chance = (
                self.num_queries
                * self.padded
                * ranges.miss_probability(
                    self.num_users,
                    float(self.range_epsilon),
                    float(self.bound),
                    float(self.bin_width),
                )
            )
        radii = (self.form in BOXED) + 2 * (self.form in TWO_STEPS)
        return min(1.0, chance + radii * float(self.failure))


jax.tree_util.register_dataclass(
    WinsorizedReleases,
    data_fields=[f.name for f in dataclasses.fields(WinsorizedReleases) if f.type is Any],
    meta_fields=[f.name for f in dataclasses.fields(WinsorizedReleases) if f.type is not Any],
)
