"""The private mean of vectors that lie close together, with noise in proportion to how close.

What it computes: the mean of user vectors plus noise, in one of four forms.

- ``"clipped"``: rows clipped to norm B, averaged: the baseline, best when the vectors are far apart.
- ``"winsorized"``: a random rotation; in each coordinate a private interval (``private_range``), into which
  the rows are clipped; the average plus Gaussian noise, rotated back.
- ``"refined"``: a coarse winsorized mean c; then the mean of the rows clipped to a ball around c.
- ``"laplace"``: winsorized with Laplace noise in each coordinate, as printed.

Source: L Algorithms 1 and 2, Theorems 1 and 2, Corollaries 1 and 5. The Gaussian form and the accounting
by range-bounded Rényi curves are ours, as is the refinement.

Formal guarantee: under REPLACE_ONE, for any vectors whatever, one query costs ``releases.query_loss()``: d
intervals of bounded range η (d the padded size) and one noisy mean of known sensitivity (two when refined).
The intervals and c are released before, hence fixed: a mean of n rows clipped to a box of sides 2h moves by
at most 2h√d/n, one of rows clipped to a ball of radius r by at most 2r/n. Proofs:
``docs/privacy/winsorized_mean.md``. A row that is not finite counts as zero. If rows lie within ``radius``
of some point, the noise is unbiased with probability 1 - ``releases.failure_probability()`` at least.

Cost: a sort of users × d numbers; memory for a few copies of the rows.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from dp_accounting import NeighboringRelation
from jax import lax
from jaxtyping import Array, ArrayLike, Float

from dpsco_jax import privacy
from dpsco_jax.geometry import clipping, norms, rotations
from dpsco_jax.geometry._checks import require, require_positive
from dpsco_jax.mechanisms import additive
from dpsco_jax.mechanisms import private_range as ranges
from dpsco_jax.mechanisms._keys import require_key
from dpsco_jax.privacy import events
from dpsco_jax.privacy._numerics import array_namespace

_BLOCK_ENTRIES = 2**21


@dataclasses.dataclass(frozen=True)
class WinsorizedReleases:
    """Some queries, each a private mean. Sizes are static, numbers are leaves (may be traced).

    Attributes:
        num_users: n, in every query.
        dim: length of the vectors.
        num_queries: T.
        form: ``"clipped"``, ``"winsorized"``, ``"refined"`` or ``"laplace"``.
        radius: τ, how far the vectors of a query are believed to lie from some point.
        bound: B, to which rows are clipped first.
        coordinate_radius: τ after the rotation, in each coordinate.
        bin_width: of the intervals' bins.
        range_epsilon: η of each interval.
        coarse_multiplier: standard deviation over sensitivity of the coarse mean (refined).
        ball_radius: r, of the ball around the coarse mean (refined).
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
    def sensitivity(self) -> Any:
        """How far the final mean moves: in ℓ2; in each coordinate for ``"laplace"``."""
        if self.form == "clipped":
            return 2 * self.bound / self.num_users
        if self.form == "refined":
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
        if self.form == "clipped":
            return privacy.gaussian(self.noise_multiplier)
        parts = [privacy.scale(privacy.bounded_range(self.range_epsilon), self.padded)]
        if self.form == "laplace":
            parts.append(privacy.scale(privacy.laplace(self.noise_multiplier), self.padded))
        else:
            parts.append(privacy.gaussian(self.noise_multiplier))
        if self.form == "refined":
            parts.append(privacy.gaussian(self.coarse_multiplier))
        return privacy.compose(*parts)

    def loss(self) -> privacy.PrivacyLoss:
        """What all queries cost."""
        return privacy.scale(self.query_loss(), self.num_queries)

    def certificate(self) -> privacy.Certificate:
        """The (ε, δ) of all queries, on the host."""
        relation, delta = NeighboringRelation.REPLACE_ONE, float(self.delta)
        if self.form == "clipped":
            event = events.repeated(events.gaussian(float(self.noise_multiplier)), self.num_queries)
            return privacy.certificate(event, delta, relation)
        host = jax.tree.map(float, self)
        spent = float(privacy.epsilon(host.loss(), delta))
        return privacy.Certificate(spent, delta, relation, "Rényi curves (dpsco_jax)")

    def failure_probability(self) -> float:
        """Bound on the probability that some query clips a row, if rows are within the radius.

        For the refined form, also if they are independent with a common mean.
        """
        if self.form == "clipped":
            return 0.0
        missed = (
            self.num_queries
            * self.padded
            * ranges.miss_probability(
                self.num_users, float(self.range_epsilon), float(self.bound), float(self.bin_width)
            )
        )
        return min(1.0, missed + float(self.failure) * (3 if self.form == "refined" else 1))


jax.tree_util.register_dataclass(
    WinsorizedReleases,
    data_fields=[f.name for f in dataclasses.fields(WinsorizedReleases) if f.type is Any],
    meta_fields=[f.name for f in dataclasses.fields(WinsorizedReleases) if f.type is not Any],
)


