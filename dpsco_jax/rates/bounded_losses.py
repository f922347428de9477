"""Lower bounds for losses that are Lipschitz surely: the hard law of ``value_queries``, cut off.

What it computes: for s ~ N(κv, σ²·I), set to zero where it leaves

    p = 2    the ball ‖s‖₂ <= G,
    p < 2    the cube |s_j| <= G·d^(-1/q), in which ‖s‖_q <= G,

the largest σ (with κ = ρσ) at which few enough records are cut off, the share of them, and the mean, which is
c·v with c < κ; the lower bound that is left; and how far from exp(-F - μr) a sampler stays that sees k
values.

Source: T Corollaries 3.7.6, 3.7.7, 5.7.5, 5.7.6, which have Ω( ) in place of constants. Print cuts off at
‖s‖_q <= G for p < 2 as well; the cube has the same rate and a mean in closed form.

Formal guarantee: the law that is left is symmetric under the permutations and signs that leave v alone, so
its mean is c·v: in the ball c = κ·P(χ'²_{d+2}(λ) <= G²/σ²) with λ = ‖κv‖²/σ² (from the derivative in κv of
the mass of the ball), in the cube a product of one-dimensional integrals. With probability 1 - mη none of the
at most m = min(k, n) records that are seen is cut off. Excess risks are c/κ times those of ``value_queries``,
and those are at most W·κD, so

    risk >= (c/κ)·(b - mη)·W·κD    where b·W·κD is the bound without cutting; σ makes mη = b/2.

A sampler within η of exp(-F - μr) in variation, r of range θR² on the ball of radius R, has a risk of at most
d + μθR² + η·GD; at the best D the bound on the risk leaves η >= risk/(GD) - √(dμθ)/G.

Cost: a bisection on the host, float64.
"""

import math
from typing import NamedTuple

import scipy.optimize
import scipy.special
import scipy.stats

from dpsco_jax._argument_kinds import Count, Positive, checked
from dpsco_jax.rates import norms
from dpsco_jax.rates.value_queries import (
    DIRECTIONS,
    Direction,
    UpToTwo,
    query_ratio,
    reach_and_share,
)


class BoundedScales(NamedTuple):
    """The law of a record that is cut off, and the excess risk that no algorithm is below.

    Attributes:
        mean: κ, before cutting.
        stddev: σ, before cutting.
        bound: above it a record is set to zero: in ‖s‖₂ for p = 2, in every |s_j| for p < 2.
        missing: η, the share of records that are.
        kept_mean: c; the mean of a record is c·v.
        risk: over the diameter D of the ball.
    """

    mean: float
    stddev: float
    bound: float
    missing: float
    kept_mean: float
    risk: float


@checked
def bounded_scales(
    queries: Count,
    dim: Count,
    lipschitz: Positive = 1.0,
    p: UpToTwo = 2.0,
    direction: Direction = "signs",
    num_users: Count | None = None,
) -> BoundedScales:
    """The hard law with ‖s‖_q <= G surely, and its lower bound for D = 1 (T Cor 3.7.6, 5.7.5).

    Args:
        queries: k.
        dim: d.
        lipschitz: G, of every loss.
        p: exponent of the ball's norm, in [1, 2]; with signs above 1, where they prove nothing.
        direction: "signs" or "axis".
        num_users: n, if the values are of n records.

    Example:
        >>> law = bounded_scales(100, 25, direction="axis")
        >>> round(law.kept_mean / law.mean, 4), round(law.risk, 5)
        (0.9972, 0.00432)
    """
    ratio = query_ratio(queries, dim, num_users)
    reach, share = reach_and_share(p, dim, direction)
    seen = queries if num_users is None else min(queries, num_users)
    if share == 0.0:
        raise ValueError(f"p must be above 1 for direction='signs', got {p!r}")
    bound = lipschitz if p == 2.0 else lipschitz * dim ** (1.0 / p - 1.0)
    leading = dim if direction == "signs" else 1

    def missing(log_width: float) -> float:
        return _missing(math.exp(log_width), ratio, dim, leading, p == 2.0)

    allowed = math.log(0.5 * share / seen)
    widest = math.log(ratio + 10.0) + math.log(dim) + 0.5 * math.log(1.0 + seen)
    width = scipy.optimize.brentq(
        lambda x: math.log(max(missing(x), 1e-300)) - allowed, -30.0, widest, xtol=1e-12
    )
    width = math.exp(width + 1e-11)  # on the safe side
    stddev, cut = bound / width, _missing(width, ratio, dim, leading, p == 2.0)
    kept = stddev * _kept_mean(width, ratio, dim, leading, p == 2.0)
    return BoundedScales(
        ratio * stddev, stddev, bound, cut, kept, kept * reach * max(share - seen * cut, 0.0)
    )


