"""The grid of λ for the mixture exp(-S^c) = ∫ μ(λ)·exp(-λS) dλ, and how wrong values by it are.

For each shell k <= ‖u‖_p < k + 1 these are the first log λ and the step of a grid of one size, so that

    T(S) = h·Σ_j μ(λ_j)·λ_j·exp(-λ_j·S),    S = Σ|y_i|^q = ‖y‖_q^q,

may take the place of exp(-S^c) = exp(-‖y‖_q²), c = 2/q, under exp(<u, y>). Write ψ for the log-Laplace
transform of ‖y‖_q², N = ‖u‖_p²/4, and E for ∫|T(S) - exp(-S^c)|·exp(<u, y>) dy over exp ψ(u). A ψ computed
by T is wrong by at most -log(1 - E), and a y drawn with λ among the λ_j alone has its law up to a total
variation of E.

E <= 3·exp(-39.5) for every u in the shell. Facts used, for γ in (0, 1]:
(0) Δ(γ) = ψ(u/√γ) - ψ(u) <= log E exp(‖u‖_p·r/√γ) - max(0, N - (d/2)·log(1/(p-1))), r² of a Gamma law with
    shape d/2 (``_radial_range``): Hölder above; below, ψ(u) >= ψ(0), and by the (2/(p-1))-smoothness of
    ‖y‖_q², expanded at the y where <u, y> - ‖y‖_q² = N is largest, ψ(u) >= N + ψ(0) + (d/2)·log(p-1). It
    increases with ‖u‖_p.
(1) *Step.* The density of log λ is an integral of exp(-x·B), x = λ^(-c/(1-c)) (``_stable_density``). On the
    line Im log λ = b, with θ = bc/(1-c) < π/2 and b < π/2, |μ(λ)λ·exp(-λS)| is at most 1/cos(θ) times its
    own value with λ moved by cos(θ)^(-(1-c)/c) and S multiplied by cos(b)·cos(θ)^((1-c)/c): its integral is
    exp(-γS^c)/cos(θ), γ = cos(b)^c·cos(θ)^(1-c). So the whole sum is wrong by at most
    2·exp(-γS^c)/(cos(θ)·(exp(2πb/h) - 1)), wherever the grid begins (Trefethen and Weideman 2014, Theorem
    5.1); under exp(<u, y>), by γ^(-d/2)·exp(Δ(γ)) times that.
(2) *To the left.* Where λ <= Λ and 0 < g < 1, exp(-xB) <= exp(-(1-g)·B(0)·X)·exp(-gxB), X = Λ^(-c/(1-c)):
    the terms there are at most exp(-(1-g)·B(0)·X)/g times those of a moved grid for S·g^((1-c)/c), whose
    sum is, by (1), at most twice exp(-γS^c), γ = g^(1-c): a relative error of
    2·exp(-(1-g)·B(0)·X)·γ^(-d/2)·exp(Δ(γ))/g. It increases with ‖u‖_p. (That (1) is at most 1 at u/√γ is
    computed.)
(3) *To the right.* The law of λ under u is μ(λ)·λ^(-d/q)·Π Z(u_i·λ^(-1/q)), whose last factor decreases
    along λ, and the more so the larger u is along its ray: the weight beyond Λ is largest at the inner end
    of the shell. There it is summed over slices [Λ_i, Λ_(i+1)]. The grid's weight of λ <= Λ is at most
    min over s of exp(sΛ)·T(s) <= 2·exp(-B(0)·Λ^(-c/(1-c))); that of λ >= Λ at most
    2·(T(0) - T(1/Λ)) <= 4·(Λ^(-c) + exp(-39.5)); and log Π Z is at most
    d·log Z(0) + (q-1)·(‖u‖_p·Λ_i^(-1/q)/q)^p (``_power_laplace``). The slices begin at the λ* where the two
    exponents balance, s^c = N: from there on (1), of which Δ(γ) >= N/γ - N, is at most 1 at every s used.

The error of a value is a sum of three. The rule over λ: proven. The tables: measured, against quadratures
with other steps, between the points that the tables were made from, and doubled. An error of the weights'
logarithms is averaged by the sum over λ; that of log Z is relative to 1 + (q-1)(|t|/q)^p, whose sum over the
coordinates has, under the tilted law of λ, a mean of at most d + 2(q-1)/q·(N + d). Roundings: the terms of
the sum are at most some multiples of N + d, each rounded a few times; 2^-49 of that is allowed for.
"""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from dpsco_jax.geometry import _power_laplace, _radial_range, _stable_density
from dpsco_jax.geometry._power_laplace import log_at_zero
from dpsco_jax.geometry._stable_density import least_rate

