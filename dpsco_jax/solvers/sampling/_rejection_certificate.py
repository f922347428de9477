"""How far a chain of ``rejection_oracle`` is from its target, from sizes and constants alone.

For c = η(kG)², T steps and N trials τ = mixing + T·δ(c, A) + rounding + cap, or step size, terms, steps and
trials for a τ; docs/theory/rejection_oracle.md derives each part, for every data set of n records whose
losses are G-Lipschitz, and convex unless ``log_sobolev`` is given. Parts of a given chain may be traced, in
float64, but for ``ball_radius`` without ``ball_bounds``.

Example:
    >>> losses = rounded_losses(69.6, 10, 1.0, start_norm=0.0, start_loss=1.0)
    >>> chain = planned(2.7e-6, Sizes(100, 10, 69.6, 20.0, 1.0, losses, reach=1.0))
    >>> 1.6e6 < chain.num_steps < 1.9e6, bool(chain.variation <= 2.7e-6)
    (True, True)
"""

import contextlib
import functools
import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, SupportsFloat

import numpy as np
from scipy import special

from dpsco_jax import _checks
from dpsco_jax._infeasible import Infeasible
from dpsco_jax._numerics import Scalar, as_floats, special_namespace
from dpsco_jax.solvers.sampling import chain_lengths, log_sobolev
from dpsco_jax.solvers.sampling.attempt_bounds import ball_acceptance, farthest_start
from dpsco_jax.solvers.sampling.rejection_oracle import INDICES
from dpsco_jax.solvers.sampling.restricted_gaussian import TANGENT_SLACK

MOST_TERMS = 18  # 1/19! is below the resolution of a uniform number
_LEAST_C, _MOST_C = 1e-9, 0.25
_BEYOND = 100
_B = np.arange(1, _BEYOND)
_LOG_SHARES = np.append(0.0, np.log(_B) + special.gammaln(_B / 2.0) - special.gammaln(_B + 1.0))
_UP = 1.0 + 2.0**-30
_DOWN = 1.0 - 2.0**-30
_UNIT = 2.0**-53
_MOST_TRIALS = 2**31 - 1
_MIXING, _INNER, _CAP, _ESCAPE = 0.5, 0.25, 0.0625, 0.0625  # of τ; rounding has what is left
_SLACK = 1.0 - 2.0**-10
_OFTEN = 0.55  # of attempts by tangents: steps are as 1/η, and a trial needs two that count


class Rounding(NamedTuple):
    """The error of computed k·f(x; s): at distance r of the start at most ``at_start`` + r·``slope``."""

    at_start: Any
    slope: Any

    def within(self, distance: Any) -> Any:
        """The largest error at points that are at most so far from the start."""
        return self.at_start + self.slope * distance


class Power(NamedTuple):
    """ψ(x) = (scale/2)·‖x‖_q²."""

    exponent: float  # q, in (1, 2); static
    scale: Any  # a; may be traced


class Sizes(NamedTuple):
    """What is known of the target before any data."""

    num_records: int  # n
    dim: int  # d
    lipschitz: Any  # kG, the Lipschitz constant of every k·f(·; s) on K
    convexity: Any  # κ of ψ, above 0: for convex losses the target is κ-strongly log-concave
    start_distance: Any  # W ≥ √E‖x_0 - x‖² for x of the target; the farthest point of K will do
    rounding: Rounding  # of computed losses or differences
    # The largest distance of a point of K from x_0; None for the whole space: x_0 is then the centre of ψ.
    reach: float | None = None
    ball_radius: float | None = (
        None  # of a ball K on which ``convex_set`` draws; else every attempt counts
    )
    # On the ball: the largest deviation √v of a proposal, and how far outside a mean may be, over it; what
    # suits the chain if None.
    ball_bounds: tuple[float, float] | None = None
    tangent: Power | None = (
        None  # ψ, centred at x_0, if ``tangent`` draws from it on the whole space
    )
    # α of the target on every data set, if losses need not be convex: on a bounded set, with ``reach``.
    log_sobolev: Any = None