@checked
def bounded_lower_bound(
    queries: Count,
    dim: Count,
    lipschitz: Positive = 1.0,
    diameter: Positive = 1.0,
    p: UpToTwo = 2.0,
    num_users: Count | None = None,
) -> float:
    """``value_queries.minimax_lower_bound`` for losses that are G-Lipschitz surely.

    Args:
        queries: k.
        dim: d.
        lipschitz: G.
        diameter: D, in the ℓp norm.
        p: in [1, 2].
        num_users: n, if the values are of n records.

    Example:
        >>> round(bounded_lower_bound(100, 25), 5), round(bounded_lower_bound(100, 25, p=1), 5)
        (0.00504, 0.00768)
    """
    words = [word for word in DIRECTIONS if word == "axis" or p != 1.0]
    found = (bounded_scales(queries, dim, lipschitz, p, word, num_users).risk for word in words)
    return diameter * max(found)


@checked
def sampling_distance(
    queries: Count,
    dim: Count,
    lipschitz: Positive,
    regularization: Positive,
    p: UpToTwo = 2.0,
) -> float:
    """How near in variation to exp(-F - μr) no sampler comes that sees k values, or 0 (T Cor 3.7.7, 5.7.6).

    F is a mean of G-Lipschitz linear losses on an ℓp ball, r the regularizer of ``norms``.

    Args:
        queries: k.
        dim: d.
        lipschitz: G.
        regularization: μ.
        p: in [1, 2].

    Example:
        >>> sampling_distance(10**4, 25, 1e4, 1e-2) > 0, sampling_distance(10**10, 25, 1e4, 1e-2)
        (True, 0.0)
    """
    risk = bounded_lower_bound(queries, dim, lipschitz, 1.0, p)
    theta = norms.regularizer_range(p, dim)
    spent = math.sqrt(dim * regularization * theta)
    return max(risk - spent, 0.0) / lipschitz


@checked
def sampling_diameter(regularization: Positive, dim: Count, p: UpToTwo = 2.0) -> float:
    """The diameter 2·√(d/(μθ)) of the ball on which ``sampling_distance`` is proved.

    Args:
        regularization: μ.
        dim: d.
        p: in [1, 2].

    Example:
        >>> sampling_diameter(0.5, 4)
        8.0
    """
    theta = norms.regularizer_range(p, dim)
    return 2.0 * math.sqrt(dim / (regularization * theta))


def _missing(width: float, ratio: float, dim: int, leading: int, round_set: bool) -> float:
    """The mass beyond G/σ = width; ``leading`` entries have mean ρ, the others 0."""
    if round_set:
        return float(scipy.stats.ncx2.sf(width**2, dim, leading * ratio**2))
    far, near = (_outside(width, mean) for mean in (ratio, 0.0))
    return -math.expm1(leading * math.log1p(-far) + (dim - leading) * math.log1p(-near))


def _kept_mean(width: float, ratio: float, dim: int, leading: int, round_set: bool) -> float:
    """The mean c/σ of a leading entry."""
    if round_set:
        return ratio * float(scipy.stats.ncx2.cdf(width**2, dim + 2, leading * ratio**2))
    density = scipy.stats.norm.pdf
    one = ratio * (1.0 - _outside(width, ratio)) + density(width + ratio) - density(width - ratio)
    others = (leading - 1) * math.log1p(-_outside(width, ratio))
    others += (dim - leading) * math.log1p(-_outside(width, 0.0))
    return float(one) * math.exp(others)


def _outside(width: float, mean: float) -> float:
    """P(|mean + N| > width)."""
    return float(scipy.special.ndtr(mean - width) + scipy.special.ndtr(-mean - width))
