"""How far one draw by an estimated exponential is from its law: δ(c, A), and the c for a given δ.

What it computes: x and z are drawn from a (1/η)-strongly log-concave law and every k·f(·; s) is kG-Lipschitz,
so with c = η(kG)² a difference X of its values has Pr[|X| ≥ t] ≤ 2·exp(-t²/(4c)). The estimate ρ of a = 1,
..., A terms differs from its clip to [0, 2] by at most (h_a(M) - 0)₊, h_a(t) = t + ... + t^a - 1 and M the
largest |X|; what comes after term A is at most Σ_{b > A} E|X|^b/b!. δ(c, A) is the sum of both expectations.

It replaces T, Lemmas 3.5.5, 5.4.5 and 5.4.6 (docs/corrections.md); docs/theory/rejection_oracle.md has the
proof. These are upper bounds, rounded up, that may be traced; no quadrature, all integrals are incomplete
gamma functions. δ rises in c. In A it falls as long as what is cut off matters, and rises a little after
that, as more terms may be clipped.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, SupportsFloat

import numpy as np
from scipy import special

from dpsco_jax import _checks
from dpsco_jax._infeasible import Infeasible
from dpsco_jax._numerics import Scalar, as_floats, special_namespace
from dpsco_jax.solvers.sampling._exponential_series import INDICES

MOST_TERMS = 18
"""1/19! is below the resolution of a uniform number."""

_UP = 1.0 + 2.0**-30
_LEAST_C, _MOST_C = 1e-9, 0.25
_BEYOND = 100
_B = np.arange(1, _BEYOND)
_LOG_SHARES = np.append(0.0, np.log(_B) + special.gammaln(_B / 2.0) - special.gammaln(_B + 1.0))


def inner_variation(c: Scalar, num_terms: int, indices: str = "prefix") -> Any:
    """δ(c, A): how far the law of an accepted point is at most from its target, rounded up.

    Args:
        c: η(kG)², at least 0; may be traced, in float64.
        num_terms: A, in [3, 18].
        indices: ``"prefix"`` or ``"fresh"``.

    Raises:
        ValueError: a concrete argument is out of range.
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


def largest_c(variation: SupportsFloat, num_terms: int, indices: str = "prefix") -> float:
    """The largest c, from below, for which ``inner_variation`` is at most the given one.

    Raises:
        ValueError: an argument is out of range.
        Infeasible: even the smallest c that is tried has more.
    """
    variation = _checks.require_real("variation", variation, 0.0, 1.0)
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