class Chain(NamedTuple):
    """What runs, and how far it is from its target."""

    step_size: Any  # η
    num_terms: int  # A
    num_steps: Any  # T
    num_trials: Any  # N
    acceptance: Any  # a lower bound on the probability that a trial succeeds
    mixing: Any  # the total variation that T exact steps leave
    inner: Any  # T·δ(c, A)
    rounding: Any  # what float64 costs
    cap: Any  # how likely fewer than T of N trials succeed, or a bound that this rests on fails
    escape: Any  # how likely points may be farther out than bounds hold for, a part of the cap

    @property
    def variation(self) -> Any:
        """τ, rounded up."""
        xp, (total,) = as_floats(self.mixing + self.inner + self.rounding + self.cap)
        return xp.minimum(1.0, _UP * total)


def certified(
    sizes: Sizes,
    step_size: Scalar,
    num_terms: int,
    num_steps: Scalar,
    num_trials: Scalar,
    escape: Scalar = 1e-12,
) -> Chain:
    """The parts of τ of a chain of η, A, T and N; ``escape`` is how likely bounds may fail farther out."""
    _require(sizes)
    _checks.require_positive("step_size", step_size)
    _checks.require_whole("num_steps", num_steps, 1)
    _checks.require_whole("num_trials", num_trials, 1)
    _checks.require_within("num_trials", num_trials, 1, _MOST_TRIALS)
    _checks.require_inside("escape", escape)
    xp, (eta, steps, trials, escape, slope, convexity, distance) = as_floats(
        *(step_size, num_steps, num_trials, escape),
        *(sizes.lipschitz, sizes.convexity, sizes.start_distance),
    )
    c, drift, everywhere = eta * slope**2, eta * convexity, sizes.reach is None
    farther = xp.zeros_like(eta)  # the probability that a bound that this rests on fails
    reach = sizes.reach
    if reach is None:
        reach = farthest_point(sizes.dim, eta, convexity, distance, steps, escape)
    deviation = xp.sqrt(eta / (1.0 + drift))
    found, failing = _counted(sizes, steps, eta, deviation, reach, escape)
    error = sizes.rounding.within(reach) + found.potential
    mixes: Any = convexity
    bound: Callable[..., Any] = chain_lengths.mixing_variation
    if sizes.log_sobolev is not None:
        mixes, bound = sizes.log_sobolev, log_sobolev.log_sobolev_variation
    c, mixes, distance, shifted = computed_target(c, mixes, distance, error)
    if everywhere:
        farther = escape * xp.exp(xp.minimum(700.0, 2.0 * error * steps))

    # A density within e^{±2h} has tails that are e^{4h} as heavy at most, for x and for z.
    one = inner_variation(c, num_terms) * xp.exp(8.0 * xp.minimum(found.potential, 1.0))
    counts = 0.5 * (1.0 - xp.minimum(one, 1.0))
    wrong = acceptance_error(c, num_terms, sizes.num_records) + 2.0 * found.error
    proven = (wrong < counts) & (shifted < 1.0)
    wrong, counts = xp.where(proven, wrong, 0.0), xp.where(proven, counts, 0.5)
    # Steps for computed losses need not contract distances, so errors of steps add up.
    rounding = shifted + _UP * steps * (wrong / (counts - wrong))
    acceptance = xp.where(proven, (counts - wrong) * found.acceptance**2, 0.0)
    possible = acceptance > 0.0
    capped = chain_lengths.trials_variation(steps, trials, xp.where(possible, acceptance, 0.5))
    return Chain(
        *(step_size, num_terms, num_steps, num_trials),
        acceptance,
        bound(steps, eta, mixes, distance),
        xp.minimum(1.0, steps * one),
        xp.where(proven, xp.minimum(1.0, rounding), 1.0),
        xp.minimum(1.0, farther + failing + xp.where(possible, capped, 1.0)),
        escape,
    )


