"""The noise of accelerated user-level SGD: two means, and which needs less.

What it computes: for n users, K of them a step, T steps: the noise of the mean without outliers, the noise of
the mean of clipped gradients, the radius of honest users' gradients, and the probability that they
violate it or that a test halts all the same.

Source: F, section 3 (outlier removal; radius of Lemma 3.5 with the constants of ``problems.concentration``);
McMahan et al. 2018 (clipping). The noise of the former is about 8τ√T/(nμ), of the latter 2L√T/(nμ), for μ
what (ε, δ) allows: with τ = 6 to 8 L/√m outlier removal needs m in the hundreds or thousands to win.

Formal guarantee: both noises meet (ε, δ) under REPLACE_ONE. Which one is taken depends on public numbers.

Cost: milliseconds with full batches, up to some seconds where batches are drawn.
"""

import dataclasses
import functools
import math
from typing import Any, NamedTuple

import numpy as np

from dpsco_jax import _checks
from dpsco_jax._infeasible import Infeasible
from dpsco_jax._numerics import float32_above
from dpsco_jax.privacy import accountants
from dpsco_jax.privacy.concentrated.threshold_phase import calibrate_concentrated
from dpsco_jax.privacy.releases import GaussianReleases, fixed_size
from dpsco_jax.problems import concentration
from dpsco_jax.solvers import means
from dpsco_jax.solvers._schedules import accelerated_bounds as bounds
from dpsco_jax.solvers._schedules.accelerated import NoiseModel

_MODEL_STEPS = 32  # where the model of the noise is exact
_MANY_STEPS = 8
# Of the noise by Chernoff's bound, what loss distributions may prove to be enough.
_LEAST_SHARE = 0.75


class Request(NamedTuple):
    """What the caller wants; see ``accelerated_sgd.plan`` and ``accelerated_phased_erm.plan``."""

    radius: float | None
    mean: type[means.Clipped] | type[means.OutlierRemoved] | None
    failure: float
    outlier_share: float = 0.0
    constants: str = "tight"


def require_mean(mean: Any) -> None:
    """Refuses what is none of the means among which callers can choose.

    Raises:
        ValueError: naming ``mean``.
    """
    known = (means.Clipped, means.OutlierRemoved, None)
    _checks.require(
        any(mean is kind for kind in known),
        "mean",
        mean,
        "means.Clipped, means.OutlierRemoved or None",
    )


class Noise(NamedTuple):
    """What the steps of a phase add, and what it rests on; see ``accelerated_sgd.Plan``.

    ``releases`` are ``ConcentratedReleases`` or ``GaussianReleases`` (of clipped gradients);
    ``outside`` is the probability that honest users differ by more than ``radius`` allows, ``failure`` that
    the run is spoiled by that or by a test.
    """

    releases: Any
    radius: float
    reach: float
    stddev: float
    other_stddev: float
    outside: float
    failure: float


class _Tested(NamedTuple):
    releases: Any
    radius: float
    reach: float
    stddev: float
    failure: float


def calibrated(
    setting: bounds.Setting, num_users: int, batch_size: int, num_steps: int, request: Request
) -> Noise:
    """The noise of a phase, of the mean asked for.

    Raises:
        ValueError: the users are too few for outlier removal; the message names the smallest number.
    """
    sizes = (num_users, batch_size, num_steps)
    chosen = request.mean is means.OutlierRemoved
    try:
        tested = _outlier_removed(setting, *sizes, request, "pld" if chosen else "chernoff")
    except Infeasible:
        if chosen:
            raise
        tested = None
    per_multiplier = 2 * setting.lipschitz / batch_size
    steps = fixed_size(*sizes)
    budget = (setting.epsilon, setting.delta)
    rough = per_multiplier * steps.noise_multiplier(*budget, "rdp")
    if request.mean is None and tested is not None and _LEAST_SHARE * tested.stddev <= rough:
        tested = _outlier_removed(setting, *sizes, request, "pld")
        chosen = tested.stddev <= rough
    if chosen and tested is not None:
        return Noise(
            releases=tested.releases,
            radius=tested.radius,
            reach=tested.reach,
            stddev=tested.stddev,
            other_stddev=rough,
            outside=tested.failure,
            failure=tested.failure,
        )
    multiplier = steps.noise_multiplier(*budget, "pld")
    spread, outside = _spread(setting, num_users, num_steps, 1.0 / multiplier, request)
    stddev = per_multiplier * multiplier
    releases = GaussianReleases(*sizes, "fixed", multiplier, setting.delta)
    return Noise(
        releases=releases,
        radius=spread,
        reach=1.0,
        stddev=stddev,
        other_stddev=math.inf if tested is None else tested.stddev,
        outside=outside,
        failure=0.0,
    )


