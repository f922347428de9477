"""Several releases on one secret draw: the sums that docs/theory/ledger.md proves, and those it refuses.

Laws of two releases are integrated on a grid in float64; nothing here comes from the library.
"""

import numpy as np
import pytest

ORDERS = (1.5, 2.0, 4.0, 16.0)
GRID = np.linspace(-14.0, 14.0, 1401)


def _density(mean, stddev):
    return np.exp(-0.5 * ((GRID - mean) / stddev) ** 2) / (stddev * np.sqrt(2 * np.pi))


def _joint(shift_first, shift_second, first, second):
    """Density of (a, b) on the grid; the mean of b may be a function of a."""
    means = np.broadcast_to(shift_second, GRID.shape)
    rows = np.stack([_density(mean, second) for mean in means])
    return _density(shift_first, first)[:, None] * rows


def _divergence(p, q, order):
    step = GRID[1] - GRID[0]
    cell = step**p.ndim
    kept = (p > 1e-290) & (q > 1e-290)
    log_terms = order * np.log(p[kept]) + (1 - order) * np.log(q[kept])
    return np.log(np.sum(np.exp(log_terms)) * cell) / (order - 1)


def _both_ways(p, q, order):
    return max(_divergence(p, q, order), _divergence(q, p, order))


def _amplified(rate, stddev, order, distance=1.0):
    out = _density(0.0, stddev)
    return _both_ways((1 - rate) * out + rate * _density(distance, stddev), out, order)


SECOND_LOOKS = {
    "same side": lambda a: np.ones_like(a),
    "other side": lambda a: -np.ones_like(a),
    "where the first look saw the user": lambda a: np.where(a > 0.5, 1.0, 0.0),
    "where it did not": lambda a: np.where(a > 0.5, 0.0, 1.0),
    "both": lambda a: np.sign(a - 0.5),
}


@pytest.mark.parametrize("rate", [0.01, 0.3])
@pytest.mark.parametrize("look", SECOND_LOOKS)
def test_one_amplified_look_and_one_in_full(rate, look):
    """Poisson: the curve of the sample plus α/(2σ²), also when the second depends on the first."""
    for first, second in [(1.0, 1.5), (0.9, 3.0)]:
        without = _joint(0.0, 0.0, first, second)
        drawn = _joint(1.0, SECOND_LOOKS[look](GRID), first, second)
        mixed = (1 - rate) * without + rate * drawn
        for order in ORDERS[:3]:
            bound = _amplified(rate, first, order) + order / (2 * second**2)
            assert _both_ways(mixed, without, order) <= bound * (1 + 1e-6) + 1e-9


def test_two_amplified_looks_cost_more_than_their_sum():
    rate, stddev, order = 0.01, 1.0, 4.0
    without = _joint(0.0, 0.0, stddev, stddev)
    mixed = (1 - rate) * without + rate * _joint(1.0, 1.0, stddev, stddev)
    truth = _both_ways(mixed, without, order)
    assert truth > 3 * (2 * _amplified(rate, stddev, order))
    # The truth is that of one look with a shift of √2.
    assert truth == pytest.approx(_amplified(rate, stddev, order, np.sqrt(2)), rel=1e-5)


def test_fixed_size_under_add_or_remove_moves_a_full_look_by_two():
    """Without the user another is drawn: the pair of the document, 0.27 charged, 0.42 true."""
    rate, stddev, order = 0.9, 4.0, 2.0
    shift = 2 / stddev  # in units of the noise, whose tails leave the grid otherwise
    without = _joint(0.0, 0.0, 1.0, 1.0)
    mixed = (1 - rate) * without + rate * _joint(shift, shift, 1.0, 1.0)
    charged = _amplified(rate, stddev / 2, order) + order / (2 * stddev**2)
    truth = _both_ways(mixed, without, order)
    assert truth > 1.3 * charged
    assert truth == pytest.approx(np.log(rate**2 * np.exp(2 * shift**2) + 1 - rate**2), rel=1e-5)
    assert (charged, truth) == pytest.approx((0.27, 0.422), abs=0.002)


def test_no_triple_of_gaussians_makes_all_of_the_same_pairwise_distances():
    """Two users at one point, the third at distance 1, against the equilateral triangle of side 1."""

    def square(squared_distances, c):
        return -0.5 * c @ squared_distances @ c

    equilateral = np.ones((3, 3)) - np.eye(3)
    flat = equilateral.copy()
    flat[0, 1] = flat[1, 0] = 0.0
    c = np.array([1.0, 1.0, -2.0])
    assert (square(flat, c), square(equilateral, c)) == pytest.approx((4.0, 3.0))
