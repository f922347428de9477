"""The numbers of a chain by log-Laplace transforms: how far it goes, and how exactly, on every data set.

Lengths are in units of √a, a = η(p-1)/2, in which ψ is that of exp(-‖y‖_q²) and 1/h-strongly convex in ℓp, h
= 2/(p-1). docs/theory/llt_sampler.md derives every line, and names it as the comments here do. ``valid`` is
false where a derivation does not apply; nothing is proven then.
"""

import functools
import math
from typing import Any, NamedTuple

import numpy as np

from dpsco_jax import _checks
from dpsco_jax._conditions import positive_and_finite
from dpsco_jax._numerics import as_floats
from dpsco_jax.problems.objective import LinearModel, Objective
from dpsco_jax.rates import norms
from dpsco_jax.solvers.sampling import _rejection_certificate as roundings
from dpsco_jax.solvers.sampling import _rows
from dpsco_jax.solvers.sampling import _self_concordant as steps_of
from dpsco_jax.solvers.sampling._rejection_certificate import MOST_TERMS, inner_variation
from dpsco_jax.solvers.sampling.chain_lengths import trials_variation
from dpsco_jax.solvers.sampling.llt_sampler import Errors

MOST_PARAMETERS = 10
_LEAST_NORM = 1.1
_TABULATED = 1.95  # above it ψ is known for 2 alone
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
    """What is fixed: sizes of the data, constants of the loss, and bounds that are chosen beforehand."""

    num_users: int
    items_per_user: int
    dim: int
    exponent: float  # p of the norm that is worked in, in (1, 2]
    lipschitz: float  # G, of every user's loss in that norm
    feature_bound: float  # of rows, in ℓ2
    slope: float  # of the link
    inner: float  # c̄, which η(kG)² may be at most
    farthest: float  # how far from the start, in ℓp, the set may reach
    start_norm: float  # the largest ℓ2 norm of a start
    reach: float  # the largest ‖x‖_p, in units, for which ψ is tabulated
    row_bound: float | None  # of rows in the dual of the norm that is asked for

    @property
    def num_terms(self) -> int:
        """A, of the estimated exponential: the one with the least error for c̄."""
        return least_error(self.inner)[1]

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
        return math.ceil(_START / start_acceptance(np, self.dim, self.exponent, 0.1))

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
    """The parts of τ: their sum bounds the distance in total variation from the ideal law."""

    mixing: Any  # of a chain of exact steps
    inner: Any  # T·δ, of estimated exponentials
    capped: Any  # the probability that the trials, or those of the start, run out
    far: Any  # the probability that the chain goes where too few attempts count
    transform: Any  # of ψ: once its values, T times its draws
    rounding: Any  # of float64

    @property
    def total(self) -> Any:
        """τ, rounded up."""
        return sum(self[1:], self[0]) * _UP


class Numbers(NamedTuple):
    """What a run needs beside the arguments."""

    unit: Any  # √a, of lengths
    start_convexity: Any  # ηkμ, one less than the power b of a step
    radius: Any  # of the set, in units: ‖x - start‖_p ≤ radius·√a
    release_unit: Any  # the grid of the point that leaves, in units
    acceptance: Any  # at least, of a trial
    newton: Any  # steps of Newton's method, at most
    variation: Variation
    valid: Any  # whether all of this is proven


def numbers(
    setting: Setting,
    errors: Errors,
    inverse_temperature: Any,
    regularization: Any,
    step_size: Any,
    num_steps: Any,
    num_trials: Any,
) -> Numbers:
    """All numbers of a run for exp(-k·(F + μ·ηψ)), with ``errors`` of its transform; they may be traced."""
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
    mixing = mixing_of(xp, steps, rate, warm + 10.0 * off)
    # (4) how far the chain goes, and how high it starts above the mode for a y.
    far = _FAR_SHARE * mixing
    rare = xp.log(4.0 * steps / xp.maximum(far, 1e-300))
    tail = xp.sqrt(4.0 / m * (0.5 * warm + 10.0 * off + rare))
    inside = slope / m + xp.sqrt(dim / m) + tail
    height = height_of(xp, dim, p, drift, inside, rare + math.log(dim))
    apart = xp.sqrt(2.0 * stretch * height)
    radius = (inside + 2.0 * apart + 2.0 * math.sqrt(stretch)) * _UP
    newton = steps_of.newton_steps(height, xp)
    # The diameter bounds how warm the start is, too.
    warm = xp.minimum(warm, 2.0 * slope * radius)
    mixing = xp.minimum(mixing, mixing_of(xp, steps, rate, warm + 10.0 * off))

    # (5) a trial.
    slopes = (xp.sqrt(xp.maximum(stretch * slope * slope, 0.0)) + 2.0 * k * setting.loss_error) ** 2
    within = slopes <= setting.inner
    one = least_error(setting.inner)[0] * (1.0 + 2.0**-20)
    counts = 0.5 * (1.0 - one)
    attempt = setting.attempt
    missed = math.exp(setting.num_attempts * math.log1p(-attempt))
    wrong = roundings.acceptance_error(setting.inner, setting.num_terms, setting.num_users)
    # (6) rounding of a step.
    middle, outer = (second_moment(xp, dim, p, r) ** 0.5 for r in (inside, radius))
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
    started = xp.exp(-setting.num_starts * start_acceptance(xp, dim, p, drift))

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
    return Numbers(unit, drift, radius, release_unit, acceptance, newton, variation, valid)


