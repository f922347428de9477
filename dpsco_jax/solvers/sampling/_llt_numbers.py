"""The numbers of a chain by log-Laplace transforms: how far it goes, and how exactly.

What it computes: from sizes, constants and k, μ, η, T, N alone: the set on which the chain lives, the
probability with which a trial succeeds at least, and the parts of the distance of its last point from the
ideal law. Lengths are in units of √a, a = η(p-1)/2, in which ψ is that of exp(-‖y‖_q²) and 1/h-strongly
convex in ℓp, h = 2/(p-1).

Source: T, Theorem 5.4.12 and Proposition 5.4.7 with constants; docs/theory/llt_sampler.md derives every
line, and names it as the comments here do.

Formal guarantee: the parts hold on every data set of the planned sizes, for float64 that is rounded to
nearest, with ideal random numbers. ``valid`` is false where a derivation does not apply; nothing is proven
then.

Cost: none. k, μ, η, T and N may be traced.
"""

import math
from typing import Any, NamedTuple

import numpy as np

from dpsco_jax._conditions import positive_and_finite
from dpsco_jax._numerics import as_floats
from dpsco_jax.solvers.sampling import _llt_bounds as bounds
from dpsco_jax.solvers.sampling import _rejection_rounding as roundings
from dpsco_jax.solvers.sampling import _self_concordant as steps_of
from dpsco_jax.solvers.sampling._llt_transform import Errors
from dpsco_jax.solvers.sampling.chain_lengths import trials_variation

MOST_PARAMETERS = 10
_UNIT = 2.0**-53
_UP = 1.0 + 2.0**-40
_DOWN = 1.0 - 2.0**-40
_MISSED = 6.0  # e^-6 of the points of trials find no attempt that counts
_START = 80.0
_FAR_SHARE = 2.0**-10  # of the mixing part: the probability of leaving the set where attempts count
_MOST_ERROR = 2.0**-24  # H, for which the perturbed constants are proven
_GAUSSIAN = 0.9  # at least, of p = 2, where only points outside of the set do not count
_RELEASED = 2.0**-6  # the grid of the point that leaves, over √η


class Setting(NamedTuple):
    """What is fixed: sizes of the data, constants of the loss, and bounds that are chosen beforehand.

    Attributes:
        num_users: n.
        items_per_user: slots of a user, at most.
        dim: d.
        exponent: p of the norm that is worked in, in (1, 2].
        lipschitz: G, of every user's loss in that norm.
        feature_bound: of rows, in ℓ2.
        slope: of the link.
        inner: c̄, which η(kG)² may be at most.
        farthest: how far from the start, in ℓp, the set may reach.
        start_norm: the largest ℓ2 norm of a start.
        reach: the largest ‖x‖_p, in units, for which ψ is tabulated.
        row_bound: of rows in the dual of the norm that is asked for; ``None`` if there is none.
    """

    num_users: int
    items_per_user: int
    dim: int
    exponent: float
    lipschitz: float
    feature_bound: float
    slope: float
    inner: float
    farthest: float
    start_norm: float
    reach: float
    row_bound: float | None

    @property
    def num_terms(self) -> int:
        """A, of the estimated exponential: the one with the least error for c̄."""
        return bounds.least_error(self.inner)[1]

    @property
    def num_attempts(self) -> int:
        """J, at each of the two points of a trial."""
        return math.ceil(_MISSED / self.attempt)

    @property
    def attempt(self) -> float:
        """The probability, at least, that an attempt at a point counts."""
        return _GAUSSIAN if self.exponent == 2.0 else steps_of.acceptance(self.dim)

    @property
    def num_starts(self) -> int:
        """Attempts at the starting point."""
        return math.ceil(_START / bounds.start_acceptance(np, self.dim, self.exponent, 0.1))

    @property
    def label_bound(self) -> float:
        """A power of two beyond all margins of a run, at which labels are cut; infinite if these are."""
        if math.isinf(self.largest_margin):
            return math.inf
        return 2.0 ** math.ceil(math.log2(max(1.0, 2.0 * self.largest_margin)))

    @property
    def largest_margin(self) -> float:
        """Of points of the set, ‖x‖_2 being at most ‖x‖_p."""
        return self.feature_bound * (self.start_norm + self.farthest)

    @property
    def loss_error(self) -> float:
        """Of a computed user's loss: d + 3 roundings of a margin, 32 of a link, and those of the mean."""
        order = (self.dim + 4.0) * _UNIT
        sizes = 1.0 + self.largest_margin + self.label_bound
        ulps = 40.0 + 2.0 * self.items_per_user
        return _UP * self.slope * (order * self.largest_margin + ulps * _UNIT * sizes)


class Variation(NamedTuple):
    """The parts of τ: their sum bounds the distance in total variation from the ideal law.

    Attributes:
        mixing: of a chain of exact steps.
        inner: T·δ, of estimated exponentials.
        capped: the probability that the trials, or those of the start, run out.
        far: the probability that the chain goes where too few attempts count.
        transform: of ψ: once its values, T times its draws.
        rounding: of float64.
    """

    mixing: Any
    inner: Any
    capped: Any
    far: Any
    transform: Any
    rounding: Any

    @property
    def total(self) -> Any:
        """τ, rounded up."""
        return sum(self[1:], self[0]) * _UP


