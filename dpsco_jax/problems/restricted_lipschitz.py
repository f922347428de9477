"""Restricted Lipschitz coefficients: how long gradients can be outside of the best k dimensions.

What it computes: G_k = min over orthogonal projections P of rank k of sup_x ‖(I - P)∇F(x)‖, one P for all x,
in two cases. Of gradients A^{1/2}u with ‖u‖ ≤ 1 it is a singular value of A^{1/2}, exactly. Of finitely many
gradients that were seen, the residuals of their best subspace: they depend on data, and bound none of the
G_k that theory asks for. What follows from the coefficients (the pull, the rank, the excess risk) is in
``rates.dimension_free``.

Source: T Definition 11.3.1 and section 11.4.1; the singular value decomposition for section 11.4.2.

Formal guarantee: ``coefficients_from_matrix``: G_k is least possible, since u = v_{k+1} and its rivals span k
+ 1 dimensions, of which a projection of rank k leaves one whole. ``coefficients_from_gradients``: NONE of
privacy, if the gradients come from data: whatever is planned with its result is not private. And the supremum
is over the points that were seen only.

Cost: one singular value decomposition.

Example:
    >>> import numpy as np
    >>> from dpsco_jax.problems import restricted_lipschitz
    >>> restricted_lipschitz.coefficients_from_matrix(np.diag([3.0, 2.0, 1.0]))
    array([3., 2., 1., 0.])
    >>> seen = restricted_lipschitz.coefficients_from_gradients(np.array([[3.0, 4.0], [6.0, 8.0]]))
    >>> seen.largest.round(6) + 0.0
    array([10.,  0.,  0.])
"""

from typing import Any, NamedTuple

import numpy as np

from dpsco_jax._checks import require, require_finite, require_number


class Seen(NamedTuple):
    """Residuals of gradients that were seen outside of their own top k dimensions; not private.

    Attributes:
        largest: max_i ‖(I - V_k V_kᵀ)h_i‖ for k = 0, ..., d, ``[d + 1]``.
        root_mean_square: √(Σ_{j>k} σ_j²/r) for k = 0, ..., d, ``[d + 1]``; the least that is possible.
    """

    largest: np.ndarray
    root_mean_square: np.ndarray


def coefficients_from_matrix(half: Any) -> np.ndarray:
    """G_0, ..., G_d of losses whose gradients are A^{1/2}u with ‖u‖ ≤ 1: singular values, falling, and 0.

    Args:
        half: A^{1/2}, ``[d, m]``, or its diagonal, ``[d]``.

    Returns:
        ``[d + 1]``, float64.
    """
    found = _finite("half", half)
    require(found.ndim in (1, 2) and found.size > 0, "half", found.shape, "[d, m] or [d]")
    values = np.abs(found) if found.ndim == 1 else np.linalg.svd(found, compute_uv=False)
    # Gradients are in d dimensions, however many columns there are.
    return np.append(np.sort(values)[::-1], np.zeros(len(found) + 1 - len(values)))


def coefficients_from_gradients(gradients: Any) -> Seen:
    """Residuals of gradients outside of the span of their top k right singular vectors; not private.

    Args:
        gradients: h_1, ..., h_r, ``[r, d]``.
    """
    found = _finite("gradients", gradients)
    require(found.ndim == 2 and found.size > 0, "gradients", found.shape, "[r, d]")
    count, dim = found.shape
    left, values, _ = np.linalg.svd(found, full_matrices=False)
    # Coordinates along the right vectors, squared; the sums run from the end, so that nothing cancels.
    squares = (left * values) ** 2
    rest = np.concatenate([np.cumsum(squares[:, ::-1], axis=1)[:, ::-1], np.zeros((count, 1))], 1)
    rest = np.pad(rest, ((0, 0), (0, dim + 1 - rest.shape[1])))
    return Seen(np.sqrt(rest.max(axis=0)), np.sqrt(rest.mean(axis=0)))


def _finite(name: str, values: Any) -> np.ndarray:
    require_number(name, values, "an array of real numbers")
    require_finite(name, values)
    return np.asarray(values, np.float64)
