"""What clipped gradient descent with a pull is proven to reach, when gradients have heavy tails.

What it computes: for F(x) = f(x) + (λ/2)·‖x - c‖² on K, of diameter at most 2r around c, f the mean of m
convex losses, minimized by the T proximal steps of ``transforms.prox_step`` with the mean of gradients
clipped to C and noise of standard deviation σ = C·s on each of d coordinates, v = d·s²:

    E F(x̂) - min F <= (4/λ)·(T + 3H_T)/(T(T + 7))·(Λ² + vC²) + λr²(T + 2)/(T(T + 7)) + b²/λ,       H_T = Σ 1/t

where Λ <= C is the largest norm of the mean of clipped gradients on K, E Λ² <= G_1² + G_2²/m, and b is the
largest error of the mean of clipped gradients on K. A convex term of slope B at most, whose gradient is added
to the mean as it is, adds B to Λ and to G_1 below. T, Proposition 12.3.1 prints, for T >= max(m, m²ρ/d),
32C²d/(λm²ρ) + 7λr²/m + b²/λ. With E L_s^k <= G_k^k, E b <= ``clip_bias``; bounds that hold in most runs
follow by Markov's inequality, with the failures that the file's functions are given.

For the minimizer x* of the population's F over X, the minimizer y of the sample's is within ‖∇f(x*) -
E∇f(x*)‖/λ of it, of mean square G_2²/(λ²m) (T, Lemma 12.3.5 prints 90·G_2/(λ√m) in 19 of 20 runs; this is
4.5 times it). And x* is within G_1/λ of c (T, Lemma 12.3.4 prints 2G_1/λ): by its condition of the first
order λ·‖x* - c‖² <= ⟨∇F(x*), c - x*⟩. With this r an answer is within a/λ of x*, and λ does not enter a.

Source: T, Propositions 12.3.1 and 12.3.7, Corollaries 12.3.3 and 12.3.6; proofs: docs/theory/heavy_tails.md.

Formal guarantee: none of privacy.

Cost: microseconds; NumPy on the host.
"""

import math
from typing import NamedTuple

import numpy as np
import scipy.special

from dpsco_jax.geometry.norms import clip_bias
from dpsco_jax.mechanisms.robust_point import MAJORITY
from dpsco_jax.rates.heavy_tailed import Moments

_SHARES = np.linspace(0.02, 0.96, 48)
_GROWTHS = (8.0, 12.0, 16.0, 24.0, 32.0)


class Answer(NamedTuple):
    """A clip level, and what it proves, in most runs or in the mean square.

    Attributes:
        clip_norm: C.
        distance: a: the answer is within a/λ of the population's minimizer.
        gap: λ times the gap of the sample's objective.
    """

    clip_norm: float
    distance: float
    gap: float


def descent(num_steps: int) -> float:
    """λ/(Λ² + vC²) times the first term: (4/T)·(T + 3H_T)/(T + 7)."""
    harmonic = float(scipy.special.digamma(num_steps + 1) + np.euler_gamma)
    share = (num_steps + 3 * harmonic) / (num_steps + 7)
    return 4 * share / num_steps


def pulled(num_steps: int) -> float:
    """1/(λr²) times the second term: (T + 2)/(T(T + 7))."""
    return (num_steps + 2) / (num_steps * (num_steps + 7))


def paper_steps(num_users: int, dim: int, rho: float) -> int:
    """T = ⌈max(m, m²ρ/d)⌉ of Proposition 12.3.1."""
    return math.ceil(max(num_users, num_users**2 * rho / dim))


def paper_clip(moments: Moments, num_users: int, dim: int, rho: float) -> float:
    """C of Corollary 12.3.3."""
    scale = 25 * num_users**2 * rho / (32 * dim)
    return moments.highest * scale ** (1 / (2 * moments.order))


def paper_distance(moments: Moments, num_users: int, dim: int, rho: float) -> float:
    """A of Corollary 12.3.6, with the constants that its proof gives once mended: 25.3, 16.8, 90."""
    noise = math.sqrt(dim / rho) / num_users
    first = math.sqrt(640) * moments.highest * noise**moments.power
    pull = 2 * math.sqrt(70) * moments.first / math.sqrt(num_users)
    return first + pull + 90 * moments.second / math.sqrt(num_users)