_PROBES = 400
# Each of the three parts of the error, by its logarithm.
_PART = -39.5
PROVEN_ERROR = 3.0 * math.exp(_PART)
_ANGLES = np.linspace(0.02, 0.98, 49) * (0.5 * math.pi)
_SHARES = 1.0 - np.geomspace(1e-3, 0.97, 60)
_SLICES = 900


class MixtureTables(NamedTuple):
    """Grids by shell, span and error."""

    low: Float[np.ndarray, " shells"]  # log λ_0
    step: Float[np.ndarray, " shells"]  # of log λ
    size: int  # number of λ in each grid
    first: float  # where the table of the stable density begins
    last: float  # where it ends
    error: float  # of a value


@functools.lru_cache(maxsize=32)
def mixture_tables(p: float, dim: int, shells: int) -> MixtureTables:
    """Tables for ‖u‖_p in [0, shells).

    Args:
        p: in (1, 2).
        dim: d.
        shells: of width 1.
    """
    q = p / (p - 1.0)
    grid = mixture_grid(p, dim, shells)
    first = float(np.min(grid.low))
    last = float(np.max(grid.low + grid.step * (grid.size - 1)))
    height = 0.25 * shells**2
    density, power = _density_error(2.0 / q, first, last), _power_error(q)
    measured = density + power * (dim + 2.0 * (q - 1.0) / q * (height + dim))
    error = PROVEN_ERROR + 2.0 * measured + 2.0**-49 * (height + dim + 1.0)
    return MixtureTables(grid.low, grid.step, grid.size, first, last, error)


@functools.lru_cache(maxsize=32)
def _density_error(c: float, first: float, last: float) -> float:
    v = first + (last - first) * _spread()
    known = _stable_density.log_density_by_quadrature(v, c, refined=True)
    known = known - least_rate(c) * np.exp(-v * (c / (1.0 - c)))
    with jax.ensure_compile_time_eval():
        found = np.asarray(_stable_density.log_density(jnp.asarray(v), c, first, last))
    # Where the exponent is huge its own rounding is, which is counted with the roundings.
    size = 1.0 + least_rate(c) * np.exp(-v * (c / (1.0 - c)))
    return float(np.max(np.abs(found - known) / size))


@functools.lru_cache(maxsize=32)
def _power_error(q: float) -> float:
    t = np.expm1(math.log(1e4) * _spread())
    leading = (q - 1.0) * (t / q) ** (q / (q - 1.0))
    known = _power_laplace.log_ratio_by_quadrature(t, q, refined=True) + leading
    with jax.ensure_compile_time_eval():
        found = np.asarray(_power_laplace.log_power_laplace(jnp.asarray(t), q))
    return float(np.max(np.abs(found - known) / (1.0 + leading)))


def _spread() -> np.ndarray:
    """Points of (0, 1) of low discrepancy, multiples of the golden ratio: on no regular grid of a table."""
    return np.mod((np.arange(_PROBES) + 0.5) * (0.5 * math.sqrt(5.0) + 0.5), 1.0)


class MixtureGrid(NamedTuple):
    """The grids of all shells."""

    low: Float[np.ndarray, " shells"]  # log λ_0
    step: Float[np.ndarray, " shells"]  # h
    size: int  # number of λ in each


def mixture_grid(p: float, dim: int, shells: int) -> MixtureGrid:
    """Grids for ‖u‖_p in [0, shells).

    Args:
        p: in (1, 2).
        dim: d.
        shells: how many of width 1.
    """
    inner = np.arange(shells, dtype=np.float64)
    outer = inner + 1.0
    widest = _widest_step(p, dim, outer)
    low = _left_end(p, dim, outer, widest)
    high = _right_end(p, dim, inner)
    size = int(np.max(np.ceil((high - low) / widest))) + 1
    return MixtureGrid(low, (high - low) / (size - 1), size)


def _growth(p: float, dim: int, norm: np.ndarray, shrink: np.ndarray) -> np.ndarray:
    """The bound on Δ(γ) of (0)."""
    slope = norm / np.sqrt(shrink)
    # A convex function lies below its chords; where there are none, the bound is given up.
    points, values = _chords(dim, 1 << max(4, math.ceil(math.log2(float(np.max(norm))))))
    above = np.interp(slope, points, values, right=math.inf)
    return above - np.maximum(0.0, 0.25 * norm**2 + 0.5 * dim * math.log(p - 1.0))


