"""Step size, steps and regularization of noisy gradient descent that reports its last point.

What it computes: what a run of T steps of length η on F + (u/2)·‖w - start‖² is expected, and proven, to
reach with the least noise that its privacy allows; and the numbers for which the expectation is least. With m
= u + ridge, c = 1 - ηm, s the Gaussian privacy of the last point, Δ = κη how far neighbours' steps may be
apart: the noise of a step has the variance ν² = (Δ/s)²·(1 - c^T)(1 + c)/((1 + c^T)(1 - c)). In a direction of
curvature h (ridge included) where the start errs by e, with r = 1 - η(h + u), the last point errs by

    (u + h·r^T)/(h + u)·e,   and has the variance   ν²·(1 - r^{2T})/(1 - r²):

the pull of the regularizer, what is left of the start, and noise that is nearly stationary. Curvatures and
errors are those of the nominal problem (``nominal_model``).

Source: own; elementary.

Formal guarantee: ``expected`` is a model, exact for quadratics without constraints. ``bound`` is proven
(docs/theory/langevin.md). Neither reads data.

Cost: some ten thousand candidates, half a second at most.
"""

import math
from typing import Any, NamedTuple

import numpy as np

from dpsco_jax import privacy
from dpsco_jax._numerics import as_floats, float32_above
from dpsco_jax.solvers._schedules.nominal_model import Nominal

STEP_ROOM = 1.0 + 2.0**-16  # on the smoothness, so that steps contract as computed in float32
_OWN_ROUNDING = 1.0 + 2.0**-20  # of the numbers here, in float32
_AS_GOOD = 1.02  # fewer steps are taken if they are expected to reach this multiple of the least
_FINEST = 14
_WEAKEST = 44


class Setting(NamedTuple):
    """What the numbers may depend on; all of it is public.

    Attributes:
        nominal: the nominal problem.
        dim: d.
        smoothness: M of the loss, without ridge.
        ridge: of the objective.
        slope: Lipschitz constant of loss and ridge on the domain; ``inf`` where none is known.
        distance: R.
        move: κ, how far apart a step of length 1 may be for neighbours.
        mu: s, the Gaussian privacy that the last point may have.
        whole_space: whether the minimizer over the domain has gradient zero.
        exact_projection: whether points are projected onto one set, domain or ball.
    """

    nominal: Nominal
    dim: int
    smoothness: float
    ridge: float
    slope: float
    distance: float
    move: float
    mu: float
    whole_space: bool
    exact_projection: bool


class Numbers(NamedTuple):
    """Of a run.

    Attributes:
        num_steps: T.
        step_size: η.
        regularization: u.
    """

    num_steps: int
    step_size: float
    regularization: float


def longest_step(smoothness: float, convexity: Any) -> Any:
    """The longest step that shrinks distances by the factor 1 - η·m: 2/(M + 2m), rounded down."""
    return 2.0 / (smoothness * STEP_ROOM + 2.0 * convexity)


def shrinkage(step_size: Any, smoothness: float, convexity: Any) -> Any:
    """1 - c, rounded down: by what share of their distance a step brings two points closer.

    Args:
        step_size: η; may be traced, or an array.
        smoothness: M of the loss.
        convexity: m, of ridge and regularization together.

    Returns:
        The least of ηm and 2 - η(M + m), which is below 0 if two points may be brought farther apart.
    """
    xp, (step, added) = as_floats(step_size, convexity)
    slow, fast = step * added, step * (smoothness + added)
    return xp.minimum(slow / _OWN_ROUNDING, 2.0 - fast * _OWN_ROUNDING)


def noise_multiplier(p: Setting, numbers: Numbers) -> float:
    """ν/Δ, the least that is allowed, rounded up to a float32."""
    share = shrinkage(numbers.step_size, p.smoothness, p.ridge + numbers.regularization)
    return float32_above(float(privacy.last_iterate_mu(numbers.num_steps, share, 1.0)) / p.mu)


def expected(p: Setting, numbers: Numbers) -> float:
    """The excess risk that is expected of a run of these numbers."""
    u = np.array([numbers.regularization])
    return float(_expected(p, numbers.num_steps, np.array([numbers.step_size]), u)[0])


