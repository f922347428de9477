"""Are two log-concave laws as close as a Gaussian pair? In one or two dimensions, by sums over a grid.

What it computes: for potentials A and B on a grid, P ∝ exp(-A), Q ∝ exp(-B), the largest Q(S) - e^ε·P(S)
and P(S) - e^ε·Q(S) over sets S of grid points, beside the curve of two Gaussians at distance H/√m.

Source: T Theorems 3.2.1 and 4.1.3, section 4.3: if both potentials are m-strongly convex in a norm in which
B - A is H-Lipschitz, the pair is H/√m-GDP. For whoever wants to see it on potentials of their own.

Formal guarantee: that of the theorem. What was declared is looked at on the grid and refused where it is
seen to be false: differences of B - A between neighbours, and second differences of A and B along the axes
and diagonals. That proves nothing of a potential between the points; a sum over a grid is the integral up
to the grid's error, and mass beyond the grid is left out. Run it on public potentials: it is an experiment,
not a mechanism.

Cost: a sort of the grid's points for each call.

Example:
    >>> import numpy as np
    >>> from dpsco_jax.privacy.audits.grid_curve import gdp_general_norm_check
    >>> axis = np.linspace(-9.0, 10.0, 2001)
    >>> found = gdp_general_norm_check(
    ...     lambda x: x[:, 0] ** 2 / 2, lambda x: (x[:, 0] - 1) ** 2 / 2, [axis], p=2.0,
    ...     lipschitz_diff=1.0, strong_convexity=1.0, epsilons=np.array([0.5, 1.0]))
    >>> bool(np.all(abs(found.deltas / found.claimed - 1) < 1e-4))
    True
"""

import itertools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import scipy.special
from jaxtyping import Float

from dpsco_jax import _checks
from dpsco_jax.privacy.curves.composition import log_gaussian_delta

_LEAST_LOG = -700.0

Potential = Callable[[Float[np.ndarray, "points dim"]], Float[np.ndarray, " points"]]


class GridCurve(NamedTuple):
    """What was found, for each ε.

    Attributes:
        deltas: ``[epsilons]``, the larger of the two directions on the grid.
        claimed: ``[epsilons]``, the Gaussian curve at H/√m.
        ratio: the largest of one over the other.
    """

    deltas: Float[np.ndarray, " epsilons"]
    claimed: Float[np.ndarray, " epsilons"]
    ratio: float


def gdp_general_norm_check(
    potential: Potential,
    other: Potential,
    axes: Sequence[Float[np.ndarray, " points"]],
    *,
    p: float,
    lipschitz_diff: float,
    strong_convexity: float,
    epsilons: Float[np.ndarray, " epsilons"],
) -> GridCurve:
    """The privacy curve of two laws on a grid, beside that of the theorem.

    Args:
        potential: A, of ``[points, dim]``.
        other: B.
        axes: one or two equally spaced, increasing vectors; the grid is their product.
        p: of the norm, in [1, inf].
        lipschitz_diff: H, of B - A in the ℓp norm; above 0.
        strong_convexity: m, of A and of B in the ℓp norm; above 0.
        epsilons: at least 0.

    Raises:
        ValueError: an argument is out of its range, or the grid shows that H or m is not what was declared.
    """
    _checks.require_callable("potential", potential)
    _checks.require_callable("other", other)
    _checks.require_within("p", p, 1.0, float("inf"))
    largest = _checks.require_real("lipschitz_diff", lipschitz_diff, 0.0)
    least = _checks.require_real("strong_convexity", strong_convexity, 0.0)
    _checks.require_nonnegative("epsilons", epsilons)
    several = np.ndim(epsilons) <= 1 and np.size(epsilons) > 0
    _checks.require(several, "epsilons", epsilons, "a number or a vector of them")
    lengths = _axes(axes)
    shape = tuple(len(axis) for axis in lengths)
    points = np.stack([side.ravel() for side in np.meshgrid(*lengths, indexing="ij")], axis=1)
    heights = []
    for name, function in (("potential", potential), ("other", other)):
        values = np.asarray(function(points), np.float64)
        _checks.require(
            values.shape == points.shape[:1], f"{name}, by its shape,", values.shape, "a vector"
        )
        _checks.require_finite(f"values of {name}", values)
        heights.append(values.reshape(shape))
    _require_declared(heights, lengths, p, largest, least)
    log_first, log_second = (
        (-values - scipy.special.logsumexp(-values)).ravel() for values in heights
    )
    wanted = np.atleast_1d(np.asarray(epsilons, np.float64))
    deltas = np.array(
        [max(_excess(log_first, log_second, e), _excess(log_second, log_first, e)) for e in wanted]
    )
    shift = largest / math.sqrt(least)
    logs = np.array([log_gaussian_delta(shift, float(e)) for e in wanted])
    _checks.require(
        np.all(logs > _LEAST_LOG),
        "epsilons",
        epsilons,
        f"such that the Gaussian curve, at its least e^{float(np.min(logs)):.4g}, is a float",
    )
    claimed = np.exp(logs)
    return GridCurve(deltas, claimed, float(np.max(deltas / claimed)))