def in_most_runs(
    moments: Moments,
    num_users: int,
    num_steps: int,
    variance: float,
    failure: float,
    clip_norm: float | None = None,
    radius: float | None = None,
    population: bool = True,
    known: float = 0.0,
) -> Answer:
    """The least distance that is exceeded in a share of ``failure`` of all runs, over C and what may fail.

    Args:
        moments: bounds on the moments of slopes.
        num_users: m.
        num_steps: T.
        variance: v, of all coordinates of the noise over C².
        failure: shared among the noise, the clip and the sample.
        clip_norm: C, to be kept; ``None`` for the best.
        radius: λr; G_1 + B if left out.
        population: whether the sample may fail too; else the distance is to its own minimizer.
        known: B, the largest slope of a convex term whose gradient is added as it is, such as a ridge.
    """
    bounded = moments.order == math.inf
    pull = pulled(num_steps) * (moments.first + known if radius is None else radius) ** 2
    each = descent(num_steps)
    share = _SHARES[:, None]
    of_noise, of_sample = share * failure, _SHARES * failure if population else np.zeros(1)
    of_clip = failure - of_noise - of_sample
    if bounded:
        # What is cut off is then no matter of luck.
        of_noise, of_clip = failure - of_sample[None, :], np.ones((1, 1))
    with np.errstate(divide="ignore", invalid="ignore"):
        clip = (
            _best_clip(moments, each * variance / of_noise, of_clip)
            if clip_norm is None
            else clip_norm
        )
        bias = _biases(moments, clip) / of_clip
        slopes = _squares(moments, num_users, clip, known) + variance * np.square(clip)
        gap = (each * slopes + pull) / of_noise + bias**2
        stray = moments.second / np.sqrt(num_users * of_sample) if population else 0.0
        distance = np.where(of_clip > 0, np.sqrt(2 * gap) + stray, np.inf)
    shape = np.broadcast_shapes(np.shape(distance))
    at = np.unravel_index(np.nanargmin(distance), shape)
    chosen = np.broadcast_to(clip, shape)[at]
    return Answer(float(chosen), float(distance[at]), float(np.broadcast_to(gap, shape)[at]))


def in_the_mean(
    moments: Moments,
    num_users: int,
    num_steps: int,
    variance: float,
    clip_norm: float,
    radius: float | None = None,
    known: float = 0.0,
) -> Answer:
    """The root mean square distance of losses that have no slope above C: nothing is clipped.

    Args:
        moments: bounds on the moments of slopes.
        num_users: m.
        num_steps: T.
        variance: v.
        clip_norm: C.
        radius: λr; G_1 + B if left out.
        known: B, as of ``in_most_runs``.
    """
    slopes = float(_squares(moments, num_users, clip_norm, known)) + variance * clip_norm**2
    gap = descent(num_steps) * slopes
    gap += pulled(num_steps) * (moments.first + known if radius is None else radius) ** 2
    return Answer(clip_norm, math.sqrt(2 * gap) + moments.second / math.sqrt(num_users), gap)


def typical(moments: Moments, num_users: int, noise: float) -> Answer:
    """What is to be expected rather than proven: deviations of noise and sample, and the clip's bias.

    The C of the least C·noise + bias(C), for settings that are to work in practice: nothing is proven of the
    distance. Worst cases cost a factor of some √T more: subgradients that turn at every step.

    Args:
        moments: bounds on the moments of slopes.
        num_users: m.
        noise: the deviation of the average of all T noises, all coordinates, over C.
    """
    if moments.order == math.inf:
        clip = moments.highest
    else:
        k = moments.order
        one = clip_bias(moments.highest, k, moments.highest, sharp=True) / moments.highest
        clip = moments.highest * math.exp(math.log((k - 1) * one / noise) / k)
    distance = clip * noise + float(_biases(moments, clip)) + moments.second / math.sqrt(num_users)
    return Answer(clip, distance, math.nan)