def exponent(norm: Any) -> float:
    """The p that is asked for; ``NotImplementedError`` for Schatten norms."""
    if isinstance(norm, tuple) and norm[:1] == ("schatten",):
        raise NotImplementedError(
            "norm must be that of vectors: for Schatten norms other than the Frobenius norm no efficient"
            " way is known to compute the log-Laplace transform ∫ exp(<X, Y> - a‖Y‖²) dY, nor to draw from"
            " it, which T (5.30) poses as an open question. Losses of rows gain nothing by them: their"
            " gradients have rank one, whose Schatten norms are all the same. Take value_queries with the"
            " norm 2 of all entries"
        )
    working_range = f"one number in [{_LEAST_NORM:g}, 2]"
    _checks.require_number("norm", norm, working_range)
    good = np.ndim(norm) == 0 and _LEAST_NORM <= norm <= 2.0
    _checks.require(good, "norm", norm, working_range)
    return float(norm)


def working_exponent(p: float, dim: int) -> float:
    """p, or 1 + 1/log d where p is smaller, or 2 near it; one entry has the same norm for every p."""
    if dim == 1 or p > _TABULATED:
        return 2.0
    return p if dim < 3 else max(p, 1.0 + 1.0 / math.log(dim))


def working_lipschitz(
    objective: Objective, p: float, inner: float, dim: int, row_bound: float | None
) -> float:
    """G of every user's loss in the norm that is worked in."""
    # slope·feature_bound, and ‖a‖ falls as the exponent grows from 2.
    known = float(objective.lipschitz)
    if row_bound is None:
        return known
    slope = known / float(model_of(objective).feature_bound)
    return min(known, slope * row_bound * norms.norm_ratio(p, inner, dim))


def model_of(objective: Objective) -> LinearModel:
    """The linear model; ``ValueError`` unless it is of a proven loss on vectors, on the whole space."""
    _rows.require_everywhere(objective)
    _rows.require_whole_space(objective)
    _checks.require(objective.ridge == 0.0, "objective.ridge", objective.ridge, "0")
    model = objective.vector_model
    if model is None:
        raise ValueError(f"objective must be a linear model on vectors, got {objective.loss!r}")
    return model


@functools.cache
def least_error(c: float) -> tuple[float, int]:
    """δ(c, A) and A, for the A with the least."""
    return min((inner_variation(c, terms), terms) for terms in range(3, MOST_TERMS + 1))


def start_acceptance(xp: Any, dim: int, p: float, drift: Any) -> Any:
    """Half of a lower bound on the probability that an attempt at the start counts: half for the set.

    The proposal has the density of exp(-(m/2)‖x‖_p²), so that m‖x‖_p² is χ²_d distributed, and counts with
    probability at least exp(-(α/2)·m‖x‖_p² - √(m)‖x‖_p·√(d·drift/(p-1))), α = (2-p)/(p-1); the square of the
    second term over 2 and a half bound it, and χ² has a closed form.
    """
    ratio = (2.0 - p) / (p - 1.0)
    pull = dim * drift / (p - 1.0)
    # √(pull)·t ≤ (pull·t² + 1)/2.
    return 0.5 * xp.exp(-0.5 * dim * xp.log1p(ratio + pull) - 0.5)


def mixing_of(xp: Any, steps: Any, rate: Any, log_warm: Any) -> Any:
    """½·(1 + ηm)^{-T}·√χ², rounded up, at most 1."""
    lost = steps * rate
    bound = 0.5 * xp.exp(
        xp.minimum(0.5 * log_warm - lost + 2.0**-44 * (lost + log_warm + 1.0), 1.0)
    )
    return xp.minimum(xp.maximum(bound, 1e-300), 1.0)


def second_moment(xp: Any, dim: int, p: float, radius: Any) -> Any:
    """A bound on E‖y‖_q² under D_x, for ‖x‖_p at most ``radius``: by Jensen, with ψ of the scale θ = 0.8."""
    share = 0.8
    rise = radius * math.sqrt(0.5 * dim / share) + 0.25 * radius * radius * (1.0 / share - 1.0)
    return (rise - 0.5 * dim * math.log(share * (p - 1.0))) / (1.0 - share)


def height_of(xp: Any, dim: int, p: float, drift: Any, inside: Any, rare: Any) -> Any:
    """How far V(x) is above its minimum for y ~ D_x, x within ``inside``, but for a probability e^{-rare}."""
    # All coordinates of y - E y, over their deviations, stay below this one.
    stretch, tail = 2.0 / (p - 1.0), rare + 2.0 * xp.log1p(rare) + 1.0
    near = xp.sqrt(dim * stretch * stretch * second_moment(xp, dim, p, inside)) * tail
    near = near + math.sqrt(stretch)
    spread = xp.sqrt(second_moment(xp, dim, p, inside + near))
    ball = 0.5 * dim * math.log(math.pi) - math.lgamma(0.5 * dim + 1.0)
    covered = dim * xp.log(4.0 * near * spread) - ball
    rise = inside * math.sqrt(0.5 * dim) + 0.25 * inside * inside
    return rare + 1.0 + covered + drift * rise