@functools.lru_cache(maxsize=8)
def _chords(dim: int, largest: int) -> tuple[np.ndarray, np.ndarray]:
    """Log E exp(t·r) at points t that cover four times the largest norm, 1/4 apart."""
    points = np.arange(0.0, 4.0 * largest + 64.0, 0.25)
    return points, _radial_range.log_moment(points, dim)


def _log_excess(p: float, dim: int, norm: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For each angle, (1) without its last factor, and b."""
    c = 2.0 * (p - 1.0) / p
    turn = _ANGLES * (1.0 - c) / c
    angles = _ANGLES[turn < 0.49 * math.pi]
    turn = turn[turn < 0.49 * math.pi]
    shrink = np.cos(turn) ** c * np.cos(angles) ** (1.0 - c)
    growth = _growth(p, dim, norm[:, None], shrink)
    return math.log(2.0) - np.log(np.cos(angles)) - 0.5 * dim * np.log(shrink) + growth, turn


def _widest_step(p: float, dim: int, norm: np.ndarray) -> np.ndarray:
    """(1), solved for h; the 1e-9 is for the 1 beside exp(2πb/h)."""
    excess, turn = _log_excess(p, dim, norm)
    return np.asarray(np.max(2.0 * math.pi * turn / (excess - _PART + 1e-9), axis=1))


def _left_end(p: float, dim: int, norm: np.ndarray, step: np.ndarray) -> np.ndarray:
    """(2), solved for log Λ, by the best g for which the moved sum is sure."""
    c = 2.0 * (p - 1.0) / p
    best = np.full(len(norm), np.inf)
    for share in _SHARES:
        shrink = share ** (1.0 - c)
        growth = _growth(p, dim, norm, np.asarray(shrink))
        needed = math.log(2.0) - math.log(share) - 0.5 * dim * math.log(shrink) + growth - _PART
        rate = needed / ((1.0 - share) * least_rate(c))
        excess, turn = _log_excess(p, dim, norm / math.sqrt(shrink))
        sure = np.min(excess - 2.0 * math.pi * turn / step[:, None], axis=1) < -1e-9
        best = np.where(sure, np.minimum(best, rate), best)
    return -(1.0 - c) / c * np.log(best)


def _right_end(p: float, dim: int, norm: np.ndarray) -> np.ndarray:
    """(3): the first end of a slice beyond which the weight is small enough."""
    q = p / (p - 1.0)
    c = 2.0 / q
    peak = np.maximum(0.25 * norm**2, 0.25)
    middle = math.log(c) - (1.0 - c) / c * np.log(peak)
    # Slices that grow from a fraction of the peak's width to all of the heavy tail.
    width = 0.02 * (1.0 - c) / np.sqrt(peak)
    longest = 90.0 / (c + dim / q) + 10.0
    ends = np.expm1(np.linspace(0.0, 1.0, _SLICES + 1) * np.log1p(longest / width)[:, None])
    ends = middle[:, None] + width[:, None] * ends
    start, stop = ends[:, :-1], ends[:, 1:]
    inside = np.minimum(
        math.log(2.0) - least_rate(c) * np.exp(-stop * c / (1.0 - c)),
        np.minimum(math.log(4.0) + np.logaddexp(-c * start, _PART), math.log(2.0)),
    )
    rise = (q - 1.0) * (norm[:, None] / q) ** p * np.exp(-start * p / q)
    zero = _at_zero(p, dim)
    below = zero + np.maximum(0.0, 0.25 * norm**2 + 0.5 * dim * math.log(p - 1.0))
    terms = inside + rise + dim * log_at_zero(q) - start * dim / q - below[:, None]
    # All beyond the last slice, whose product only falls.
    last = (
        math.log(4.0) + np.logaddexp(-c * stop[:, -1], _PART) + rise[:, -1] + dim * log_at_zero(q)
    )
    last = last - stop[:, -1] * dim / q - below
    tails = np.logaddexp.accumulate(
        np.concatenate([terms, last[:, None]], axis=1)[:, ::-1], axis=1
    )[:, ::-1]
    first = np.argmax(tails <= _PART, axis=1)
    return np.asarray(np.take_along_axis(ends, first[:, None], axis=1)[:, 0])


def _at_zero(p: float, dim: int) -> float:
    """ψ(0) of ‖y‖_q²."""
    q = p / (p - 1.0)
    return dim * log_at_zero(q) - math.lgamma(1.0 + dim / q) + math.lgamma(1.0 + 0.5 * dim)