def winsorized_mean(
    key: jax.Array,
    vectors: Float[Array | np.ndarray, "users dim"],
    releases: WinsorizedReleases,
) -> Float[Array, "dim"]:
    """Answers one query; costs ``releases.query_loss()`` under REPLACE_ONE.

    Args:
        key: a typed key, used up.
        vectors: one row per user; may depend on earlier answers.
        releases: of ``calibrate_winsorized``; whoever calls keeps count of the queries.

    Returns:
        The mean plus noise, at least float32.

    Raises:
        ValueError: the shape is not the planned one.
    """
    require_key(key)
    planned = (releases.num_users, releases.dim)
    require(vectors.shape == planned, "shape of vectors", vectors.shape, f"{planned}")
    rows = jax.vmap(lambda row: norms.clip_to_norm(row, releases.bound))(jnp.asarray(vectors))
    box_key, coarse_key, noise_key = jax.random.split(key, 3)
    if releases.form == "clipped":
        mean = _mean_in_ball(rows, jnp.zeros_like(rows[0]), releases.bound)
        return additive.gaussian(noise_key, mean, releases.noise_stddev)
    signs, mean = _mean_in_box(box_key, rows, releases)
    match releases.form:
        case "laplace":
            scale = releases.noise_multiplier * releases.sensitivity
            noised = additive.laplace(noise_key, mean, scale)
        case "winsorized":
            noised = additive.gaussian(noise_key, mean, releases.noise_stddev)
        case _:
            stddev = releases.coarse_multiplier * releases.box_sensitivity
            noised = additive.gaussian(coarse_key, mean, stddev)
    answer = rotations.rotate_back(signs, noised, releases.dim)
    if releases.form != "refined":
        return answer
    mean = _mean_in_ball(rows, answer, releases.ball_radius)
    return additive.gaussian(noise_key, mean, releases.noise_stddev)


def winsorized_mean_1d(
    key: jax.Array,
    values: Float[Array | np.ndarray, " users"],
    epsilon: ArrayLike,
    radius: ArrayLike,
    bound: ArrayLike,
    bin_width: ArrayLike | None = None,
) -> Float[Array, ""]:
    """The mean of scalars, pure ε-DP: half of ε for the interval, half for Laplace noise.

    The noise has scale 2h/(n·ε/2). Costs ``winsorized_mean_1d_loss(epsilon)``, which implies ε-DP.

    Args:
        key: a typed key, used up.
        values: one per user; what is not finite counts as zero.
        epsilon: the parameter ε; may be traced, as may all that follows.
        radius: half-width of the window in which the values are believed to lie.
        bound: values are clipped to [-bound, bound].
        bin_width: see ``private_range``.
    """
    require_key(key)
    require_positive("epsilon", epsilon)
    range_key, noise_key = jax.random.split(key)
    interval = ranges.private_range(range_key, values, epsilon / 2, radius, bound, bin_width)
    mean = _mean_in_interval(jnp.asarray(values), interval)
    scale = 4 * interval.half_width / (values.shape[0] * epsilon)
    return additive.laplace(noise_key, mean, scale)


def winsorized_mean_1d_loss(epsilon: ArrayLike) -> privacy.PrivacyLoss:
    """What one ``winsorized_mean_1d`` costs; less than ``privacy.pure_dp(epsilon)``."""
    return privacy.compose(privacy.bounded_range(epsilon / 2), privacy.laplace(2 / epsilon))


def _mean_in_interval(values: Array, interval: ranges.Interval) -> Array:
    """The mean of values clipped to the interval, as its center plus the mean of clipped offsets."""
    offsets = jnp.where(jnp.isfinite(values), values, 0) - interval.center
    offsets = jnp.clip(offsets, -interval.half_width, interval.half_width)
    return interval.center + jnp.sum(offsets) / values.shape[0]


def _mean_in_box(key: jax.Array, rows: Array, releases: WinsorizedReleases) -> tuple[Array, Array]:
    """The signs of the rotation, and the winsorized mean of the rotated rows, without noise."""
    rotation_key, range_key = jax.random.split(key)
    signs = rotations.random_signs(rotation_key, releases.dim)
    # Users last: sorting and adding along contiguous memory.
    columns = lax.optimization_barrier(rotations.rotate(signs, rows).T)

    def one_coordinate(column: tuple[Array, Array]) -> Array:
        index, values = column
        interval = ranges.private_range(
            jax.random.fold_in(range_key, index),
            values,
            releases.range_epsilon,
            releases.coordinate_radius,
            releases.bound,
            releases.bin_width,
        )
        return _mean_in_interval(values, interval)

    block = max(1, _BLOCK_ENTRIES // rows.shape[0])
    indices = jnp.arange(releases.padded)
    return signs, lax.map(one_coordinate, (indices, columns), batch_size=block)


def _mean_in_ball(rows: Array, center: Array, radius: ArrayLike) -> Array:
    """The mean of rows clipped to a ball around the center, without noise."""
    everybody = jnp.ones(rows.shape[0], bool)
    return center + clipping.sum_of_clipped(rows - center, radius, everybody) / rows.shape[0]
