"""ε of a flat composition of releases, by each accountant that can tell.

Three accountants: the closed form, where all releases are unsampled Gaussians; the privacy loss
distribution of dominating pairs; Rényi curves. None is always the smallest: take the least.

Source: Balle and Wang 2018, Theorem 8 (closed form); ``pld``; ``loss`` and the modules
of the curves. What a kind of release costs, the release itself knows.

Formal guarantee: each ε is an upper bound under the relation for which the releases were made.

Cost: microseconds for the closed form, 10 to 200 ms for the others.
"""

import functools
import math
from collections.abc import Callable

import numpy as np
from scipy import optimize, special

from dpsco_jax._checks import require_integer, require_real
from dpsco_jax.privacy import loss, pld
from dpsco_jax.privacy._kinds import Composition, Release
from dpsco_jax.privacy.pld import pairs

FEW_POINTS = 2**15
_TINY = 1e-300  # the first step up from zero
"""A grid that is fast and mostly precise to 1e-3."""


def closed_form(releases: Composition, delta: float) -> float | None:
    """ε of nothing or of one Gaussian, exact up to rounding up; None for anything else."""
    delta = require_real("delta", delta, 0.0, 1.0)
    if not releases:
        return 0.0
    if len(releases) > 1:
        return None
    ((release, count),) = releases
    multiplier = release.gaussian_multiplier if count == 1 else None
    return None if multiplier is None else gaussian_epsilon(multiplier, delta)


def privacy_loss_distribution(
    releases: Composition, delta: float, max_points: int = pld.MAX_POINTS
) -> float | None:
    """ε from dominating pairs, on a grid of at most ``max_points``; None if some release has no pair."""
    delta = require_real("delta", delta, 0.0, 1.0)
    require_integer("max_points", max_points, 1)
    if not all(release.dominated for release, _ in releases):
        return None
    # Searches ask for the same again. What cannot change is what was meant before.
    frozen = all(_is_frozen(release) for release, _ in releases)
    bound_of = _kept_bound if frozen else _bound
    return bound_of(tuple(releases), float(delta), max_points)


def _is_frozen(release: Release) -> bool:
    """Whether equal releases of the kind are the same for good: frozen dataclasses of plain numbers."""
    parameters = getattr(type(release), "__dataclass_params__", None)
    if parameters is None or not (parameters.frozen and parameters.eq):
        return False
    return all(isinstance(value, float | int) for value in vars(release).values())


def _bound(releases: Composition, delta: float, max_points: int) -> float:
    forward = [(release.pair(), count) for release, count in releases]
    bound = pld.epsilon(forward, delta, max_points)
    if not all(release.symmetric for release, _ in releases):
        backward = [(pairs.reverse(pair), count) for pair, count in forward]
        # Mostly the other direction is the cheaper one, which a small grid is enough to see.
        if (reverse := pld.epsilon(backward, delta, min(max_points, FEW_POINTS))) > bound:
            reverse = pld.epsilon(backward, delta, max_points)
        bound = max(bound, reverse)
    return bound


_kept_bound = functools.lru_cache(maxsize=512)(_bound)


def renyi(releases: Composition, delta: float) -> float:
    """ε from the Rényi curves on the grid ``ORDERS``."""
    total = loss.compose(*(loss.scale(release.loss(), count) for release, count in releases))
    return float(loss.epsilon(total, delta))


def gaussian_epsilon(noise_multiplier: float, delta: float) -> float:
    """ε of one Gaussian release with the given σ over sensitivity, rounded up; exact otherwise."""
    noise_multiplier = require_real("noise_multiplier", noise_multiplier, 0.0)
    delta = require_real("delta", delta, 0.0, 1.0)
    log_target = math.log(delta)
    if _log_gaussian_delta(0.0, noise_multiplier) <= log_target:
        return 0.0
    upper = 1.0
    while _log_gaussian_delta(upper, noise_multiplier) > log_target:
        upper *= 2.0
    root = optimize.brentq(
        lambda e: _log_gaussian_delta(e, noise_multiplier) - log_target, 0.0, upper, xtol=1e-15
    )
    return raised(root, lambda e: _log_gaussian_delta(e, noise_multiplier) <= log_target)


def gaussian_noise_multiplier(epsilon: float, delta: float) -> float:
    """The noise multiplier of one Gaussian release with the given (ε, δ), not yet rounded."""
    epsilon = require_real("epsilon", epsilon, 0.0)
    delta = require_real("delta", delta, 0.0, 1.0)
    log_target = math.log(delta)

    def excess(log_multiplier: float) -> float:
        return _log_gaussian_delta(epsilon, math.exp(log_multiplier)) - log_target

    low = high = 0.0
    while excess(low) < 0:
        low -= 2.0
    while excess(high) > 0:
        high += 2.0
    return math.exp(optimize.brentq(excess, low, high, xtol=1e-15)) if low < high else 1.0


def _log_gaussian_delta(epsilon: float, noise_multiplier: float) -> float:
    """The logarithm of δ(ε) = Φ(1/2s - εs) - e^ε Φ(-1/2s - εs), plus what rounding may have taken off."""
    half, shift = 0.5 / noise_multiplier, epsilon * noise_multiplier
    first = float(special.log_ndtr(half - shift))
    second = epsilon + float(special.log_ndtr(-half - shift))
    rounding = 4.0 * np.finfo(np.float64).eps * (abs(first) + abs(second) + epsilon + 1.0)
    gap = first - second + rounding
    return first + math.log(-math.expm1(-gap)) if gap < math.inf else first


def raised(value: float, holds: Callable[[float], bool]) -> float:
    """The value, which may be negative or zero, raised until the condition holds at it."""
    step = 2.0**-52
    while not holds(value):
        value += max(step * abs(value), _TINY)
        step *= 2.0
    return value
