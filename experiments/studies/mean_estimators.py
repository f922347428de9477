"""Private means of user vectors, in one form: what the experiments on means compare.

What it computes: T releases of the mean of n vectors, one a user, by one of four mechanisms, all within one
budget, from the same public numbers: n, d, T, a bound on the vectors, and a radius: how far honest vectors
lie from their common centre.

- "clipping": to the bound, plus Gaussian noise;
- "outlier-removed mean": test of concentration, then the mean of inliers (pairwise distance 2·radius);
- "winsorized mean": private intervals, then the mean of what is clipped to a ball around a coarse one;
- "centred clipping": around the last release, with radii that shrink from the bound towards the radius as
  fast as the noise allows.

Source: see the files of ``mechanisms`` and ``transforms`` that are called.

Formal guarantee: the T releases are (ε, δ)-DP for users under REPLACE_ONE, for any vectors.

Cost: n²·d multiplications a release for the outlier-removed mean, n·d for the others.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from dp_accounting import NeighboringRelation

from dpsco_jax import privacy, transforms
from dpsco_jax.mechanisms.concentrated import concentrated_mean
from dpsco_jax.mechanisms.winsorized.winsorized_calibration import calibrate_winsorized

CLIPPING, OUTLIER = "clipping at the bound", "outlier-removed mean"
WINSORIZED, CENTRED = "winsorized mean", "centred clipping"
ESTIMATORS = (CLIPPING, OUTLIER, WINSORIZED, CENTRED)


class Problem(NamedTuple):
    """Public numbers.

    Attributes:
        num_users: n.
        dim: d.
        num_releases: T.
        radius: within which of their centre honest vectors lie, up to ``failure``.
        bound: on the norm of a vector.
        epsilon: budget of all releases.
        delta: likewise.
        failure: probability of a wrong halt, and of vectors beyond the radius, that is aimed at.
        threshold: of the test of concentration as a share of n; as high as false halts allow if None. A
            share x of far outliers makes the score (1 - x)²·n.
    """

    num_users: int
    dim: int
    num_releases: int
    radius: float
    bound: float
    epsilon: float
    delta: float
    failure: float = 1e-3
    threshold: float | None = None


class Plan(NamedTuple):
    """Numbers of one mechanism; a pytree.

    Attributes:
        releases: calibrated releases of the mechanisms that have such, else the noise multiplier.
        radii: what vectors are clipped to in each release, or the radius of the test.
        noise: standard deviation of the noise on a coordinate of the last release.
    """

    releases: Any
    radii: tuple[Any, ...]
    noise: Any


class Released(NamedTuple):
    """The last release ``[dim]`` (zeros if there is none), and whether the run has halted."""

    mean: jax.Array
    halted: jax.Array


def plan(name: str, problem: Problem) -> Plan:
    """Calibrates a mechanism. Host.

    Raises:
        ValueError: if the name is unknown, or users are too few for the test or the intervals.
    """
    n, dim, steps, radius, bound, epsilon, delta, failure, threshold = problem
    if name == OUTLIER:
        phase = privacy.calibrate_concentrated(
            n,
            steps,
            epsilon,
            delta,
            threshold="auto" if threshold is None else threshold,
            false_halt_probability=failure,
        )
        margin = 1.0 + concentrated_mean.headroom(jax.ShapeDtypeStruct((dim,), jnp.float32))
        return Plan(phase, (2.0 * radius,), float(phase.noise_stddev) * 2.0 * radius * margin)
    if name == WINSORIZED:
        means = calibrate_winsorized(
            n,
            dim,
            steps,
            epsilon,
            delta,
            radius=radius,
            bound=bound,
            failure=failure,
            form="refined",
        )
        return Plan(means, (), float(means.noise_stddev))
    multiplier = privacy.certified_noise_multiplier(
        privacy.FullBatch(), steps, epsilon, delta, NeighboringRelation.REPLACE_ONE
    )
    unit = 2.0 * multiplier / n
    if name == CLIPPING:
        return Plan(multiplier, (bound,) * steps, unit * bound)
    if name != CENTRED:
        raise ValueError(f"name must be one of {ESTIMATORS}, got {name!r}")
    # The norm of a Gaussian vector of dim coordinates is at most this, up to ``failure``.
    norm = math.sqrt(dim) + math.sqrt(2.0 * math.log(steps / failure))
    radii = [bound]
    while len(radii) < steps:
        radii.append(min(bound, radius + unit * radii[-1] * norm))
    return Plan(multiplier, tuple(radii), unit * radii[-1])


def run(
    name: str, key: jax.Array, plan: Plan, vectors: Callable[[int], jax.Array], num_releases: int
) -> Released:
    """Makes the releases. Pure JAX.

    Args:
        name: of the mechanism.
        key: typed.
        plan: of ``plan``.
        vectors: of the number of the release to one vector a user ``[users, dim]``.
        num_releases: T, as planned.
    """
    mean = jnp.zeros(vectors(0).shape[1])
    halted = jnp.zeros([], bool)
    if name in (OUTLIER, WINSORIZED):
        release = (
            transforms.outlier_removed_mean(plan.releases, plan.radii[0], key)
            if name == OUTLIER
            else transforms.winsorized_mean(plan.releases, key)
        )
        state = release.init(mean)
        for step in range(num_releases):
            update, state = release.update(vectors(step), state, mean)
            halted = transforms.halted(state)
            mean = jnp.where(halted, mean, update)
        return Released(mean, halted)
    for step, radius in enumerate(plan.radii):
        rows = vectors(step)
        clip = (
            transforms.clipped_mean(radius, len(rows))
            if name == CLIPPING
            else transforms.centred_clip(radius, len(rows), start=mean)
        )
        noisy = transforms.privatize(clip, jax.random.fold_in(key, step), plan.releases)
        mean, _ = noisy.update(rows, noisy.init(mean), mean)
    return Released(mean, halted)
