"""Excess risks of noisy SGD that know the dimension only through restricted Lipschitz coefficients.

What it computes: with G_0 ≥ G_1 ≥ ... ≥ G_d = 0 such that outside of some k dimensions no gradient of the
mean loss is longer than G_k, the number that stands for all dimensions beyond the first k,

    A_k² = Σ_{s=1}^S s²·2^s·G²_{2^{s-1}k},    S = ⌊log₂(d/k)⌋ + 1,

the pull α = A_k/D and the rank k that follow from it, and two bounds on the excess risk of T steps

    x ← x - η·(g + α·(x - x_0) + noise),    E g = ∇F(x), ‖g‖ ≤ G, noise of deviation ν on each coordinate:

the one that is printed, and a tighter one of the same steps.

Source: T Lemmas 11.3.9 and 11.3.10, (11.11), Theorems 11.3.3 and 11.3.5. With the corrections of
docs/corrections/geometry.md: S is rounded down, the index is 2^{s-1}·k, and x̄ is the mean of x_1, ...,
x_T, while the proof needs that of x_0, ..., x_{T-1}: the terms that do not shrink with T get the factor 1 +
1/T.

Formal guarantee: for convex losses on the whole space, any x* within D of x_0 with F(x*) ≤ F(x_0), and η·α ≤
1/2; ``inf`` where nothing is proven. Proof: docs/theory/dimension_free.md.

Cost: none; float64 on the host.
"""

import math
from typing import Annotated, Any

import numpy as np

from dpsco_jax._argument_kinds import Count, Inside, Nonnegative, Positive, checked, real
from dpsco_jax._checks import (
    require,
    require_count,
    require_finite,
    require_integer,
    require_nonnegative,
    require_number,
    require_positive,
    require_real,
)


def tail(coefficients: Any, rank: int) -> float:
    """A_k: what gradients outside of the first k dimensions come to.

    Args:
        coefficients: G_0, ..., G_d, of which the last is 0.
        rank: k in [1, d].
    """
    known = require_coefficients("coefficients", coefficients)
    rank = require_integer("rank", rank, 1, len(known) - 1)
    levels, slopes, _ = _levels(known, rank)
    return float(np.sqrt(np.sum(levels**2 * 2.0**levels * slopes**2)))


@checked
def regularization(coefficients: Any, rank: int, distance: Positive) -> float:
    """α = A_k/D, the strength of the pull to the start; 0 where gradients have k dimensions.

    Args:
        coefficients: G_0, ..., G_d, of which the last is 0.
        rank: k in [1, d].
        distance: D, bound on the distance from the start to a minimizer.
    """
    return tail(coefficients, rank) / distance


@checked
def optimal_rank(coefficients: Any, num_users: Count, epsilon: Positive, delta: Inside) -> int:
    """The k that makes G_0·√(k·log(1/δ))/(ε·n) + A_k least, among the powers of two and d.

    Args:
        coefficients: G_0, ..., G_d, of which the last is 0.
        num_users: n, records.
        epsilon: ε of the run.
        delta: δ of the run, in (0, 1).
    """
    known = require_coefficients("coefficients", coefficients)
    noise = known[0] * math.sqrt(math.log(1 / delta)) / (epsilon * num_users)
    return min(ranks(len(known) - 1), key=lambda k: noise * math.sqrt(k) + tail(known, k))


@checked
def ranks(dim: Count) -> list[int]:
    """The ranks among which one is chosen: the powers of two up to d, and d.

    Args:
        dim: d ≥ 1.
    """
    return sorted({2**j for j in range(dim.bit_length())} | {dim})


def excess_bound(
    coefficients: Any,
    rank: int,
    *,
    lipschitz: float,
    distance: float,
    stddev: float,
    num_steps: int,
    step_size: Any,
    regularization: Any,
) -> Any:
    """A bound on E F(x̄) - F(x*), with the constants of the proof.

    Args:
        coefficients: G_0, ..., G_d of the mean loss, of which the last is 0.
        rank: k in [1, d].
        lipschitz: G, of a single record.
        distance: D, bound on the distance from the start to x*.
        stddev: ν ≥ 0, of the noise on each coordinate of a gradient.
        num_steps: T ≥ 1.
        step_size: η; may be an array.
        regularization: α ≥ 0; may be an array.

    Returns:
        The bound, of the shape of η and α together; ``inf`` where η·α > 1/2, or α = 0 and A_k > 0.
    """
    known, g, d, nu, steps = _run(coefficients, lipschitz, distance, stddev, num_steps)
    rank = require_integer("rank", rank, 1, len(known) - 1)
    eta, alpha = _moves(step_size, regularization)
    _, slopes, dims = _levels(known, rank)
    pulled = alpha > 0
    pull = np.where(pulled, alpha, 1.0)
    # Without a pull a step is that of plain SGD in k dimensions: its square is not split in two.
    split = np.where(pulled, 1.0, 0.5)
    each = eta * (split * g**2 + rank * nu**2 / 2) + alpha * d**2 / 2
    for slope, dim in zip(slopes, dims, strict=True):
        # a/w + b·w, w the share of the pull that these dimensions get; least at √(a/b), below 1 as a < b.
        a = slope**2 / pull
        b = 2 * slope**2 / pull + eta * (g**2 + dim * nu**2)
        least = 2 * np.sqrt(a * b)
        each = each + np.where(pulled, least, np.inf if slope > 0 else 0.0)
    bound = d**2 / (2 * eta * steps) + (1 + 1 / steps) * each  # x_1, ..., x_T
    return np.where(eta * alpha <= 0.5, bound, np.inf)[()]