def planned(variation: SupportsFloat, sizes: Sizes) -> Chain:
    """A chain whose τ is at most the given one; ``Infeasible`` where float64 or 2³¹ trials are too few."""
    _require(sizes)
    tau = _checks.require_real("variation", variation, 0.0, 1.0)
    choices = range(3, MOST_TERMS + 1)
    escape, steps, known = _ESCAPE * tau / 2.0, 0, 1
    rate: Any = sizes.convexity
    least: Callable[..., int] = chain_lengths.mixing_steps
    if sizes.log_sobolev is not None:
        rate, least = sizes.log_sobolev, log_sobolev.log_sobolev_steps
    while steps < known:  # a larger T asks for a smaller δ, so for a smaller η and a larger T
        steps = known
        share = _SLACK * _INNER * tau / steps
        c, terms = _widest(share, choices)
        # A smaller δ asks for more terms, never many.
        choices = range(terms, min(terms + 3, MOST_TERMS + 1))
        eta = _SLACK * c / sizes.lipschitz**2
        if sizes.tangent is not None:
            eta = _tangent_step(sizes, sizes.tangent, eta, max(steps, 1), escape)
        known = least(_SLACK * _MIXING * tau, eta, rate, sizes.start_distance)
    draft = certified(sizes, eta, terms, known, _MOST_TRIALS, escape)
    needed = draft.mixing + draft.inner + draft.rounding + draft.cap
    if draft.acceptance <= 0.0 or needed > (1.0 - _CAP) * tau:
        raise Infeasible(
            f"variation must be larger: in float64 {draft.rounding:.3g} of it is rounding, and trials succeed"
            f" with probability {draft.acceptance:.3g} or more, got {tau}"
        )
    trials = chain_lengths.capped_trials(known, draft.acceptance, _SLACK * _CAP * tau)
    return certified(sizes, eta, terms, known, trials, escape)


def _widest(share: float, choices: Iterable[int]) -> tuple[float, int]:
    """The largest c for which a draw is within the distance, and the least A that has it."""
    found = []
    for terms in choices:
        with contextlib.suppress(Infeasible):
            found.append((largest_c(share, terms), -terms))
    if not found:
        raise Infeasible(f"variation must be larger: no step is within {share:.3g} of its law")
    c, terms = max(found)
    return c, -terms


def _require(sizes: Sizes) -> None:
    _checks.require_instance("sizes", sizes, Sizes)
    _checks.require_integer("num_records", sizes.num_records, 1, 2**31 - 1)
    _checks.require_integer("dim", sizes.dim, 1)
    for name in ("lipschitz", "convexity", "start_distance"):
        _checks.require_positive(name, getattr(sizes, name))
    _checks.require_instance("rounding", sizes.rounding, Rounding)
    for name in ("at_start", "slope"):
        _checks.require_nonnegative(name, getattr(sizes.rounding, name))
    for name in ("reach", "ball_radius"):
        if getattr(sizes, name) is not None:
            _checks.require_real(name, getattr(sizes, name), 0.0)
    quadratic = sizes.tangent is None or (sizes.reach is None and sizes.ball_radius is None)
    _checks.require(quadratic, "tangent", sizes.tangent, "None on a bounded set")
    if sizes.log_sobolev is not None:
        # How far out points of the whole space may be is only known of log-concave laws.
        _checks.require_positive("log_sobolev", sizes.log_sobolev)
        _checks.require(sizes.reach is not None, "reach", None, "known where losses are not convex")


class Target(NamedTuple):
    """The target that the computed losses have."""

    c: Any  # for which differences of computed losses have the tails of exact ones
    log_sobolev: Any  # the constant of Sizes, or the convexity of ψ
    start_distance: Any  # the root mean square distance of its points from the start
    variation: Any  # how far it is from the target of the exact losses


def computed_target(
    c: Scalar, log_sobolev: Scalar, start_distance: Scalar, error: Scalar
) -> Target:
    """The target of losses, times k, that are wrong by at most the given error."""
    xp, (size, rate, start, wrong) = as_floats(c, log_sobolev, start_distance, error)
    # Beyond these the tails of the proof are not those of (√c + error)².
    proven = (wrong == 0.0) | ((wrong <= 1e-3) & (size <= 0.05))
    off = xp.where(proven, wrong, 0.0)
    return Target(
        xp.where(proven, xp.where(off > 0.0, (xp.sqrt(size) + off) ** 2, size), 1.0),
        rate * xp.exp(-4.0 * off),
        start * xp.exp(off),
        xp.where(proven, _UP * 0.5 * xp.expm1(2.0 * off), 1.0),
    )