def model(setting: bounds.Setting, request: Request) -> NoiseModel:
    """The noise of full batches, fast: exact at some number of steps, and growing as their root.

    The schedule is chosen by it; a schedule with smaller batches has more noise.
    """

    @functools.cache
    def tested(num_users: int) -> float:
        try:
            sizes = (num_users, num_users, _MODEL_STEPS)
            found = _outlier_removed(setting, *sizes, request, "pld")
        except Infeasible:
            return math.inf
        return num_users * found.stddev / math.sqrt(_MODEL_STEPS)

    multiplier = accountants.gaussian_noise_multiplier(setting.epsilon, setting.delta)

    def of(num_users: int, num_steps: Any) -> Any:
        noises = [2 * setting.lipschitz * multiplier] * (request.mean is not means.OutlierRemoved)
        if request.mean is not means.Clipped:
            # Between powers of two the noise is nearly inverse to the number of users.
            noises.append(tested(2 ** (num_users.bit_length() - 1)))
        return min(noises) * np.sqrt(num_steps) / num_users

    return of


def with_stddev(found: Noise, stddev: float) -> Noise:
    """The same with more noise.

    Raises:
        ValueError: if it is less noise, or outliers are not removed.
    """
    if isinstance(found.releases, GaussianReleases) or not stddev >= found.stddev:
        raise ValueError(
            f"noise_stddev must be at least {found.stddev:g} to meet the budget, got {stddev:g}"
        )
    per_radius = float(found.releases.noise_stddev) * stddev / found.stddev
    releases = dataclasses.replace(found.releases, noise_stddev=float32_above(per_radius))
    return found._replace(releases=releases, stddev=stddev)


def _outlier_removed(
    setting: bounds.Setting,
    num_users: int,
    batch_size: int,
    num_steps: int,
    request: Request,
    accountant: str,
) -> _Tested:
    calibrate = functools.partial(
        calibrate_concentrated,
        num_users,
        num_steps,
        setting.epsilon,
        setting.delta,
        batch_size=None if batch_size == num_users else batch_size,
        # With all users in many steps, one threshold for all of them needs less noise.
        test="stream" if batch_size == num_users and num_steps >= _MANY_STEPS else "auto",
        false_halt_probability=0.5 * request.failure,
        constants=request.constants,
        accountant=accountant,
    )
    releases = calibrate()
    failure = float(releases.false_halt())
    if request.outlier_share > 0:
        # A share x of users, far from the others, takes the score from K to (1 - x)²K.
        lost = 1.0 - (1.0 - request.outlier_share) ** 2
        releases = calibrate(threshold=float(releases.threshold) / batch_size - lost)
    per_radius = 2 * float(releases.noise_stddev)  # the score radius is twice τ
    shift = 2.0 / (batch_size * per_radius)  # of a mean by a user within τ of the centre, over σ
    radius, outside = _spread(setting, num_users, num_steps, shift, request)
    radius = float32_above(radius)
    # Clipped gradients are all in reach of the origin; a power of two, as it is compiled in.
    reach = 2.0 ** max(0, math.ceil(math.log2(1.01 * setting.lipschitz / (2 * radius))))
    stddev = float(means.tested_stddev(releases, 2 * radius, reach, setting.dim))
    return _Tested(releases, radius, reach, stddev, min(1.0, outside + failure))


def _spread(
    setting: bounds.Setting,
    num_users: int,
    num_steps: int,
    shift: float,
    request: Request,
) -> tuple[float, float]:
    """τ, and the probability that some honest user's gradient is farther away at some step.

    Args:
        setting: the public numbers.
        num_users: n.
        num_steps: T.
        shift: how far one honest user moves the mean of a step, in standard deviations of its noise.
        request: for the radius or the failure asked for.
    """
    gdp = shift * math.sqrt(num_steps)
    sizes = (setting.lipschitz, setting.items_per_user, num_users, num_steps, gdp)
    if request.radius is None:
        allowed = 0.5 * request.failure
        radius = concentration.trajectory_gradient_radius(*sizes, allowed)
    else:
        radius = _checks.require_real("radius", request.radius, 0)
        allowed = concentration.trajectory_gradient_failure(radius, *sizes)
    # Clipped gradients lie within L of the origin, always.
    return (radius, allowed) if radius < setting.lipschitz else (setting.lipschitz, 0.0)
