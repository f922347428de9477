"""The log-Laplace transform of a squared Schatten norm, where it can be evaluated: 2×2 matrices, and p = 2.

ψ(X) = log ∫ exp(<X, Y> - a‖Y‖²_{S_q}) dY over real matrices, 1/p + 1/q = 1. For p = 2 it
is that of a Gaussian. A real 2×2 matrix is a sum of a multiple of a rotation and of a reflection, with
lengths ρ and τ: its singular values are ρ + τ and |ρ - τ|. With z and w the two parts of X,

    exp ψ(X) = 16π² ∬ ρτ·I₀(2ρ|z|)·I₀(2τ|w|)·exp(-a·((ρ+τ)^q + |ρ-τ|^q)^(2/q)) dρ dτ    over ρ, τ > 0.

Source: T (5.25), (5.30), Corollary 5.5.4. For larger matrices and p < 2, T leaves the evaluation of (5.30)
open; the vectors' decomposition over λ would need the integral of exp(<X, Y> - κ·Σσ_i^q), an integral over
two orthogonal groups of an exponential for which no efficient formula is known when the two matrices differ
in shape.

Gauss-Legendre rules in s = ρ + τ and in |ρ - τ|/s; the two evaluations of
``schatten_laplace`` with other numbers of nodes differ by less than 1e-10 on the cases of its test, and by
less than 1e-7 at the largest matrices that it takes. A reference, not for a chain.
"""

import math

import numpy as np
import scipy.special
from jaxtyping import Array, Float

from dpsco_jax import _checks
from dpsco_jax.geometry import _radial_range
from dpsco_jax.geometry.lp import require_matrix

_NODES = 200
_SIZE = 0.3  # the spectral norm of X/√a for each node: larger ones make the integrand too narrow


def schatten_laplace(
    matrix: Float[Array | np.ndarray, "rows columns"], p: float, scale: float, nodes: int = _NODES
) -> float:
    """ψ(X), on the host.

    Args:
        matrix: X, real; 2×2 unless p = 2.
        p: in (1, 2].
        scale: a, above 0.
        nodes: of each of the two quadrature rules. ‖X‖/√a, of the spectral norm, is at most 0.3 of it.

    Raises:
        ValueError: an argument is out of its range, an entry is not finite, or X is too large for the nodes.
        NotImplementedError: the matrix is not 2×2 and p < 2.
    """
    require_matrix("matrix", matrix)
    _checks.require_finite("matrix", matrix)
    _checks.require_within("p", p, 1.0, 2.0, open_low=True)
    scale = _checks.require_real("scale", scale, 0.0)
    nodes = _checks.require_integer("nodes", nodes, 16)
    X = np.asarray(matrix, np.float64)
    if p == 2.0:
        return float(np.sum(X * X)) / (4.0 * scale) + 0.5 * X.size * math.log(math.pi / scale)
    if X.shape != (2, 2):
        raise NotImplementedError(
            f"matrix of shape {X.shape} with p = {p}: an efficient evaluation of the integral (5.30) "
            "over matrices is an open question; 2×2 matrices and p = 2 work, and for all "
            "matrices geometry.lp.SchattenRegularizer"
        )
    # For a = 1, as in the case of vectors.
    X = X / math.sqrt(scale)
    z = 0.5 * math.hypot(X[0, 0] + X[1, 1], X[1, 0] - X[0, 1])
    w = 0.5 * math.hypot(X[0, 0] - X[1, 1], X[1, 0] + X[0, 1])
    most = _SIZE * nodes
    _checks.require(
        z + w <= most, "‖matrix‖ / √scale", z + w, f"at most {most:g} for {nodes} nodes"
    )
    return _log_integral(z, w, p / (p - 1.0), nodes) - 2.0 * math.log(scale)


def schatten_range(radius: float, p: float, scale: float, rows: int, columns: int) -> float:
    """An upper bound on ψ(X) - ψ(0) over ‖X‖_{S_p} <= radius, for every shape.

    ‖Y‖_{S_q} has the radial law of rows·columns dimensions, and Hölder's inequality does the rest.

    Args:
        radius: above 0.
        p: in [1, 2]; the bound is the same for all.
        scale: a, above 0.
        rows: of the matrices.
        columns: of the matrices.

    Raises:
        ValueError: an argument is out of its range.
    """
    radius = _checks.require_real("radius", radius, 0.0)
    _checks.require_within("p", p, 1.0, 2.0)
    scale = _checks.require_real("scale", scale, 0.0)
    size = _checks.require_count("rows", rows) * _checks.require_count("columns", columns)
    return _radial_range.rounded_up(radius / math.sqrt(scale), size)


def _log_integral(z: float, w: float, q: float, nodes: int) -> float:
    points, weights = np.polynomial.legendre.leggauss(nodes)
    points, weights = 0.5 * (points + 1.0), 0.5 * weights
    # r = |ρ - τ|/s by r = v³: r^q has few derivatives at 0.
    r = points**3
    across = 3.0 * points**2 * weights
    # The exponent is at most s(z + w + r|z - w|) - s²·g, but for powers of s, and g is at least 1: where it
    # has fallen by 60 nothing is left.
    g = (1.0 + r**q) ** (2.0 / q)
    top = 0.5 * (z + w + r * abs(z - w)) / g
    low = np.maximum(top - 9.0, 0.0)
    long = top + 9.0 - low
    s = low + long * points[:, None]
    # Half of the integral of ds d(ρ - τ) is that of dρ dτ; the two signs of ρ - τ are two terms.
    scale = -(s**2) * g
    terms = []
    for larger, smaller in ((z, w), (w, z)):
        a, b = 0.5 * s * (1.0 + r), 0.5 * s * (1.0 - r)
        bessel = np.log(scipy.special.ive(0, 2.0 * a * larger)) + 2.0 * a * larger
        bessel = bessel + np.log(scipy.special.ive(0, 2.0 * b * smaller)) + 2.0 * b * smaller
        terms.append(np.log(a) + np.log(b) + bessel + scale)
    measure = np.log(0.5 * s) + np.log(long * weights[:, None]) + np.log(across)
    total = scipy.special.logsumexp(np.logaddexp(*terms) + measure)
    return float(total) + math.log(16.0 * math.pi**2)