def printed_excess_bound(
    coefficients: Any,
    rank: int,
    *,
    lipschitz: float,
    distance: float,
    stddev: float,
    num_steps: int,
    step_size: Any,
    regularization: Any,
) -> Any:
    """(11.11), D²/(2ηT) + 3ηG²(1 + kσ²) + αD²/2 + 3A_k²/α with ν = Gσ, all but the first times 1 + 1/T.

    It takes and returns what ``excess_bound`` does, which is never larger.
    """
    known, g, d, nu, steps = _run(coefficients, lipschitz, distance, stddev, num_steps)
    squares = tail(known, rank) ** 2
    eta, alpha = _moves(step_size, regularization)
    with np.errstate(divide="ignore"):
        outside = np.where(alpha > 0, 3 * squares / np.where(alpha > 0, alpha, 1.0), np.inf)
    outside = np.where(squares > 0, outside, 0.0)
    each = 3 * eta * (g**2 + rank * nu**2) + alpha * d**2 / 2 + outside
    bound = d**2 / (2 * eta * steps) + (1 + 1 / steps) * each
    return np.where(eta * alpha <= 0.5, bound, np.inf)[()]


@checked
def squared_distance(
    slope: Nonnegative,
    dims: Nonnegative,
    *,
    lipschitz: Positive,
    stddev: Nonnegative,
    step_size: Positive,
    regularization: Positive,
) -> float:
    """Lemma 11.3.9: E‖Q(x_t - x_0)‖² ≤ 4G_Q²/α² + 2η(G² + rν²)/α at every t, for η·α ≤ 1/2.

    Args:
        slope: G_Q ≥ 0, bound on ‖Q∇F‖; of the mean loss, not of every record as the lemma asks.
        dims: r ≥ 0, the rank of Q.
        lipschitz: G, of a single record.
        stddev: ν ≥ 0, of the noise on each coordinate.
        step_size: η.
        regularization: α > 0.
    """
    noise = lipschitz**2 + dims * stddev**2
    return 4 * (slope / regularization) ** 2 + 2 * step_size * noise / regularization


@checked
def risk_exponent(decay: Annotated[float, real(0.5)]) -> float:
    """2c/(1 + 2c): the power of √log(1/δ)/(εn) in the excess risk for G_k ≤ G_0·k^-c, c > 1/2.

    Args:
        decay: c > 1/2. At c ≤ 1/2 the sum A_k grows with d, and no such rate is proven.
    """
    return 2 * decay / (1 + 2 * decay)


def require_coefficients(name: str, values: Any) -> np.ndarray:
    """G_0, ..., G_d in float64; ``ValueError`` unless they fall, from a positive number to 0.

    Args:
        name: of the argument, for the message.
        values: numbers, ``[d + 1]``.
    """
    require_number(name, values, "real numbers, one more than dimensions")
    require_finite(name, values)
    found = np.asarray(values, np.float64)
    require(found.ndim == 1 and found.size >= 2, name, found.shape, "d + 1 numbers, d >= 1")
    require(found >= 0, name, values, "at least 0")
    require(np.diff(found) <= 0, name, values, "nonincreasing")
    require(found[0] > 0, name, values, "positive at rank 0")
    require(found[-1] == 0, name, values, "0 at rank d: nothing is outside of all dimensions")
    return found


def _levels(known: np.ndarray, rank: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """S = 1, ..., S; the coefficient G_{2^{s-1}k} of each; and how many dimensions each has at most."""
    dim = len(known) - 1
    if rank == dim:
        return np.zeros(0), np.zeros(0), np.zeros(0)  # G_d = 0, and no dimension is left
    count = (dim // rank).bit_length()
    s = np.arange(1, count + 1)
    return s.astype(float), known[2 ** (s - 1) * rank], np.minimum(2.0**s * rank, dim - rank)


def _run(coefficients: Any, lipschitz: Any, distance: Any, stddev: Any, num_steps: Any) -> Any:
    known = require_coefficients("coefficients", coefficients)
    g = require_real("lipschitz", lipschitz, 0)
    d = require_real("distance", distance, 0)
    nu = require_real("stddev", stddev, 0, closed=True)
    return known, g, d, nu, require_count("num_steps", num_steps)


def _moves(step_size: Any, regularization: Any) -> tuple[np.ndarray, np.ndarray]:
    require_positive("step_size", step_size)
    require_nonnegative("regularization", regularization)
    return np.asarray(step_size, float), np.asarray(regularization, float)
