"""What is released by winsorized means: sizes, radii, noise, and what they cost.

What it computes: sensitivities, standard deviations and privacy losses of the forms of ``winsorized_mean``,
from the numbers that ``winsorized_calibration`` chooses.

Source: L Algorithm 2, Theorems 2 and 3; the forms in two steps are ours.

Formal guarantee: ``query_loss`` bounds one answer of ``winsorized_mean`` under REPLACE_ONE, for any vectors;
the proofs are in ``docs/theory/winsorized_mean.md``. Sensitivities, loss and certificate are functions of
the numbers that ``winsorized_mean`` runs, whatever they were before; where one of them is out of its range,
loss and certificate are infinite.
"""

import dataclasses
import functools
from typing import Any

import jax
from dp_accounting import NeighboringRelation

from dpsco_jax import privacy
from dpsco_jax._checks import require_choice
from dpsco_jax._conditions import drawable, positive_and_finite, same_numbers
from dpsco_jax._numerics import array_namespace, as_floats
from dpsco_jax._pytrees import Number, pytree, static
from dpsco_jax.geometry import rotations
from dpsco_jax.mechanisms.winsorized import private_range as ranges
from dpsco_jax.privacy.certificates import accounted_by
from dpsco_jax.privacy.dp_accounting import events

BOXED = ("winsorized", "refined", "laplace")
"""Forms with intervals."""

TWO_STEPS = ("refined", "recentred")
"""Forms with a coarse mean."""

_ALL = ("clipped", "winsorized", "refined", "recentred", "laplace")