def share_that_may_fail(copies: int, failure: float) -> float:
    """How often one of J independent answers may be far, so that 51 % of them are near but for ``failure``.

    P(Binomial(J, 1 - q) < ⌈0.51·J⌉) = failure, solved for q. T, Theorem 12.3.8 has q = 0.45 and J = 400 to
    500·log(1/failure), by a Chernoff bound.
    """
    majority = math.ceil(MAJORITY * copies - 1e-9)
    return float(1 - scipy.special.bdtri(majority - 1, copies, failure))


class Localized(NamedTuple):
    """Strengths of phases, and the bound that they prove.

    Attributes:
        strengths: λ_1, ..., λ_I.
        bound: on F(x_I) - F(x*).
    """

    strengths: tuple[float, ...]
    bound: float


def localized(
    distances: list[float], first: float, distance: float, strength: float | None = None
) -> Localized:
    """The best λ and growth g of λ_i = λ·g^i for phases that end within a_i/λ_i of their targets.

    G_1·a_I/λ_I + (λ_1/2)·D² + Σ_{i>=2} (λ_i/2)·(a_{i-1}/λ_{i-1})² = (1/λ)·S + (λg/2)·D², least at λ =
    √(2S/g)/D, where it is D·√(2gS).

    Args:
        distances: a_1, ..., a_I.
        first: G_1.
        distance: D, of the start from a minimizer.
        strength: λ_1/g, to be kept with g = 32, that of the thesis; ``None`` for the best of both.
    """
    growths = _GROWTHS if strength is None else (32.0,)
    return min((_grown(distances, first, distance, strength, g) for g in growths), key=_bound)


def bound_of(
    strengths: tuple[float, ...], distances: list[float], first: float, distance: float
) -> float:
    """G_1·a_I/λ_I + (λ_1/2)·D² + Σ_{i>=2} (λ_i/2)·(a_{i-1}/λ_{i-1})², of any strengths.

    Args:
        strengths: λ_1, ..., λ_I.
        distances: a_1, ..., a_I.
        first: G_1.
        distance: D.
    """
    reached = [a / each for a, each in zip(distances, strengths, strict=True)]
    starts = [distance, *reached[:-1]]
    moved = [each / 2 * far**2 for each, far in zip(strengths, starts, strict=True)]
    return first * reached[-1] + math.fsum(moved)


def _grown(
    distances: list[float], first: float, distance: float, strength: float | None, growth: float
) -> Localized:
    logs = np.arange(1, len(distances) + 1) * math.log(growth)
    if strength is None:
        # S is the bound at λ = 1 and D = 0.
        total = bound_of(tuple(np.exp(logs)), distances, first, 0.0)
        strength = math.sqrt(2 * total / growth) / distance
    strengths = tuple(float(x) for x in np.exp(math.log(strength) + logs))
    return Localized(strengths, bound_of(strengths, distances, first, distance))


def _bound(found: Localized) -> float:
    return found.bound


def _squares(
    moments: Moments, num_users: int, clip: np.ndarray | float, known: float
) -> np.ndarray:
    """(min(√(G_1² + G_2²/m), C) + B)²: of the mean of m clipped slopes, and what is known."""
    free = math.sqrt(moments.first**2 + moments.second**2 / num_users)
    return np.square(np.minimum(free, clip) + known)  # type: ignore[no-any-return]


def _best_clip(moments: Moments, square: np.ndarray, of_clip: np.ndarray) -> np.ndarray:
    """The C of the least square·C² + (bias(C)/q)²: C^{2k} = (k - 1)·(C^{k-1}·bias(C)/q)²/square."""
    if moments.order == math.inf:
        return np.array([[moments.highest]])
    k = moments.order
    # In logarithms, of the bias at C = G_k.
    one = math.log(clip_bias(moments.highest, k, moments.highest, sharp=True) / moments.highest)
    inner = math.log(k - 1) + 2 * one - 2 * np.log(np.maximum(of_clip, 1e-300)) - np.log(square)
    return moments.highest * np.exp(inner / (2 * k))  # type: ignore[no-any-return]


def _biases(moments: Moments, clip: np.ndarray | float) -> np.ndarray:
    if moments.order == math.inf:
        return np.maximum(moments.highest - np.asarray(clip), 0.0)
    level = clip_bias(moments.highest, moments.order, moments.highest, sharp=True)
    return level * (moments.highest / np.asarray(clip)) ** (moments.order - 1)