def acceptance_error(c: Any, num_terms: int, num_records: int) -> Any:
    """e: how much rounding changes the probability that x is accepted, in the mean square over x."""
    each = range(1, num_terms + 1)
    # Bounds on the root mean squares of |X|^b, b = 0, ..., A.
    norms = [1.0] + [(moment(c, 2 * b) ** (0.5 / b)) ** b for b in each]
    arithmetic = 1.0 + sum((3 * b + num_terms) * norms[b] / math.factorial(b) for b in each)
    indices = (math.e - 1.0) * num_terms * num_records * 2.0**-65
    return 1.01 * (0.5 * (_UNIT * (arithmetic + sum(norms[2:]))) + _UNIT + indices)


def farthest_point(
    dim: int,
    step_size: Scalar,
    convexity: Scalar,
    start_distance: Scalar,
    num_steps: Scalar,
    variation: Scalar,
) -> Any:
    """The r with which no point of a chain, nor any proposal, is farther than r from x_0, but so likely."""
    xp, (eta, convexity, start, steps, tau) = as_floats(
        step_size, convexity, start_distance, num_steps, variation
    )
    lengths = 2.0 * start + 2.0 * xp.sqrt(eta * dim)
    tail = xp.sqrt(2.0 * xp.log(4.0 * 2.0**31 * steps / tau))
    return _UP * (lengths + tail * xp.sqrt(1.0 / convexity + 2.0 * eta))


def rounded_losses(
    scale: Scalar,
    dim: int,
    lipschitz: SupportsFloat,
    start_norm: SupportsFloat,
    start_loss: SupportsFloat,
    ulps: float = 4.0,
) -> Rounding:
    """Of k·ℓ(⟨x, s⟩), G ≥ Lip(ℓ)·‖s‖, whose link is within so many units of 2^-53 of its size."""
    slope, norm, loss = float(lipschitz), float(start_norm), float(start_loss)
    # Of d products in any order the sum is within this times ‖x‖·‖s‖.
    order = dim * _UNIT / (1.0 - dim * _UNIT)
    at_start = scale * (slope * norm * order + ulps * _UNIT * (loss + slope * norm * order))
    return Rounding(_UP * at_start, _UP * scale * slope * (order + ulps * _UNIT * (1.0 + order)))


class Attempts(NamedTuple):
    """What is known of attempts at points within a distance."""

    acceptance: Any  # the least probability that one counts
    error: Any  # how far the law of one that counts is off by rounding, in total variation
    potential: Any  # the largest error of the computed ψ


def bregman(power: Power, length: Any, move: Any) -> Any:
    """A bound on ψ(y + h) above its tangent at y, ‖y‖_q = ``length``, ‖h‖_q = ``move`` in the mean square.

    c₁·‖y‖^{2-q}·‖h‖^q + c₂·‖h‖² of a; E e^{-aD} ≥ e^{-a·E D} then bounds how likely an attempt counts.
    """
    q = power.exponent
    first = 2.0 ** (2.0 - q) / q * length ** (2.0 - q) * move**q
    second = max(2.5, (2.0 / q - 1.0) * (q * q + 2.0 ** (4.0 - 2.0 * q)))
    return power.scale * (first + second * move**2)