def _excess(log_first: np.ndarray, log_second: np.ndarray, epsilon: float) -> float:
    """Σ max(first - e^ε·second, 0)."""
    gap = np.minimum(epsilon + log_second - log_first, 0.0)
    return float(np.sum(np.exp(log_first) * -np.expm1(gap)))


def _require_declared(
    heights: list[np.ndarray], axes: list[np.ndarray], p: float, largest: float, least: float
) -> None:
    """``ValueError`` where the grid shows that H is too small or m too large."""
    steps = np.array([axis[1] - axis[0] for axis in axes])
    rounding = 64.0 * np.finfo(np.float64).eps * max(float(np.max(np.abs(h))) for h in heights)
    slopes, bends = [], []
    for signs in itertools.product((-1, 0, 1), repeat=len(axes)):
        # Of a direction and its opposite one is enough.
        if signs <= (0,) * len(axes):
            continue
        length = float(np.linalg.norm(steps * signs, p))
        rise = _shifted(heights[1] - heights[0], signs)
        slopes.append((np.max(np.abs(rise)) - 2.0 * rounding) / length)
        for values in heights:
            bend = _shifted(_shifted(values, signs), signs)
            bends.append((np.min(bend) + 4.0 * rounding) / length**2)
    seen = float(max(slopes))
    _checks.require(
        seen <= largest * (1.0 + 1e-6),
        "lipschitz_diff",
        largest,
        f"at least {seen:.6g}, seen on the grid",
    )
    bent = float(min(bends))
    _checks.require(
        bent >= least * (1.0 - 1e-6),
        "strong_convexity",
        least,
        f"at most {bent:.6g}, seen on the grid",
    )


def _shifted(values: np.ndarray, signs: tuple[int, ...]) -> np.ndarray:
    """What the values grow by along a direction, where both ends are in the grid."""
    ahead = tuple(slice(max(s, 0), min(s, 0) or None) for s in signs)
    behind = tuple(slice(max(-s, 0), min(-s, 0) or None) for s in signs)
    return np.asarray(values[ahead] - values[behind])


def _axes(axes: Sequence[np.ndarray]) -> list[np.ndarray]:
    several = isinstance(axes, list | tuple) and 1 <= len(axes) <= 2
    _checks.require(several, "axes", axes, "a list of one or two vectors")
    lengths = []
    for axis in axes:
        _checks.require_number("axes", axis)
        _checks.require_finite("axes", axis)
        vector = np.asarray(axis, np.float64)
        _checks.require(
            vector.ndim == 1 and len(vector) >= 3, "axes", vector.shape, "of 3 or more points"
        )
        gaps = np.diff(vector)
        even = bool(gaps[0] > 0.0 and np.allclose(gaps, gaps[0], rtol=1e-6, atol=0.0))
        _checks.require(even, "axes", vector, "increasing and equally spaced")
        lengths.append(vector)
    return lengths
