"""What first-order methods with noise do to a quadratic: exact factors for each curvature.

On (h/2)·e², with a gradient h·e + ξ, E ξ = 0 and E ξ² = 1 in each step, the point that a method reports has
the error p·e₀ + (noise of variance c): ``Response(p, c)``, for an array of curvatures h. Exact for quadratics
without constraints.

- ``averaged``: steps of one length η, the mean of w_1, ..., w_T; in closed form, with r = 1 - ηh:
  p = r(1 - r^T)/(T(1 - r)), c = Σ_{k ≤ T} (1 - r^k)²/(hT)²;
- ``scheduled``: steps of given lengths, an average with given shares;
- ``heavy_ball``: v ← βv + (1 - β)·gradient, w ← w - η_t·v, the last point;
- ``ac_sa``: the recursion of ``transforms.ac_sa``, its aggregate.

The last three have two sequences each; their means, variances and covariance are followed step by step, some
tens of microseconds each.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

_LARGEST = 1e100


class Response(NamedTuple):
    """Of a method, for each curvature.

    Attributes:
        kept: p, the factor of the error of the start.
        noise: c, the variance for unit variance of the gradient in each step.
    """

    kept: np.ndarray
    noise: np.ndarray

    def pulled(self, curvatures: np.ndarray, regularization: float) -> "Response":
        """Of the method on (h/2)·e² + (u/2)·(e - e₀)², when this is its response to h + u."""
        off = regularization / (curvatures + regularization)
        return self._replace(kept=self.kept * (1 - off) + off)


def averaged(curvatures: np.ndarray, step_size: float, num_steps: int) -> Response:
    """Steps of one length, all points averaged."""
    h, t = curvatures, num_steps
    q = np.maximum(step_size * h, 1e-12)
    r = 1 - q
    with np.errstate(over="ignore", invalid="ignore"):
        power = r**t
        kept = r * (1 - power) / (t * q)
        total = t - 2 * r * (1 - power) / q + r**2 * (1 - power**2) / (q * (1 + r))
        noise = total * (step_size / (q * t)) ** 2
    # With little curvature the closed form cancels: Σ k²·η²/T², and r^T is near 1.
    flat = q * t < 1e-3
    noise = np.where(flat, step_size**2 * (t + 1) * (2 * t + 1) / (6 * t), noise)
    return _bounded(np.where(flat, 1 - q * (t + 1) / 2, kept), noise)


def scheduled(curvatures: np.ndarray, step_sizes: np.ndarray, shares: np.ndarray) -> Response:
    """Steps of given lengths, and of each point the share that it takes of the average so far."""

    def moves() -> Iterable[Any]:
        for step, share in zip(step_sizes, shares, strict=True):
            r = 1 - step * curvatures
            yield (r, 0.0, share * r, 1 - share), (-step, -share * step)

    return _followed(curvatures, moves(), 1.0, 1)


def heavy_ball(curvatures: np.ndarray, step_sizes: np.ndarray, coefficient: float) -> Response:
    """Steps along a velocity; the last point."""
    new = 1 - coefficient

    def moves() -> Iterable[Any]:
        for step in step_sizes:
            yield (
                (1 - step * new * curvatures, -step * coefficient, new * curvatures, coefficient),
                (-step * new, new),
            )

    return _followed(curvatures, moves(), 0.0, 0)


def ac_sa(
    curvatures: np.ndarray, smoothness: float, strong_convexity: float, num_steps: int
) -> Response:
    """Accelerated stochastic approximation; its aggregate."""

    def moved(t: int) -> Any:
        alpha = 2 / (t + 1)
        m = strong_convexity * t * (t + 1) / (4 * smoothness)
        on = (1 - alpha) * (m + 1) / (1 + (1 - alpha**2) * m)  # of the aggregate in the query
        pull, step = alpha * m / (1 + m), t / (2 * smoothness * (1 + m))
        # The prox point and the aggregate, of themselves.
        slope = pull - step * curvatures
        own, other = slope * (1 - on) + 1 - pull, slope * on
        return (own, other, alpha * own, alpha * other + 1 - alpha), (-step, -alpha * step)

    return _followed(curvatures, (moved(t) for t in range(1, num_steps + 1)), 1.0, 1)


def _followed(
    curvatures: np.ndarray, moves: Iterable[Any], second: float, reported: int
) -> Response:
    """Two sequences, the first starting at 1 and the other at ``second``, under linear maps with noise."""
    x, y = np.ones_like(curvatures), np.full_like(curvatures, second)
    xx, xy, yy = (np.zeros_like(curvatures) for _ in range(3))
    with np.errstate(over="ignore", invalid="ignore"):
        for (a, b, c, d), (p, q) in moves:
            x, y = a * x + b * y, c * x + d * y
            xx, xy, yy = (
                a * a * xx + 2 * a * b * xy + b * b * yy + p * p,
                a * c * xx + (a * d + b * c) * xy + b * d * yy + p * q,
                c * c * xx + 2 * c * d * xy + d * d * yy + q * q,
            )
    return _bounded(y, yy) if reported else _bounded(x, xx)


def _bounded(kept: np.ndarray, noise: np.ndarray) -> Response:
    """A diverging method has a large response, and no infinite one."""
    kept = np.clip(np.nan_to_num(kept, nan=_LARGEST), -_LARGEST, _LARGEST)
    return Response(kept, np.minimum(np.nan_to_num(noise, nan=_LARGEST), _LARGEST))