class Numbers(NamedTuple):
    """What a run needs beside the arguments.

    Attributes:
        unit: √a, of lengths.
        power: b = 1 + ηkμ.
        start_convexity: ηkμ.
        radius: of the set, in units: ‖x - start‖_p ≤ radius·√a.
        release_unit: the grid of the point that leaves, in units.
        acceptance: at least, of a trial.
        newton: steps of Newton's method, at most.
        variation: the parts of τ.
        valid: whether all of this is proven.
    """

    unit: Any
    power: Any
    start_convexity: Any
    radius: Any
    release_unit: Any
    acceptance: Any
    newton: Any
    variation: Variation
    valid: Any


def numbers(
    setting: Setting,
    errors: Errors,
    inverse_temperature: Any,
    regularization: Any,
    step_size: Any,
    num_steps: Any,
    num_trials: Any,
) -> Numbers:
    """All numbers of a run; they may be traced.

    Args:
        setting: sizes and constants.
        errors: of the transform for its p, d and reach.
        inverse_temperature: k: the target is exp(-k·(F + μ·ηψ)).
        regularization: μ.
        step_size: η.
        num_steps: T.
        num_trials: N.
    """
    xp, (k, mu, eta, steps, trials) = as_floats(
        inverse_temperature, regularization, step_size, num_steps, num_trials
    )
    dim, p = setting.dim, setting.exponent
    whole = (steps == xp.floor(steps)) & (trials == xp.floor(trials))
    valid = positive_and_finite(k, mu, eta) & (steps >= 1) & (trials >= steps) & (trials < 2.0**31)
    valid = valid & whole
    k, mu, eta = (xp.where(valid, value, 1.0) for value in (k, mu, eta))
    steps, trials = xp.where(valid, steps, 1.0), xp.where(valid, trials, 1.0)

    # (1) scales: in units of √a.
    unit = xp.sqrt(0.5 * eta * (p - 1.0))
    stretch = 2.0 / (p - 1.0)
    slope, drift = k * setting.lipschitz * unit, eta * k * mu
    m, b = drift / stretch, 1.0 + drift
    # (2) what computed numbers change of the target, and of its constants.
    off = k * setting.loss_error + (b + drift) * errors.value
    off = off + errors.draw
    sound = off <= _MOST_ERROR
    off = xp.where(sound, off, 0.0)
    # (3) mixing, from the law of the regularizer.
    warm = slope * slope / m
    rate = xp.log1p(drift * xp.exp(-8.0 * off)) * _DOWN
    mixing = bounds.mixing(xp, steps, rate, warm + 10.0 * off)
    # (4) how far the chain goes, and how high it starts above the mode for a y.
    far = _FAR_SHARE * mixing
    rare = xp.log(4.0 * steps / xp.maximum(far, 1e-300))
    tail = xp.sqrt(4.0 / m * (0.5 * warm + 10.0 * off + rare))
    inside = slope / m + xp.sqrt(dim / m) + tail
    height = bounds.height(xp, dim, p, drift, inside, rare + math.log(dim))
    apart = xp.sqrt(2.0 * stretch * height)
    radius = (inside + 2.0 * apart + 2.0 * math.sqrt(stretch)) * _UP
    newton = steps_of.newton_steps(height, xp)
    # The diameter bounds how warm the start is, too.
    warm = xp.minimum(warm, 2.0 * slope * radius)
    mixing = xp.minimum(mixing, bounds.mixing(xp, steps, rate, warm + 10.0 * off))

    # (5) a trial.
    slopes = (xp.sqrt(xp.maximum(stretch * slope * slope, 0.0)) + 2.0 * k * setting.loss_error) ** 2
    within = slopes <= setting.inner
    one = bounds.least_error(setting.inner)[0] * (1.0 + 2.0**-20)
    counts = 0.5 * (1.0 - one)
    attempt = setting.attempt
    missed = math.exp(setting.num_attempts * math.log1p(-attempt))
    wrong = roundings.acceptance_error(setting.inner, setting.num_terms, setting.num_users, 0.0)
    # (6) rounding of a step.
    middle, outer = (bounds.second_moment(xp, dim, p, r) ** 0.5 for r in (inside, radius))
    straight = math.sqrt(stretch) * (2.0 * (dim + 3.0) * middle + 7.0 * b * outer)
    bent = (dim + 3.0) * xp.sqrt(dim * stretch * b) * outer
    attempted = _UNIT * ((dim + 1.02) * (straight + bent + 10.0) + 20.0)
    if p == 2.0:  # nothing is tested
        attempted = 0.0 * attempted
    acceptance = (counts - wrong) * (1.0 - missed) ** 2 - 2.0 * attempted
    steady = acceptance > 0.0
    acceptance = xp.where(steady, acceptance, 0.5)
    every = wrong / acceptance + 4.0 * attempted / acceptance
    # (7) the last point, on its grid.
    release_unit = _RELEASED * math.sqrt(stretch)
    crossing = 8.0 * dim * _UNIT * radius * (1.0 / release_unit + xp.sqrt(b) * outer)
    released = crossing / (attempt * acceptance)
    # (8) the start.
    started = xp.exp(-setting.num_starts * bounds.start_acceptance(xp, dim, p, drift))

    known = (radius <= setting.reach) & (radius * unit <= setting.farthest) & (newton < 2.0**31)
    valid = valid & sound & within & steady & known & (dim <= MOST_PARAMETERS)
    variation = Variation(
        mixing=mixing,
        inner=steps * one,
        capped=trials_variation(steps, trials, xp.clip(acceptance, 1e-9, 1.0)) + started,
        far=far,
        transform=0.5 * xp.expm1(2.0 * off) + steps * errors.draw,
        rounding=steps * every + released,
    )
    return Numbers(unit, b, drift, radius, release_unit, acceptance, newton, variation, valid)
