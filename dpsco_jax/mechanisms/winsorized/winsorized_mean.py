"""The private mean of vectors that lie close together, with noise in proportion to how close.

What it computes: the mean of user vectors plus noise, in one of five forms.

- ``"clipped"``: rows clipped to norm B, averaged: the baseline, best when the vectors are far apart.
- ``"winsorized"``: a random rotation; in each coordinate a private interval (``private_range``), into which
  the rows are clipped; the average plus Gaussian noise, rotated back.
- ``"refined"``: a coarse winsorized mean c; then the mean of the rows clipped to a ball around c.
- ``"recentred"``: the same with a coarse clipped mean: no intervals, so few users are enough.
- ``"laplace"``: winsorized with Laplace noise in each coordinate, as printed.

Source: L Algorithms 1 and 2, Theorems 1 and 2, Corollaries 1 and 5. The Gaussian form and the accounting
by range-bounded Rényi curves are ours, as are the refined and the recentred form.

Formal guarantee: under REPLACE_ONE, for any vectors whatever, one query costs ``releases.query_loss()``: d
intervals of bounded range η (d the padded size) where there is a box, and one noisy mean of known
sensitivity, or two.
The intervals and c are released before, hence fixed: a mean of n rows clipped to a box of sides 2h moves by
at most 2h√d/n, one of rows clipped to a ball of radius r by at most 2r/n. Proofs:
``docs/theory/winsorized_mean.md``. A row that is not finite counts as zero. If rows lie within ``radius``
of some point, the noise is unbiased with probability 1 - ``releases.failure_probability()`` at least.

Cost: a sort of users × d numbers. Memory: two copies of the rows; in forms with intervals a third one and
fifteen numbers a user for the coordinates at work, one after another where users are many. Under ``vmap`` the
intervals of one batch are found after those of the other, so that this part is that of one batch. Of users
on several devices each sends its values of some coordinates to the device that takes these
(``_by_coordinate``): nobody holds all rows, and work and memory are shared out.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, ArrayLike, Float, Int

from dpsco_jax import _keys, _sharding, privacy
from dpsco_jax._checks import (
    require,
    require_instance,
    require_key,
    require_number,
    require_positive,
    require_wide_numbers,
)
from dpsco_jax._given import floats_of
from dpsco_jax._numerics import as_floats, wide_number
from dpsco_jax.geometry import clipping, norms, rotations
from dpsco_jax.mechanisms import additive
from dpsco_jax.mechanisms.winsorized import _by_coordinate
from dpsco_jax.mechanisms.winsorized import private_range as ranges
from dpsco_jax.mechanisms.winsorized.winsorized_releases import (
    BOXED,
    WinsorizedReleases,
    WinsorizedRun,
)

# Numbers in the coordinates that are sorted at once: more of them need more memory and no less time.
_BLOCK_ENTRIES = 2**16


def winsorized_mean(
    key: jax.Array,
    vectors: Float[Array | np.ndarray, "users dim"],
    releases: WinsorizedReleases | WinsorizedRun,
) -> Float[Array, "dim"]:
    """Answers one query; costs ``releases.query_loss()`` under REPLACE_ONE.

    Args:
        key: a typed key, used up.
        vectors: one row per user; may depend on earlier answers.
        releases: of ``calibrate_winsorized``; whoever calls keeps count of the queries. Of ``WinsorizedRun``,
            whose sizes may be traced, the first ``num_users`` of ``capacity`` rows are users, the others
            nobody, whatever they hold.

    Returns:
        The mean plus noise, at least float32.

    Raises:
        ValueError: the shape is not the planned one.
    """
    require_key(key)
    require_instance("releases", releases, WinsorizedReleases | WinsorizedRun)
    require_number("vectors", vectors, "an array of real numbers")
    if isinstance(releases, WinsorizedReleases):
        require_wide_numbers("releases", releases)
    run = releases.lowered()
    planned, live = (run.capacity, run.dim), run.live
    require(vectors.shape == planned, "shape of vectors", vectors.shape, f"{planned}")
    rows = jax.vmap(lambda row: norms.clip_to_norm(row, run.bound))(jnp.asarray(vectors))
    box_key, coarse_key, noise_key = jax.random.split(key, 3)
    origin = jnp.zeros(rows.shape[1:], rows.dtype)
    if run.form in BOXED:
        answer = _noisy_mean_in_box(box_key, coarse_key, rows, run)
        if run.form != "refined":
            return answer
    elif run.form == "recentred":
        mean = _mean_in_ball(rows, origin, run.bound, live)
        answer = additive.gaussian(coarse_key, mean, run.coarse_stddev)
    else:
        mean = _mean_in_ball(rows, origin, run.bound, live)
        return additive.gaussian(noise_key, mean, run.noise_scale)
    mean = _mean_in_ball(rows, answer, run.ball_radius, live)
    return additive.gaussian(noise_key, mean, run.noise_scale)


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
    epsilon = wide_number(epsilon)
    range_key, noise_key = jax.random.split(key)
    interval = ranges.private_range(range_key, values, epsilon / 2, radius, bound, bin_width)
    mean = _mean_in_interval(floats_of(values), interval)
    scale = 4 * interval.half_width / (values.shape[0] * epsilon)
    return additive.laplace(noise_key, mean, scale)


def winsorized_mean_1d_loss(epsilon: ArrayLike) -> privacy.PrivacyLoss:
    """What one ``winsorized_mean_1d`` costs; less than ``privacy.pure_dp(epsilon)``.

    A traced ε that is not positive and finite, or NaN, has an unbounded loss.

    Raises:
        ValueError: ``epsilon`` is not positive and finite.
    """
    require_positive("epsilon", epsilon)
    xp, (given,) = as_floats(epsilon)
    valid = (given > 0) & (given < xp.inf)
    safe = xp.where(valid, given, 1.0)
    parts = privacy.bounded_range(safe / 2), privacy.laplace(2 / safe)
    return privacy.unbounded_unless(valid, privacy.compose(*parts))


def _mean_in_interval(
    values: Array, interval: ranges.Interval, live: Int[Array, ""] | None = None
) -> Array:
    """The mean of values clipped to the interval, as its center plus the mean of clipped offsets."""
    offsets = jnp.where(jnp.isfinite(values), values, 0) - interval.center
    offsets = jnp.clip(offsets, -interval.half_width, interval.half_width)
    if live is None:
        return interval.center + jnp.sum(offsets) / values.shape[0]
    offsets = jnp.where(jnp.arange(len(values)) < live, offsets, 0)
    return interval.center + jnp.sum(offsets) / live


def _noisy_mean_in_box(
    key: jax.Array,
    noise_key: jax.Array,
    rows: Array,
    run: WinsorizedRun,
) -> Array:
    """The winsorized mean of the rows, the only one or the coarse one."""
    rotation_key, range_key = jax.random.split(key)
    signs = rotations.random_signs(rotation_key, run.dim)
    numbers = (
        run.range_epsilon,
        run.coordinate_radius,
        run.bound,
        run.bin_width,
    )
    ranges.require_numbers(*numbers)
    mean = _mean_in_box(range_key, signs, rows, (*numbers, run.live))
    match run.form:
        case "laplace":
            noised = additive.laplace(noise_key, mean, run.noise_scale)
        case "winsorized":
            noised = additive.gaussian(noise_key, mean, run.noise_scale)
        case _:
            noised = additive.gaussian(noise_key, mean, run.coarse_stddev)
    return rotations.rotate_back(signs, noised, run.dim)


def _mean_in_box(key: jax.Array, signs: Array, rows: Array, numbers: tuple[Any, ...]) -> Array:
    """The mean of rotated rows, each coordinate clipped to an interval of its own; ``numbers`` are those.

    Runs that are mapped over go one after the other. They may have one key, as lanes of a map may; the check
    of key reuse would take the loop over them for a reuse, so that the loop is given its words.
    """
    impl = jax.random.key_impl(key)

    def columns_of(rows: Array, words: Array, signs: Array, numbers: tuple[Any, ...]) -> Array:
        # Users last: sorting and adding along contiguous memory.
        return lax.optimization_barrier(rotations.rotate(signs, rows).T)

    def of_columns(
        indices: Array, columns: Array, words: Array, signs: Array, numbers: tuple[Any, ...]
    ) -> Array:
        of_run = jax.random.wrap_key_data(words, impl=impl)

        def one_coordinate(column: tuple[Array, Array]) -> Array:
            index, values = column
            own_key = jax.random.fold_in(of_run, index)
            interval = ranges.private_range(own_key, values, *numbers)
            return _mean_in_interval(values, interval, numbers[-1])

        # A power of two divides the number of coordinates: the body is compiled once.
        most = max(1, _BLOCK_ENTRIES // columns.shape[1])
        block = min(len(columns), 1 << (most.bit_length() - 1))
        at_once = block if block > 1 and _keys.draw_apart(of_run.dtype) else None
        return lax.map(one_coordinate, (indices, columns), batch_size=at_once)

    @jax.custom_batching.sequential_vmap
    def found(words: Array, signs: Array, rows: Array, numbers: tuple[Any, ...]) -> Array:
        others = (words, signs, numbers)
        spread = _sharding.found(rows)
        if spread is None:
            return of_columns(jnp.arange(len(signs)), columns_of(rows, *others), *others)
        return _by_coordinate.found(spread, columns_of, of_columns, len(signs), rows, *others)

    return found(jax.random.key_data(key), signs, rows, numbers)


def _mean_in_ball(
    rows: Array, center: Array, radius: ArrayLike, live: Int[Array, ""] | None = None
) -> Array:
    """The mean of rows clipped to a ball around the center, without noise."""
    users = rows.shape[0] if live is None else live
    counted = jnp.ones(rows.shape[0], bool) if live is None else jnp.arange(len(rows)) < live
    return center + clipping.sum_of_clipped(rows - center[None], radius, counted) / users
