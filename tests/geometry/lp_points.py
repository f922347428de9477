"""Points and NumPy norms for the tests of ℓp and Schatten norms."""

import numpy as np

INF = np.inf
_RNG = np.random.default_rng(0)
SIZE = 9
ROWS, COLUMNS = 4, 3

# Points on which norms differ most and least: sparse, of equal entries, far apart in size, at random.
SPECIAL = np.stack(
    [
        np.eye(SIZE)[0],
        -3.0 * np.eye(SIZE)[4],
        np.ones(SIZE),
        np.array([1.0, -1.0] * 4 + [1.0]),
        10.0 ** -np.arange(SIZE),
        np.array([5.0, 5.0, 5.0, 0, 0, 0, 0, 0, 1e-3]),
        np.zeros(SIZE),
        *_RNG.standard_normal((6, SIZE)),
        *_RNG.standard_t(1.5, (6, SIZE)),
    ]
)
MATRICES = np.stack(
    [
        np.zeros((ROWS, COLUMNS)),
        np.eye(ROWS, COLUMNS),
        np.ones((ROWS, COLUMNS)),
        np.outer(np.arange(ROWS), [1.0, 0.0, -2.0]),
        *_RNG.standard_normal((5, ROWS, COLUMNS)),
    ]
)


def norm(points, p):
    """‖x‖_p along the last axis."""
    largest = np.maximum(np.abs(points).max(axis=-1), 1e-300)
    return largest * np.linalg.norm(points / largest[..., None], p, axis=-1)


def values_of(matrices):
    """Singular values."""
    return np.linalg.svd(matrices, compute_uv=False)


def dual(p):
    """The exponent of the dual norm."""
    return {1.0: INF, INF: 1.0}.get(p) or p / (p - 1)


def pairs(points):
    """All pairs of points: first and second ones."""
    first = np.repeat(points, len(points), axis=0)
    return first, np.tile(points, (len(points), *[1] * (points.ndim - 1)))