def tangent_attempts(power: Power, dim: int, step_size: Scalar, reach: Scalar) -> Attempts:
    """Of attempts by the tangent, for points whose ℓ2 distance from the centre is at most ``reach``."""
    q = power.exponent
    xp, (scale, eta, reach) = as_floats(power.scale, step_size, reach)
    widest = dim ** (1.0 / q - 0.5)  # of ‖·‖_q over ‖·‖₂
    length = widest * reach
    # ‖∇ψ‖ is a·N in the dual norm.
    slope_q, slope_2 = scale * length * widest**2, scale * length * widest
    move = eta * slope_q + xp.sqrt(eta) * dim ** (1.0 / q)
    likely = _DOWN * xp.exp(-bregman(power._replace(scale=scale), length, move) - TANGENT_SLACK)
    # A proposal, counted or not, may be farther out than y by the length of ηg.
    farthest = reach + eta * slope_2
    potential = _UNIT * (4.0 * dim + 128.0) * 0.5 * scale * (widest * farthest) ** 2
    steep = _UNIT * (4.0 * dim + 256.0) * slope_2 * farthest
    proven = potential + steep <= 0.25 * TANGENT_SLACK
    likely = xp.where(proven, likely, 0.0)
    lengths = eta * slope_2 + xp.sqrt(eta * dim)
    error = _UNIT * ((dim + 6.0) * slope_2 * lengths + 16.0)
    known = likely > 1e-100
    error = xp.where(known, error / xp.where(known, likely, 1.0), math.inf)
    return Attempts(likely, error, xp.where(proven, potential, math.inf))


def _counted(
    sizes: Sizes, num_steps: Any, step_size: Any, deviation: Any, reach: Any, escape: Any
) -> tuple[Attempts, Any]:
    """What is known of attempts, and the probability that it is not so."""
    dim, radius = sizes.dim, sizes.ball_radius
    xp, (steps, deviation) = as_floats(num_steps, deviation)
    zero = xp.zeros_like(deviation)
    if sizes.tangent is not None:
        return tangent_attempts(sizes.tangent, dim, step_size, reach), zero
    if radius is None:
        return Attempts(zero + 1.0, zero, zero), zero
    if sizes.ball_bounds is None:
        farthest = farthest_start(dim, int(steps), escape)
        likely = ball_acceptance(dim, radius, deviation, farthest)
        return Attempts(zero + likely, zero, zero), zero + escape
    widest, farthest = sizes.ball_bounds
    # A ball that touches from inside holds less for a wider proposal, so the widest bounds all others.
    likely = ball_acceptance(dim, radius, widest, farthest)
    longer = _UP * float(special.gammaincc(dim / 2.0, farthest**2 / 2.0))
    within = xp.where(deviation <= widest, likely, 0.0)
    return Attempts(within, zero, zero), xp.minimum(1.0, steps * longer)


def _tangent_step(
    sizes: Sizes, tangent: Power, step_size: float, num_steps: int, escape: float
) -> float:
    """The step size, or a smaller one at which attempts by tangents count often enough, if any does."""
    dim, convexity, start = sizes.dim, float(sizes.convexity), float(sizes.start_distance)

    def often(log_step: float) -> bool:
        eta = math.exp(log_step)
        reach = farthest_point(dim, eta, convexity, start, num_steps, escape)
        return bool(tangent_attempts(tangent, dim, eta, reach).acceptance >= _OFTEN)

    high = math.log(step_size)
    if often(high):
        return step_size
    low = high - 60.0
    if not often(low):
        raise Infeasible(
            "norm must be closer to 2, or dim smaller: roundings of the regularizer are too large for "
            f"exponent = {tangent.exponent:.4g} and dim = {dim}"
        )
    return math.exp(bisected(often, low, high, 40))


