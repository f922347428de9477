"""What a histogram of two stages says of the counts themselves: without noise, and without the projection.

What it computes: the projection of large units makes the histogram too small, by a factor that the first
stage has already told; ``denoising.posterior_means`` takes the noise away, and the factor what was cut. The
noise must go first: multiplied as it is, a histogram of much noise would be worse.

Source: own; the prior is that of ``denoising``.

Formal guarantee: post-processing of what ``two_stage_histogram`` has released and of public numbers: no
privacy is spent.

Utility: let S = Σ min(‖v‖, ρ) over all units, what is left of their norms, and X = Σ (‖v‖ - ρ)₊ what was
taken. The factor is 1 + X/S. For elements that are single items it makes the sum of the histogram that of
the counts, but for noise; for clusters it does so if long units have no other mix of items than short ones.
Both sums are those of units spread evenly between two radii. Numbers of units within three standard
deviations of noise count as none, since what noise makes far out weighs the most: where little is known
the factor is 1. Units not above the least radius are none of the numbers; their part of S is what the
histogram has above the rest, of which there are no more than empty units allow: a bound, by which the
factor is too near 1 if many units are empty. It never exceeds the largest radius over ρ.

Example:
    >>> import jax, numpy as np
    >>> from dpsco_jax.mechanisms.two_stage_histogram import calibrate_two_stages, two_stage_histogram
    >>> releases = calibrate_two_stages(1000, np.array([0, 0, 1]), 4.0, 1.0, 1e-5)
    >>> users, items = np.arange(1000), np.arange(1000) % 3
    >>> out = two_stage_histogram(jax.random.key(0), users, items, np.ones(1000), releases)
    >>> denoised_histogram(out, releases).shape, float(projection_factor(out, releases))
    ((3,), 1.0)
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from dpsco_jax._checks import require_instance
from dpsco_jax._given import as_wide
from dpsco_jax.mechanisms import _sparse_counts, denoising
from dpsco_jax.mechanisms.two_stage_histogram import TwoStageHistogram, TwoStageReleases

_SIGNIFICANT = 3.0


def denoised_histogram(
    released: TwoStageHistogram, releases: TwoStageReleases, num_iterations: int = 300
) -> Float[Array, "items"]:
    """Estimates of the mean counts before any projection, ``[items]``, positive; free.

    Args:
        released: of ``two_stage_histogram``.
        releases: with which it ran.
        num_iterations: of ``denoising.posterior_means``, static.
    """
    factor = projection_factor(released, releases)
    inside = denoising.posterior_means(
        released.histogram, released.noise_stddev, released.radius, num_iterations
    )
    return factor * inside


def projection_factor(released: TwoStageHistogram, releases: TwoStageReleases) -> Float[Array, ""]:
    """By how much the counts exceed what the projection has left of them, at least 1; free.

    Args:
        released: of ``two_stage_histogram``.
        releases: with which it ran.
    """
    require_instance("released", released, TwoStageHistogram)
    require_instance("releases", releases, TwoStageReleases)
    radii, histogram = jnp.asarray(releases.radii, float), released.histogram
    above = jnp.cumsum(released.units[::-1])[::-1]
    noise = jnp.asarray(releases.coarse_stddev, float) * jnp.arange(len(radii), 0, -1) ** 0.5
    above = jnp.where(above > _SIGNIFICANT * noise, above, 0.0)
    # No fewer units are above a radius than above a larger one.
    above = jax.lax.cummax(above, reverse=True)
    parts = jnp.diff(radii, append=radii[-1:]) * (above + jnp.append(above[1:], 0.0)) / 2
    cut = radii >= released.radius
    taken = jnp.sum(jnp.where(cut, parts, 0.0))
    left = radii[0] * above[0] + jnp.sum(jnp.where(cut, 0.0, parts))
    label = jnp.sort(as_wide(releases.cluster_of_item))
    units = float(releases.num_users) * jnp.sum(_sparse_counts.changes(label))
    # The other units have at most the least radius each, and no more than the histogram has beside these.
    small = releases.num_users * jnp.sum(histogram) - left
    left += jnp.clip(small, 0.0, radii[0] * jnp.maximum(units - above[0], 0.0))
    return jnp.where(taken > 0, 1.0 + taken / jnp.where(left > 0, left, 1.0), 1.0)