def bound(p: Setting, numbers: Numbers) -> float:
    """A bound on the expected excess risk, if a minimizer lies within R of the start."""
    steps, step, u = numbers
    m = p.ridge + u
    stddev = noise_multiplier(p, numbers) * step * p.move
    kept = (1.0 - step * m) ** 2
    grown = steps if kept == 1.0 else -math.expm1(steps * math.log(kept)) / (1.0 - kept)
    square = kept**steps * p.distance**2 + p.dim * stddev**2 * grown
    bend = p.smoothness + m
    found = p.slope * min(math.sqrt(square), 2.0 * p.distance)
    if p.whole_space:
        found = min(found, bend / 2 * square)
    if p.exact_projection and step * bend <= 1.0:
        noise = p.dim * stddev**2 / step
        found = min(found, p.distance**2 / (2 * step * steps) + noise * (1.0 + math.log(steps)))
    return u * p.distance**2 / 2 + found


def best(
    p: Setting,
    most_steps: int,
    num_steps: int | None = None,
    step_size: float | None = None,
    regularization: float | None = None,
) -> Numbers:
    """The numbers of which least is expected; of nearly as good ones those with the fewest steps.

    Args:
        p: the setting.
        most_steps: the largest T.
        num_steps: T, where it is given; so are the others.
        step_size: η, at most ``longest_step``; of the schedule's own at most 1/(M + m), up to where the
            bound for convex losses holds. Longer ones save steps and no noise.
        regularization: u.
    """
    if num_steps is not None:
        lengths = [num_steps]
    else:
        halves = range(math.floor(2 * math.log2(most_steps)) + 1)
        lengths = sorted({round(2 ** (k / 2)) for k in halves} | {most_steps})
    scale = p.smoothness + p.ridge
    pulls = np.append(0.0, scale * 2.0 ** -(np.arange(_WEAKEST) / 2.0))
    if regularization is not None:
        pulls = np.array([regularization])

    def of_length(steps: int) -> tuple[float, Numbers]:
        coarse = _best_of(p, steps, step_size, pulls, 2.0 ** -(np.arange(_FINEST) / 2.0))
        near, (_, step, pull) = 2.0 ** (np.arange(-3, 4) / 8.0), coarse[1]
        finer = _best_of(
            p,
            steps,
            step_size,
            pull * near if regularization is None else pulls,
            np.minimum(1.0, step / _longest_own(p, pull) * near),
        )
        return min(coarse, finer)

    found = [of_length(steps) for steps in lengths]
    least = min(value for value, _ in found)
    return next(numbers for value, numbers in found if value <= _AS_GOOD * least)


def _best_of(
    p: Setting, num_steps: int, step_size: float | None, pulls: np.ndarray, shares: np.ndarray
) -> tuple[float, Numbers]:
    """The best of all pairs of a regularization and a share of the longest step."""
    if step_size is None:
        longest = _longest_own(p, pulls)
        steps, u = (longest[:, None] * shares).ravel(), np.repeat(pulls, len(shares))
    else:
        u = pulls[longest_step(p.smoothness, p.ridge + pulls) >= step_size]
        steps = np.full_like(u, step_size)
    values = _expected(p, num_steps, steps, u)
    chosen = int(np.argmin(values))
    return float(values[chosen]), Numbers(num_steps, float(steps[chosen]), float(u[chosen]))


def _longest_own(p: Setting, regularization: Any) -> Any:
    return 1.0 / (p.smoothness * STEP_ROOM + p.ridge + regularization)


def _expected(p: Setting, num_steps: int, steps: np.ndarray, u: np.ndarray) -> np.ndarray:
    model = p.nominal
    share = shrinkage(steps, p.smoothness, p.ridge + u)
    unit = np.asarray(privacy.last_iterate_mu(num_steps, share, 1.0)) / p.mu
    variance = (unit * steps * p.move) ** 2
    h, u, step = model.hessian(), u[:, None], steps[:, None]
    r = 1.0 - step * (h + u)
    kept = (u + h * r**num_steps) / (h + u)
    # r is below 1, and where it is nearly 1 as many steps add up.
    sure = np.maximum(1.0 - r * r, 1e-15)
    with np.errstate(divide="ignore"):
        grown = np.minimum(num_steps, -np.expm1(num_steps * np.log1p(-sure)) / sure)
    squares = kept**2 * model.starts + variance[:, None] * grown
    return np.array([model.excess(each) for each in squares])