def inner_variation(c: Scalar, num_terms: int, indices: str = "prefix") -> Any:
    """δ(c, A): how far the law of an accepted point is at most from its target, rounded up; may be traced.

    x and z have a (1/η)-strongly log-concave law, so differences X of losses have Pr[|X| ≥ t] ≤
    2·exp(-t²/(4c)). An estimate ρ of a terms differs from its clip to [0, 2] by at most h_a(M)₊, h_a(t) = t +
    ... + t^a - 1, M the largest |X|; what comes after term A is at most Σ_{b > A} E|X|^b/b!. This is the sum
    of both expectations. It rises in c; in A it falls while what is cut off matters.
    """
    _checks.require_nonnegative("c", c)
    num_terms = _checks.require_integer("num_terms", num_terms, 3, MOST_TERMS)
    _checks.require_choice("indices", indices, INDICES)
    xp, (given,) = as_floats(c)
    some = given > 0
    size = xp.where(some, given, 1e-9)
    each = np.arange(1, num_terms + 1)
    reciprocals = np.array([1.0 / math.factorial(a) for a in each])
    shares = reciprocals - np.append(reciprocals[1:], 0.0)
    differences = each if indices == "prefix" else each * (each + 1) // 2
    clipped = xp.sum(shares * _excess(xp, size, num_terms, differences))
    beyond = np.arange(num_terms + 1, _BEYOND)
    terms = xp.exp(0.5 * beyond * xp.log(4.0 * size) + _LOG_SHARES[beyond])
    # Γ((b+1)/2)/Γ(b/2) is at most √(b/2), so the rest falls at least so fast.
    ratio = xp.sqrt(2.0 * size / _BEYOND)
    rest = xp.where(ratio < 1.0, terms[-1] * ratio / (1.0 - xp.minimum(ratio, 0.5)), xp.inf)
    bound = _UP * (clipped + xp.sum(terms) + rest) + 1e-300
    return xp.where(some, xp.minimum(bound, 1.0), 0.0)


def largest_c(variation: float, num_terms: int, indices: str = "prefix") -> float:
    """The largest c, from below, for which ``inner_variation`` is at most the given one, if any is."""
    low, high = math.log(_LEAST_C), math.log(_MOST_C)
    if inner_variation(_LEAST_C, num_terms, indices) > variation:
        raise Infeasible(f"variation must be larger for {num_terms} terms, got {variation}")

    def fits(log_c: float) -> bool:
        return bool(inner_variation(math.exp(log_c), num_terms, indices) <= variation)

    return math.exp(bisected(fits, low, high, 36))


def bisected(fits: Callable[[float], bool], low: float, high: float, halvings: int) -> float:
    """The last number that was seen to fit, on the way from one that does to one that need not."""
    for _ in range(halvings):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def moment(c: Any, b: int) -> Any:
    """A bound on E|X|^b where Pr[|X| ≥ t] ≤ 2·exp(-t²/(4c)): b·(4c)^{b/2}·Γ(b/2)."""
    return b * (4.0 * c) ** (b / 2.0) * math.gamma(b / 2.0)


def _excess(xp: Any, c: Any, num_terms: int, differences: np.ndarray) -> Any:
    """E (h(M))₊, h(t) = t + ... + t^a - 1, a = 1, ..., A; Pr[M ≥ t] ≤ min(1, 2·differences·exp(-t²/(4c))).

    The integral of b·t^{b-1}·2·exp(-t²/(4c)) from t on is b·(4c)^{b/2}·Γ(b/2, t²/(4c)), and Γ(s + 1, x) =
    s·Γ(s, x) + x^s·e^{-x} is a sum of positive numbers.
    """
    roots = np.array([_root(a) for a in range(1, num_terms + 1)])
    start = xp.maximum(roots, xp.sqrt(4.0 * c * np.log(2.0 * differences)))
    x = start**2 / (4.0 * c)
    decay = xp.exp(-x)
    gammas = [math.sqrt(math.pi) * special_namespace(xp).erfc(xp.sqrt(x)), decay]
    # For b differences or fewer the polynomial has no such term.
    counted = np.tril(np.ones((num_terms, num_terms)))
    height, total = xp.zeros_like(x), xp.zeros_like(x)
    for b in range(1, num_terms + 1):
        tail = b * (4.0 * c) ** (b / 2.0) * gammas[b - 1]
        height = height + counted[:, b - 1] * start**b
        total = total + counted[:, b - 1] * differences * tail
        gammas.append(0.5 * b * gammas[b - 1] + x ** (b / 2.0) * decay)
    return xp.maximum(height - 1.0, 0.0) + total


@functools.cache
def _root(a: int) -> float:
    """Where t + ... + t^a is 1, from below."""
    return bisected(lambda t: sum(t**b for b in range(1, a + 1)) <= 1.0, 0.0, 1.0, 60)