@pytree
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
        ball_radius: r, of the ball around the coarse mean (refined, recentred).
        noise_multiplier: standard deviation over ``sensitivity``; the scale of the Laplace noise over
            it for ``"laplace"``.
        failure: γ, what the radii were chosen for; in total over all queries.
        epsilon: the budget of all queries that was planned for; what is spent follows from the other numbers.
        delta: δ of that budget; the certificate is for this δ.
    """

    num_users: int = static()
    dim: int = static()
    num_queries: int = static()
    form: str = static()
    radius: Number
    bound: Number
    coordinate_radius: Number
    bin_width: Number
    range_epsilon: Number
    coarse_multiplier: Number
    ball_radius: Number
    noise_multiplier: Number
    failure: Number
    epsilon: Number
    delta: Number

    def __post_init__(self) -> None:
        require_choice("form", self.form, _ALL)

    @property
    def population_size(self) -> int:
        """N: everybody takes part in every step."""
        return self.num_users

    @property
    def batch_size(self) -> int:
        """N: everybody takes part in every step."""
        return self.num_users

    @property
    def num_steps(self) -> int:
        """T, one query each."""
        return self.num_queries

    @property
    def relation(self) -> NeighboringRelation:
        """Which data sets are neighbours: one user is replaced."""
        return NeighboringRelation.REPLACE_ONE

    @property
    def accounted(self) -> Any:
        """Whether the proofs cover queries with these numbers; a bool, may be traced."""
        lengths, multipliers, others = [self.bound], [self.noise_multiplier], []
        if self.form in BOXED:
            lengths.append(self.coordinate_radius)
            others += [self.bin_width, self.range_epsilon]
        if self.form in TWO_STEPS:
            lengths.append(self.ball_radius)
            multipliers.append(self.coarse_multiplier)
        # No scale of noise is below the least length over n times a multiplier.
        xp, least = as_floats(*lengths)
        length = functools.reduce(xp.minimum, least) / self.num_users
        scales = [length * multiplier for multiplier in as_floats(*multipliers)[1]]
        return positive_and_finite(*lengths, *multipliers, *others) & drawable(*scales)

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
    def coarse_stddev(self) -> Any:
        """Standard deviation of the noise in each coordinate of the coarse mean, before the rotation back."""
        return self.coarse_multiplier * self.coarse_sensitivity

    @property
    def noise_scale(self) -> Any:
        """Of the noise in each coordinate of the final mean: its standard deviation, b for ``"laplace"``."""
        return self.noise_multiplier * self.sensitivity

    @property
    def noise_stddev(self) -> Any:
        """Standard deviation of the noise in each coordinate of the result."""
        return self.noise_scale * (2**0.5 if self.form == "laplace" else 1)

    @property
    def noise_variance(self) -> Any:
        """E‖noise‖² of one result."""
        return self.dim * self.noise_stddev**2

    def query_loss(self) -> privacy.PrivacyLoss:
        """What one query costs, infinite where a number is out of its range; may be traced."""
        parts = []
        if self.form in BOXED:
            parts.append(privacy.scale(privacy.bounded_range(self.range_epsilon), self.padded))
        if self.form == "laplace":
            parts.append(privacy.scale(privacy.laplace(self.noise_multiplier), self.padded))
        else:
            parts.append(privacy.gaussian(self.noise_multiplier))
        if self.form in TWO_STEPS:
            parts.append(privacy.gaussian(self.coarse_multiplier))
        return privacy.unbounded_unless(self.accounted, privacy.compose(*parts))

    def lowered(self) -> "WinsorizedRun":
        """What a run uses of the queries: sizes and scales of noise as numbers, and the loss of one."""
        made = WinsorizedRun(
            capacity=self.num_users,
            dim=self.dim,
            form=self.form,
            num_users=self.num_users,
            num_queries=self.num_queries,
            bound=self.bound,
            coordinate_radius=self.coordinate_radius,
            bin_width=self.bin_width,
            range_epsilon=self.range_epsilon,
            ball_radius=self.ball_radius,
            noise_multiplier=self.noise_multiplier,
            sensitivity=self.sensitivity,
            coarse_multiplier=self.coarse_multiplier,
            coarse_sensitivity=self.coarse_sensitivity,
            noise_scale=self.noise_scale,
            coarse_stddev=self.coarse_stddev,
            cost=self.query_loss(),
            proven_form=self.form,
            proven=None,
        )
        return dataclasses.replace(made, proven=made.numbers)

    def loss(self) -> privacy.PrivacyLoss:
        """What all queries cost."""
        return privacy.scale(self.query_loss(), self.num_queries)

    def certificate(self) -> privacy.Certificate:
        """The (ε, δ) of all queries, on the host; infinite where ``query_loss`` is."""
        delta, host = float(self.delta), jax.tree.map(float, self)
        if self.form not in BOXED and bool(self.accounted):
            query = [events.gaussian(host.noise_multiplier)]
            if self.form in TWO_STEPS:
                query.append(events.gaussian(host.coarse_multiplier))
            event = events.repeated(events.composed(*query), self.num_queries)
            return privacy.certificate(event, delta, self.relation)
        spent = float(privacy.epsilon(host.loss(), delta))
        how = accounted_by("Rényi curves")
        return privacy.Certificate(spent, delta, self.relation, how)

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


@pytree
class WinsorizedRun:
    """Queries whose sizes are numbers, as ``WinsorizedReleases.lowered`` makes them.

    It proves nothing: scales, sensitivities and the loss are those that the releases have proven for their
    own static sizes and the numbers that run. Several of one structure can be stacked, and be those of one
    program.

    Attributes:
        capacity: users of the largest run in the program; vectors have so many rows.
        dim: length of the vectors.
        form: as in ``WinsorizedReleases``.
        num_users: n, at most ``capacity``.
        num_queries: T.
        bound: B.
        coordinate_radius: τ after the rotation, in each coordinate.
        bin_width: of the intervals' bins.
        range_epsilon: η of each interval.
        ball_radius: r, of the ball around the coarse mean.
        noise_multiplier: of the final mean.
        sensitivity: how far the final mean moves.
        coarse_multiplier: of the coarse mean.
        coarse_sensitivity: how far the coarse mean moves.
        noise_scale: of the final mean.
        coarse_stddev: of the noise of the coarse mean.
        cost: the loss of one query.
        proven_form: the form for which it was proven.
        proven: the ``numbers`` for which it was proven.
    """

    capacity: int = static(joined=max)
    dim: int = static()
    form: str = static()
    num_users: Number
    num_queries: Number
    bound: Number
    coordinate_radius: Number
    bin_width: Number
    range_epsilon: Number
    ball_radius: Number
    noise_multiplier: Number
    sensitivity: Number
    coarse_multiplier: Number
    coarse_sensitivity: Number
    noise_scale: Number
    coarse_stddev: Number
    cost: privacy.PrivacyLoss
    proven_form: str = static()
    proven: Any

    def lowered(self) -> "WinsorizedRun":
        """Itself."""
        return self

    @property
    def numbers(self) -> tuple[Any, ...]:
        """What the proof rests on, for this run."""
        ranges = self.coordinate_radius, self.bin_width, self.range_epsilon, self.ball_radius
        final = self.noise_multiplier, self.sensitivity, self.noise_scale
        coarse = self.coarse_multiplier, self.coarse_sensitivity, self.coarse_stddev
        return self.num_users, self.bound, *ranges, *final, *coarse

    @property
    def charged(self) -> privacy.PrivacyLoss:
        """``cost``; infinite for another form or other numbers than those that it was proven for."""
        same = same_numbers(self.numbers, self.proven) & (self.form == self.proven_form)
        return privacy.unbounded_unless(same, self.cost)

    @property
    def padded(self) -> int:
        """Number of coordinates after the rotation."""
        return rotations.padded_size(self.dim)

    @property
    def live(self) -> Any:
        """How many of the rows are users, the first ones; ``None`` where all are."""
        return None if isinstance(self.num_users, int) else self.num_users
